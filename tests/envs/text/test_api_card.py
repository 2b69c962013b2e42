"""The API card: what it declares is in the headers, and what it leaves out is named by the page of the dialect."""

from __future__ import annotations

import re
from functools import cache

import pytest

from pkb_gym.engine.compile.toolchain import INCLUDE
from pkb_gym.envs.text.api_card import api_card
from tests.docs.pages import ROOT
from tests.token_count import tokens

PKB = INCLUDE / "pkb"
COMM = ("comm.h", "host_comm.h")
CPU = (*COMM, "symm_cpu.h", "bf16.h", "fp16.h")
CUDA = (*COMM, "symm_cuda.h", "launch_cuda.h", "transfer_cuda.h", "gemm_simt.h")
CARDS = {language: api_card(language) for language in ("cpp", "cuda")}
HEADERS = {"cpp": CPU, "cuda": CUDA}
MAX_TOKENS = 600
NAMES = {
    *(
        "rank",
        "world_size",
        "epoch",
        "scratch_bytes",
        "ranks",
        "size",
        "Group",
        "Device",
        "Accumulator",
        "bf16",
        "fp16",
    ),
    *("SimtProduct", "rows", "cols", "depth", "segments", "a_stride", "b_stride", "out_stride"),
}
"""Types and fields, as the card names them."""

FUNCTION = re.compile(r"(\w+)\s*\(((?:[^()]|\([^()]*\))*)\)\s*(?:const)?\s*(?::[^{;]*)?$", re.DOTALL)
DECLARED = re.compile(r"(\w+)(?:<\w+>)?\(([^()]*)\)")


@cache
def functions(header: str) -> frozenset[tuple[str, tuple[str, ...]]]:
    """Name and parameters of each public function of a header, those of classes included."""
    text = re.sub(r"//[^\n]*", "", (PKB / header).read_text(encoding="utf-8"))
    macros = {(name, (args,)) for name, args in re.findall(r"#define (PKB_\w+)\((\w*)\)", text)}
    text = re.sub(r"^#[^\n]*(?:\\\n[^\n]*)*$", "", text, flags=re.MULTILINE)
    found: set[tuple[str, tuple[str, ...]]] = set()
    _scan(text, found)
    return frozenset(found | {(name, () if args == ("",) else args) for name, args in macros})


def _scan(text: str, found: set[tuple[str, tuple[str, ...]]]) -> None:
    """Adds what stands in a namespace or a class, without the bodies of functions and what is private."""
    place, head, public = 0, "", True
    while place < len(text):
        char = text[place]
        if char == "{":
            end = _closing(text, place)
            _add(head, public, found)
            if public and re.search(r"\b(?:namespace|class|struct)\s+[\w:]*\s*(?:$|final|:|<|alignas)", head.strip()):
                _scan(text[place + 1 : end], found)
            place, head = end, ""
        elif char == ";":
            _add(head, public, found)
            head = ""
        else:
            head += char
            if label := re.search(r"\b(public|private|protected):$", head):
                public, head = label.group(1) == "public", ""
        place += 1


def _closing(text: str, opening: int) -> int:
    depth = 0
    for place in range(opening, len(text)):
        depth += {"{": 1, "}": -1}.get(text[place], 0)
        if depth == 0:
            return place
    raise ValueError("a brace is not closed")


def _add(head: str, public: bool, found: set[tuple[str, tuple[str, ...]]]) -> None:
    head = re.sub(r"template\s*<[^>]*>", "", head).strip()
    match = FUNCTION.search(head)
    if match and public and not re.search(r"=|operator|static_assert", head[: match.end(1)]):
        found.add((match.group(1), _parameters(match.group(2))))


def _parameters(text: str) -> tuple[str, ...]:
    """Parameters without defaults, qualified names and superfluous blanks."""
    parts = [re.sub(r"=.*", "", part, flags=re.DOTALL).replace("tvm::ffi::", "") for part in text.split(",")]
    return tuple(" ".join(part.split()) for part in parts if part.strip())


def declared(card: str) -> set[tuple[str, tuple[str, ...]]]:
    """Name and parameters of each function of a card."""
    code = re.sub(r"//[^\n]*", "", card)
    return {(name, _parameters(parameters)) for name, parameters in DECLARED.findall(code)}


@pytest.mark.parametrize("language", CARDS)
def test_the_card_is_short(language):
    assert tokens(CARDS[language]) <= MAX_TOKENS


@pytest.mark.parametrize("language", CARDS)
def test_every_function_of_the_card_is_in_the_headers_with_that_signature(language):
    known = frozenset().union(*(functions(header) for header in HEADERS[language]))
    named = declared(CARDS[language])
    assert len(named) >= 8
    assert not named - known, sorted(name for name, _ in named - known)


@pytest.mark.parametrize("language", CARDS)
def test_types_and_fields_of_the_card_are_in_the_headers(language):
    text = "".join((PKB / header).read_text(encoding="utf-8") for header in HEADERS[language])
    for name in NAMES & set(re.findall(r"\w+", CARDS[language])):
        assert re.search(rf"\b{name}\b", text), name


PAGE = (ROOT / "docs" / "native-abi.md").read_text(encoding="utf-8")
ON_GPUS, SECTION = PAGE.split("## On GPUs\n")[1].split("\n## ")[0].split("### The API card\n")


def left_out() -> set[str]:
    """Functions that the page of the native dialect lists as left out of the card."""
    return set(re.findall(r"`([^`]+)`", SECTION.split("\n### ")[0].split("leaves out")[1]))


@pytest.mark.parametrize("language", CARDS)
def test_every_public_function_is_on_the_card_or_listed_as_left_out(language):
    on_card, listed = set(re.findall(r"\w+", CARDS[language])), left_out()
    for header in HEADERS[language]:
        missing = {name for name, _ in functions(header)} - on_card - listed
        assert not missing, (header, sorted(missing))


def test_every_other_header_is_on_the_page():
    others = {path.name for path in PKB.glob("*.h")} - {*CPU, *CUDA, "symm.h"}  # which only chooses one of the two
    assert not [name for name in others if f"`pkb/{name}`" not in ON_GPUS]


def test_nothing_is_listed_as_left_out_that_is_on_the_card_or_nowhere():
    known = {name for header in {*CPU, *CUDA} for name, _ in functions(header)}
    on_card = {name for card in CARDS.values() for name, _ in declared(card)}
    listed = left_out()
    assert listed and listed <= known - on_card, sorted(listed - (known - on_card))
