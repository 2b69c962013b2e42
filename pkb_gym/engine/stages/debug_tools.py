"""The debugging tools of an evaluation, beside its configuration: none of them changes what is judged."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pkb_gym.engine.compile.cache import CompileCache


@dataclass(frozen=True)
class DebugFolders:
    """Folders for files that are looked at afterwards.

    Attributes:
        keep_to: folder for the checked calls, with a harness that runs them by themselves; None for none.
        dump_to: folder for the tensors of wrong outputs; None for none.
    """

    keep_to: Path | None = None
    dump_to: Path | None = None


@dataclass(frozen=True)
class DebugTools:
    """See the module.

    Attributes:
        folders: see there.
        stack_trace: the library that records the call stack of a crashed rank; None for none.
        compile_cache: where builds with sanitizers are kept; None where there are none.
    """

    folders: DebugFolders = DebugFolders()
    stack_trace: bytes | None = None
    compile_cache: CompileCache | None = None
