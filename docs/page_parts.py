"""Shared by the generators of pages: tables, docstrings as Markdown, the origin of a problem."""

from __future__ import annotations

import argparse
import inspect
import re
from collections.abc import Sequence
from textwrap import dedent

from pkb_gym.engine.problem import CATEGORIES, Problem

FAMILIES = (
    ("PyTorch / NCCL", ("NCCL", "DistributedDataParallel", "PyTorch FSDP", "torchtitan")),
    ("VeOmni, xorl, NeMo-RL", ("VeOmni", "xorl", "NeMo-RL", "HuggingFace", "Transformers")),
    ("DeepSpeed / ZeRO", ("DeepSpeed", "ZeRO", "ring-flash", "Ulysses")),
    ("FP8: DeepSeek, TE", ("DeepSeek", "FP8", "fp8", "Transformer Engine")),
    ("Megatron-LM, vLLM", ("Megatron", "vLLM", "Llama")),
    ("long sequences: fla, Hyena", ("flash-linear-attention", "Hyena", "Ring Attention")),
    ("vision and video", ("MAGI", "Open-Sora", "DINO", "SAM 3", "CLIP", "DistriFusion", "gsplat")),
    ("science", ("PhysicsNeMo", "harmonics", "DeePMD", "sorting")),
    ("graphs, recommenders", ("DGL", "GraphStorm", "PyTorch Geometric", "TorchRec", "DistDGL", "WholeGraph")),
)
"""Family -> words of `Problem.origin` that identify it, looked for in this order of families after `FIRST`."""

FIRST = {
    "TorchRec": "graphs, recommenders",
    "DGL": "graphs, recommenders",
    "flash-linear": "long sequences: fla, Hyena",
}
"""Words that decide whatever else an origin names."""

OTHER = "other"


def parser(module: str | None) -> argparse.ArgumentParser:
    """The command line of a generator, whose help is the text of its module."""
    return argparse.ArgumentParser(description=module, formatter_class=argparse.RawDescriptionHelpFormatter)


def origin_family(problem: Problem) -> str:
    """The family of code bases that a problem comes from; "other" where no word of its origin is known."""
    for word, family in FIRST.items():
        if word in problem.origin:
            return family
    for family, words in FAMILIES:
        if any(word in problem.origin for word in words):
            return family
    return OTHER


def category_title(category: str) -> str:
    """A category in words."""
    special = {"fsdp_zero": "FSDP / ZeRO", "geometric_spatial": "Geometric / spatial"}
    return special.get(category, category.replace("_", " ").capitalize())


def by_category(problems: Sequence[Problem]) -> dict[str, list[Problem]]:
    """The problems of each category that has some, in upstream order."""
    groups = {category: [p for p in problems if p.category == category] for category in CATEGORIES}
    return {category: members for category, members in groups.items() if members}


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [head, ("---",) * len(head), *rows]
    return "".join("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |\n" for row in lines)


def count(number: int, noun: str) -> str:
    """A number with its noun: 1 problem, 2 problems, 2 weaknesses."""
    plural = noun + ("es" if noun.endswith("s") else "s")
    return f"{number} {noun if number == 1 else plural}"


LISTS = {"Args:": "Parameters:", "Attributes:": "Attributes:", "Raises:": "Raises:", "Returns:": "Returns:"}
"""Headings of a docstring in Google form -> those of the lists that they become."""


def markdown(thing: object) -> str:
    """A docstring up to its example, as Markdown: attributes, arguments and errors become lists.

    Attributes of a class without `Args:`, such as a dataclass, are its parameters.
    """
    lines: list[str] = []
    kind = ""
    written = (inspect.getdoc(thing) or "").split("\nExample:")[0].strip().splitlines()
    for line in written:
        if line in LISTS:
            kind = line if "Args:" in written or line != "Attributes:" else "Args:"
            lines.append(f"{LISTS[kind]}\n")
        elif not line.startswith("    "):
            kind = ""
            lines.append(line)
        elif kind == "Returns:":
            lines.append(line[4:])
        elif kind and not line.startswith("     "):
            name, _, text = line.strip().partition(":")
            lines.append(f"- `{name}`:{text}")
        else:
            lines.append(f"  {line.strip()}" if kind else line)
    return "\n".join(lines).strip()


def example(thing: object) -> str:
    """The example of a docstring, as a session of the interpreter; empty where there is none."""
    text = (inspect.getdoc(thing) or "").partition("\nExample:\n")[2]
    return dedent(re.split(r"\n(?=\S)", text)[0]).strip()


def first_line(thing: object) -> str:
    """The first line of a docstring."""
    return (inspect.getdoc(thing) or "").splitlines()[0]
