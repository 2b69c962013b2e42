"""The order of the evaluator to a build gang, and its reply."""

from __future__ import annotations

from dataclasses import dataclass

from .messages import WireMessage

MAX_EXTENSIONS = 32
"""Each is a descriptor, in the evaluator as in every rank; one message takes at most `frames.MAX_FDS`."""


@dataclass(frozen=True)
class CudaTools:
    """The CUDA toolkit that extensions are built with, and the GPUs that they are for, as torch names them."""

    cuda_home: str
    compute_capability: tuple[int, int]
    architectures: str


@dataclass(frozen=True)
class Build(WireMessage):
    """Import the source that follows as raw bytes.

    Attributes:
        tools: Tools of the CUDA toolkit; None where there is none.
    """

    tools: CudaTools | None


@dataclass(frozen=True)
class Built(WireMessage):
    """The result. The libraries follow as raw bytes.

    Attributes:
        ok: Whether the module can be used.
        log: Errors and notes.
        sizes: Size of each extension, in bytes.
        seconds: Duration of the build.
    """

    ok: bool
    log: str
    sizes: dict[str, int]
    seconds: float
