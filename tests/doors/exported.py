"""Tasks of `pkb export harbor`, as the contract judges."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

from tests.doors import contract
from tests.doors.commands import ROOT

EXPORT_S = 600


def export_tasks(out: Path, *problems: str) -> Path:
    """Task folders of some problems, or of all; requests equal to those of the contract have its verdicts.

    Args:
        out: Folder of the tasks.
        *problems: Names of the problems.
    """
    settings = contract.SETTINGS
    command = [os.environ["PKB_DOORS_PYTHON"], "-m", "pkb_gym.cli", "export", "harbor", "--out", str(out)]
    for name in ("world_size", "size", "until"):
        command += [f"--{name.replace('_', '-')}", str(settings[name])]
    if problems:
        command += ["--problems", *problems]
    subprocess.run(command, check=True, cwd=ROOT, timeout=EXPORT_S)
    seeds = {each.problem: each.seed for each in contract.expected()}
    for path in out.glob("*/tests/request.json"):
        request = json.loads(path.read_text(encoding="utf-8"))
        seed = seeds.get(request["problem"], contract.SEED)
        # Submissions are in C++ or Python.
        request["config"] |= {"language": "auto", "seed": seed, "timeout_s": settings["timeout_s"]}
        path.write_text(json.dumps(request), encoding="utf-8")
    return out
