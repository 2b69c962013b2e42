"""Stage compile: from the text to what a gang loads."""

from __future__ import annotations

import re
from collections.abc import Callable

from pkb_gym.engine.compile.cache import CompileCache
from pkb_gym.engine.compile.debug_build import Build, gxx_flags, nvcc_flags
from pkb_gym.engine.compile.emulator import compile_emulated, compile_for_both
from pkb_gym.engine.compile.gxx import compile_cpp
from pkb_gym.engine.compile.nvcc import compile_cuda
from pkb_gym.engine.compile.python import build_python
from pkb_gym.engine.compile.sandboxed_compiler import cut_log
from pkb_gym.engine.compile.toolchain import exports_solution
from pkb_gym.engine.gangs.zygote import Zygote
from pkb_gym.engine.problem.signature import cpp_signature
from pkb_gym.engine.records.artifact import Artifact
from pkb_gym.engine.records.feedback import CompileReport, Failure
from pkb_gym.engine.records.source_wrapping import wrapping_note
from pkb_gym.engine.stages.feedback_builder import FeedbackBuilder
from pkb_gym.engine.support.printable import printable

_ERROR = re.compile(r"\berror *:|undefined reference|ptxas fatal(?!.*aborted due to errors)")
"""Marks in the lines of compilers, assemblers and linkers that name the error; ptxas writes `error   :`, and at the end
that it has given up."""
_PTX_FILE = re.compile(r"(?<![\w./-])/(?:[\w./-]*/)?tmpxft_[\w-]+_([\w.]+\.ptx)")
"""PTX of the source in a temporary folder of nvcc. A path is looked at from its beginning alone, once."""


def compile_source(feedback: FeedbackBuilder, cache: CompileCache, build_zygote: Callable[[], Zygote]) -> Artifact:
    """Compiles a native source, or imports a module, and adds the report.

    Args:
        feedback: Builder that receives the report.
        cache: Cache of compile results.
        build_zygote: Context manager for the sandboxed zygote that builds modules.

    Raises:
        Stopped: it does not compile, or cannot be imported.
        InfrastructureError: this machine failed.
    """
    text, language, timeout_s = feedback.source.text, feedback.config.language, feedback.config.compile_timeout_s
    build: Build = "debug" if feedback.config.debug else "release"
    if language == "cpp":
        artifact = compile_cpp(text, cache, timeout_s, gxx_flags(build))
    elif feedback.config.device == "emulated":
        artifact = compile_emulated(text, cache, timeout_s)
    elif language == "cuda" and feedback.config.debug:
        artifact = compile_cuda(text, cache, timeout_s, flags=nvcc_flags(build))
    elif language == "cuda":
        artifact = compile_for_both(text, cache, timeout_s)
    else:
        artifact = build_python(text, cache, build_zygote(), timeout_s)
    feedback.compile = CompileReport(
        duration_s=artifact.duration_s,
        cached=artifact.cached,
        log=printable(cut_log(artifact.log)),
        binary_bytes=None if artifact.binary is None else len(artifact.binary),
        kernels=artifact.kernels,
        transfers=artifact.transfers,
    )
    if not artifact.ok:
        what = "it does not compile" if feedback.config.dialect == "native" else "it cannot be imported"
        raise feedback.stop(Failure.COMPILE_ERROR, f"{what}: {first_error(artifact.log)}{wrapping_note(text)}")
    return artifact


def check_loadable(feedback: FeedbackBuilder, artifact: Artifact) -> None:
    """Looks whether a library exports what ranks will ask for.

    Raises:
        Stopped: it does not.
    """
    if artifact.binary is not None and not exports_solution(artifact.binary):
        expected = cpp_signature(feedback.problem)
        text = f"the library exports no `solution`. Expected this signature and export:\n{expected}"
        raise feedback.stop(Failure.LOAD_ERROR, text)


def first_error(log: str) -> str:
    """The line of a log that matters most: the first error of a compiler, the last line of a traceback."""
    lines = [line.strip() for line in log.splitlines() if line.strip()] or ["the log is empty"]
    return _PTX_FILE.sub(r"\1", next((line for line in lines if _ERROR.search(line)), lines[-1]))
