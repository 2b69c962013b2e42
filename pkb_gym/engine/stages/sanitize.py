"""Sanitizers: the checked calls in the standalone harness, built with each, inside the compilers' sandbox.

A sanitizer needs a process whose first library it is, and the thread sanitizer sees no races between processes: ranks
cannot be forked from a zygote then, and those of the thread build are threads of one process. The expected outputs lie
beside the candidate there, as they must not for anything that is rewarded; a build with sanitizers never is.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator
from pathlib import Path

from pkb_gym.engine.compare.layout import BlockPlan
from pkb_gym.engine.compile.cache import CompileCache
from pkb_gym.engine.compile.debug_build import build_harness, compile_sanitized
from pkb_gym.engine.compile.sandboxed_compiler import Limits, cut_log, run_sandboxed
from pkb_gym.engine.compile.toolchain import EXPORTED, ffi_root
from pkb_gym.engine.records.config import Sanitizer
from pkb_gym.engine.records.feedback import Failure, SanitizerReport
from pkb_gym.engine.stages.block_staging import BlockStaging
from pkb_gym.engine.stages.candidate_run import CandidateRun
from pkb_gym.engine.stages.kept_run import keep_calls, run_script

FILE_BLOCKS = 64 << 20
"""The heap is a file here: 32 GiB at most."""

SLOWDOWN = 30
"""Of sanitized code, roughly: the deadline is that many times a block's."""

MOST_REPORTS = 8
MOST_SUMMARY_CHARS = 300
MOST_OWN_LINES = 3

_SUMMARIES = {
    "address": re.compile(r"^SUMMARY: AddressSanitizer: (.*)$", re.MULTILINE),
    "thread": re.compile(r"^SUMMARY: ThreadSanitizer: (.*)$", re.MULTILINE),
    "undefined": re.compile(r"^(\S*?\d+:\d+: runtime error: .*)$", re.MULTILINE),
}


def sanitize(run: CandidateRun, cache: CompileCache, plan: BlockPlan, staging: BlockStaging) -> None:
    """Runs the calls of a block under each sanitizer that was asked for; adds the reports.

    Args:
        run: of the candidate.
        cache: where builds are kept.
        plan: of a block whose baseline results are there.
        staging: how its calls are conducted.

    Raises:
        Stopped: a sanitizer has found something.
        InfrastructureError: a sanitizer is missing here.
    """
    with tempfile.TemporaryDirectory(prefix="pkb-") as folder:
        keep_calls(run, plan, staging, Path(folder))
        files = {path.name: path.read_bytes() for path in Path(folder).iterdir()}
    files["run.sh"] = run_script(run.config.world_size).encode()
    run.feedback.sanitizers = tuple(
        report for sanitizer in run.config.sanitize for report in _reports(run, cache, sanitizer, files)
    )
    found = [report for report in run.feedback.sanitizers if report.found]
    if found:
        message = "\n".join(f"{report.sanitizer} sanitizer: {report.summary}" for report in found)
        raise run.feedback.stop(Failure.RUNTIME_ERROR, message)


def _reports(
    run: CandidateRun, cache: CompileCache, sanitizer: Sanitizer, files: dict[str, bytes]
) -> list[SanitizerReport]:
    library = compile_sanitized(run.feedback.source.text, sanitizer, cache, run.config.compile_timeout_s)
    if library.binary is None:
        raise run.feedback.stop(
            Failure.COMPILE_ERROR, f"it does not compile with -fsanitize={sanitizer}: {library.log}"
        )
    timeout_s = SLOWDOWN * run.config.timeout_s
    finished = run_sandboxed(
        ["bash", "run.sh", sanitizer],
        files={
            **files,
            f"kernel-{sanitizer}.so": library.binary,
            f"harness-{sanitizer}": build_harness(sanitizer, cache),
        },
        readable=(ffi_root(),),
        limits=Limits(timeout_s, memory_kib=None, file_blocks=FILE_BLOCKS),
    )
    if finished.status is None:
        what = f"the calls did not end in {timeout_s:g} s under this sanitizer"
        return [SanitizerReport(sanitizer=sanitizer, found=False, summary=what, report=cut_log(finished.output))]
    return reports_in(sanitizer, finished.output, finished.status)


def reports_in(sanitizer: Sanitizer, output: str, status: int) -> list[SanitizerReport]:
    """What a run under a sanitizer has shown: one report for each distinct summary, or that there is none.

    Args:
        sanitizer: which.
        output: of all ranks.
        status: of the run, see `debugging/run.sh`.
    """
    output = _FOLDERS.sub("", output)
    summaries = list(dict.fromkeys(_summaries(sanitizer, output)))
    if not summaries:
        what = {0: "nothing found", 1: "nothing found; outputs differ"}.get(
            status, f"nothing found; the run ended with status {status}"
        )
        return [SanitizerReport(sanitizer=sanitizer, found=False, summary=what, report=cut_log(output))]
    return [
        SanitizerReport(sanitizer=sanitizer, found=True, summary=summary, report="" if number else cut_log(output))
        for number, summary in enumerate(summaries[:MOST_REPORTS])
    ]


_FOLDERS = re.compile(r"/tmp/(?=kernel\.|harness\.)|/[\w./-]*/include/(?=pkb/|tvm/)|(?:\.\./)+src/libsanitizer/\w+/")
"""In front of files whose names say enough."""

_OWN_LINE = re.compile(r"\bkernel\.cpp:\d+")


def _summaries(sanitizer: Sanitizer, output: str) -> Iterator[str]:
    """One line for each report, with the candidate's own lines where the summary names another file."""
    begin = 0
    for found in _SUMMARIES[sanitizer].finditer(output):
        summary, report = found[1][:MOST_SUMMARY_CHARS], output[begin : found.start()]
        begin = found.end()
        frames = "\n".join(line for line in report.splitlines() if EXPORTED not in line)
        own = list(dict.fromkeys(_OWN_LINE.findall(frames)))[:MOST_OWN_LINES]
        yield summary if _OWN_LINE.search(summary) or not own else f"{summary} ({', '.join(own)})"
