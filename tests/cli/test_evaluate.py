"""`pkb eval` with a fake evaluator."""

import json

import pytest

from pkb_gym.engine.records.feedback import Failure, Feedback


@pytest.mark.parametrize(
    ("source", "status"),
    [(b"passed", 0), (b"compile_error", 1), (b"output_mismatch", 1), (b"deadlock", 1), (b"infrastructure", 3)],
)
def test_exit_status_attributes_the_failure(pkb, source, status):
    ran = pkb("eval", "AllReduce", "-", "--json", stdin=source)
    assert ran.status == status
    feedback = Feedback.model_validate_json(ran.out)
    assert feedback.failure == (None if status == 0 else Failure(source.decode()))


def test_json_is_the_record_alone_and_progress_goes_to_stderr(pkb):
    ran = pkb("eval", "PKB/HyenaCP-v0", "-", "--json", stdin=b"passed")
    assert json.loads(ran.out)["problem"] == "HyenaCP"
    assert "HyenaCP: compile" in ran.err


@pytest.mark.parametrize("source", [b"passed", b"output_mismatch"])
def test_card_is_for_people(pkb, source):
    ran = pkb("eval", "AllReduce", "-", stdin=source)
    assert "AllReduce" in ran.out
    assert source == b"passed" or "because" in ran.out
    assert not ran.out.startswith("{") and "\x1b" not in ran.out


def test_file_is_read(pkb, tmp_path):
    (tmp_path / "kernel.cpp").write_text("passed // é")
    ran = pkb("eval", "AllReduce", tmp_path / "kernel.cpp")
    assert ran.calls[0][1] == "passed // é"


def test_cu_file_is_of_language_cuda(pkb, tmp_path):
    (tmp_path / "kernel.cu").write_text("passed")
    assert pkb("eval", "AllReduce", tmp_path / "kernel.cu").calls[0][2].language == "cuda"
    assert pkb("eval", "AllReduce", tmp_path / "kernel.cu", "--language", "cpp").calls[0][2].language == "cpp"


def test_bytes_that_are_no_text_reach_the_evaluator(pkb):
    ran = pkb("eval", "AllReduce", "-", "--until", "compile", stdin=b"usage \xff\x00")
    assert ran.calls[0][1] == "usage \udcff\x00"


@pytest.mark.parametrize("name", ["missing.cpp", "."])
def test_file_that_cannot_be_read_is_wrong_usage(pkb, tmp_path, name):
    ran = pkb("eval", "AllReduce", tmp_path / name)
    assert ran.status == 2
    assert f"pkb: error: cannot read {tmp_path / name}: " in ran.err
    assert not ran.evaluators


def test_failure_names_the_command_that_repeats_it(pkb):
    ran = pkb("eval", "AllReduce", "-", "--size", "M=8,N=4", stdin=b"output_mismatch")
    key = ran.evaluators[0].key
    assert key is not None and len(key) == 16
    assert f"pkb eval AllReduce - --size M=8,N=4 --replay-key {key.hex()}" in ran.err
    again = pkb("eval", "AllReduce", "-", "--replay-key", key.hex(), stdin=b"output_mismatch")
    assert again.evaluators[0].key == key
    assert again.err.count("--replay-key") == 1


def test_two_runs_have_two_keys(pkb):
    keys = {pkb("eval", "AllReduce", "-", stdin=b"passed").evaluators[0].key for _ in range(2)}
    assert len(keys) == 2


def test_trace_is_a_file_for_a_viewer(pkb, tmp_path):
    path = tmp_path / "new" / "timeline.json"
    ran = pkb("eval", "AllReduce", "-", "--trace", path, stdin=b"passed")
    assert ran.status == 0 and ran.calls[0][2].trace
    (drawn,) = [entry for entry in json.loads(path.read_text())["traceEvents"] if entry["ph"] == "X"]
    assert (drawn["name"], drawn["pid"], drawn["ts"], drawn["dur"]) == ("call 0", 1, 0.5, 2)
    assert f"1 slices in {path}" in ran.err


def test_no_trace_where_nothing_was_profiled(pkb, tmp_path):
    ran = pkb("eval", "AllReduce", "-", "--trace", tmp_path / "t.json", stdin=b"deadlock")
    assert ran.status == 1 and "no trace was written: nothing was profiled" in ran.err
    assert not list(tmp_path.iterdir())


def test_trace_needs_the_profile(pkb, tmp_path):
    ran = pkb("eval", "AllReduce", "-", "--trace", tmp_path / "t.json", "--until", "check", stdin=b"passed")
    assert ran.status == 2 and "--trace needs the profile; leave out --until check" in ran.err
    assert not ran.calls


def test_trace_that_cannot_be_written_is_wrong_usage(pkb, tmp_path):
    (tmp_path / "file").write_text("")
    ran = pkb("eval", "AllReduce", "-", "--trace", tmp_path / "file" / "t.json", stdin=b"passed")
    assert ran.status == 2 and f"cannot write {tmp_path / 'file' / 't.json'}" in ran.err


def test_without_trace_none_is_asked_for(pkb):
    assert not pkb("eval", "AllReduce", "-", stdin=b"passed").calls[0][2].trace


def test_compiled_and_not_run_is_not_judged(pkb):
    ran = pkb("eval", "AllReduce", "-", stdin=b"compiled_only")
    assert ran.status == 3 and "again" not in ran.err
    assert "passed" not in ran.out and "compiled_only" in ran.out
    assert "emulated" not in ran.err, "a model of GPUs runs CUDA C++ alone"


def test_cuda_without_a_gpu_points_to_the_emulated_device(pkb, tmp_path):
    (tmp_path / "k.cu").write_text("compiled_only")
    ran = pkb("eval", "AllReduce", tmp_path / "k.cu", "--device", "cuda", "--world-size", "2")
    command = f"pkb eval AllReduce {tmp_path / 'k.cu'} --world-size 2 --device emulated"
    assert ran.status == 3 and f"on a model of GPUs, slowly and untimed: {command}\n" in ran.err
