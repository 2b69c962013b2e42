"""A source as it is submitted: which dialect it is of, and whether it can be a source at all."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pkb_gym.engine.records import source as module
from pkb_gym.engine.records.config import Device, Language
from pkb_gym.engine.records.source import MAX_SOURCE_BYTES, Source
from pkb_gym.engine.support.source_digest import source_sha256
from tests.whole_tables import IS_WHOLE, sampled

CPP = '#include "pkb/symm.h"\nvoid solution(pkb::Comm comm) {}\nTVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);\n'
PYTHON = "import torch\n\n\ndef solution(tensor):\n    return tensor\n"

REJECTED = {
    "empty": ("", "the source is empty"),
    "blank": (" \n\t\r\n\u2003", "the source is empty"),
    "over-long": (CPP + "//" + "x" * MAX_SOURCE_BYTES, f"at most {MAX_SOURCE_BYTES} are accepted"),
    "over-long in bytes": (CPP + "//" + "\u00e9" * (MAX_SOURCE_BYTES // 2), "at most"),
    "lone surrogate": (
        CPP + "// \ud800",
        f"(position {len(CPP) + 3}: surrogates not allowed); files are read as UTF-8",
    ),
    "NUL": (CPP + "\0", f"NUL character at position {len(CPP)}"),
    "no solution in C++": ("#include <vector>\nint main() {}\n", "never mentions `solution`"),
    "no solution in Python": ("import torch\n\ndef resolution():\n    pass\n", "the module never mentions `solution`"),
    "prose": ("I am sorry, I cannot help with that.", "never mentions `solution`"),
}


@pytest.mark.parametrize(("text", "words"), REJECTED.values(), ids=list(REJECTED))
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_what_is_no_source_has_a_defect(text: str, words: str, device: Device) -> None:
    source = Source.parse(text, device)
    assert source.defect is not None and words in source.defect
    assert source.text is text, "the record is of what was submitted"


@pytest.mark.parametrize(
    "text", [CPP, PYTHON, CPP + "// h\u00e9\U0001f600\n", CPP.replace("\n", "\r\n"), "\ufeff" + CPP]
)
def test_sources_are_accepted(text: str) -> None:
    assert Source.parse(text, "cpu").defect is None


def test_the_longest_source_is_accepted() -> None:
    longest = CPP + "//" + "x" * (MAX_SOURCE_BYTES - len(CPP) - 2)
    assert len(longest) == MAX_SOURCE_BYTES
    assert Source.parse(longest, "cpu").defect is None
    assert Source.parse(longest + "x", "cpu").defect is not None


@pytest.mark.parametrize(
    ("text", "language"),
    [
        (CPP, "cpp"),
        (PYTHON, "python"),
        ("from torch import nn\n" + PYTHON, "python"),
        ('"""doc"""\n' + PYTHON, "python"),
        ("  \timport torch\n" + CPP, "python"),
        # A kernel inside a Python text, and the other way round: what comes first decides.
        (PYTHON + 'SOURCE = """\n#include <torch/extension.h>\n"""\n', "python"),
        ("/*\n#include <a>\nimport torch\n*/\n" + CPP, "cpp"),
        ("  #  include <a>\n" + PYTHON, "cpp"),
        ("nothing of either kind", "cpp"),
    ],
)
def test_the_dialect_is_found_from_the_text(text: str, language: Language) -> None:
    assert Source.parse(text, "cpu").language == language


def test_triton_and_cuda_are_distinguished_on_a_gpu() -> None:
    assert Source.parse("import triton\n" + PYTHON, "cuda").language == "triton"
    assert Source.parse("import triton\n" + PYTHON, "cpu").language == "python"
    assert Source.parse(PYTHON, "cuda").language == "python"
    assert Source.parse(CPP, "cuda").language == "cuda"


@pytest.mark.parametrize("language", ["cpp", "python", "triton", "cuda"])
def test_a_language_that_is_fixed_is_not_guessed(language: Language) -> None:
    """And the text is held to it."""
    found = Source.parse(PYTHON, "cuda", language)
    assert found.language == language and found.defect is None
    joined = PYTHON.replace("solution", "_solution")
    assert (Source.parse(joined, "cuda", language).defect is None) == (language in ("cpp", "cuda"))


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_text_that_cannot_be_read_is_taken_for_the_devices_native_language(device: Device) -> None:
    assert Source.parse(PYTHON + "\0", device).language == ("cuda" if device == "cuda" else "cpp")


def test_a_source_is_identified_by_its_digest() -> None:
    assert Source.parse(CPP, "cpu").sha256 == source_sha256(CPP)
    assert len(Source.parse("\ud800", "cpu").sha256) == 64, "whatever it holds"


SIZE = 1 << (20 if IS_WHOLE else 17)
"""Size of the texts in bytes, an eighth of a MiB by `make test`: what takes hours for one takes minutes for that."""
PATHOLOGICAL = {
    "blank lines": "\n" * 20_000,
    "blank lines, then a source": "\n" * 20_000 + CPP,
    "many line breaks": "\n" * SIZE,
    "many line breaks, then a word": "\n" * (SIZE - 1) + "x",
    "many carriage returns": "\r" * SIZE,
    "many spaces": " " * SIZE,
    "many spaces, then a word": " " * (SIZE - 1) + "x",
    "many tabs": "\t" * SIZE,
    "blanks of every kind": " \t\n\r\v\f\u2003\u2028" * (SIZE // 13),
    "spaces and breaks": " \n" * (SIZE // 2),
    "spaces before imports": (" " * 1000 + "impor\n") * (SIZE // 1006),
    "from, again and again": "from " * (SIZE // 5),
    "from dots": "from " + "." * (SIZE - 5),
    "from many dots": ("from " + "a." * 50 + "\n") * (SIZE // 106),
    "defs": "def " * (SIZE // 4),
    "def and blanks": "def" + " " * (SIZE - 3),
    "defs over lines": "def\n" * (SIZE // 4),
    "def solution and blanks": "def solution" + " " * (SIZE - 12),
    "hashes": "#" * SIZE,
    "hashes and spaces": "# " * (SIZE // 2),
    "a hash and spaces": "#" + " " * (SIZE - 1),
    "hashes over lines": "#\n" * (SIZE // 2),
    "includes": "#include <" * (SIZE // 10),
    "includes of dots": "#include <" + "../" * (SIZE // 3 - 4),
    "an include and blanks": "#include <" + " " * (SIZE - 10),
    "an include and line breaks": '#embed "' + "\n" * (SIZE - 8),
    "many includes and blanks": ('#include "' + " " * 990) * (SIZE // 1000),
    "includes without an end": "#include <" + "." * (SIZE - 10),
    "many includes without an end": ("#include <" + "a" * 90 + "\n") * (SIZE // 101),
    "has_include": "__has_include" * (SIZE // 13),
    "has_include and blanks": "__has_include" + " " * (SIZE - 13),
    "voids": "void " * (SIZE // 5),
    "void and blanks": "void" + " " * (SIZE - 4),
    "void solutions": "void solution " * (SIZE // 14),
    "one long word": "a" * SIZE,
    "solution without an end": "solution" * (SIZE // 8),
    "surrogates": "\ud800" * (SIZE // 3),
    "the last is a surrogate": "x" * (SIZE - 3) + "\udfff",
    "zeros": "\0" * SIZE,
    "wide characters": "\U0001f600" * (SIZE // 4),
    "brackets": "(" * SIZE,
    "quotes": '"' * SIZE,
}


@pytest.mark.parametrize("text", sampled(PATHOLOGICAL.values(), 3), ids=sampled(PATHOLOGICAL, 3))
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_the_worst_texts_are_looked_at_in_a_moment(text: str, device: Device) -> None:
    """Twenty thousand blank lines took half a minute, as a run of them was gone through from each.

    A MiB of blanks behind an include took hours, as two parts of one pattern shared them.
    """
    assert len(text.encode("utf-8", "surrogatepass")) <= MAX_SOURCE_BYTES, "else its size alone is looked at"
    began = time.monotonic()
    for language in ("auto", "python", "cpp"):
        Source.parse(text, device, language)  # type: ignore[arg-type]
    assert time.monotonic() - began < 5


def test_nothing_scans_a_text_that_is_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    class Never:
        def search(self, text: str) -> None:
            pytest.fail("it was searched")

    for name in ("_PYTHON_MARK", "_NATIVE_MARK", "_TRITON_MARK"):
        monkeypatch.setattr(module, name, Never())

    class Text(str):
        """Tells of what would go through it."""

        def strip(self, *_: object) -> str:
            pytest.fail("it was stripped")

        def encode(self, *_: object, **__: object) -> bytes:
            pytest.fail("it was encoded")

        def __contains__(self, _: object) -> bool:
            pytest.fail("it was gone through")

    text = Text("\n" * (MAX_SOURCE_BYTES + 1))
    source = Source.parse(text, "cpu")
    assert source.defect is not None and source.defect.startswith(f"the source has at least {len(text)} bytes")


@given(text=st.text(st.characters(), max_size=200))
def test_any_text_is_looked_at(text: str) -> None:
    source = Source.parse(text, "cuda")
    assert source.language in ("cuda", "python", "triton")
    assert source.defect is None or source.defect
    assert source.sha256
