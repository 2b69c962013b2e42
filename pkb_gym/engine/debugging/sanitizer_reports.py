"""Reports of sanitizers: bounded, escaped, and with the candidate's own lines."""

from __future__ import annotations

import re
from collections.abc import Iterator

from pkb_gym.engine.compile.sandboxed_compiler import cut_log
from pkb_gym.engine.compile.toolchain import EXPORTED
from pkb_gym.engine.debugging.compute_sanitizer import gpu_findings
from pkb_gym.engine.records.config import SANITIZERS, Sanitizer
from pkb_gym.engine.records.feedback import SanitizerReport
from pkb_gym.engine.support.ownership import PREFIX
from pkb_gym.engine.support.printable import printable

MAX_REPORTS = 8
MAX_SUMMARY_CHARS = 300
MAX_OWN_LINES = 3

_SUMMARIES = {
    "address": re.compile(r"^SUMMARY: AddressSanitizer: (.*)$", re.MULTILINE),
    "thread": re.compile(r"^SUMMARY: ThreadSanitizer: (.*)$", re.MULTILINE),
    "undefined": re.compile(r"^(\S{0,1000}?\d{1,9}:\d{1,9}: runtime error: .*)$", re.MULTILINE),
}


def reports_in(sanitizer: Sanitizer, output: str, status: int) -> list[SanitizerReport]:
    """The reports of a run under a sanitizer: one for each distinct summary, or one of a run without findings.

    Args:
        sanitizer: Name of the sanitizer.
        output: Output of all ranks.
        status: Exit status of the run, see `debugging/run.sh`.
    """
    output = _FOLDERS.sub("", output)
    summaries = list(dict.fromkeys(_summaries(sanitizer, output)))
    if not summaries:
        what = {0: "nothing found", 1: "nothing found; outputs differ"}.get(
            status, f"nothing found; the run ended with status {status}"
        )
        return [SanitizerReport(sanitizer=sanitizer, found=False, summary=what, report=_shown(output))]
    return [
        SanitizerReport(
            sanitizer=sanitizer, found=True, summary=printable(summary), report="" if number else _shown(output)
        )
        for number, summary in enumerate(summaries[:MAX_REPORTS])
    ]


def late_report(sanitizer: Sanitizer, output: str, timeout_s: float) -> SanitizerReport:
    """The report of a run that its deadline ended."""
    what = f"the calls did not end in {timeout_s:g} s under this sanitizer"
    return SanitizerReport(sanitizer=sanitizer, found=False, summary=what, report=_shown(output))


def _shown(output: str) -> str:
    return printable(cut_log(output))


_FOLDERS = re.compile(
    rf"(?<![\w./-])/(?:[\w./-]*/{PREFIX}\w+|tmp)/(?=kernel\.|harness[._])"
    r"|(?<![\w./-])/[\w./-]*/include/(?=pkb/|tvm/)|(?<!\.\./)(?:\.\./)++src/libsanitizer/\w+/"
)
"""Pattern of folders in front of files whose names suffice: of builds in the sandbox and without one, and of headers. A
path is looked at from its beginning alone, once."""

_RED_ZONE = "use-after-poison"
"""AddressSanitizer's name for an access to memory that the harness has marked: all that belongs to no tensor."""

_OWN_LINE = re.compile(r"\bkernel\.(?:cpp|cu):\d+")


def _summaries(sanitizer: Sanitizer, output: str) -> Iterator[str]:
    """One line for each report, with the candidate's own lines where the summary names another file."""
    for summary, lines in _reports(sanitizer, output):
        summary = summary[:MAX_SUMMARY_CHARS]
        frames = "\n".join(line for line in lines if EXPORTED not in line)
        own = list(dict.fromkeys(_OWN_LINE.findall(frames)))[:MAX_OWN_LINES]
        if summary.startswith(_RED_ZONE):
            summary = f"outside of every tensor: {summary}"
        yield summary if _OWN_LINE.search(summary) or not own else f"{summary} ({', '.join(own)})"


def _reports(sanitizer: Sanitizer, output: str) -> Iterator[tuple[str, list[str]]]:
    """Each report's summary, and the lines that belong to it."""
    if sanitizer in SANITIZERS["cuda"]:
        yield from ((found.summary, found.lines) for found in gpu_findings(output))
        return
    begin = 0
    for found in _SUMMARIES[sanitizer].finditer(output):
        yield found[1], output[begin : found.start()].splitlines()
        begin = found.end()
