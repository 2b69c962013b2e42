"""TRL's `GRPOTrainer` with rollouts over turns, by its hook `rollout_func`."""

from __future__ import annotations

import contextlib
import copy
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

import torch
from transformers import TrainerCallback
from transformers.trainer_utils import TrainOutput
from trl import GRPOConfig, GRPOTrainer

from pkb_gym.engine.errors import ConfigError
from pkb_gym.training.inputs.rows import Row
from pkb_gym.training.learner.exact_resumption import EpochOrder, ExactResumption
from pkb_gym.training.learner.finite_gradients import FiniteGradients
from pkb_gym.training.learner.policy_backend import PolicyBackend
from pkb_gym.training.learner.sequence_options import refuse_sequence_options
from pkb_gym.training.learner.step_logging import StepLogging
from pkb_gym.training.learner.token_rows import BatchRow, batch_rows, refuse_losses_by_sequence, rollout_fields
from pkb_gym.training.learner.trainer_settings import TrainerSettings
from pkb_gym.training.learner.training_player import TrainingPlayer
from pkb_gym.training.learner.trl_names import check_attributes, check_methods
from pkb_gym.training.processes.offload import GpuMemory
from pkb_gym.training.processes.phases import PhaseClock
from pkb_gym.training.rollout.dialogue import Dialogue
from pkb_gym.training.rollout.episodes import RolloutEpisode
from pkb_gym.training.rollout.player import Answers, LateAnswer
from pkb_gym.training.rollout.tool_rounds import side_by_side


class _LatePlayer(TrainingPlayer):
    """Opens the reward phases of a trainer, and leaves the last answers of a batch to it.

    Attributes:
        reward_phase: Function that opens a phase of evaluations.
        answer_last: Function that has the last submissions of a batch judged.
    """

    reward_phase: Callable[[], AbstractContextManager[None]]
    answer_last: Callable[[Mapping[int, LateAnswer]], None]

    def _answers(self, answering: Mapping[int, LateAnswer], *, is_last: bool) -> Answers:
        if is_last:
            self.answer_last(answering)
            return {}
        with self.reward_phase():
            return side_by_side({at: begin() for at, begin in answering.items()})


class RolloutGRPOTrainer(GRPOTrainer):
    """Plays the rollouts that `KernelGRPOTrainer` learns from.

    - Submissions of a round are judged side by side, each from the moment that its sequence is complete.
    - The last submission that is allowed ends a rollout: a reply to its answer is not generated.
    - A run resumes from any of its steps as if it had not been interrupted, see `exact_resumption`.

    Args, Raises, Attributes: see `KernelGRPOTrainer`.
    """

    # Attributes that TRL and transformers leave untyped, or type more loosely than it is here.
    args: GRPOConfig
    model: Any
    processing_class: Any
    num_generations: int
    num_generations_eval: int
    max_completion_length: int
    _logs: dict[str, Any]

    def __init__(self, settings: TrainerSettings, **kwargs: Any) -> None:
        check_methods()
        # TRL would parse a whole rollout by the parser that a dialogue may give its tokenizer.
        dialogue = Dialogue(copy.copy(kwargs["processing_class"]), settings.dialogue)
        settings = replace(settings, rollouts=replace(settings.rollouts, shorten=dialogue.shortened))
        self._settings = settings
        self._episodes: list[RolloutEpisode] = []
        self._rows: list[BatchRow] = []
        self.clock = PhaseClock(torch.cuda.synchronize if torch.cuda.is_available() else lambda: None)
        if isinstance(args := kwargs.get("args"), GRPOConfig):  # before the model is loaded
            refuse_sequence_options(args, settings.rollouts.max_turns)
            if self._trims:
                refuse_losses_by_sequence(args)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="You are using 'rollout_func'")  # so we are
            super().__init__(reward_funcs=[self.kernel], rollout_func=self._rollout, **kwargs)
        check_attributes(self)
        if settings.offload == "all" and (self.is_fsdp_enabled or self.is_deepspeed_enabled):
            raise ConfigError(
                "offload='all' moves whole weights, and these are sharded over ranks; use offload='cache'"
            )
        backend = PolicyBackend(self, settings.host, settings.generation_chunk)
        if settings.generation_chunk is not None and backend.needs_all_ranks:
            raise ConfigError(
                "generation_chunk is of no use where ranks generate together: they would not stay in step"
            )
        self._memory = GpuMemory(self.model, settings.offload)
        self._player = _LatePlayer(
            backend,
            dialogue,
            settings.rollouts,
            settings.schedule,
            settings.host,
            self.max_completion_length,
            self.clock,
        )
        self._player.reward_phase, self._player.answer_last = self._reward_phase, self._answer_last
        self._resumption = ExactResumption(self, settings.host, settings.log)
        callbacks: list[TrainerCallback] = [
            self._resumption,
            EpochOrder(self.args.seed),
            StepLogging(
                settings, self.clock, lambda: self._resumption.checkpoint, lambda *metric: self._add("train", *metric)
            ),
            FiniteGradients(lambda *metric: self._add("train", *metric)),
        ]
        for callback in callbacks:
            self.add_callback(callback)

    def train(self, resume_from_checkpoint: str | bool | None = None, *args: Any, **kwargs: Any) -> TrainOutput:
        """Trains, from a checkpoint if its folder is given."""
        self._resumption.resume_from(resume_from_checkpoint)
        return super().train(resume_from_checkpoint, *args, **kwargs)

    # ---- rollouts ---------------------------------------------------------------------------------------------------

    def kernel(self, completions: Sequence[object], **_: object) -> list[float | None]:
        """The reward function: the value of each row's episode, which is None where it was not judged."""
        return [self._episodes[row.rollout].episode_value for row, _ in zip(self._rows, completions, strict=True)]

    def _play_batch(self, inputs: list[Row]) -> list[Row]:
        """Plays rollouts on rows of the prompts.

        Returns:
            A row of the prompts for each row of tokens.
        """
        played = [self._player.begin(row) for row in inputs]
        self._episodes = [one.episode for one in played]
        counts = self._player.counts
        before = (counts.calls, counts.failures)
        self._player.play_on(played, seed=0)
        if self._settings.dialogue.submission == "tool":
            self._report_calls(counts.calls - before[0], counts.failures - before[1], len(played))
        rollouts = [one.rollout for one in played]
        count = 1
        if self._trims:
            with self.clock.phase("ranks"):
                count = max(self._settings.host.gather(max(len(rollout.rows) for rollout in rollouts)))
        self._rows = batch_rows(rollouts, count, self.processing_class.pad_token_id)
        return inputs * count

    def _rollout(self, _prompts: object, _trainer: object) -> dict[str, Any]:
        """TRL's `rollout_func`: the rows of the batch that was played."""
        return rollout_fields([row.tokens for row in self._rows], with_logprobs=self.use_vllm)

    @property
    def _trims(self) -> bool:
        return self._settings.dialogue.trim_reasoning

    def _report_calls(self, calls: int, failures: int, rollouts: int) -> None:
        """The metrics that TRL has of tools."""
        mode = "train" if self.model.training else "eval"
        calls, failures, rollouts = map(sum, zip(*self._settings.host.gather((calls, failures, rollouts)), strict=True))
        self._add(mode, "tools/call_frequency", calls / rollouts)
        self._add(mode, "tools/failure_frequency", failures / calls if calls else 0.0)

    @contextlib.contextmanager
    def _reward_phase(self) -> Iterator[None]:
        self._memory.optimizer = self.optimizer
        with self.clock.phase("evaluation"), self._settings.schedule.reward_phase(self.clock, self._memory):
            yield

    def _answer_last(self, answering: Mapping[int, LateAnswer]) -> None:
        """Judges the last submissions of a batch."""
        with self._reward_phase():
            side_by_side({row: begin() for row, begin in answering.items()})

    # ---- time and metrics -------------------------------------------------------------------------------------------

    def _add(self, mode: str, name: str, value: float) -> None:
        self._metrics[mode][name].append(value)

    def training_step(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        """Does one step of training, with the times of its phases."""
        with self.clock.phase("learning"):
            loss: torch.Tensor = super().training_step(*args, **kwargs)  # type: ignore[no-untyped-call]  # trl's
            return loss
