"""The debugging of one evaluation: kept calls, sanitizers and dumped outputs, as far as each was asked for."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pkb_gym.engine.compare.layout import BlockPlan
from pkb_gym.engine.compile.cache import CompileCache
from pkb_gym.engine.debugging.dump import dump_mismatches
from pkb_gym.engine.debugging.kept_run import keep_run
from pkb_gym.engine.debugging.sanitize import sanitize
from pkb_gym.engine.records.check_report import CheckReport
from pkb_gym.engine.stages.block_staging import BlockStaging
from pkb_gym.engine.stages.candidate_run import CandidateRun


@dataclass(frozen=True)
class DebugFolders:
    """Folders for files that a user reads afterwards.

    Attributes:
        keep_to: Folder for the checked calls, with a harness that runs them by themselves; None for none.
        dump_to: Folder for the tensors of wrong outputs; None for none.
    """

    keep_to: Path | None = None
    dump_to: Path | None = None


class Debugger:
    """The observer of a run that is debugged, see `RunObserver`.

    Args:
        run: Run of the candidate.
        folders: Folders for kept calls and dumped outputs.
        cache: Cache of the builds with sanitizers.
    """

    def __init__(self, run: CandidateRun, folders: DebugFolders, cache: CompileCache) -> None:
        self._run, self._folders, self._cache = run, folders, cache

    def before_load(self, plan: BlockPlan, staging: BlockStaging) -> None:
        """Keeps the calls of the first checked block and runs them under sanitizers.

        Raises:
            ConfigError: the run cannot be kept.
            Stopped: a sanitizer has found something.
            InfrastructureError: a sanitizer is missing here.
        """
        if self._folders.keep_to is not None and self._run.dialect == "native":
            keep_run(self._run, plan, staging, self._folders.keep_to)
        if self._run.config.sanitize:
            sanitize(self._run, self._cache, plan, staging)

    def outputs_differ(self, plan: BlockPlan, report: CheckReport) -> None:
        """Dumps wrong outputs.

        Raises:
            ConfigError: the folder cannot be written.
        """
        if self._folders.dump_to is not None:
            dump_mismatches(self._run, plan, report, self._folders.dump_to)
