"""Sanitizers: the checked calls in the standalone harness, built with each, inside the compilers' sandbox.

A sanitizer needs a process whose first library it is, and the thread sanitizer sees no races between processes: ranks
cannot be forked from a zygote then, and those of the thread build are threads of one process. The expected outputs lie
beside the candidate there, as they must not for anything that is rewarded; a build with sanitizers never is.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path

from pkb_gym.engine.compare.layout import BlockPlan
from pkb_gym.engine.compile.cache import CompileCache
from pkb_gym.engine.compile.sandboxed_compiler import CompilerLimits, run_sandboxed
from pkb_gym.engine.compile.toolchain import ffi_root
from pkb_gym.engine.debugging.harness_build import build_harness, build_under, compile_sanitized, find_compute_sanitizer
from pkb_gym.engine.debugging.kept_run import keep_calls, run_script
from pkb_gym.engine.debugging.sanitizer_reports import late_report, reports_in
from pkb_gym.engine.gangs.sandbox import gpu_devices
from pkb_gym.engine.gangs.visible_folders import system_paths
from pkb_gym.engine.records.config import SANITIZERS, Sanitizer
from pkb_gym.engine.records.feedback import Failure, SanitizerReport
from pkb_gym.engine.stages.block_staging import BlockStaging
from pkb_gym.engine.stages.candidate_run import CandidateRun

FILE_BLOCKS = 64 << 20
"""The heap is a file here: 32 GiB at most."""

SLOWDOWN = 30
"""The slowdown of sanitized code, roughly: the deadline is that many times a block's."""


def sanitize(run: CandidateRun, cache: CompileCache, plan: BlockPlan, staging: BlockStaging) -> None:
    """Runs the calls of a block under each sanitizer that was asked for; adds the reports.

    Args:
        run: Run of the candidate.
        cache: Cache of builds.
        plan: Calls of a block whose baseline results are there.
        staging: Conduct of these calls.

    Raises:
        Stopped: a sanitizer has found something.
        InfrastructureError: a sanitizer is missing here.
    """
    with tempfile.TemporaryDirectory(prefix="pkb-") as folder:
        keep_calls(run, plan, staging, Path(folder))
        files = {path.name: path.read_bytes() for path in Path(folder).iterdir()}
    tools = SANITIZERS["cuda"] if run.config.language == "cuda" else ()
    files["run.sh"] = run_script(run.config.world_size, tools).encode()
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
            Failure.COMPILE_ERROR, f"it does not compile for the {sanitizer} sanitizer: {library.log}"
        )
    timeout_s = SLOWDOWN * run.config.timeout_s
    build, tool = build_under(sanitizer), _gpu_tool(sanitizer)
    finished = run_sandboxed(
        [*tool.environment, "bash", "run.sh", sanitizer],
        files={
            **files,
            f"kernel-{build}.so": library.binary,
            f"harness-{build}": build_harness(sanitizer, cache),
        },
        readable=(ffi_root(), *tool.readable),
        devices=tool.devices,
        limits=CompilerLimits(timeout_s, memory_kib=None, file_blocks=FILE_BLOCKS),
    )
    if finished.status is None:
        return [late_report(sanitizer, finished.output, timeout_s)]
    return reports_in(sanitizer, finished.output, finished.status)


@dataclass(frozen=True)
class _GpuTool:
    """The extra needs of a run under compute-sanitizer; none under g++'s sanitizers.

    Attributes:
        environment: Command that sets environment variables.
        readable: Folders that the sandbox shows.
        devices: Device files that the sandbox shows.
    """

    environment: tuple[str, ...] = ()
    readable: tuple[Path, ...] = ()
    devices: tuple[str, ...] = ()


def _gpu_tool(sanitizer: Sanitizer) -> _GpuTool:
    if sanitizer not in SANITIZERS["cuda"]:
        return _GpuTool()
    program = find_compute_sanitizer()
    # It may be a script that starts a program of a neighbouring folder.
    toolkit = [program.parent.parent / name for name in ("bin", "compute-sanitizer", "extras")]
    folders = (*map(Path, system_paths()), *(folder for folder in toolkit if folder.is_dir()), Path("/sys"))
    return _GpuTool(("env", f"COMPUTE_SANITIZER={program}"), folders, gpu_devices())
