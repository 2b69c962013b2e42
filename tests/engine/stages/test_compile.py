"""Stage compile: which compiler gets the text, and which line of its log is reported."""

from __future__ import annotations

import dataclasses

import pytest

from pkb_gym.engine.compile.cache import CompileCache
from pkb_gym.engine.compile.debug_build import gxx_flags
from pkb_gym.engine.problem.signature import cpp_signature
from pkb_gym.engine.records.artifact import Artifact
from pkb_gym.engine.records.compiler_report import InstructionCounts
from pkb_gym.engine.records.config import Language
from pkb_gym.engine.records.feedback import Failure
from pkb_gym.engine.stages import compile as stage
from pkb_gym.engine.stages.compile import check_loadable, compile_source
from pkb_gym.engine.stages.feedback_builder import FeedbackBuilder, Stopped
from tests.engine.stages.fake_gangs import PROBLEM, PYTHON, builder

GOOD = Artifact(
    ok=True, log="a warning", duration_s=1.5, binary=b"\x7fELF12", transfers=InstructionCounts(loads=2), cached=True
)
CACHE: CompileCache = object()  # type: ignore[assignment]


def compiled(
    artifact: Artifact, monkeypatch: pytest.MonkeyPatch, language: Language = "cpp"
) -> tuple[FeedbackBuilder, list[object]]:
    """A source that each compiler makes this of; and what that compiler was given."""
    given: list[object] = []

    def compiler(name: str):
        return lambda *args, **options: given.extend((name, *args, *options.values())) or artifact

    for name in ("compile_cpp", "compile_for_both", "build_python"):
        monkeypatch.setattr(stage, name, compiler(name))
    source = {"source": PYTHON} if language in ("python", "triton") else {}
    gpus = 2 if language in ("cuda", "triton") else 0
    feedback = builder(gpus=gpus, language=language, compile_timeout_s=7.0, **source)
    assert feedback.config.language == language
    assert compile_source(feedback, CACHE, lambda: "the zygote") is artifact  # type: ignore[arg-type,return-value]
    return feedback, given


@pytest.mark.parametrize(
    ("language", "compiler"),
    [("cpp", "compile_cpp"), ("cuda", "compile_for_both"), ("python", "build_python"), ("triton", "build_python")],
)
def test_each_language_has_its_compiler(monkeypatch: pytest.MonkeyPatch, language: Language, compiler: str) -> None:
    feedback, given = compiled(GOOD, monkeypatch, language)
    zygote = ["the zygote"] if compiler == "build_python" else []
    flags = [gxx_flags("release")] if compiler == "compile_cpp" else []
    assert given == [compiler, feedback.source.text, CACHE, *zygote, 7.0, *flags]


def test_the_report_holds_the_output_of_the_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    report = compiled(GOOD, monkeypatch)[0].compile
    assert report is not None
    assert (report.log, report.duration_s, report.cached, report.binary_bytes) == ("a warning", 1.5, True, 6)
    assert report.transfers == InstructionCounts(loads=2)
    module = compiled(dataclasses.replace(GOOD, binary=None), monkeypatch, "python")[0].compile
    assert module is not None and module.binary_bytes is None


LOGS = {
    "error": ("k.cpp: In function 'f':\nk.cpp:3:5: error: 'x' was not declared\n  3 | x;\n", "k.cpp:3:5: error: 'x'"),
    "linker": ("k.cpp:1: warning: odd\n\nld: undefined reference to `g'\ncollect2: error: ld: 1\n", "ld: undefined"),
    "ptxas": ("ptxas info : x\nptxas fatal   : Unresolved extern 'h'\none step was not run\n", "ptxas fatal   : Unres"),
    "assembler": (
        "ptxas /tmp/tmpxft_00005a7f_00000000-6_kernel.ptx, line 26; error   : Not a name of any known instruction: "
        "'foo'\n"
        "ptxas fatal   : Ptx assembly aborted due to errors\n",
        "ptxas kernel.ptx, line 26; error   : Not a name of any known instruction: 'foo'",
    ),
    "assembler without a sandbox": (
        "ptxas /scratch/me/pkb-scratch-1_a/tmpxft_00005a7f_00000000-6_kernel.ptx, line 26; error   : Not a name\n",
        "ptxas kernel.ptx, line 26; error   : Not a name",
    ),
    "too much shared memory": (
        "ptxas error   : Entry function 'k' uses too much shared data (0x3a980 bytes, 0x38c00 max)\n",
        "ptxas error   : Entry function 'k' uses too much shared data",
    ),
    "traceback": ("Traceback (most recent call last):\n  File ...\nNameError: name 'tl'\n  \n", "NameError: name 'tl'"),
    "empty": ("   \n\n", "the log is empty"),
}


@pytest.mark.parametrize(("log", "first"), LOGS.values(), ids=list(LOGS))
@pytest.mark.parametrize(("language", "says"), [("cpp", "it does not compile"), ("python", "it cannot be imported")])
def test_the_line_that_matters_is_reported(
    monkeypatch: pytest.MonkeyPatch, log: str, first: str, language: Language, says: str
) -> None:
    feedback = builder(language=language, **({"source": PYTHON} if language == "python" else {}))
    for name in ("compile_cpp", "build_python"):
        monkeypatch.setattr(stage, name, lambda *_: Artifact(ok=False, log=log, duration_s=0.1))
    with pytest.raises(Stopped):
        compile_source(feedback, CACHE, lambda: None)  # type: ignore[arg-type,return-value]
    found = feedback.build()
    assert found.failure is Failure.COMPILE_ERROR and found.message.startswith(f"{says}: {first}")
    assert "\n" not in found.message
    assert found.compile is not None and found.compile.log == log, "all of it is in the report"


@pytest.mark.parametrize("source", ["```cpp\n{}\n```\n", "The kernel:\n```\n{}```"])
def test_code_within_markdown_is_said_to_be_so(monkeypatch: pytest.MonkeyPatch, source: str) -> None:
    """A compiler's word on it was of stray characters in the program."""
    monkeypatch.setattr(stage, "compile_cpp", lambda *_: Artifact(ok=False, log="error: stray", duration_s=0.1))
    for text, noted in ((source, True), (source.replace("```", ""), False)):
        feedback = builder(language="cpp", source=text)
        with pytest.raises(Stopped):
            compile_source(feedback, CACHE, lambda: None)  # type: ignore[arg-type,return-value]
        assert ("Markdown" in feedback.build().message) is noted


@pytest.mark.parametrize(
    ("exports", "binary", "loadable"), [(True, b"1", True), (False, b"1", False), (False, None, True)]
)
def test_a_library_must_export_its_solution(
    monkeypatch: pytest.MonkeyPatch, exports: bool, binary: bytes | None, loadable: bool
) -> None:
    """A module is looked at when it is imported."""
    monkeypatch.setattr(stage, "exports_solution", lambda _: exports)
    feedback = builder()
    artifact = Artifact(ok=True, log="", duration_s=0.1, binary=binary)
    if loadable:
        check_loadable(feedback, artifact)
        assert not feedback.failed
        return
    with pytest.raises(Stopped):
        check_loadable(feedback, artifact)
    found = feedback.build()
    assert found.failure is Failure.LOAD_ERROR and found.message.endswith(cpp_signature(PROBLEM))
