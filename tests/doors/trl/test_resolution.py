"""The extra vllm together with all that training needs, resolved for each release of vLLM without installing it."""

from __future__ import annotations

import os
import re
import subprocess
import tomllib

import pytest

from tests.doors import uv
from tests.doors.commands import ROOT

PAIRS = {"0.26.0": "2.11", "0.27.1": "2.13", "0.28.0": "2.13", "0.29.0": "2.13", "0.30.0": "2.13", "0.31.0": "2.13"}
"""Release of vLLM -> the release of torch that it takes."""
PYTHON = "3.12"
UNREACHABLE = re.compile(r"(?i)failed to fetch|error sending request|connect|dns|timed out")


def requirements(*extras: str) -> list[str]:
    """The dependencies of pyproject.toml with extras, those that extras name included."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    found = list(project["dependencies"])
    for extra in extras:
        for line in project["optional-dependencies"][extra]:
            own = re.fullmatch(r"pkb-gym\[(.*)\]", line)
            found += [line] if own is None else requirements(*own[1].split(","))
    return found


@pytest.mark.parametrize("release", PAIRS)
def test_ranges_resolve(release, tmp_path):
    program = uv.provide(uv.VENVS)
    if program is None:
        pytest.skip("uv cannot be had: no package index is reachable")
    wanted = tmp_path / "wanted.in"
    wanted.write_text("\n".join([*requirements("vllm", "serve"), f"vllm=={release}"]))
    listed = subprocess.run(
        [os.environ["PKB_DOORS_PYTHON"], "-m", "pip", "config", "list"], capture_output=True, text=True, check=False
    )
    command = [str(program), "pip", "compile", "--quiet", "--no-header", "--python-version", PYTHON]
    done = subprocess.run(
        [*command, "--python-platform", "x86_64-manylinux_2_28", str(wanted)],
        env={**uv.PATIENCE, **uv.settings_of(listed.stdout), **os.environ},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0 and UNREACHABLE.search(done.stderr) and "No solution found" not in done.stderr:
        pytest.skip(f"the package index cannot be reached: {done.stderr.strip().splitlines()[-1]}")
    assert done.returncode == 0, done.stderr
    assert re.search(rf"^torch=={re.escape(PAIRS[release])}\.", done.stdout, re.MULTILINE), done.stdout
