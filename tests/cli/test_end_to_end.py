"""`pkb` with the real evaluator, as a process of its own."""

import os
import signal
import subprocess
import sys
import time

import psutil
import pytest

from pkb_gym.cli import demo, main
from pkb_gym.engine.compile.cache import CompileCache
from pkb_gym.engine.records.feedback import Failure
from tests.engine.joined_libraries import compile_together
from tests.serve.forwarding import Borrowed
from tests.waiting import PATIENCE_S

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
    argv = [*PKB, "eval", "AllReduce", str(tmp_path / "endless.cpp"), "--device", "cpu", "--world-size", "2"]
    argv += ["--size", "tiny", "--timeout", "60"]
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
        time.sleep(0.3)
        children = psutil.Process(process.pid).children(recursive=True)
        os.killpg(process.pid, signal.SIGINT)
        assert process.wait(PATIENCE_S) == 130
        assert process.stdout.read() == ""
        assert "interrupted" in process.stderr.read()
    assert children
    assert psutil.wait_procs(children, timeout=PATIENCE_S)[1] == [], "still alive"


@pytest.mark.slow
def test_demo_shows_what_each_attempt_is_meant_to_show(local_evaluator, compiled_before, monkeypatch, capsys):
    kernels = [each.source for each in demo.attempts() if each.mistake is None or each.mistake.expected == Failure.RACE]
    compile_together(kernels, CompileCache.in_folder(compiled_before))
    monkeypatch.setattr(demo, "CONFIG", demo.CONFIG.model_copy(update={"size": "tiny", "timing_budget_s": 0.1}))
    assert main(["demo"], lambda _: Borrowed(local_evaluator)) == 0
    shown = capsys.readouterr().out
    for mistake in demo.MISTAKES:
        assert f"{mistake.name}: {mistake.expected}: " in shown, shown
    for attempt in ("naive", "expert"):
        (row,) = [line for line in shown.splitlines() if line.startswith(f"{attempt} ")]
        assert " passed " in row, shown
