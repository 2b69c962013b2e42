"""The wire stands alone: the sandbox shows it without the rest of pkb_gym."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pkb_gym.engine.wire

WIRE = Path(pkb_gym.engine.wire.__file__).parent


def test_the_standard_library_is_enough(tmp_path: Path):
    """Imports every module of the room where there are no installed packages and no other room."""
    engine = tmp_path / "pkb_gym" / "engine"
    engine.mkdir(parents=True)
    (engine / "wire").symlink_to(WIRE)
    modules = [f"pkb_gym.engine.wire.{path.stem}" for path in WIRE.glob("[a-z]*.py")]
    program = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import {', '.join(modules)}"
    run = subprocess.run([sys.executable, "-I", "-S", "-c", program], capture_output=True, text=True, timeout=60)
    assert len(modules) > 5 and run.returncode == 0, run.stderr
