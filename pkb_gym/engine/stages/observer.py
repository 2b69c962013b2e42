"""The moments of an evaluation that an observer may look at, as debugging does from outside of the stages."""

from __future__ import annotations

from typing import Protocol

from pkb_gym.engine.compare.layout import BlockPlan
from pkb_gym.engine.records.check_report import CheckReport
from pkb_gym.engine.stages.block_staging import BlockStaging


class RunObserver(Protocol):
    """An observer of one candidate's run. An error that it raises ends the evaluation."""

    def before_load(self, plan: BlockPlan, staging: BlockStaging) -> None:
        """The first checked block is prepared and the baseline has run on it; the candidate is not loaded yet.

        Args:
            plan: Arguments and outputs of the block's calls in the heap.
            staging: Conduct of these calls.
        """

    def outputs_differ(self, plan: BlockPlan, report: CheckReport) -> None:
        """A block has wrong outputs, which still lie in the candidate's heap.

        Args:
            plan: Arguments and outputs of the block's calls in the heap.
            report: Comparison of the outputs with those of the baseline.
        """


class NoObserver:
    """The default observer, which does nothing."""

    def before_load(self, plan: BlockPlan, staging: BlockStaging) -> None:
        """Does nothing."""

    def outputs_differ(self, plan: BlockPlan, report: CheckReport) -> None:
        """Does nothing."""
