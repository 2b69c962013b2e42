"""Flags of builds for finding mistakes."""

from __future__ import annotations

import pytest

from pkb_gym.engine.compile import nvcc
from pkb_gym.engine.compile.debug_build import gxx_flags, nvcc_flags
from pkb_gym.engine.compile.gxx import FLAGS


def test_a_debug_build_is_not_optimised_and_knows_its_variables():
    flags = gxx_flags("debug")
    assert "-O3" not in flags and "-g1" not in flags
    assert {"-O0", "-g", "-fsanitize=bounds"} < set(flags)
    assert gxx_flags("release") == FLAGS


def test_gpu_builds_have_lines_of_device_code(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(nvcc, "default_architecture", lambda: "sm_90a")
    assert "-lineinfo" in nvcc_flags("release") and "-G" in nvcc_flags("debug")
    assert "-O3" not in nvcc_flags("debug")
    assert not any("-g1" in flag for flag in nvcc_flags("debug"))
