"""Files of proc(5)."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

from pkb_gym.engine.support.proc_files import read_proc, seconds_of_process


def test_the_state_of_a_process_is_read_while_there_is_one() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        assert read_proc(f"/proc/{process.pid}/stat").split()[3] == str(os.getpid()).encode()
        process.kill()
        process.wait()
        with pytest.raises(OSError, match=str(process.pid)):
            read_proc(f"/proc/{process.pid}/stat")


def test_a_process_knows_how_long_it_has_run() -> None:
    code = "from pkb_gym.engine.support.proc_files import seconds_of_process as s; print(s())"
    began = time.monotonic()
    printed = subprocess.check_output([sys.executable, "-c", f"import time; time.sleep(0.1); {code}"], text=True)
    tick_s = 1 / os.sysconf("SC_CLK_TCK")
    assert 0.1 <= float(printed) <= time.monotonic() - began + tick_s
    assert seconds_of_process() > float(printed)
