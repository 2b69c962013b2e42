"""The share of the time that is spent in kernels of the candidate's own.

A kernel may be right and yet leave the work to the library that the baseline uses ("lazy optimisation"). The profile
shows it: each entry of a GPU's time (kernel, copy or fill) is the candidate's own or the library's.

- Native CUDA sources: kernels that the compiler listed are own, and so are copies and fills, which only the source can
  have asked for.
- Sources in Python: copies and fills are PyTorch's, and so are kernels whose names begin as those of its libraries do.
- On the CPU, where there are no entries, a native source's own time is all that is spent inside `solution`. Of a source
  in Python nothing is known there.

Profiles are untrusted rank reports: a candidate can forge them. No preset pays for them; whoever does should pay
little, and only on top of the measured time.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from math import isfinite

from pkb_gym.engine.records.feedback import Feedback, RankProfile
from pkb_gym.rewards.component import Bounds, Component
from pkb_gym.rewards.reward import is_infrastructure_failure, is_right

COPIES = ("Memcpy", "Memset")
LIBRARIES = re.compile(
    r"(void )?(at::|c10|cub::|thrust::|cublas|cudnn|nccl|nvjet|nvshmem|pytorch_flash::|fmha_cutlass|splitKreduce|"
    r"cutlass::Kernel2|cutlass_\d\d|internal::gemvx|gemv2|gemvN|gemmk1|gemmSN|"
    r"(sm\d\d|ampere|volta|turing|hopper|blackwell|maxwell)_\w*(gemm|xmma))",
    re.IGNORECASE,
)
"""Beginnings of the names of PyTorch's kernels; a candidate's own gemm_kernel must not look like one."""


def own_time_share(feedback: Feedback) -> float | None:
    """The candidate's own share of the time of a profiled submission, in [0, 1]; None where the time is unknown.

    Example:
        >>> from .examples import profiled
        >>> own_time_share(profiled(kernels={"my_kernel": 0.75, "ncclDevKernel_AllGather": 0.25}))
        0.75
    """
    profile = feedback.profile
    if profile is None:
        return None
    if profile.kernels:
        entries = [(kernel.share, is_own(kernel.name, feedback)) for kernel in profile.kernels]
    elif feedback.config.device == "cpu" and feedback.config.dialect == "native":
        entries = [part for rank in profile.ranks for part in _inside_and_outside(rank)]
    else:
        return None
    longest = max((share for share, _ in entries), default=0.0)
    if not (longest > 0 and isfinite(longest)):
        return None
    # Relative to the longest one, so that no sum exceeds the range of floating-point numbers.
    shares = [(share / longest, is_its_own) for share, is_its_own in entries if share > 0]
    return sum(share for share, is_its_own in shares if is_its_own) / sum(share for share, _ in shares)


def is_own(name: str, feedback: Feedback) -> bool:
    """Whether an entry of that name is the candidate's own; see the module.

    Example:
        >>> from .examples import profiled
        >>> [is_own(name, profiled()) for name in ("my_kernel", "void at::native::add_kernel<float>()")]
        [True, False]
    """
    native = feedback.config.dialect == "native"
    if name.startswith(COPIES):
        return native
    listed = () if feedback.compile is None else feedback.compile.kernels
    if native and listed:
        return any(_is_same(name, kernel.name) for kernel in listed)
    return LIBRARIES.match(name) is None


@dataclass(frozen=True)
class OwnKernelShare(Component):
    """The share of a right submission's time that is spent in kernels of its own, else 0.

        r = T_own / T_all

    Range: [0, 1]; `unknown` for a right kernel without a profile of its kernels.
    Source: the profiling ratio of Dr. Kernel (Liu et al., arXiv:2602.05885): the generated kernels' share of all time
    on the GPU, where lazy optimisation had 0.014 % and a fused kernel 86 %.

    Example:
        >>> from .examples import profiled
        >>> OwnKernelShare()(profiled(kernels={"my_kernel": 0.25, "void at::native::copy": 0.75}))
        0.25
    """

    unknown: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.unknown <= 1:
            raise ValueError(f"unknown must be in [0, 1], got {self.unknown}")

    def __call__(self, feedback: Feedback) -> float | None:
        """The value of one submission, or None."""
        if is_infrastructure_failure(feedback):
            return None
        if not is_right(feedback):
            return 0.0
        share = own_time_share(feedback)
        return self.unknown if share is None else share

    def bounds(self) -> Bounds:
        """Least and greatest value."""
        return 0.0, 1.0


def _inside_and_outside(rank: RankProfile) -> tuple[tuple[float, bool], tuple[float, bool]]:
    return (rank.compute_us + rank.communication_us + rank.waiting_us, True), (rank.host_us, False)


def _is_same(profiled: str, compiled: str) -> bool:
    """Whether both are the same kernel; the compiler's names stay mangled where nothing can read them."""
    name = _bare(profiled)
    return name == _bare(compiled) or (
        name != "" and compiled.startswith("_Z") and name.rsplit("::", 1)[-1] in compiled
    )


def _bare(name: str) -> str:
    """A kernel's name without what some tools put before it: "void " and brackets of anonymous namespaces."""
    return name.removeprefix("void ").replace("(anonymous namespace)::", "").split("(")[0].split("<")[0]
