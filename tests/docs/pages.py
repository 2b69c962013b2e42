"""The pages of docs/, and the code blocks in them."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"


def code_blocks(page: Path, mark: str) -> dict[str, str]:
    """The fenced blocks whose info string holds `mark="name"`, by that name."""
    pattern = re.compile(rf'^```\w+ {mark}="([^"]+)"\n(.*?)^```$', re.MULTILINE | re.DOTALL)
    return dict(pattern.findall(page.read_text(encoding="utf-8")))
