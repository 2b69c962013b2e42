"""The one rank of a build gang: imports a Python source once, and hands over the C++ extensions that it built."""

from __future__ import annotations

import glob
import os
import time
import traceback
from typing import Any

from .python import load_solution
from .wire import Wire

MAX_EXTENSIONS_BYTES = 48 << 20


def main(wire: Wire, rank: int, world_size: int) -> None:
    """Serves one build: {"build": true} and the source as raw bytes -> {"ok": ..., "parts": sizes}, the libraries."""
    _, source = wire.receive()
    folder = os.path.join(os.getcwd(), "extensions")
    os.makedirs(folder, exist_ok=True)
    os.environ["TORCH_EXTENSIONS_DIR"] = folder
    source_fd = os.memfd_create("candidate.py")
    os.write(source_fd, source)
    began = time.monotonic()
    reply: dict[str, Any] = {"ok": True, "log": "", "parts": {}}
    libraries: list[bytes] = []
    try:
        if not callable(load_solution(source_fd, {})):
            reply |= {"ok": False, "log": "the module defines no function `solution`", "missing": True}
        for path in sorted(glob.glob(f"{folder}/**/*.so", recursive=True)):
            with open(path, "rb") as file:
                libraries.append(file.read())
            reply["parts"][os.path.basename(path).removesuffix(".so")] = len(libraries[-1])
        if sum(map(len, libraries)) > MAX_EXTENSIONS_BYTES:
            too_large = f"its extensions are larger than {MAX_EXTENSIONS_BYTES >> 20} MiB"
            reply |= {"ok": False, "log": too_large, "parts": {}}
            libraries = []
    except BaseException:  # SystemExit included: whatever a module raises when imported is data
        reply |= {"ok": False, "log": traceback.format_exc(limit=-8)[-8000:], "parts": {}}
        libraries = []
    wire.send(reply | {"seconds": time.monotonic() - began}, raw=b"".join(libraries))
