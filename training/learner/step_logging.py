"""The end of each step: its log, and the end of a run whose time or submissions are used up."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from pkb_gym.training.learner.trainer_settings import TrainerSettings
from pkb_gym.training.processes.phases import PhaseClock


class StepLogging(TrainerCallback):
    """Logs each step, and ends the run when its time or its submissions are used up.

    Args:
        settings: Settings of the trainer.
        clock: Clock of the trainer's phases.
        checkpoint: Function that returns the folder that the run resumed from; None for a new run.
        add_metric: Function that receives the name and value of each metric of a step.
    """

    def __init__(
        self,
        settings: TrainerSettings,
        clock: PhaseClock,
        checkpoint: Callable[[], Path | None],
        add_metric: Callable[[str, float], None],
    ) -> None:
        self._settings, self._clock = settings, clock
        self._checkpoint, self._add_metric = checkpoint, add_metric
        self._began = time.monotonic()

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, *_: Any, **__: Any) -> None:  # noqa: ARG002
        """Logs the beginning of the training."""
        self._settings.log.begin(state.global_step, self._checkpoint())
        self._began = time.monotonic()
        self._clock.lap()

    def on_step_end(
        self,
        args: TrainingArguments,  # noqa: ARG002
        state: TrainerState,
        control: TrainerControl,
        **_: Any,
    ) -> TrainerControl:
        """Logs a step, after its gradients were clipped and applied by the optimizer."""
        settings, clock = self._settings, self._clock
        clock.charge("learning")
        of_ranks = settings.host.gather((clock.lap(), time.monotonic() - self._began, settings.log.submissions))
        laps = [of_rank[0] for of_rank in of_ranks]
        for name, value in settings.log.add_step(state.global_step - 1, laps).items():
            self._add_metric(name, value)
        spent_s, submissions = of_ranks[0][1:]  # all ranks go by the first one's clock and log
        is_late = settings.max_minutes is not None and spent_s > 60 * settings.max_minutes
        if is_late or (settings.max_submissions is not None and submissions >= settings.max_submissions):
            control.should_save = control.should_training_stop = True
        return control
