"""Pages of the problems: one for each problem of the catalogue, their list, and a picture of what is covered."""

from __future__ import annotations

import ast
import json
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import cache
from pathlib import Path

from docs.generate.figures import grid
from docs.generate.markdown import count, table
from pkb_gym.cli.listing import experts
from pkb_gym.cli.shapes import shape_texts
from pkb_gym.engine.hardware.gpu_memory import GPU_MEMORY_GIB, gpus_with
from pkb_gym.engine.problem import (
    CATEGORIES,
    Argument,
    Cost,
    Group,
    InPlace,
    Linear,
    OutputList,
    Problem,
    Result,
    Scalar,
    Sparse,
    Tensor,
    TensorList,
)
from pkb_gym.engine.problem.axes import Axes, AxisValue
from pkb_gym.engine.problem.signature import cpp_signature
from pkb_gym.engine.records.config import EvalConfig, ResolvedConfig, resolve
from pkb_gym.engine.stages.heap_layout import GPU_RESERVE_BYTES, lay_out
from pkb_gym.envs.text.python_sources import python_signature
from pkb_gym.problems.catalogue import catalogue, reference_source
from pkb_gym.problems.splits import SPLITS

ROOT = Path(__file__).resolve().parents[2]
COUNTERFEITS = ROOT / "tests" / "counterfeits"
WORLD_SIZE = 4
GIB = 1 << 30
MAX_VALUE_CHARS = 60
COST_WORDS = {
    "matrix_flops": "matrix operations (flop)",
    "vector_flops": "other operations (flop)",
    "memory_bytes": "memory traffic (bytes)",
    "link_in_bytes": "received over links (bytes)",
    "link_out_bytes": "sent over links (bytes)",
}
FAMILIES = {
    "TorchRec": "graphs, recommenders",
    "DGL": "graphs, recommenders",
    "flash-linear": "long sequences",
    **dict.fromkeys(("NCCL", "DistributedDataParallel", "PyTorch FSDP", "torchtitan"), "PyTorch / NCCL"),
    **dict.fromkeys(("VeOmni", "xorl", "NeMo-RL", "HuggingFace", "Transformers"), "VeOmni, xorl, NeMo-RL"),
    **dict.fromkeys(("DeepSpeed", "ZeRO", "ring-flash", "Ulysses"), "DeepSpeed / ZeRO"),
    **dict.fromkeys(("DeepSeek", "FP8", "fp8", "Transformer Engine"), "FP8: DeepSeek, TE"),
    **dict.fromkeys(("Megatron", "vLLM", "Llama"), "Megatron-LM, vLLM"),
    **dict.fromkeys(("Hyena", "Ring Attention"), "long sequences"),
    **dict.fromkeys(("MAGI", "Open-Sora", "DINO", "SAM 3", "CLIP", "DistriFusion", "gsplat"), "vision and video"),
    **dict.fromkeys(("PhysicsNeMo", "harmonics", "DeePMD", "sorting"), "science"),
    **dict.fromkeys(("GraphStorm", "PyTorch Geometric", "DistDGL", "WholeGraph"), "graphs, recommenders"),
}
"""Word of `Problem.origin` -> family of code bases; the first word found decides."""
OTHER = "other"


@cache
def pages() -> dict[str, str]:
    """File name -> text, for the page of each problem."""
    return {f"{problem.folder}.md": page(problem) for problem in catalogue()}


def listing() -> str:
    """All problems in tables by category."""
    sections = []
    for category, members in _by_category().items():
        rows = [
            (f"[{problem.name}]({problem.folder}.md)", _splits().get(problem.name, "none"), problem.summary)
            for problem in members
        ]
        sections.append(f"## {category_title(category)}\n\n{table(('problem', 'split', 'summary'), rows)}")
    return "\n".join(sections)


def split_rule() -> str:
    """The rule by which problems are held out for tests, and the groups of near-duplicates."""
    data = json.loads(SPLITS.read_text(encoding="utf-8"))
    groups = [(", ".join(group["problems"]), group["reason"]) for group in data["groups"]]
    rule = "\n".join(f"- {sentence}" for sentence in data["rule"])
    return f"{rule}\n\n{table(('near-duplicates', 'because'), groups)}"


def captures() -> str:
    """The problems whose reference is captured as CUDA graphs, and the others with the reason."""
    captured = [problem for problem in catalogue() if not problem.no_capture_because]
    others = [(problem.name, problem.no_capture_because) for problem in catalogue() if problem.no_capture_because]
    intro = f"{len(captured)} of {len(catalogue())} references can be captured, all but these {len(others)}:"
    return f"{intro}\n\n{table(('problem', 'no capture, because'), others)}"


def coverage() -> str:
    """An SVG of the number of problems by category and family of origin."""
    counts = Counter((problem.category, origin_family(problem)) for problem in catalogue())
    columns = [family for family, _ in Counter(map(origin_family, catalogue())).most_common()]
    rows = list(reversed(_by_category()))
    names = [category_title(row) for row in rows]
    return grid(columns, names, [[counts[row, family] for family in columns] for row in rows], ("origin", ""))


def origin_family(problem: Problem) -> str:
    """The family of code bases that a problem comes from; "other" where no word of its origin is known."""
    return next((family for word, family in FAMILIES.items() if word in problem.origin), OTHER)


def category_title(category: str) -> str:
    """A category in words."""
    special = {"fsdp_zero": "FSDP / ZeRO", "geometric_spatial": "Geometric / spatial"}
    return special.get(category, category.replace("_", " ").capitalize())


def _by_category() -> dict[str, list[Problem]]:
    groups = {category: [p for p in catalogue() if p.category == category] for category in CATEGORIES}
    return {category: members for category, members in groups.items() if members}


def page(problem: Problem) -> str:
    """The page of one problem."""
    where = f"../../problems/{problem.category}/{problem.folder}"
    source = reference_source(problem)
    links = [f"[declaration]({where}/problem.py)"]
    links += [f"[expert.{suffix}]({where}/expert.{suffix})" for suffix in experts(problem)]
    facts = [
        ("upstream", f"`{problem.upstream}`"),
        ("category", category_title(problem.category)),
        ("split", _splits().get(problem.name, "none")),
        ("origin", problem.origin),
        ("communication", ", ".join(problem.patterns)),
        ("tags", ", ".join(problem.tags)),
        ("argument kinds", ", ".join(problem.argument_kinds)),
        ("world sizes", ", ".join(map(str, problem.world_sizes))),
        ("dtypes", ", ".join(problem.dtypes)),
        ("captured as a CUDA graph", f"no. {problem.no_capture_because}" if problem.no_capture_because else "yes"),
        ("files", ", ".join(links)),
    ]
    sections = [
        f"# {problem.name}\n\n{problem.summary}\n",
        table(("environment", f"`{problem.env_id}`"), facts),
        _arguments(problem),
        _outputs(problem),
        _sizes(problem),
        _cost(problem),
        _weaknesses(problem),
        f"## Signatures\n\nPython dialect:\n\n```python\n{python_signature(source)}\n```\n\n"
        f"Native dialect ([native-abi.md](../native-abi.md)):\n\n```cpp\n{cpp_signature(problem)}```\n",
        f"## Reference\n\n```python\n{source}```\n",
    ]
    return "\n".join(sections)


@cache
def _splits() -> dict[str, str]:
    data = json.loads(SPLITS.read_text(encoding="utf-8"))
    return {name: side for side in ("train", "test") for name in data[side]}


def _published(problem: Problem) -> list[Axes]:
    ranks = range(WORLD_SIZE)
    return [problem.axes(size="published", world_size=WORLD_SIZE, rank=r, protocol="published") for r in ranks]


def _arguments(problem: Problem) -> str:
    shown = shape_texts(problem, _published(problem))
    rows = [
        (f"`{arg.name}`", _kind(arg), _shape(arg), _dtype(arg), _short(shown[arg.name]), arg.about)
        for arg in problem.args
    ]
    head = ("name", "kind", "shape", "dtype", f"published, {WORLD_SIZE} ranks", "meaning")
    return f"## Arguments\n\n{table(head, rows)}"


def _outputs(problem: Problem) -> str:
    shown = shape_texts(problem, _published(problem))
    rows = []
    for out in problem.outputs:
        published = out.published.describe() if out.published is not None else "not compared"
        size = _short(shown.get(f"-> {getattr(out, 'key', out.name)}", "as the argument"))
        rows.append((f"`{out.name}`", _output_shape(out), size, out.check.describe(), published))
    returned = {"value": "the output itself", "tuple": "a tuple", "dict": "a dict"}[problem.returns]
    note = f"`solution` of the python dialect returns {returned}.\n" if problem.returned else "Nothing is returned.\n"
    head = ("name", "shape", f"published, {WORLD_SIZE} ranks", "robust check", "published check")
    return f"## Outputs\n\n{note}\n{table(head, rows)}"


def _sizes(problem: Problem) -> str:
    names = list(problem.sizes)
    axes = list(problem.sizes[names[0]])
    rows = [(f"`{axis}`", *(_short(_value(problem.sizes[name][axis])) for name in names)) for axis in axes]
    varies = problem.robust.vary is not None
    note = "The robust protocol changes some of them from trial to trial.\n\n" if varies else ""
    return f"## Sizes\n\n{note}{table(('axis', *names), rows)}\n{_memory(problem)}"


def _memory(problem: Problem) -> str:
    """The memory of each GPU that an evaluation needs, by size and world size."""
    needed = {
        (size, world_size): lay_out(problem, _on_gpus(problem, size, world_size)).memory_bytes
        for size in problem.sizes
        for world_size in problem.world_sizes
    }
    rows = [(f"`{size}`", *(f"{needed[size, w] / GIB:.1f}" for w in problem.world_sizes)) for size in problem.sizes]
    shown = table(("GiB of each GPU", *(count(w, "rank") for w in problem.world_sizes)), rows)
    fitting = {where: gpus_with(nbytes) for where, nbytes in needed.items()}
    few = [
        f"`{size}` on {count(world_size, 'rank')} fits {', '.join(names) or 'none of the known GPUs'} alone."
        for (size, world_size), names in fitting.items()
        if len(names) < len(GPU_MEMORY_GIB)
    ]
    fits = f"Every {'other ' if few else ''}size fits a GPU of 80 GB."
    return (
        f"Memory that an evaluation in {problem.dtypes[0]} needs: both heaps, inputs as they are drawn, expected "
        f"outputs, and {GPU_RESERVE_BYTES >> 30} GiB for contexts and the baseline's own. "
        f"{' '.join(few)}{' ' if few else ''}{fits}\n\n{shown}"
    )


def _on_gpus(problem: Problem, size: str, world_size: int) -> ResolvedConfig:
    requested = EvalConfig(device="cuda", size=size, world_size=world_size)
    return resolve(requested, problem, device="cuda", language="cuda", memory_total_bytes=1 << 40, gpus=world_size)


def _cost(problem: Problem) -> str:
    """The work that gives the ceiling, and the part of it that gives the lower bound."""
    ranks = _published(problem)
    intro = (
        f"Of the published size on {WORLD_SIZE} ranks in {problem.dtypes[0]}: the work of a good kernel, for the "
        "ceiling of the [roofline](../roofline.md), and the least work of any, for the lower bound.\n"
    )
    cost = _work_table("cost", [problem.cost(ax) for ax in ranks], COST_WORDS)
    counted = {name: words for name, words in COST_WORDS.items() if name != "vector_flops"}
    least = _work_table("least work", [problem.least_cost(ax) for ax in ranks], counted)
    argument = problem.least_work.argument
    return f"## Cost\n\n{intro}\n{cost}\nWhy no kernel does less: {argument}\n\n{least}"


def _work_table(title: str, costs: Sequence[Cost], words: Mapping[str, str]) -> str:
    """One column, or one for each rank where they differ."""
    same = all(cost == costs[0] for cost in costs)
    shown = [asdict(cost) for cost in (costs[:1] if same else costs)]
    head = (title, "each rank" if same else "rank 0", *(f"rank {r}" for r in range(1, len(shown))))
    rows = [(word, *(f"{cost[name]:,.0f}" for cost in shown)) for name, word in words.items()]
    return table(head, rows)


def _weaknesses(problem: Problem) -> str:
    """Each weakness of the published check with its counterfeits, or the reason why no wrong solution shows it."""
    if not problem.weaknesses:
        return "## Weaknesses of the published check\n\nNone known.\n"
    shown = _counterfeits(problem)
    rows = [(weakness, "; ".join(shown[number]) or "not shown") for number, weakness in enumerate(problem.weaknesses)]
    where = f"[wrong solutions](../../{COUNTERFEITS.relative_to(ROOT)}/{problem.folder}.py)"
    intro = f"The published check accepts these {where}, the robust check refuses them ([how](../robustness.md)).\n"
    return f"## Weaknesses of the published check\n\n{intro}\n{table(('weakness', 'wrong solutions'), rows)}"


def _counterfeits(problem: Problem) -> defaultdict[int, list[str]]:
    """Number of a weakness -> names and reasons of the wrong solutions that show it, from the text of their file."""
    found: defaultdict[int, list[str]] = defaultdict(list)
    tree = ast.parse((COUNTERFEITS / f"{problem.folder}.py").read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Counterfeit":
            number, name, _, *why = [*node.args, *(keyword.value for keyword in node.keywords)]
            found[ast.literal_eval(number)].append(": ".join(map(ast.literal_eval, (name, *why))))
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "NOT_SHOWN":
            assert isinstance(node.value, ast.Dict)
            for key, reason in zip(node.value.keys, node.value.values, strict=True):
                if key is not None and isinstance(reason, ast.Constant):  # a name stands for a reason that files share
                    found[ast.literal_eval(key)].append(f"not shown: {ast.literal_eval(reason)}")
    return found


def _kind(arg: Argument) -> str:
    if isinstance(arg, Scalar):
        return f"{arg.kind} or None" if arg.optional else arg.kind
    if isinstance(arg, Group):
        return "process group or None"
    words = {Tensor: "tensor", TensorList: "list of tensors", Linear: "linear layer", Sparse: "sparse tensor"}
    kind = words[type(arg)]
    if isinstance(arg, Tensor) and arg.optional:
        kind += " or None"
    return f"{kind}, overwritten" if isinstance(arg, Tensor | TensorList) and arg.mutable else kind


def _shape(arg: Argument) -> str:
    if isinstance(arg, Tensor | Linear | Sparse):
        return _dims(arg.shape)
    return f"each of `{arg.shapes}`" if isinstance(arg, TensorList) else ""


def _dtype(arg: Argument) -> str:
    if isinstance(arg, Scalar | Group):
        return ""
    return (None if isinstance(arg, Linear) else arg.dtype) or "floating"


def _output_shape(out: Result) -> str:
    if isinstance(out, InPlace):
        return "in place"
    shape = f"each of `{out.shapes}`" if isinstance(out, OutputList) else _dims(out.shape)
    return f"{shape} {out.dtype or 'floating'}"


def _dims(shape: Sequence[str | int] | str) -> str:
    if isinstance(shape, str):
        return f"`{shape}`"
    return f"({', '.join(map(str, shape))}{',' if len(shape) == 1 else ''})"


def _value(value: AxisValue) -> str:
    return value if isinstance(value, str) else repr(value)


def _short(text: str) -> str:
    return text if len(text) <= MAX_VALUE_CHARS else text[: MAX_VALUE_CHARS - 4] + " ..."
