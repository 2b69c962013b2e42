"""Commands and scripts that build the harness, and those that run it."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from pkb_gym.engine.compile import nvcc
from pkb_gym.engine.compile.gxx import openmp_flags
from pkb_gym.engine.debugging.harness_build import BUILDS, build_script, harness_command, harness_files, kernel_command
from pkb_gym.engine.debugging.kept_run import run_script
from pkb_gym.engine.records.config import SANITIZERS
from tests.waiting import PATIENCE_S


@pytest.mark.parametrize("sanitizer", ["address", "undefined", "thread"])
def test_a_sanitizer_is_asked_of_kernel_and_harness(sanitizer: str):
    for command in (kernel_command("cpp", sanitizer, ""), harness_command("cpp", sanitizer)):  # type: ignore[arg-type]
        assert f"-fsanitize={sanitizer}" in command


def test_a_kept_source_is_compiled_without_what_is_for_the_evaluator():
    assert "-H" not in kernel_command("cpp", "release", "")


@pytest.mark.parametrize(
    ("source", "threads"),
    [
        ("#include <omp.h>\n", True),
        ("#pragma omp parallel for\n", True),
        ("#  pragma  omp  parallel\n", True),
        ('_Pragma("omp parallel")\n', True),
        ("#pragma omp simd\n", False),
        ("#pragma omp declare simd\n", False),
        ("int omp; int parallel;\n", False),
    ],
)
def test_parallel_regions_of_openmp_have_its_threads(source: str, threads: bool):
    """Pragmas were passed over, and functions of OpenMP undefined."""
    assert bool(openmp_flags(source)) is threads
    assert ("-fopenmp" in kernel_command("cpp", "release", source)) is threads


def test_scripts_are_sound_and_list_their_builds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(nvcc, "default_architecture", lambda: "sm_90a")
    monkeypatch.setattr(nvcc, "find_toolkit", lambda: Path("/cuda"))
    scripts = [build_script("cpp", ""), build_script("cuda", ""), run_script(2), run_script(8, SANITIZERS["cuda"])]
    for text in scripts:
        subprocess.run(["bash", "-n"], input=text, text=True, check=True)
    assert all(f"  {build})" in scripts[0] for build in BUILDS["cpp"])
    assert "ranks=8\n" in scripts[3] and 'tools=" memcheck racecheck synccheck initcheck "' in scripts[3]


def test_an_unknown_build_names_those_that_there_are(tmp_path: Path):
    script = tmp_path / "build.sh"
    script.write_text(build_script("cpp", ""))
    ran = subprocess.run(["bash", script, "memcheck"], capture_output=True, text=True)
    assert ran.returncode == 64
    assert "no build 'memcheck'; there are release debug address undefined thread" in ran.stderr


def test_the_harness_comes_with_its_headers():
    files = harness_files()
    texts = [content.decode() for content in files.values()]
    included = {name for text in texts for name in re.findall(r'#include "(harness\w+\.h)"', text)}
    assert included == files.keys() - {"harness.cpp"} and included


@pytest.mark.parametrize("on_signal", ["", "trap '' TERM\n"], ids=["ends-on-SIGTERM", "ignores-SIGTERM"])
def test_compute_sanitizer_runs_every_rank_and_the_first_finding_ends_the_others(
    on_signal: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """With a stand-in for the tool that finds something on rank 1, while rank 0 waits for it."""
    tool = tmp_path / "compute-sanitizer"
    tool.write_text(f'#!/bin/sh\n{on_signal}echo "$@"\ncase "$*" in *" 1") exit 86 ;; *) exec sleep 60 ;; esac\n')
    tool.chmod(0o755)
    (tmp_path / "run.sh").write_text(run_script(2, SANITIZERS["cuda"], grace_s=0))
    (tmp_path / "harness-release").touch()
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    ran = subprocess.run(["bash", tmp_path / "run.sh", "memcheck"], capture_output=True, text=True, timeout=PATIENCE_S)
    assert ran.returncode == 86, ran.stderr
    assert "--tool memcheck --error-exitcode 86 ./harness-release . ./kernel-release.so" in ran.stdout
    assert not list(Path("/dev/shm").glob("pkb-heap-*"))
