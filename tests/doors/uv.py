"""The program uv, which installs packages in a fraction of the processor time of pip, by the settings of pip.

    python -m tests.doors.uv

prints the beginning of a command that installs into `.venv`, as the Makefile takes it for PIP; nothing where uv cannot
be had.
"""

from __future__ import annotations

import ast
import os
import shlex
import subprocess
import sys
from pathlib import Path

from tests.doors.commands import ROOT, run

UV = "uv==0.13.9"
INSTALL_S = 300
"""Deadline of one command, in seconds."""

PATIENCE = {"UV_HTTP_TIMEOUT": "20", "PIP_DEFAULT_TIMEOUT": "20", "PIP_RETRIES": "1"}
"""Without an index, an installation fails after a minute and not after many."""

VENVS = ROOT / ".venv-doors"
"""Where `make doors` looks for it, too."""

SETTINGS = {
    "index-url": ("UV_DEFAULT_INDEX", " "),
    "extra-index-url": ("UV_INDEX", " "),
    "find-links": ("UV_FIND_LINKS", ","),
    "no-index": ("UV_NO_INDEX", " "),
    "cert": ("SSL_CERT_FILE", " "),
}
"""Setting of pip -> the variable of uv, and what parts its values."""


def provide(folder: Path) -> Path | None:
    """The program, installed into a folder by pip; None where it cannot be had."""
    place = folder / "uv"
    found = place / "bin" / "uv"
    if not found.exists():
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
        run(
            [*pip, "install", "--no-deps", "--no-compile", "--upgrade", "--target", str(place), UV],
            INSTALL_S,
            **PATIENCE,
        )
    return found if found.exists() else None


def settings_of(listed: str) -> dict[str, str]:
    """Variables that have uv look for packages where pip does.

    Args:
        listed: Output of `pip config list`, a setting a line: `global.find-links='/wheels'`. Later kinds of settings
            take precedence: of a machine, a user, an environment; those of variables (`:env:.`) before all.
    """
    found = {"UV_INDEX_STRATEGY": "unsafe-best-match"}  # the best of all indexes, as pip takes it
    lines = [line.partition("=") for line in listed.splitlines() if "=" in line]
    for name, _, value in sorted(lines, key=lambda line: line[0].startswith(":env:")):
        if (known := SETTINGS.get(name.rpartition(".")[2])) is not None:
            variable, separator = known
            found[variable] = separator.join(ast.literal_eval(value).split())
    return found


def main() -> None:
    uv = provide(VENVS)
    if uv is None:
        return
    listed = subprocess.run(
        [sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, check=False
    )
    settings = {name: value for name, value in settings_of(listed.stdout).items() if name not in os.environ}
    variables = [f"{name}={value}" for name, value in (PATIENCE | settings).items()]
    install = [str(uv), "pip", "install", "--quiet", "--python", ".venv/bin/python", "--constraint", "constraints.txt"]
    sys.stdout.write(f"{shlex.join(['env', *variables, *install])}\n")


if __name__ == "__main__":
    main()
