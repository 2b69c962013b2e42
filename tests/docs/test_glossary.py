"""docs/glossary.md explains each term of the project in one line, in alphabetical order."""

from __future__ import annotations

import re

import pytest

from tests.docs.pages import DOCS

MAX_CHARS = 128
ENTRIES = (DOCS / "glossary.md").read_text(encoding="utf-8").partition("\n- ")[2].rstrip("\n").split("\n")
ENTRY = re.compile(r"(?:- )?\*\*([^*]+)\*\*(?: \(([^)]+)\))?: (\S.*[^\s.]\.)")
TERMS = [re.sub(r".*?\*\*([^*]+)\*\*.*", r"\1", entry) for entry in ENTRIES]

EXPECTED = (
    *("argument set", "armed", "baseline", "block", "candidate", "claim", "dialect", "epoch", "fast_p", "gang", "gate"),
    *("infrastructure failure", "leader", "leaf", "offload", "overhead", "protocol", "published", "rank", "reference"),
    *("robust", "roofline", "scratch", "segment", "signal", "speedup", "stage", "symmetric heap", "trial", "turn"),
    *("untrusted rank report", "world size", "zygote"),
)


@pytest.mark.parametrize("term", EXPECTED)
def test_it_has_the_term(term):
    assert term in TERMS


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry[:30])
def test_an_entry_is_one_line(entry):
    assert ENTRY.fullmatch(entry), "expected `- **term** (the field's word): one sentence.`"
    assert len(entry) <= MAX_CHARS


def test_entries_are_sorted_and_none_stands_twice():
    assert sorted(set(TERMS), key=str.lower) == TERMS
