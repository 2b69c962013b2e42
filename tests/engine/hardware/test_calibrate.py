"""Calibration of this machine: its cache, and one quick run of the real thing."""

from __future__ import annotations

import subprocess
import sys
import threading
import warnings

import pytest

from pkb_gym.engine.errors import InfrastructureError
from pkb_gym.engine.hardware import calibrate, measure
from pkb_gym.engine.hardware.calibrate import Calibration, load_or_measure
from pkb_gym.engine.hardware.cpu_info import Cache, CpuInfo, cpu_info
from pkb_gym.engine.hardware.peaks import HardwareSpec, Peaks
from pkb_gym.engine.hardware.tiers import MemoryTier
from pkb_gym.engine.support import env_vars
from pkb_gym.engine.support.atomic_write import write_atomically

DTYPES = ("bfloat16", "float16", "float32", "float64")


def some_peaks(rate: float) -> Peaks:
    return Peaks(
        matrix_flops_per_s=dict.fromkeys(DTYPES, rate),
        vector_flops_per_s=dict.fromkeys(DTYPES, rate),
        memory=(MemoryTier("L1", 1e6, rate), MemoryTier("DRAM", None, rate)),
        link_bytes_per_s=rate,
        link_latency_s=1e-7,
        source="measured by a test",
    )


@pytest.fixture
def runs(monkeypatch):
    """Replaces the measurement by a counter; the nth run measures rates of n Tflop/s and n TB/s."""
    counted: list[int] = []

    def run_child(repetitions: int) -> Calibration:
        counted.append(repetitions)
        rate = len(counted) * 1e12
        key = calibrate.machine_key(cpu_info(), calibrate.find_compiler())
        return Calibration(machine=key, core=some_peaks(rate), all_cores=some_peaks(rate))

    monkeypatch.setattr(calibrate, "run_child", run_child)
    return counted


def cache_file(cache):
    (file,) = (cache / "hardware").iterdir()
    return file


def test_second_call_reads_what_the_first_measured(tmp_path, runs):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        first = load_or_measure(tmp_path)
        assert load_or_measure(tmp_path) == first
    assert len(runs) == 1
    assert [path.name for path in (tmp_path / "hardware").iterdir()] == [cache_file(tmp_path).name], "temporary files"


def test_others_wait_for_the_measurement(tmp_path, monkeypatch):
    """Processes that began together each measured, beside the others."""

    def run_child(_):
        other.start()  # raises where a second one measures
        other.join(0.1)
        assert not found
        key = calibrate.machine_key(cpu_info(), calibrate.find_compiler())
        return Calibration(machine=key, core=some_peaks(1e12), all_cores=some_peaks(1e12))

    found = []
    other = threading.Thread(target=lambda: found.append(load_or_measure(tmp_path)))
    monkeypatch.setattr(calibrate, "run_child", run_child)
    first = load_or_measure(tmp_path)
    other.join(60)
    assert found == [first]


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe", b'{"schema_version": 0}', b"[]"])
def test_corrupt_cache_is_replaced_with_one_warning(tmp_path, runs, content):
    load_or_measure(tmp_path)
    cache_file(tmp_path).write_bytes(content)
    with pytest.warns(RuntimeWarning, match="cannot be read .*; measured anew. PKB_CACHE_DIR") as warned:
        load_or_measure(tmp_path)
    assert len(warned) == 1
    assert len(runs) == 2
    assert load_or_measure(tmp_path).measured == some_peaks(2e12)
    assert len(runs) == 2


def test_file_of_another_machine_is_not_believed(tmp_path, runs):
    load_or_measure(tmp_path)
    file = cache_file(tmp_path)
    other = Calibration.model_validate_json(file.read_bytes()).model_copy(update={"machine": "another"})
    file.write_text(other.model_dump_json())
    with pytest.warns(RuntimeWarning, match="describes machine another"):
        load_or_measure(tmp_path)
    assert len(runs) == 2


def test_unwritable_cache_gives_one_warning_and_does_no_harm(tmp_path, runs):
    blocked = tmp_path / "file"
    blocked.write_text("a file where a folder is needed fails for root too")
    with pytest.warns(RuntimeWarning, match="cannot be written .* measured again each time") as warned:
        hardware = load_or_measure(blocked)
    assert len(warned) == 1
    assert hardware.measured == some_peaks(1e12)


def test_peaks_stand_above_what_was_measured(tmp_path, runs):
    hardware = load_or_measure(tmp_path)
    assert hardware.core is not None
    for ceiling in (hardware.peaks, hardware.core):
        assert ceiling.matrix_flops_per_s["float32"] == pytest.approx(1.1e12)
        assert ceiling.vector_flops_per_s["float32"] == pytest.approx(1.1e12)
        assert ceiling.memory[0] == MemoryTier("L1", 1e6, 1.5e12)
        assert ceiling.link_bytes_per_s == pytest.approx(1.5e12)
        assert ceiling.link_latency_s == pytest.approx(1e-7 / 1.5)
        assert "measured by a test" in ceiling.source


def test_key_distinguishes_machines():
    info = CpuInfo("model", "abc", 2, (Cache("L1", 1024, 2048),))
    key = calibrate.machine_key(info, "g++")
    assert key != calibrate.machine_key(info, None)
    assert key != calibrate.machine_key(CpuInfo("model", "abd", 2, info.caches), "g++")
    assert key != calibrate.machine_key(CpuInfo("model", "abc", 4, info.caches), "g++")
    assert key != calibrate.machine_key(CpuInfo("model", "abc", 2, (Cache("L1", 1024, 4096),)), "g++")


def test_failing_child_is_infrastructure_failure_and_shows_its_output(monkeypatch):
    monkeypatch.setattr(calibrate.sys, "executable", "/bin/false")
    with pytest.raises(InfrastructureError, match="exited with 1"):
        calibrate.run_child(1)


def test_the_real_thing_quickly(tmp_path):
    hardware = load_or_measure(tmp_path, repetitions=1)
    info = cpu_info()
    assert (hardware.device, hardware.cores) == ("cpu", info.cores)
    core, machine = hardware.core, hardware.peaks
    assert core is not None
    assert set(core.matrix_flops_per_s) == set(core.vector_flops_per_s) == set(DTYPES)
    assert core.matrix_flops_per_s["bfloat16"] >= core.matrix_flops_per_s["float32"]
    assert core.matrix_flops_per_s["float16"] >= core.matrix_flops_per_s["float32"]
    assert [tier.name for tier in core.memory] == [*(cache.name for cache in info.caches), "DRAM"]
    for dtype in DTYPES:
        assert machine.matrix_flops_per_s[dtype] == pytest.approx(core.matrix_flops_per_s[dtype] * info.cores)
        assert 1e8 < core.matrix_flops_per_s[dtype] < 1e15, "not in flop/s"
    assert 1e8 < core.link_bytes_per_s < 1e13, "not in bytes/s"
    assert machine.memory[-1].bytes_per_s >= core.memory[-1].bytes_per_s
    assert HardwareSpec.model_validate_json(hardware.model_dump_json()) == hardware
    assert cache_file(tmp_path).is_file()


def test_torch_serves_where_there_is_no_compiler():
    info = cpu_info()
    core, machine = measure.measure(info, None, repetitions=1)
    assert set(core.matrix_flops_per_s) == set(core.vector_flops_per_s) == set(DTYPES)
    rates = [tier.bytes_per_s for tier in core.memory]
    assert len(rates) == len(info.caches) + 1
    assert rates == sorted(rates, reverse=True), "a smaller cache is never slower"
    assert core.link_latency_s is None
    assert machine.source == "measured by torch"


def test_program_that_does_not_compile_falls_back(monkeypatch, tmp_path):
    broken = tmp_path / "broken.cpp"
    broken.write_text("int main( {")
    monkeypatch.setattr(measure, "SOURCE", broken)
    compiler = calibrate.find_compiler() or "no-such-compiler"
    assert measure._compiled_rates(cpu_info(), compiler, 1) is None


def test_matrix_peaks_know_units_that_the_program_does_not():
    formula = {"float32": 100.0, "float64": 50.0, "bfloat16": 200.0}
    products = {"float32": 90.0, "float64": 55.0, "bfloat16": 1000.0, "float16": 3.0}
    assert measure._matrix_peaks(formula, products) == {
        "bfloat16": 1500.0,  # far beyond the known instruction: a library on a matrix unit, with headroom
        "float16": 100.0,  # converted to float32 it is faster than the library's slow path
        "float32": 100.0,
        "float64": 55.0,
    }


def test_the_caller_imports_no_torch():
    code = (
        "import sys, pkb_gym.engine.hardware.calibrate, pkb_gym.engine.records.roofline, pkb_gym.envs.text.topology;"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_environment_is_read_when_asked(monkeypatch, tmp_path):
    monkeypatch.setenv("PKB_CACHE_DIR", str(tmp_path))
    assert env_vars.cache_dir() == tmp_path
    monkeypatch.setenv("HOME", "/home/someone")
    monkeypatch.setenv("PKB_CACHE_DIR", "")
    assert str(env_vars.cache_dir()) == "/home/someone/.cache/pkb-gym"
    monkeypatch.setenv("TORCH_SYMM_MEM_DISABLE_MULTICAST", "1")
    assert env_vars.multicast_disabled()
    monkeypatch.setenv("TORCH_SYMM_MEM_DISABLE_MULTICAST", "0")
    assert not env_vars.multicast_disabled()


def test_atomic_write_leaves_the_old_file_where_it_fails(tmp_path, monkeypatch):
    path = tmp_path / "folder" / "file"
    write_atomically(path, "old")
    monkeypatch.setattr("os.replace", lambda *_: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError, match="disk full"):
        write_atomically(path, b"new")
    assert path.read_text() == "old"
    assert list(path.parent.iterdir()) == [path]
