"""What a result says of the run that made it."""

from __future__ import annotations

import datetime as dt
import json
import re
import shlex
import sys
from pathlib import Path

import pytest

from benchmarks.common import RESULTS, header


def test_the_command_names_files_without_the_folders_of_the_machine(monkeypatch: pytest.MonkeyPatch):
    words = "-m benchmarks.some --model /home/somebody/models/m.gguf --data data/x --log=/tmp/a/l --out /tmp/out"
    monkeypatch.setattr(sys, "orig_argv", ["/usr/bin/python3", *words.split()])
    assert header()["command"] == "python -m benchmarks.some --model m.gguf --data data/x --log=l"


@pytest.mark.parametrize("path", sorted(RESULTS.glob("*.json")), ids=lambda path: path.stem)
def test_every_result_has_date_machine_command_and_commit(path: Path):
    result = json.loads(path.read_text(encoding="utf-8"))
    dt.date.fromisoformat(result["date"])
    assert result["machine"] and result["command"].startswith("python -m benchmarks.")
    assert re.fullmatch(r"[0-9a-f]{12}", result["commit"]), "measure a commit, without changes that are not in it"
    assert not [word for word in shlex.split(result["command"]) if re.search("(^|=)/", word)], "no folder of a machine"
