"""Checked calls as a folder that runs by itself: `pkb eval --keep`, and what sanitizers are run on."""

from __future__ import annotations

from pathlib import Path

from pkb_gym.engine.compare.layout import PAGE_BYTES, BlockPlan, align
from pkb_gym.engine.debugging.harness_build import BUILDS, HARNESS, build_script, harness_files
from pkb_gym.engine.errors import ConfigError
from pkb_gym.engine.records.config import SANITIZERS
from pkb_gym.engine.reference.orders import ConductCalls
from pkb_gym.engine.stages.block_staging import BlockStaging
from pkb_gym.engine.stages.candidate_run import CandidateRun
from pkb_gym.engine.wire import abi

KEPT_BYTES = 256 << 20
"""The most bytes of all ranks' tensors: as many calls are kept as fit, at least one."""

RUN_SCRIPT = HARNESS.with_name("run.sh")


def keep_run(run: CandidateRun, plan: BlockPlan, staging: BlockStaging, folder: Path) -> None:
    """Writes source, library, harness, scripts and the calls of a block whose baseline results are there.

    Args:
        run: Run of the candidate.
        plan: Arguments and outputs of the block's calls.
        staging: Conduct of these calls.
        folder: Folder that is written to, made if it is not there; an earlier kept run is replaced.

    Raises:
        ConfigError: the folder cannot be written.
    """
    language = run.config.language
    try:
        folder.mkdir(parents=True, exist_ok=True)
        keep_calls(run, plan, staging, folder)
        for build in BUILDS[language]:
            for name in (f"kernel-{build}.so", f"harness-{build}"):
                (folder / name).unlink(missing_ok=True)
        (folder / f"kernel.{'cu' if language == 'cuda' else 'cpp'}").write_text(run.feedback.source.text)
        (folder / f"kernel-{'debug' if run.config.debug else 'release'}.so").write_bytes(run.artifact.binary or b"")
        for name, content in harness_files().items():
            (folder / name).write_bytes(content)
        tools = SANITIZERS["cuda"] if language == "cuda" else ()
        scripts = {
            "build.sh": build_script(language, run.feedback.source.text),
            "run.sh": run_script(run.config.world_size, tools),
        }
        for name, text in scripts.items():
            (folder / name).write_text(text)
            (folder / name).chmod(0o755)
    except OSError as error:
        raise ConfigError(f"cannot keep the run in {folder}: {error.strerror or error}") from None


def keep_calls(run: CandidateRun, plan: BlockPlan, staging: BlockStaging, folder: Path) -> None:
    """Writes `calls.txt` and the files of each rank; see `reference/kept_block.py`.

    Raises:
        OSError: the folder cannot be written.
    """
    world_size = run.config.world_size
    bytes_of_call = max(planned.nbytes for planned in plan.sets) * world_size
    calls = max(1, min(len(plan.sets), KEPT_BYTES // max(1, bytes_of_call)))
    segment_bytes = align(plan.end, PAGE_BYTES)
    lines = [
        f"pkb-calls 1 {world_size} {segment_bytes} {abi.SCRATCH_OFFSET} {run.layout.scratch_bytes} "
        f"{abi.SIGNAL_OFFSET} {calls}"
    ]
    (order, *_) = staging.orders
    assert isinstance(order, ConductCalls)
    for call, (planned, how) in enumerate(zip(plan.sets[:calls], order.calls, strict=False)):
        late = -1 if how.late_rank is None else how.late_rank
        holds = [of_rank[call] for of_rank in staging.setting.holds_ns]
        fields = (planned.trial, int(how.together), late, round(how.delay_s * 1e6), *holds)
        lines.append(" ".join(map(str, fields)))
    (folder / "calls.txt").write_text("\n".join(lines) + "\n")
    run.reference.keep(str(folder.resolve()), calls)


def run_script(world_size: int, tools: tuple[str, ...] = (), grace_s: int = 2) -> str:
    """The script that runs a kept folder.

    Args:
        world_size: Number of processes that it starts.
        tools: Tools of compute-sanitizer that it offers.
        grace_s: Seconds that the other ranks may go on under a tool once one has ended with a finding.
    """
    values = {"@WORLD_SIZE@": str(world_size), "@TOOLS@": " ".join(tools), "@GRACE_S@": str(grace_s)}
    text = RUN_SCRIPT.read_text(encoding="utf-8")
    for name, value in values.items():
        text = text.replace(name, value)
    return text
