"""Rollouts for TRL's `GRPOTrainer` as it is, by its hook `rollout_func`: evaluations of a batch run side by side.

With `environment_factory` and with tools TRL calls the tools of one rollout after those of another, and waits for each.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from trl import GRPOTrainer

from pkb_gym.engine.errors import ConfigError
from pkb_gym.engine.evaluators.evaluator import Evaluator
from pkb_gym.engine.records.config import EvalConfig
from pkb_gym.rewards.presets import find_reward
from pkb_gym.rewards.reward import Reward
from pkb_gym.training.evaluation.async_evaluator import AsyncEvaluator
from pkb_gym.training.evaluation.owner import EvaluationSchedule
from pkb_gym.training.inputs.dialogue_options import DialogueOptions
from pkb_gym.training.inputs.rows import Row
from pkb_gym.training.learner.policy_backend import PolicyBackend
from pkb_gym.training.learner.token_rows import rollout_fields
from pkb_gym.training.learner.training_player import TrainingPlayer
from pkb_gym.training.learner.trl_names import check_methods
from pkb_gym.training.processes.host_group import HostGroup
from pkb_gym.training.rollout.dialogue import Dialogue
from pkb_gym.training.rollout.episodes import RolloutEpisode
from pkb_gym.training.rollout.rollouts import Rollouts


class KernelRollouts:
    """Rollouts over several turns, with one advantage for each, as TRL has it.

    Args:
        rows: Rows of `pkb export prompts`, as the trainer's dataset has them.
        evaluator: Evaluator of the submissions; it is not closed.
        reward: Reward of a submission.
        max_turns: Maximum number of submissions in a rollout.
        dialogue: Options of the dialogue.
        base: Settings of evaluations that rows leave open.

    Raises:
        ConfigError: TRL has changed what this class uses (see `trl_names`), or reasoning shall be trimmed.

    Attributes:
        episodes: Episodes of the latest batch of this process.
    """

    def __init__(
        self,
        rows: Iterable[Row],
        evaluator: Evaluator,
        reward: Reward | None = None,
        max_turns: int = 4,
        dialogue: DialogueOptions | None = None,
        base: EvalConfig | None = None,
    ) -> None:
        check_methods()
        if dialogue is not None and dialogue.trim_reasoning:
            raise ConfigError("trim_reasoning needs KernelGRPOTrainer: GRPOTrainer takes one sequence for a rollout")
        self._rows = {_key(row["prompt"]): row for row in rows}
        self._host = HostGroup()
        self._schedule = EvaluationSchedule(evaluator, self._host)
        self._evaluator = AsyncEvaluator(evaluator)
        self._rollouts = Rollouts(
            self._evaluator, reward or find_reward("default"), max_turns, base or EvalConfig(until="time")
        )
        self._options = dialogue
        self.episodes: list[RolloutEpisode] = []

    def play(self, prompts: Sequence[object], trainer: GRPOTrainer) -> dict[str, list[Any] | None]:
        """TRL's `rollout_func`.

        Args:
            prompts: Prompts of the batch, in messages.
            trainer: Trainer whose policy plays.

        Returns:
            Tokens of the rollouts, the mask of what the policy wrote, and `episode_value` for `reward`.
        """
        own: Any = trainer  # TRL types tokenizer and limit more loosely than they are here
        dialogue = Dialogue(copy.copy(own.processing_class), self._options)
        rollouts = replace(self._rollouts, shorten=dialogue.shortened)
        backend = PolicyBackend(trainer, self._host)
        player = TrainingPlayer(backend, dialogue, rollouts, self._schedule, self._host, own.max_completion_length)
        played = [player.begin(self._rows[_key(prompt)]) for prompt in prompts]
        player.play_on(played, seed=0)
        self.episodes = [one.episode for one in played]
        rows = [row for one in played for row in one.rollout.rows]  # one each
        return {
            **rollout_fields(rows, with_logprobs=own.use_vllm),
            "episode_value": [episode.episode_value for episode in self.episodes],
        }

    @staticmethod
    def reward(episode_value: Sequence[float | None], **_: object) -> list[float | None]:
        """The reward function: the value of the best submission, 0 without any; None where one was not judged."""
        return list(episode_value)

    def close(self) -> None:
        """Ends the threads that wait for evaluations."""
        self._evaluator.close()


def _key(prompt: object) -> str:
    return json.dumps(prompt, sort_keys=True)
