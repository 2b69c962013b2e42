"""The task text: all that an author of a kernel needs."""

from __future__ import annotations

from collections.abc import Sequence

from pkb_gym.engine.problem import Argument, Group, InPlace, Linear, Problem, Result, Scalar, Sparse, Tensor, TensorList
from pkb_gym.engine.problem.axes import Axes
from pkb_gym.engine.problem.tensors import Leaf, argument_leaves, output_leaves
from pkb_gym.engine.records.config import Device, Language, ResolvedConfig
from pkb_gym.engine.records.machine import Machine
from pkb_gym.engine.records.race_check import EMULATED_SIZE
from pkb_gym.envs.text.brief import axes_text, brief_task
from pkb_gym.envs.text.contracts import native_contract, python_contract
from pkb_gym.envs.text.example import example_text
from pkb_gym.envs.text.python_sources import plain_source, python_signature
from pkb_gym.envs.text.topology import machine_text
from pkb_gym.envs.text.turn import DEFAULT_STYLE, Style
from pkb_gym.kernels.text import NativeLanguage
from pkb_gym.problems.catalogue import reference_source

LANGUAGES: dict[Device, tuple[Language, ...]] = {
    "cpu": ("cpp", "python"),
    "cuda": ("cuda", "triton", "python"),
    "emulated": ("cuda",),
}
"""Dialects that a device accepts where `language` is "auto"."""

MAX_LISTED = 6
"""Elements of a list, or ranks, that are listed one by one."""

CLOSE = """\
"close" is |got - expected| <= rtol |expected| + atol + atol_rms rms(expected), over one output of one rank."""

VARIES = "Modes and sizes change from trial to trial: read them from the arguments."


def task_text(
    problem: Problem,
    config: ResolvedConfig,
    languages: Sequence[str],
    machine: Machine,
    style: Style = DEFAULT_STYLE,
) -> str:
    """The prompt of one task; every style holds the reference's code and the signature.

    Args:
        problem: Problem to solve.
        config: Configuration with size, world size, dtype and rules.
        languages: Accepted dialects: "cpp" or "cuda", "python", "triton".
        machine: Machine that judges.
        style: "full"; "standard", without header libraries, reasons of rules, shapes at this size, source of peaks and,
            beside a C++ signature that has them, comments of the reference; or "brief", as `brief_task` has it.

    Raises:
        SizeError: Size, dtype and world size do not fit the problem.
    """
    if style == "brief":
        return brief_task(problem, config, languages, machine)
    ranks = [
        problem.axes(
            size=config.size_argument,
            world_size=config.world_size,
            rank=rank,
            dtype=config.dtype,
            protocol=config.protocol,
        )
        for rank in range(config.world_size)
    ]
    source, is_full = reference_source(problem), style == "full"
    shown = source.rstrip() if is_full or not {"cpp", "cuda"} & set(languages) else plain_source(source)
    contracts = _contracts(problem, source, languages, config.device, machine, style)
    sections = [
        f"# {problem.name}\n\n{problem.summary}\n\n"
        f"Write a kernel that computes the same on each of {config.world_size} ranks, faster.",
        f"## Reference\n\n```python\n{shown}\n```",
        "## What to write\n\n" + "\n\nOr:\n\n".join(contracts),
        _data_section(problem, config, ranks) if is_full else _axes_section(problem, config),
        _rules_section(problem, config),
        f"## Machine\n\n{machine_text(config, machine, with_source=is_full)}",
        example_text(problem, languages),
        f"## Answer\n\nOne complete source file ({' or '.join(languages)}), nothing else."
        + (_judged(config) if is_full else ""),
    ]
    return "\n\n".join(sections) + "\n"


def _judged(config: ResolvedConfig) -> str:
    """The stages of the evaluation."""
    text = " It is judged as it stands: static checks, compiler, a run on all ranks, outputs in several trials"
    races = config.race_check != "off"
    if config.device == "emulated":
        return f"{text}; nothing is timed{', and each access to memory is checked for races' if races else ''}."
    if races and config.language == "triton":
        return f"{text}, then time; in calls of their own the kernels run under Triton's GSan, for races."
    emulated = f"; of CUDA sources each access to memory in an emulated run at size {EMULATED_SIZE}, for races"
    return f"{text}, then time{emulated if races else ''}."


def _contracts(
    problem: Problem, source: str, languages: Sequence[str], device: Device, machine: Machine, style: Style
) -> list[str]:
    natives: tuple[NativeLanguage, ...] = ("cpp", "cuda")
    texts = [native_contract(problem, native, machine, style) for native in natives if native in languages]
    if "python" in languages or "triton" in languages:
        texts.append(python_contract(python_signature(source), device, machine, style))
    return texts


def _axes_section(problem: Problem, config: ResolvedConfig) -> str:
    varies = f" {VARIES}" if problem.trials(config.protocol).vary is not None else ""
    axes = axes_text(problem, config)
    return f"## Data\n\n{config.world_size} ranks, floating dtype {config.dtype}, axes {axes}.{varies}"


def _data_section(problem: Problem, config: ResolvedConfig, ranks: Sequence[Axes]) -> str:
    size = config.size if isinstance(config.size, str) else axes_text(problem, config)
    lines = [f"## Data\n\nSize {size}, {config.world_size} ranks, floating dtype {config.dtype}. Arguments:"]
    lines += [_argument_line(arg, ranks) for arg in problem.args]
    lines.append("Results:")
    lines += [_result_line(problem, out, ranks) for out in problem.outputs]
    if problem.trials(config.protocol).vary is not None:
        lines.append(VARIES)
    return "\n".join(lines)


def _argument_line(arg: Argument, ranks: Sequence[Axes]) -> str:
    about = f": {arg.about}" if arg.about else ""
    if isinstance(arg, Scalar):
        return f"- `{arg.name}` = {_values(arg.axis or arg.name, ranks)}{about}"
    if isinstance(arg, Group):
        partition = ranks[0][arg.axis or arg.name]
        return f"- `{arg.name}`: process group, {'None' if partition is None else f'of ranks {partition}'}{about}"
    changed = ", overwritten" if isinstance(arg, Tensor | TensorList) and arg.mutable else ""
    return f"- `{arg.name}` {_shapes([argument_leaves(arg, ax) for ax in ranks])}{changed}{about}"


def _result_line(problem: Problem, out: Result, ranks: Sequence[Axes]) -> str:
    if isinstance(out, InPlace):
        return f"- `{out.name}`, in place"
    about = f": {out.about}" if out.about else ""
    renamed = f" (key `{out.key}`)" if problem.returns == "dict" and out.key != out.name else ""
    return f"- `{out.name}`{renamed} {_shapes([output_leaves(out, ax) for ax in ranks])}{about}"


def _values(axis: str, ranks: Sequence[Axes]) -> str:
    values = [ax[axis] for ax in ranks]
    return _by_rank([_short(repr(value)) for value in values])


def _shapes(leaves: Sequence[Sequence[Leaf]]) -> str:
    return _by_rank([_leaves_text(rank) for rank in leaves])


def _leaves_text(leaves: Sequence[Leaf]) -> str:
    if not leaves:
        return "None"
    texts = [_shape_text(leaf) for leaf in leaves]
    if len(leaves) == 1:
        return f"{texts[0]} {leaves[0].dtype}"
    listed = ", ".join(texts[:MAX_LISTED]) + (", ..." if len(texts) > MAX_LISTED else "")
    return f"[{len(leaves)} tensors: {listed}] {leaves[0].dtype}"


def _shape_text(leaf: Leaf) -> str:
    return f"(decided by the data, at most {leaf.capacity} elements)" if leaf.shape is None else str(leaf.shape)


def _by_rank(texts: Sequence[str]) -> str:
    """One text where all ranks have the same, else one per rank."""
    if len(set(texts)) == 1:
        return texts[0]
    listed = "; ".join(f"rank {rank}: {text}" for rank, text in enumerate(texts[:MAX_LISTED]))
    return f"by rank ({listed}{'; ...' if len(texts) > MAX_LISTED else ''})"


def _short(text: str, most: int = 200) -> str:
    return text if len(text) <= most else f"{text[:most]}..."


def _rules_section(problem: Problem, config: ResolvedConfig) -> str:
    lines = ["## What counts as right\n", "Every result of every rank is compared:"]
    for out in problem.outputs:
        rule = out.check if config.protocol == "robust" else out.published
        lines.append(f"- `{out.name}`: {'not compared' if rule is None else rule.describe(config.dtype)}")
    if any("close(" in line for line in lines):
        lines.append(CLOSE)
    kept = [arg.name for arg in problem.data_args if not _is_mutable(arg)]
    if kept:
        lines.append(f"These arguments must stay as they are: {', '.join(f'`{name}`' for name in kept)}.")
    return "\n".join(lines)


def _is_mutable(arg: Tensor | TensorList | Linear | Sparse) -> bool:
    return isinstance(arg, Tensor | TensorList) and arg.mutable
