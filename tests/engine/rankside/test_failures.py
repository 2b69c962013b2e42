"""The failure that an exception of a candidate stands for."""

from __future__ import annotations

import traceback
import types

import pytest

from pkb_gym.engine.rankside import python
from pkb_gym.engine.rankside.failures import CandidateError, kind_of, text_of, trace_of


def undecodable(text: bytes) -> UnicodeDecodeError:
    """The error that tvm_ffi raises in place of one whose text is not UTF-8."""
    with pytest.raises(UnicodeDecodeError) as caught:
        bytearray(text).decode()
    return caught.value


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (CandidateError("load_error", "no solution"), "load_error"),
        (ValueError("no"), "runtime_error"),
        (MemoryError(), "out_of_memory"),
        (RuntimeError("std::bad_alloc"), "out_of_memory"),
        (undecodable(b"caf\xe9: std::bad_alloc"), "out_of_memory"),
        (undecodable(b"caf\xe9"), "runtime_error"),
    ],
)
def test_the_kind_of_an_error(error: BaseException, kind: str) -> None:
    assert kind_of(error) == kind


def test_a_text_that_is_not_utf_8_is_escaped() -> None:
    assert text_of(undecodable(b"caf\xe9 \xe2\x82\xac")) == "caf\\xe9 \u20ac"
    assert text_of(ValueError("as it is")) == "as it is"


def raised(source: str) -> BaseException:
    """The error of a candidate's module."""
    with pytest.raises(Exception) as caught:  # noqa: PT011  # whatever the source raises
        python.execute(source, types.ModuleType("candidate"))
    error = caught.value
    assert error.__traceback__ is not None
    return error.with_traceback(error.__traceback__.tb_next)  # without the frame of this test


def test_a_trace_has_the_candidates_frames_alone() -> None:
    """Frames of the rank program stood above those of every candidate, and were all that a C++ exception showed."""
    expected = """Traceback (most recent call last):
  File "candidate.py", line 3, in <module>
    f()
  File "candidate.py", line 2, in f
    raise ValueError("no")
ValueError: no"""
    lines = trace_of(raised('def f():\n    raise ValueError("no")\nf()\n')).splitlines()
    assert [line for line in lines if not set(line) <= set(" ~^")] == expected.splitlines()


def test_a_trace_without_a_candidates_frames_is_the_error() -> None:
    error = raised("int('x')")
    error.__traceback__ = None
    assert trace_of(error) == "ValueError: invalid literal for int() with base 10: 'x'"


def test_a_trace_has_the_errors_that_an_error_came_from() -> None:
    trace = trace_of(raised("try:\n    {}['x']\nexcept KeyError:\n    raise ValueError('no')\n"))
    assert "rankside" not in trace
    assert trace.index("line 2") < trace.index("KeyError: 'x'") < trace.index("line 4") < trace.index("ValueError: no")


def test_a_trace_of_a_kernel_has_neither_headers_nor_folders(monkeypatch: pytest.MonkeyPatch) -> None:
    """An error of `pkb::Comm` showed the lines of its header, and the folder in which the kernel had been compiled."""
    files = ("/tmp/kernel.cpp", "/usr/lib/pkb_gym/engine/include/pkb/symm_cpu.h", "candidate.py")
    stack = traceback.StackSummary.from_list([(name, 7, "solution", "a line") for name in files])
    monkeypatch.setattr(traceback.StackSummary, "_extract_from_extended_frame_gen", lambda *_, **__: stack)
    lines = trace_of(ValueError("no")).splitlines()
    assert lines[1:] == [
        '  File "kernel.cpp", line 7, in solution',
        '  File "candidate.py", line 7, in solution',
        "    a line",
        "ValueError: no",
    ]


def test_a_trace_leaves_out_functions_that_are_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """The FFI library names the end of a stack by an address."""
    names = ("0xffffffffffffffff", "solution")
    stack = traceback.StackSummary.from_list([("kernel.cpp", 7, name, "") for name in names])
    monkeypatch.setattr(traceback.StackSummary, "_extract_from_extended_frame_gen", lambda *_, **__: stack)
    assert trace_of(ValueError("no")).splitlines()[1:] == ['  File "kernel.cpp", line 7, in solution', "ValueError: no"]


def test_a_trace_of_an_endless_recursion_is_short() -> None:
    assert len(trace_of(raised("def f():\n    f()\nf()\n"))) < 1000


def test_a_mistyped_attribute_is_answered_by_the_nearest() -> None:
    text = trace_of(raised("import torch.distributed as dist\ndist.all_reduc\n"))
    assert text.endswith("module 'torch.distributed' has no attribute 'all_reduc'. Did you mean: 'all_reduce'?")


@pytest.mark.parametrize(
    "source",
    [
        "(5).quite_another_thing\n",
        "raise AttributeError('no')\n",
        "class Odd:\n    def __dir__(self):\n        raise ValueError\n\nOdd().x\n",
        f"getattr(5, {'x' * 200!r})\n",
    ],
)
def test_where_nothing_is_near_nothing_is_asked(source: str) -> None:
    assert "Did you mean" not in trace_of(raised(source))


BEGINNING = (
    "std::thread::_State_impl<std::thread::_Invoker<std::tuple<pkb::emulator::World::run()::{lambda()#1}>>>::_M_run()",
    "std::_Function_handler<int (int), pkb_emu_run::{lambda()#1}>::_M_invoke(std::_Any_data const&, int&&)",
    "start_thread",
    "__clone",
    "clone3",
    "execute_native_thread_routine",
)


def test_functions_that_begin_a_thread_are_left_out() -> None:
    """They stood above the frames of every kernel that threw on emulated GPUs; a kernel's own functions stay."""
    own = (("kernel.cu", "start(std::thread::id)"), ("kernel.cu", "solution"))
    functions = [compile("functions.pop(0)()", file, "eval").replace(co_name=name) for file, name in own]
    functions = [
        *(compile("functions.pop(0)()", "<unknown>", "eval").replace(co_name=name) for name in BEGINNING),
        *functions,
        compile("1 / 0", "kernel.cu", "eval").replace(co_name="innermost"),
    ]
    left: dict[str, object] = {}
    left["functions"] = [types.FunctionType(code, left) for code in functions]
    with pytest.raises(ZeroDivisionError) as caught:
        left["functions"].pop(0)()  # type: ignore[attr-defined]
    lines = trace_of(caught.value).splitlines()
    named = [line.split(" in ")[1] for line in lines if line.startswith('  File "kernel.cu"')]
    assert named == ["start(std::thread::id)", "solution", "innermost"]
    assert not any(name in line for line in lines for name in BEGINNING)
