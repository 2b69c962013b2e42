"""What a result says of the run that made it."""

from __future__ import annotations

import sys

import pytest

from benchmarks.common import header


def test_the_command_names_files_without_the_folders_of_the_machine(monkeypatch: pytest.MonkeyPatch):
    words = "-m benchmarks.some --model /home/somebody/models/m.gguf --data data/x --log=/tmp/a/l --out /tmp/out"
    monkeypatch.setattr(sys, "orig_argv", ["/usr/bin/python3", *words.split()])
    assert header()["command"] == "python -m benchmarks.some --model m.gguf --data data/x --log=l"
