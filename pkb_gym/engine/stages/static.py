"""Stage static: checks of the text alone."""

from __future__ import annotations

import ast
import re

from pkb_gym.engine.compile.library_headers import is_started
from pkb_gym.engine.records.config import ResolvedConfig
from pkb_gym.engine.records.feedback import Failure
from pkb_gym.engine.stages.feedback_builder import FeedbackBuilder
from pkb_gym.engine.support import syntax_tree


def check_statically(feedback: FeedbackBuilder) -> None:
    """Refuses texts that no compiler needs to see, and notes findings in the text.

    Raises:
        Stopped: the text is no source.
    """
    source = feedback.source
    if source.defect is not None:
        raise feedback.stop(Failure.REJECTED, source.defect)
    if feedback.config.dialect == "python":
        feedback.calls_torch_distributed = calls_torch_distributed(source.text)
    elif is_started(source.text):
        if (reason := why_not_started(source.text, feedback.config)) is not None:
            raise feedback.stop(Failure.REJECTED, reason)
        if _HOST_COLLECTIVE.search(source.text):
            feedback.calls_torch_distributed = True


_HOST_COLLECTIVE = re.compile(
    r"^(?![ \t]*//)[^\n]*\bp?nccl"
    r"(?:All(?:Reduce|Gather)|Reduce(?:Scatter)?|Broadcast|Bcast|Gather|Scatter|AlltoAll|Send|Recv)[ \t]*\(",
    re.MULTILINE,
)
"""A call of a collective of NCCL's host API, which is what the baseline calls."""

_GIN = re.compile(r"^(?![ \t]*//)[^\n]*\b(ncclGin\w{0,100})", re.MULTILINE)


def why_not_started(source: str, config: ResolvedConfig) -> str | None:
    """Why a native source that names NVSHMEM or NCCL cannot have them; None where nothing is in the way.

    Args:
        source: Source text of one translation unit.
        config: Configuration of the evaluation.
    """
    if config.ranks_per_gpu > 1:
        return (
            f"NVSHMEM and NCCL need a GPU for each rank, and {config.ranks_per_gpu} ranks share one here: "
            "ask for fewer ranks, or use pkb::Comm alone"
        )
    if config.sanitize:
        return "sanitizers run ranks in a harness that starts neither NVSHMEM nor NCCL: leave out `sanitize`"
    if (found := _GIN.search(source)) is not None:
        return (
            f"{found[1]}: NCCL's GIN goes through network adapters to other nodes, and all ranks are on one node: "
            "use LSA pointers (ncclGetLsaPointer) and ncclLsaBarrierSession"
        )
    return None


COLLECTIVES = frozenset(
    {
        *("all_gather", "all_gather_coalesced", "all_gather_into_tensor", "all_gather_object"),
        *("all_reduce", "all_reduce_coalesced", "all_to_all", "all_to_all_single", "barrier", "batch_isend_irecv"),
        *("broadcast", "broadcast_object_list", "gather", "gather_object", "irecv", "isend", "recv", "reduce"),
        *("reduce_scatter", "reduce_scatter_tensor", "scatter", "scatter_object_list", "send"),
    }
)

MAX_PARSED_CHARS, MAX_IMPORT_DOTS = 64 << 10, 1000
"""Python parses a source of this length in a third of a second at most, and holds the interpreter meanwhile. The time
for a name in an import grows with the square of its dots: one name of this length takes two seconds."""
_CONTINUED = re.compile(r"\\\r?\n|\\\r")


def calls_torch_distributed(source: str) -> bool | None:
    """Whether a Python source names a collective of torch.distributed: the baseline's own means of communication.

    None for a source that would take long to be parsed here. One that hides the name is seen when it runs, by its
    traffic (`CandidateRun.run`) or its profile.
    """
    if not _is_soon_parsed(source):
        return None
    try:
        tree = syntax_tree.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("torch.distributed"):
            if any(alias.name in COLLECTIVES for alias in node.names):
                return True
        elif isinstance(node, ast.Attribute) and node.attr in COLLECTIVES and _is_torch_distributed(node.value):
            return True
    return False


def _is_soon_parsed(source: str) -> bool:
    if len(source) > MAX_PARSED_CHARS:
        return False
    lines = _CONTINUED.sub("", source).replace("\r", "\n").split("\n")
    return all(line.count(".") <= MAX_IMPORT_DOTS for line in lines if "import" in line or "from" in line)


def _is_torch_distributed(node: ast.expr) -> bool:
    """Whether an expression is one of the names that the module goes by."""
    if isinstance(node, ast.Attribute):
        return node.attr == "distributed" and isinstance(node.value, ast.Name) and node.value.id == "torch"
    return isinstance(node, ast.Name) and node.id in ("dist", "c10d", "distributed", "funcol")


# The last two are what makes streams in `pkb`'s own headers.
_MORE_STREAMS = re.compile(
    r"Stream(?:Create|PerThread|Legacy)|STREAM_(?:PER_THREAD|LEGACY)|Graph|GreenCtx|copy_side_by_side|FetchBeside"
)


def makes_streams(source: str) -> bool:
    """Whether a CUDA source names what work beside the given stream is made of: streams, graphs, green contexts."""
    return _MORE_STREAMS.search(source) is not None
