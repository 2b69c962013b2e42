"""The verdict of a race detector on a source that runs on GPUs."""

from __future__ import annotations

from typing import Literal

from pkb_gym.engine.records.base import Record
from pkb_gym.engine.records.check_report import Race
from pkb_gym.engine.records.emulation import Emulation

EMULATED_SIZE = "tiny"
"""Size of the emulated calls, whatever that of the evaluation is."""


class RaceCheckReport(Record):
    """A run under a race detector, beside the stages on GPUs."""

    detector: Literal["emulator", "gsan"] = "emulator"
    """Detector: of native CUDA sources an emulated run, of Triton sources calls under Triton's GSan."""
    verdict: Literal["no_race", "race", "not_judged"]
    """"race" fails the evaluation; "not_judged" is a warning, and the stages on GPUs decide alone. What GSan reports of
    a source with synchronisation that it does not see is "not_judged"."""
    reason: str = ""
    """Reason why it is not judged; empty otherwise."""
    size: str
    """Size of the calls: of emulated ones `EMULATED_SIZE` when it was recorded, else that of the evaluation."""
    duration_s: float
    """Wall time of the run, of what it compiled and of its waits; of the original run where the verdict was cached."""
    cached: bool = False
    """Whether the verdict was taken from the cache."""


class JudgedRaces(Record):
    """A verdict with what the feedback shows of it."""

    report: RaceCheckReport
    """The verdict."""
    emulation: Emulation | None = None
    """The emulated calls and the findings; None where no such call was made."""
    race: Race | None = None
    """Present exactly when the verdict is "race"."""
    message: str = ""
    """The race in words, for the agent; empty otherwise."""
    failed_rank: int | None = None
    """Rank that the race is attributed to; None where there is none, or it is not known."""
