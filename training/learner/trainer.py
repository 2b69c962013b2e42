"""TRL's `GRPOTrainer`, for policies that write kernels: rollouts over turns, credit for each turn, exact resumption."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any

import torch
from transformers import AutoModelForCausalLM
from trl import GRPOConfig
from trl.models.utils import disable_gradient_checkpointing

from pkb_gym.engine.errors import ConfigError
from pkb_gym.training.learner.ahead import GeneratedBatch, Tensors, check_ahead, reward_figures
from pkb_gym.training.learner.rollout_trainer import RolloutGRPOTrainer
from pkb_gym.training.learner.trainer_settings import TrainerSettings
from pkb_gym.training.learner.turn_credit import is_uniform, token_advantages
from pkb_gym.training.results.run_log import EpisodeRecord, episode_metrics
from pkb_gym.training.rollout.player import LateAnswer
from pkb_gym.training.rollout.tool_rounds import side_by_side


class KernelGRPOTrainer(RolloutGRPOTrainer):
    """GRPO in which each turn of a rollout has an advantage of its own.

    What differs from `GRPOTrainer`:

    - Rollouts have several turns, see `RolloutGRPOTrainer`.
    - `advantages` have the shape (B, T), see `turn_credit`; TRL's `scale_rewards` does not affect them.
    - Rollouts that the evaluator could not judge have advantage 0, and count in no mean.
    - Under `generate_ahead`, evaluations run while the policy learns and generates, see `ahead`.
    - A run resumes from any of its steps as if it had not been interrupted, see `exact_resumption`.

    Args:
        settings: Settings of rollouts, credit and schedule.
        **kwargs: Arguments of `GRPOTrainer`, without reward functions, tools and environments; `processing_class` is
            required.

    Raises:
        ConfigError: weights shall be offloaded that are sharded over ranks, generation is chunked that ranks share, an
            option weighs whole sequences (see `sequence_options`), the chat template is of no use (see `Dialogue`), or
            TRL has changed what this class uses (see `trl_names`).

    Attributes:
        clock: Clock of the phases of each step.
    """

    def __init__(self, settings: TrainerSettings, **kwargs: Any) -> None:
        if isinstance(args := kwargs.get("args"), GRPOConfig):  # before the model is loaded
            check_ahead(settings, log_completions=args.log_completions)
        self._late_answers: dict[int, LateAnswer] = {}
        self._ahead: GeneratedBatch | None = None
        super().__init__(settings, **kwargs)

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> Tensors:
        with self.clock.phase("learning"):  # log-probabilities; the phases of rollouts are taken off
            if not self._generates_ahead:
                return self._judged(self._generated(inputs))
            due = self._ahead
            if due is not None and self._is_last_generation:
                return self._judged(due)
            self._ahead = fresh = self._generated(inputs)
            return self._judged(fresh if due is None else due)

    @property
    def _generates_ahead(self) -> bool:
        return self._settings.generate_ahead and bool(self.model.training)

    @property
    def _enters_reward_metrics(self) -> bool:
        """Whether TRL's metrics of rewards are of no use: they come too early, or count rows for episodes."""
        return self._generates_ahead or self._trims

    @property
    def _is_last_generation(self) -> bool:
        """Whether the optimizer steps until the next generation are the last ones."""
        micro_steps = (self.args.steps_per_generation or 1) * self.num_iterations
        steps = micro_steps / self.args.gradient_accumulation_steps
        return bool(self.state.global_step + steps >= self.state.max_steps)

    def _generated(self, inputs: list[dict[str, Any]]) -> GeneratedBatch:
        """Rollouts whose last submissions may still be evaluated."""
        self._late_answers = {}
        output: Tensors = super()._generate_and_score_completions(self._play_batch(inputs))
        if self._enters_reward_metrics:
            self._forget_reward_metrics()
        if self._generates_ahead and "old_per_token_logps" not in output:
            output["old_per_token_logps"] = self._log_probabilities(output)
        return GeneratedBatch(output, self._episodes, self._rows, self.state.global_step, self._late_answers)

    def _judged(self, batch: GeneratedBatch) -> Tensors:
        """Inputs of the loss, when all evaluations have ended; reported once, however often they are used."""
        if not batch.is_judged:
            if batch.answers:
                with self._reward_phase():
                    side_by_side({row: begin() for row, begin in batch.answers.items()})
            self._credit(batch)
            batch.is_judged = True
        if self._generates_ahead:
            self._add("train", "updates_since_generation", float(self.state.global_step - batch.step))
        if self._enters_reward_metrics:
            self._add_reward_metrics(batch.values)
        return dict(batch.tensors)

    def _credit(self, batch: GeneratedBatch) -> None:
        """Enters the advantages of turns, leaves out what nothing is learnt from, and reports the batch."""
        mine = [EpisodeRecord.of(episode, self.state.global_step) for episode in batch.episodes]
        with self.clock.phase("ranks"):
            of_ranks = self._settings.host.gather(mine)
        records = [record for rank in of_ranks for record in rank]
        groups = self._group_advantages(records)
        advantages = [turns for group in groups for turns in group]
        begin = sum(len(rank) for rank in of_ranks[: self._settings.host.rank])
        own, output = slice(begin, begin + len(mine)), batch.tensors
        assistant_mask = output["completion_mask"] * output.get("tool_mask", 1)
        of_rows = [row.advantages(advantages[own]) for row in batch.rows]
        output["advantages"] = token_advantages(of_rows, assistant_mask)
        if self._settings.drop_uniform_groups:
            of_episodes = [not is_uniform(group) for group in groups for _ in group][own]
            kept = [of_episodes[row.rollout] for row in batch.rows]
            self._add(self._mode, "groups_dropped", float(sum(map(is_uniform, groups))))
            output["tool_mask"] = assistant_mask * torch.tensor(kept, device=assistant_mask.device).unsqueeze(1)
            output["num_items_in_batch"] = self.accelerator.gather(output["tool_mask"].sum()).sum()
        batch.values = [record.episode_value for record in records]
        self._report(of_ranks, advantages, len(batch.rows) // max(1, len(batch.episodes)))

    def _log_probabilities(self, output: Tensors) -> torch.Tensor:
        """(B, T) of the policy as it is."""
        ids = torch.cat([output["prompt_ids"], output["completion_ids"]], dim=1)
        mask = torch.cat([output["prompt_mask"], output["completion_mask"]], dim=1)
        size = self.args.per_device_train_batch_size
        checkpointing: Any = self.args.gradient_checkpointing_kwargs  # a dictionary by now, against its declared type
        with torch.no_grad(), disable_gradient_checkpointing(self.model, checkpointing):
            kept = output["completion_ids"].shape[1]
            found: torch.Tensor = self._get_per_token_logps_and_entropies(self.model, ids, mask, kept, size)[0]
        return found

    def _forget_reward_metrics(self) -> None:
        """Takes out what TRL has entered for rewards, of which it knows too little yet, or takes rows for episodes."""
        of_functions = [f"rewards/{name}/{figure}" for name in self.reward_func_names for figure in ("mean", "std")]
        for name in ("reward", "reward_std", "frac_reward_zero_std", *of_functions):
            entered = self._metrics[self._mode][name]
            entered.pop()
            if not entered:
                del self._metrics[self._mode][name]

    def _add_reward_metrics(self, values: Sequence[float | None]) -> None:
        figures = reward_figures(values, self._group_size)
        for name, value in figures.items():
            self._add(self._mode, name, value)
        for function in self.reward_func_names if figures else ():
            self._add(self._mode, f"rewards/{function}/mean", figures["reward"])
            self._add(self._mode, f"rewards/{function}/std", figures["reward_std"])

    @property
    def _mode(self) -> str:
        return "train" if self.model.training else "eval"

    @property
    def _group_size(self) -> int:
        return self.num_generations if self.model.training else self.num_generations_eval

    def judge_ahead(self) -> None:
        """Waits for a batch that was generated and is not learnt from, and logs it; for the end of a run."""
        if self._ahead is not None and not self._ahead.is_judged:
            self.model.train()
            self._judged(self._ahead)

    def stay_near(self, reference: str) -> None:
        """Has `beta` weigh the distance to another policy than the one that training begins with.

        Args:
            reference: Folder of a model of the same shape.

        Raises:
            ConfigError: there is no reference model of its own: beta is 0, or an adapter is trained; or it is sharded.
        """
        if self.ref_model is None:
            raise ConfigError("reference_model needs beta above 0, and a policy that is trained whole, not an adapter")
        if self.is_fsdp_enabled or self.is_deepspeed_enabled:
            raise ConfigError("reference_model cannot be loaded into weights that are sharded over ranks")
        weights = AutoModelForCausalLM.from_pretrained(reference, dtype=next(self.ref_model.parameters()).dtype)
        self.accelerator.unwrap_model(self.ref_model).load_state_dict(weights.state_dict())

    def _group_advantages(self, records: Sequence[EpisodeRecord]) -> list[list[list[float]]]:
        """The advantages of the turns of each episode, for each group."""
        size = self._group_size
        groups = [records[begin : begin + size] for begin in range(0, len(records), size)]
        of_group = self._settings.credit.of_group
        return [of_group([one.values for one in group], [one.submitted for one in group]) for group in groups]

    def _report(
        self, of_ranks: Sequence[Sequence[EpisodeRecord]], advantages: Sequence[Sequence[float]], rows_each: int
    ) -> None:
        records = [record for rank in of_ranks for record in rank]
        for name, value in episode_metrics(records).items():
            self._add(self._mode, name, value)
        means = iter([sum(turns) / len(turns) for turns in advantages])
        of_rows = [mean for rank in of_ranks for mean in list(islice(means, len(rank))) * rows_each]
        logged = self._logs["advantages"]  # TRL's own are not what is learnt from
        for _ in range(min(len(of_rows), len(logged))):
            logged.pop()
        logged.extend(of_rows)
        if self.model.training:
            self._settings.log.add_episodes(records)

    def _answer_last(self, answering: Mapping[int, LateAnswer]) -> None:
        """Judges the last submissions of a batch: at once, or when it is learnt from."""
        if self._generates_ahead:
            self._late_answers = dict(answering)
        else:
            super()._answer_last(answering)
