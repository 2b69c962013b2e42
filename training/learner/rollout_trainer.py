"""TRL's `GRPOTrainer` with rollouts over turns: replies are sampled, tools called, answers appended, and again."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import torch
from trl import GRPOConfig
from trl.chat_template_utils import parse_response

from pkb_gym.engine.errors import ConfigError
from pkb_gym.training.inputs.chat import Message
from pkb_gym.training.learner.ahead import LateAnswer
from pkb_gym.training.learner.finite_gradients import FiniteGradients
from pkb_gym.training.learner.resumable import ResumableGRPOTrainer
from pkb_gym.training.learner.sequence_options import refuse_sequence_options
from pkb_gym.training.learner.step_logging import StepLogging
from pkb_gym.training.learner.trainer_settings import TrainerSettings
from pkb_gym.training.learner.trl_names import check_attributes, check_methods
from pkb_gym.training.processes.offload import GpuMemory
from pkb_gym.training.processes.phases import PhaseClock
from pkb_gym.training.rollout.decoding import Decoding
from pkb_gym.training.rollout.episodes import PolicyReply, RolloutEpisode
from pkb_gym.training.rollout.even_share import generate_evenly
from pkb_gym.training.rollout.rollout_environment import RolloutEnvironment, submitted_source
from pkb_gym.training.rollout.tool_rounds import CallCounts, Rollout, ToolBox, ToolCall, side_by_side

Reply: TypeAlias = tuple[list[int], list[float] | None]
"""Token ids of a message, and their log-probabilities where the backend returns them."""


class RolloutGRPOTrainer(ResumableGRPOTrainer):
    """Plays the rollouts that `KernelGRPOTrainer` learns from.

    - Submissions of a round are judged side by side, each from the moment that its sequence is complete.
    - The last submission that is allowed ends a rollout: a reply to its answer is not generated.

    Args, Raises, Attributes: see `KernelGRPOTrainer`.
    """

    # Attributes that TRL and transformers leave untyped, or type more loosely than it is here.
    model: Any
    environments: Any
    num_generations: int
    num_generations_eval: int
    max_completion_length: int
    generation_config: Any
    _logs: dict[str, Any]

    def __init__(self, settings: TrainerSettings, **kwargs: Any) -> None:
        check_methods()
        self._settings = settings
        self._rows: list[int] | None = None
        self._single_turn_episodes: list[RolloutEpisode] = []
        self.clock = PhaseClock(torch.cuda.synchronize if torch.cuda.is_available() else lambda: None)
        if isinstance(args := kwargs.get("args"), GRPOConfig):  # before the model is loaded
            refuse_sequence_options(args, settings.rollouts.max_turns if settings.multi_turn else 1)
        if settings.multi_turn:
            kwargs["environment_factory"] = partial(RolloutEnvironment, settings.rollouts)
        else:
            kwargs["reward_funcs"] = [self.kernel]
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="You are using 'environment_factory'")  # so we are
            super().__init__(**kwargs)
        check_attributes(self)
        if settings.multi_turn:
            self.max_tool_calling_iterations = settings.rollouts.max_turns
        if settings.offload == "all" and (self.is_fsdp_enabled or self.is_deepspeed_enabled):
            raise ConfigError(
                "offload='all' moves whole weights, and these are sharded over ranks; use offload='cache'"
            )
        if settings.generation_chunk is not None and self._generates_together:
            raise ConfigError(
                "generation_chunk is of no use where ranks generate together: they would not stay in step"
            )
        self._memory = GpuMemory(self.model, settings.offload)
        self._decoding = Decoding("generate" if self._generates_together else settings.decoding)
        self.add_callback(
            StepLogging(settings, self.clock, lambda: self.checkpoint, lambda *metric: self._add("train", *metric))
        )
        self.add_callback(FiniteGradients(lambda *metric: self._add("train", *metric)))

    # ---- rollouts ---------------------------------------------------------------------------------------------------

    def _episodes(self) -> list[RolloutEpisode]:
        if not self._settings.multi_turn:
            return self._single_turn_episodes
        return [environment.episode for environment in self.environments]

    def kernel(self, completions: Sequence[object], **_: object) -> list[float | None]:
        """The reward function of single-turn rollouts; `_calculate_rewards` has had them judged."""
        return [episode.episode_value for episode, _ in zip(self._single_turn_episodes, completions, strict=True)]

    def _calculate_rewards(
        self, inputs: object, prompts: object, completions: Sequence[str | list[Message]], completion_ids_list: object
    ) -> torch.Tensor:
        if not self._settings.multi_turn:
            episodes = self._single_turn_episodes
            sources = [
                submitted_source(completion, episode.task.problem)
                for episode, completion in zip(episodes, completions, strict=True)
            ]
            self._answer_last(
                {row: partial(episodes[row].submit, source) for row, source in enumerate(sources) if source is not None}
            )
        rewards: torch.Tensor = super()._calculate_rewards(inputs, prompts, completions, completion_ids_list)
        return rewards

    # ---- generation -------------------------------------------------------------------------------------------------

    @property
    def _generates_together(self) -> bool:
        """Whether generation is a collective, which all ranks have to call equally often."""
        return bool(self._dist.is_zero3 or self._dist.is_fsdp) or (
            self.use_vllm and (self.vllm_mode == "server" or self.vllm_tensor_parallel_size > 1)
        )

    def _generate_single_turn(
        self,
        prompt_ids: list[list[int]],
        images: object,
        multimodal_fields: dict[str, Any],
        num_generations: int,
        has_tool_images: bool = False,
    ) -> tuple[list[list[int]], list[list[float]] | None]:
        """Generates one message for each prompt; submissions are prefetched as soon as they are complete."""
        rows = list(range(len(prompt_ids))) if self._rows is None else self._rows
        options = (images, multimodal_fields, num_generations, has_tool_images)
        replies: list[Reply] = []
        with self.clock.phase("generation"):
            if self._rows is not None and self._generates_together:
                replies = generate_evenly(self._settings.host, prompt_ids, partial(self._replies, options))
                for place, (ids, _) in enumerate(replies):
                    self._prefetch(rows, prompt_ids, place, ids)
            else:
                chunk = self._settings.generation_chunk or max(1, len(prompt_ids))
                for begin in range(0, len(prompt_ids), chunk):
                    part = prompt_ids[begin : begin + chunk]
                    on_finished = partial(self._prefetch, rows[begin : begin + chunk], part)
                    with self._watching(on_finished):
                        found = self._replies(options, part)
                    for place, (ids, _) in enumerate(found):
                        on_finished(place, ids)
                    replies += found
            for row, prompt, (ids, _) in zip(rows, prompt_ids, replies, strict=True):
                text = str(self._tokenizer.decode(ids, skip_special_tokens=True))
                self._episodes()[row].add_reply(PolicyReply(text, len(prompt), len(ids)))
        logprobs = [found for _, found in replies if found is not None]
        return [ids for ids, _ in replies], logprobs or None

    def _replies(self, options: tuple[object, ...], prompt_ids: list[list[int]]) -> list[Reply]:
        """TRL's replies to prompts, with the log-probabilities of their tokens."""
        ids, logprobs = super()._generate_single_turn(prompt_ids, *options)  # type: ignore[no-untyped-call]  # trl's
        return list(zip(ids, logprobs or [None] * len(ids), strict=True))

    @contextlib.contextmanager
    def _watching(self, on_finished: Callable[[int, list[int]], None]) -> Iterator[None]:
        """Reports each sequence of transformers as it ends."""
        if self.use_vllm or self.use_transformers_continuous_batching:
            yield
            return
        model = self.accelerator.unwrap_model(self.model_wrapped)
        with self._decoding.in_place_of_generate(model, self.eos_token_ids, on_finished):
            yield

    def _prefetch(self, rows: Sequence[int], prompt_ids: Sequence[list[int]], place: int, new_ids: list[int]) -> None:
        """Begins evaluations of a finished sequence's submissions, as far as they may begin; may be called again."""
        episode = self._episodes()[rows[place]]
        if not self._settings.multi_turn:
            completion = self._tokenizer.decode(new_ids, skip_special_tokens=True)
            sources = [submitted_source(completion, episode.task.problem)]
        else:
            calls = self._parse(new_ids, prompt_ids[place]).get("tool_calls") or []
            functions = [call.get("function") or {} for call in calls]
            sources = [
                (function.get("arguments") or {}).get("source")
                for function in functions
                if function.get("name") == RolloutEnvironment.submit.__name__
            ]
        for source in sources:
            if isinstance(source, str):
                episode.prefetch(source)

    def _parse(self, ids: list[int], prefix: list[int]) -> Message:
        return dict(parse_response(self._tokenizer, ids, prefix=prefix, tools=list(self.tools)))

    # ---- rounds of a multi-turn rollout -----------------------------------------------------------------------------

    def _tool_call_loop(
        self,
        prompts: object,  # noqa: ARG002  # TRL's signature
        prompt_ids: list[list[int]],
        completion_ids: list[list[int]],
        completions: list[list[Message]],
        logprobs: list[list[float]] | None,
        images: object,  # noqa: ARG002
        multimodal_fields: object,  # noqa: ARG002
    ) -> tuple[list[list[int]], list[list[Message]], list[list[int]], list[list[float]] | None, int, int, list[Any]]:
        """Plays tool rounds in place of TRL, see `tool_rounds`; text alone."""
        rollouts = [
            Rollout(prompt, ids, [1] * len(ids), messages, None if logprobs is None else logprobs[row])
            for row, (prompt, ids, messages) in enumerate(zip(prompt_ids, completion_ids, completions, strict=True))
        ]
        counts = CallCounts()
        calls = {row: rollout.tool_calls for row, rollout in enumerate(rollouts) if rollout.tool_calls}
        for left in reversed(range(self.max_tool_calling_iterations)):
            if not self._on_any_rank(bool(calls)):
                break
            boxes = {row: self._tool_box(row, counts) for row in calls}
            for row, made in calls.items():
                boxes[row].count(made)
            answering = {row: partial(boxes[row].answer, made) for row, made in calls.items()}
            if not left:
                self._answer_last(answering)
                break
            with self._reward_phase():
                answers = side_by_side({row: begin() for row, begin in answering.items()})
            calls = self._go_on(rollouts, answers)
        return (
            [rollout.assistant_mask for rollout in rollouts],
            [rollout.messages for rollout in rollouts],
            [rollout.completion_ids for rollout in rollouts],
            None if logprobs is None else [rollout.logprobs or [] for rollout in rollouts],
            counts.calls,
            counts.failures,
            [[] for _ in rollouts],
        )

    def _on_any_rank(self, flag: bool) -> bool:
        """Whether there is another round: where a round needs all ranks, if any rank needs it."""
        if not (self._generates_together or self._settings.schedule.takes_turns):
            return flag
        with self.clock.phase("ranks"):
            return self._settings.host.any(flag)

    @contextlib.contextmanager
    def _reward_phase(self) -> Iterator[None]:
        self._memory.optimizer = self.optimizer
        if self._settings.schedule.takes_turns:
            self._decoding.release()  # kernels on this GPU need the memory
        with self.clock.phase("evaluation"), self._settings.schedule.reward_phase(self.clock, self._memory):
            yield

    def _answer_last(self, answering: Mapping[int, LateAnswer]) -> None:
        """Judges the last submissions of a batch."""
        with self._reward_phase():
            side_by_side({row: begin() for row, begin in answering.items()})

    def _tool_box(self, row: int, counts: CallCounts) -> ToolBox:
        """The tools of a rollout; of its episode, as a late call finds another one in the environment."""
        tools = {**self._sync_tool_dicts[row], **self._async_tool_dicts[row]}
        episode = self._episodes()[row]
        tools[RolloutEnvironment.submit.__name__] = episode.submit
        return ToolBox(tools, episode.begin_message, episode.record_fault, counts)

    def _go_on(
        self, rollouts: Sequence[Rollout], answers: Mapping[int, Sequence[Message]]
    ) -> dict[int, list[ToolCall]]:
        """Appends answers, and the messages that the policy writes next.

        A rollout that has no room left for an answer and something after it ends where it is.

        Returns:
            The tool calls of the new messages.
        """
        going = []
        for row, messages in answers.items():
            rollout = rollouts[row]
            ids = self._get_tool_suffix_ids(messages)  # type: ignore[no-untyped-call]  # trl's
            length = len(rollout.completion_ids) + len(ids)
            if length < self.max_completion_length and len(rollout.prompt_ids) + length < self._max_model_length:
                rollout.append_tool_messages(messages, ids)
                going.append(row)
        if not going and not self._generates_together:
            return {}
        contexts = {row: rollouts[row].context_ids for row in going}
        room = {row: self.max_completion_length - len(rollouts[row].completion_ids) for row in going}
        new_ids, logprobs = self._generate_next(contexts, max(room.values(), default=1))
        for place, row in enumerate(going):
            ids = new_ids[place][: room[row]]
            sampled = None if logprobs is None else logprobs[place][: room[row]]
            rollouts[row].append_assistant_message(self._parse(ids, contexts[row]) if ids else None, ids, sampled)
        return {row: rollouts[row].tool_calls for row in going if rollouts[row].tool_calls}

    def _generate_next(
        self, contexts: Mapping[int, list[int]], max_new_tokens: int
    ) -> tuple[list[list[int]], list[list[float]] | None]:
        """One message for each context; a rank without any takes part in the collective all the same."""
        if self._generates_together:
            max_new_tokens = max(self._settings.host.gather(max_new_tokens))
        self._rows = list(contexts)
        try:
            with self._at_most(max_new_tokens):
                return self._generate_single_turn(list(contexts.values()), None, {}, num_generations=1)
        finally:
            self._rows = None

    @contextlib.contextmanager
    def _at_most(self, max_new_tokens: int) -> Iterator[None]:
        limited, name = (
            (self.vllm_generation, "max_completion_length")
            if self.use_vllm
            else (self.generation_config, "max_new_tokens")
        )
        usual = getattr(limited, name)
        setattr(limited, name, min(usual, max_new_tokens))
        try:
            yield
        finally:
            setattr(limited, name, usual)

    @property
    def _max_model_length(self) -> int:
        if self.use_vllm and self.vllm_mode == "colocate":
            return int(self.vllm_generation.llm.llm_engine.model_config.max_model_len)
        return int(self.model.config.max_position_embeddings)

    # ---- time and metrics -------------------------------------------------------------------------------------------

    def _add(self, mode: str, name: str, value: float) -> None:
        self._metrics[mode][name].append(value)

    def training_step(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        """Does one step of training, with the times of its phases."""
        with self.clock.phase("learning"):
            loss: torch.Tensor = super().training_step(*args, **kwargs)  # type: ignore[no-untyped-call]  # trl's
            return loss

    def _get_per_token_logps_and_entropies(self, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401  # TRL's tuple
        with self.clock.phase("learning"):
            return super()._get_per_token_logps_and_entropies(*args, **kwargs)

    # ---- checkpoints ------------------------------------------------------------------------------------------------

    def _save_rng_state(self, output_dir: str) -> None:
        super()._save_rng_state(output_dir)
        self._settings.log.save(Path(output_dir))
