"""Files of proc(5)."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from pkb_gym.engine.support.proc_files import read_proc


def test_the_state_of_a_process_is_read_while_there_is_one() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        assert read_proc(f"/proc/{process.pid}/stat").split()[3] == str(os.getpid()).encode()
        process.kill()
        process.wait()
        with pytest.raises(OSError, match=str(process.pid)):
            read_proc(f"/proc/{process.pid}/stat")
