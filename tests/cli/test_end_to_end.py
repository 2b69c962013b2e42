"""`pkb` with the real evaluator, as a process of its own."""

import os
import signal
import subprocess
import sys
import time

import psutil
import pytest

from pkb_gym.cli.demo import MISTAKES

PKB = (sys.executable, "-m", "pkb_gym.cli")

ENDLESS = """
#include "pkb/symm.h"
void solution(tvm::ffi::TensorView tensor, tvm::ffi::TensorView out, pkb::Comm comm) {
  comm.wait(0, comm.epoch);  // nobody ever signals
}
TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
"""


def test_ctrl_c_ends_everything(tmp_path):
    (tmp_path / "endless.cpp").write_text(ENDLESS)
    argv = [*PKB, "eval", "AllReduce", str(tmp_path / "endless.cpp"), "--device", "cpu", "--timeout", "60"]
    # A session of its own, so that the signal reaches its whole process group as Ctrl-C does, and nobody else.
    with subprocess.Popen(
        argv,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # ignored, where tests run in the background
    ) as process:
        assert process.stderr is not None and process.stdout is not None
        while "check" not in (line := process.stderr.readline()):
            assert line, "it ended before the check"
        time.sleep(1.0)
        children = psutil.Process(process.pid).children(recursive=True)
        os.killpg(process.pid, signal.SIGINT)
        assert process.wait(20) == 130
        assert process.stdout.read() == ""
        assert "interrupted" in process.stderr.read()
    assert children
    assert psutil.wait_procs(children, timeout=5)[1] == [], "still alive"


@pytest.mark.slow
def test_demo_shows_what_each_attempt_is_meant_to_show():
    ran = subprocess.run([*PKB, "demo"], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    for mistake in MISTAKES:
        assert f"{mistake.name}: {mistake.expected}: " in ran.stdout, ran.stdout
    for attempt in ("naive", "expert"):
        (row,) = [line for line in ran.stdout.splitlines() if line.startswith(f"{attempt} ")]
        assert " passed " in row, ran.stdout
