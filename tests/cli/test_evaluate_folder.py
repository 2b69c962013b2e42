"""`pkb eval-dir` with a fake evaluator."""

import fcntl
import json
import subprocess
import sys

import pytest

from pkb_gym.engine.records.attempt_file import read_attempts
from pkb_gym.rewards import find_reward


@pytest.fixture
def folder(tmp_path):
    """Two that pass, one that fails."""
    (tmp_path / "all_reduce.cpp").write_text("passed")
    (tmp_path / "72_hyena_forward_cp_cuda.py").write_text("passed")
    (tmp_path / "sample_sort.cpp").write_text("deadlock")
    return tmp_path


def lines(path):
    return read_attempts(path)


def test_judges_every_file_and_prints_a_table(pkb, folder):
    ran = pkb("eval-dir", folder, "--jobs", 2)
    assert ran.status == 1
    assert sorted(name for name, _, _ in ran.calls) == ["AllReduce", "HyenaCP", "SampleSort"]
    rows = [line.split()[:3] for line in ran.out.splitlines() if ".cpp " in line or ".py " in line]
    assert rows == [
        ["all_reduce.cpp", "AllReduce", "passed"],
        ["72_hyena_forward_cp_cuda.py", "HyenaCP", "passed"],
        ["sample_sort.cpp", "SampleSort", "deadlock"],
    ]
    assert "2.00x" in ran.out and "2 of 3 passed." in ran.out
    assert "sample_sort.cpp: deadlock: because\n    of it" in ran.out
    assert "[3/3]" in ran.err and "[3/3]" not in ran.out
    results = lines(folder / "results.jsonl")
    for result in results:
        assert result.source == (folder / result.file).read_text() and result.request_key
        assert (result.reward, result.reward_name) == (find_reward("default")(result.feedback), "default")
        assert result.reply is None and result.duration_s >= 0
    assert {result.file for result in results} == {path.name for path in folder.iterdir()} - {"results.jsonl"}


def test_all_passed_is_exit_status_0_and_json_prints_the_records_alone(pkb, folder, tmp_path):
    (folder / "sample_sort.cpp").write_text("passed")
    ran = pkb("eval-dir", folder, "--json", "--output", folder / "out" / "r.jsonl")
    assert ran.status == 2 and "cannot write results" in ran.err
    ran = pkb("eval-dir", folder, "--json", "--output", folder / "r.jsonl")
    assert ran.status == 0
    records = [json.loads(line) for line in ran.out.splitlines()]
    assert [r["file"] for r in records] == ["all_reduce.cpp", "72_hyena_forward_cp_cuda.py", "sample_sort.cpp"]
    assert not (folder / "results.jsonl").exists()


def test_resumes_without_judging_again(pkb, folder):
    first = pkb("eval-dir", folder, "--seed", 1)
    (folder / "gather.cpp").write_text("passed")
    second = pkb("eval-dir", folder, "--seed", 1)
    assert [name for name, _, _ in second.calls] == ["Gather"]
    assert second.status == 1, "an earlier failure still counts"
    assert "3 already judged, 1 to judge" in second.err
    assert "3 of 4 passed." in second.out
    third = pkb("eval-dir", folder, "--seed", 1)
    assert third.evaluators == [] and third.out == second.out
    assert len(first.calls) == 3 and len(lines(folder / "results.jsonl")) == 4


def test_resuming_under_another_configuration_is_refused_with_the_fields_that_differ(pkb, folder):
    pkb("eval-dir", folder, "--size", "M=8,N=4")
    ran = pkb("eval-dir", folder, "--size", "M=8,N=2", "--seed", 7)
    assert ran.status == 2 and ran.out == "" and not ran.evaluators
    assert "seed was 0, is 7" in ran.err
    assert "size.N was 4, is 2" in ran.err
    assert "world_size" not in ran.err
    assert pkb("eval-dir", folder, "--size", "M=8,N=4").evaluators == []


def test_changed_source_is_judged_again_and_its_last_result_counts(pkb, folder):
    pkb("eval-dir", folder)
    (folder / "sample_sort.cpp").write_text("passed now")
    ran = pkb("eval-dir", folder)
    assert [name for name, _, _ in ran.calls] == ["SampleSort"]
    assert ran.status == 0
    assert pkb("eval-dir", folder).status == 0


def test_a_source_that_is_no_text_is_judged_once(pkb, folder):
    (folder / "gather.cpp").write_bytes(b"rejected \xff")
    assert "Gather" in [name for name, _, _ in pkb("eval-dir", folder).calls]
    assert pkb("eval-dir", folder).evaluators == []


def test_an_infrastructure_failure_is_no_result_and_is_tried_again(pkb, folder):
    (folder / "sample_sort.cpp").write_text("infrastructure")
    (folder / "gather.cpp").write_text("broken")
    ran = pkb("eval-dir", folder)
    assert ran.status == 3
    assert "could not be judged here: gather.cpp: the machine is on fire" in ran.err
    again = pkb("eval-dir", folder)
    assert sorted(name for name, _, _ in again.calls) == ["Gather", "SampleSort"]


def test_others_are_listed_and_not_fatal(pkb, folder):
    (folder / "sample_sort.cpp").write_text("usage")
    (folder / "notes.txt").touch()
    (folder / "mystery.cpp").touch()
    (folder / "gather.cpp").symlink_to("nowhere")
    ran = pkb("eval-dir", folder)
    assert ran.status == 0
    assert "passed over: sample_sort.cpp: SampleSort: no such thing" in ran.err
    assert "passed over: notes.txt: suffix '.txt'" in ran.err
    assert "passed over: mystery.cpp: its name names no problem" in ran.err
    assert "passed over: gather.cpp: cannot read" in ran.err


@pytest.mark.parametrize("names", [(), ("mystery.cpp",)])
def test_nothing_to_judge_is_wrong_usage(pkb, tmp_path, names):
    for name in names:
        (tmp_path / name).touch()
    ran = pkb("eval-dir", tmp_path)
    assert ran.status == 2
    assert f"nothing to judge in {tmp_path}" in ran.err
    assert not (tmp_path / "results.jsonl").exists()


def test_missing_folder_is_wrong_usage(pkb, tmp_path):
    ran = pkb("eval-dir", tmp_path / "nowhere")
    assert ran.status == 2 and "cannot read folder" in ran.err


def test_line_that_a_killed_writer_left_is_cut_off(pkb, folder):
    pkb("eval-dir", folder)
    path = folder / "results.jsonl"
    whole, before = path.read_bytes(), lines(path)
    path.write_bytes(whole[:-20])
    ran = pkb("eval-dir", folder)
    assert len(ran.calls) == 1
    after = lines(path)
    assert after[:2] == before[:2] and len(after) == 3
    assert after[2].model_copy(update={"duration_s": None}) == before[2].model_copy(update={"duration_s": None})


@pytest.mark.parametrize("content", ["not ours\n", "not ours", '{"schema_version": 99}\n'])
def test_file_that_holds_something_else_is_left_alone(pkb, folder, content):
    path = folder / "results.jsonl"
    path.write_text(content)
    ran = pkb("eval-dir", folder)
    assert ran.status == 2 and "--output names another" in ran.err
    assert path.read_text() == content


def test_two_writers_are_refused(pkb, folder):
    pkb("eval-dir", folder)
    with (folder / "results.jsonl").open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        ran = pkb("eval-dir", folder)
    assert ran.status == 2 and "is being written by another" in ran.err


def test_ctrl_c_keeps_what_was_judged_and_leaves(pkb, folder):
    (folder / "sample_sort.cpp").write_text("interrupt")
    ran = pkb("eval-dir", folder, "--jobs", 1)
    assert ran.status == 130 and ran.out == ""
    assert ran.err.endswith("pkb: interrupted; the same command continues\n")
    assert len(lines(folder / "results.jsonl")) == 2
    again = pkb("eval-dir", folder, "--jobs", 1)
    assert [name for name, _, _ in again.calls] == ["SampleSort"]


def test_full_disk_is_infrastructure_failure_and_leaves_whole_lines(folder):
    """The limit on file sizes makes writes fall short as a full disk does."""
    code = f"""
import resource, signal, sys
from tests.cli.conftest import FakeEvaluator
from pkb_gym.cli import main
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (3000, 3000))
sys.exit(main(["eval-dir", {str(folder)!r}, "--jobs", "1"], FakeEvaluator))
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert ran.returncode == 3, ran.stderr
    assert "cannot write results" in ran.stderr
    content = (folder / "results.jsonl").read_text()
    assert content == "" or content.endswith("\n")
    assert len(lines(folder / "results.jsonl")) < 3


def test_compiled_and_not_run_is_never_passed(pkb, folder):
    """On machines without GPUs, CUDA sources that compiled were counted as passed."""
    (folder / "sample_sort.cpp").write_text("compiled_only")
    ran = pkb("eval-dir", folder)
    assert ran.status == 3
    assert "2 of 3 passed. 1 compiled and not run: this machine has no GPU; --device emulated runs" in ran.out
    assert any(line.split()[:3] == ["sample_sort.cpp", "SampleSort", "compiled_only"] for line in ran.out.splitlines())
    again = pkb("eval-dir", folder)
    assert [name for name, _, _ in again.calls] == ["SampleSort"]


def test_the_reward_may_be_chosen(pkb, folder):
    pkb("eval-dir", folder, "--reward", "tests.rewards.my_rewards:doubled")
    found = {result.file: result.reward for result in lines(folder / "results.jsonl")}
    assert found == {"all_reduce.cpp": 4.0, "72_hyena_forward_cp_cuda.py": 4.0, "sample_sort.cpp": 0.0}
    ran = pkb("eval-dir", folder, "--reward", "keven")
    assert ran.status == 2 and "no reward 'keven'. Did you mean 'kevin'?" in ran.err


def test_names_of_files_do_nothing_to_the_terminal(pkb, tmp_path):
    """Whoever hands a folder over chooses them: title, clipboard, whatever a terminal obeys."""
    sequence = "\x1b]0;title\x07\u202e"
    (tmp_path / f"all_reduce.{sequence}.cpp").write_text("deadlock")
    (tmp_path / f"{sequence}.cpp").write_text("of no problem")
    (tmp_path / "gather.\n[2 of 2] reduce.cpp: passed\n.cpp").write_text("deadlock")
    ran = pkb("eval-dir", tmp_path)
    assert ran.status == 1
    assert "gather.\\n[2 of 2] reduce" in ran.out and "gather.\\n[2 of 2] reduce" in ran.err
    assert not any(line.startswith("[2 of 2] reduce") for line in (ran.out + ran.err).splitlines())
    shown = "all_reduce.\\x1b]0;title\\x07\\u202e.cpp"
    assert shown in ran.out and shown in ran.err and f"passed over: {shown[11:]}" in ran.err
    ran = pkb("eval", "AllReduce", tmp_path / sequence)
    assert ran.status == 2 and "cannot read" in ran.err and "\\x1b]0;title" in ran.err
    for text in (ran.out, ran.err):
        assert text.replace("\n", "").isprintable()
