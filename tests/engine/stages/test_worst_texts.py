"""Every look at a text of the largest size takes a bounded time, whatever it holds; see test_source.py for its parsing.

Bounds are processor time, some ten times what a busy machine takes: what grows with the square of the size takes hours.
`make test` looks at texts of a quarter of that size, in a quarter of the time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from pkb_gym.engine.compile.ptxas import read_ptxas
from pkb_gym.engine.compile.sandboxed_compiler import CompilerLimits, Run, compiled_of, cut_log
from pkb_gym.engine.compile.sass import count_in
from pkb_gym.engine.records.source import MAX_SOURCE_BYTES
from pkb_gym.engine.stages.compile import first_error
from pkb_gym.engine.stages.static import MAX_PARSED_CHARS, calls_torch_distributed, makes_streams
from pkb_gym.envs.text.feedback import feedback_text
from pkb_gym.envs.text.formatting import cut_middle
from pkb_gym.envs.text.reply import take_source
from pkb_gym.rewards.examples import failed
from tests.whole_tables import IS_WHOLE

SIZE = MAX_SOURCE_BYTES if IS_WHOLE else MAX_SOURCE_BYTES // 16
BOUND_S = 60.0 if IS_WHOLE else 4.0

LOG_BYTES = CompilerLimits(1.0).output_bytes


@contextmanager
def bounded() -> Iterator[None]:
    began = time.process_time()
    yield
    assert time.process_time() - began < BOUND_S


def filled(piece: str, size: int = SIZE) -> str:
    return piece * (size // len(piece))


TEXTS = {
    "one line": filled("x"),
    "blank lines": filled("\n"),
    "blanks": filled(" "),
    "open brackets": filled("("),
    "nested brackets": "(" * (SIZE // 2) + ")" * (SIZE // 2),
    "attributes": "a" + filled(".a", SIZE - 1),
    "comments": filled("#\n"),
    "block comments": filled("/*"),
    "includes": filled('#include "a"\n'),
    "open quotes": filled('"'),
    "backslashes": filled("\\\n"),
    "unary operators": filled("-"),
    "words of streams": filled("Stream"),
    "fences": filled("```\n"),
    "fences of a language": filled("```cpp\n"),
    "fences that close nothing": filled("```a`\n"),
    "backticks": filled("`"),
    "fences and blanks": filled("```" + " " * 1000 + "x\n"),
    "errors": filled("error:"),
    "ptxas": filled("ptxas info    : Compiling entry function 'a' for 'sm_90a'\n"),
    "ptxas, many kernels": "".join(
        f"ptxas info : Compiling entry function '{n}' for 'sm_90a'\n" for n in range(SIZE // 70)
    ),
    "functions": filled("\tFunction : a\n"),
    "instructions": filled("        /*0000*/                   @P0 LDG.E.SYS R0 ;\n"),
    "instruction without an end": "/*" + filled("0", SIZE - 2),
    "signals": filled("signal "),
}
LOOKS: dict[str, Callable[[str], object]] = {
    "streams": makes_streams,
    "replies": take_source,
    "first error": first_error,
    "compiler's log": cut_log,
    "compiler's end": lambda text: compiled_of(Run(1, text, b"", 0.1), CompilerLimits(1.0)),
    "ptxas": read_ptxas,
    "instructions": lambda text: list(count_in(text)),
    "feedback": lambda text: feedback_text(
        failed("compile_error").model_copy(update={"message": text, "output": text})
    ),
    "middle": lambda text: cut_middle(text, 1000),
}


@pytest.mark.parametrize("look", LOOKS.values(), ids=list(LOOKS))
@pytest.mark.parametrize("text", TEXTS.values(), ids=list(TEXTS))
def test_looks_at_the_largest_texts_are_bounded(text: str, look: Callable[[str], object]) -> None:
    """200,000 fences of a language in one reply took hours, as each was followed to the end of the reply."""
    assert len(text) <= SIZE
    with bounded():
        look(text)


@pytest.mark.slow
@pytest.mark.parametrize(
    "text",
    [
        *(TEXTS[name] for name in ("open brackets", "nested brackets", "attributes", "unary operators", "open quotes")),
        *(filled(piece) for piece in ("a;", "a<", "@a\n", "*a,", "lambda:", "1**", "f'{x}'", "a=", "if 1:\n pass\n")),
        filled("f(" * 190 + ")" * 190 + "\n"),
        filled("{1:" * 90 + "1" + "}" * 90 + "\n"),
        "(" * 199 + "$",
        "with (" * 100,
        "".join(" " * depth + "if 1:\n" for depth in range(99)),
    ],
    ids=lambda text: ascii(text[:12]),
)
def test_python_of_any_shape_is_parsed_or_given_up_in_bounded_time(text: str) -> None:
    with bounded():
        assert calls_torch_distributed(text[:MAX_PARSED_CHARS]) is False
        assert not calls_torch_distributed(text)


def test_the_longest_output_of_a_compiler_is_looked_at_in_bounded_time() -> None:
    with bounded():
        assert not compiled_of(Run(1, "signal 9x " * (LOG_BYTES // 10), b"", 0.1), CompilerLimits(1.0)).killed
