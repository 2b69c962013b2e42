"""Compiled kernels of `examples/triton_symmetric.py`, stored as PTX, so that tests need no Triton.

`python -m emulator.tests.checking.triton_modules` writes them anew, with the Triton that is installed.
"""

from __future__ import annotations

import importlib.util
import json
import re
from dataclasses import replace
from pathlib import Path
from types import ModuleType

from rank_emulator.checking.triton_kernels import Argument, Place, TritonModule

STORED = Path(__file__).with_name("triton_ptx")
EXAMPLE = Path(__file__).parents[2] / "examples" / "triton_symmetric.py"
BUFFERS = {
    "one_shot": "x:f32[256],out:f32[256],pads:u32[64]=0",
    "push": "x:f32[256],out:f32[world_size,256],pads:u32[64]=0",
    "shift": "x:f32[256],out:f32[256],slots:f32[256]=0,flags:u32[2]=0",
}
WORLD_SIZE = 2


def of_rank(place: Place) -> int:
    return place.rank


def of_call(place: Place) -> int:
    return place.call


PLACES = {"@rank": of_rank, "@call": of_call}


def stored(name: str, *, mistake: bool) -> TritonModule:
    """The compiled kernel of a program, for two ranks."""
    text = (STORED / f"{name}_{'wrong' if mistake else 'right'}.ptx").read_text(encoding="utf-8")
    head = json.loads(text.partition("\n")[0].removeprefix("// "))
    arguments: list[tuple[str, Argument]] = [(kind, PLACES.get(value, value)) for kind, value in head["arguments"]]
    return TritonModule(text, head["name"], head["shared_bytes"], head["scratch"], tuple(arguments), (1, 1, 1), 4)


def example() -> ModuleType:
    """The example, which imports Triton."""
    spec = importlib.util.spec_from_file_location("triton_symmetric", EXAMPLE)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def main() -> None:
    module = example()
    words = {module.RANK: "@rank", module.CALL: "@call"}
    for name in BUFFERS:
        for mistake in (False, True):
            (compiled,) = module.program(name, mistake=mistake).of_ranks(WORLD_SIZE).compile(WORLD_SIZE)
            arguments = [(kind, words[value] if callable(value) else value) for kind, value in compiled.arguments]
            head = {key: getattr(compiled, key) for key in ("name", "shared_bytes", "scratch")} | {
                "arguments": arguments
            }
            ptx = re.sub(r"(?s)\t\.section\t\.debug.*", "", compiled.ptx)  # of debuggers
            ptx = re.sub(r'(\.file\t\d+ ")[^"]*/', r"\1", ptx)
            path = STORED / f"{name}_{'wrong' if mistake else 'right'}.ptx"
            path.write_text(f"// {json.dumps(head)}\n{replace(compiled, ptx=ptx).ptx}", encoding="utf-8")


if __name__ == "__main__":
    main()
