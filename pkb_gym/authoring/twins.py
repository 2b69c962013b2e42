"""Right kernels whose synchronisation can be taken out, one at a time.

Lines that end in the comment `// sync: NAME` are a synchronisation; the wrong twin of a kernel lacks those of one name.
For each name a line at the top of the file, `// without NAME: <outcome>`, holds the outcomes expected of that twin.
"""

from __future__ import annotations

import re
from pathlib import Path


def kernel_text(path: Path) -> str:
    """The text of a kernel, in place of `#include "NAME.cuh"` the file of that name beside it."""
    text = path.read_text(encoding="utf-8")
    for common in path.parent.glob("*.cuh"):
        text = text.replace(f'#include "{common.name}"\n', common.read_text(encoding="utf-8"))
    return text


def synchronisations(source: str) -> dict[str, str]:
    """The outcome expected without each synchronisation, by name; several outcomes have `|` between them."""
    return dict(re.findall(r"^// without (\w+): (\S+)$", source, re.MULTILINE))


def without(source: str, name: str) -> str:
    """The wrong twin, with the line numbers of the right kernel.

    Raises:
        ValueError: The source has no such synchronisation.
    """
    text, count = re.subn(rf"^.*// sync: {name}$", "", source, flags=re.MULTILINE)
    if not count:
        raise ValueError(f"the source has no synchronisation {name!r}")
    return text
