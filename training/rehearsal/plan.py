"""The settings of a command that its memory, its division over GPUs and its services depend on."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, cast

from trl import GRPOConfig, ModelConfig, SFTConfig

from pkb_gym.engine.errors import ConfigError
from pkb_gym.training.evaluate_policy import EvaluationArguments
from pkb_gym.training.evaluation.owner import OwnerMode
from pkb_gym.training.grpo import GrpoArguments
from pkb_gym.training.inputs.arguments import RecipeParser, recipe_words
from pkb_gym.training.inputs.chat import Submission, template_options
from pkb_gym.training.inputs.dialogue_options import DialogueOptions
from pkb_gym.training.inputs.option_names import unknown_argument
from pkb_gym.training.rehearsal.launch import Launch, Recipe
from pkb_gym.training.rft import RftArguments
from pkb_gym.training.sft import SftArguments

KINDS: dict[Recipe, tuple[type, ...]] = {
    "sft": (SftArguments, SFTConfig, ModelConfig),
    "grpo": (GrpoArguments, GRPOConfig, ModelConfig),
    "rft": (RftArguments, SFTConfig, ModelConfig),
    "evaluate_policy": (EvaluationArguments, ModelConfig),
}

Generator: TypeAlias = Literal["transformers", "vllm_colocate", "vllm_server"]


@dataclass(frozen=True)
class Generation:
    """The generation of replies.

    Attributes:
        by: Library that generates, and where.
        memory_share: Share of a GPU's memory that vLLM takes.
        tensor_parallel: Number of GPUs that share one copy of the model in vLLM.
        sleeps: Whether vLLM frees its memory while the policy learns.
        max_model_length: Longest sequence of vLLM in tokens; None for that of the model.
        server_url: Address of vLLM's server.
        batch: Number of sequences that a process generates at once.
        episodes: Number of episodes of a step, of all processes.
        group: Number of episodes of a prompt.
        max_tokens: Maximum number of tokens after a prompt.
        max_turns: Maximum number of submissions of an episode.
        steps: Number of steps; None where it follows from epochs.
        dialogue: Options of the dialogue with the policy.
    """

    by: Generator
    memory_share: float
    tensor_parallel: int
    sleeps: bool
    max_model_length: int | None
    server_url: str | None
    batch: int
    episodes: int
    group: int
    max_tokens: int
    max_turns: int
    steps: int | None
    dialogue: DialogueOptions


@dataclass(frozen=True)
class Evaluation:
    """The evaluation of submissions.

    Attributes:
        mode: Owner of evaluations.
        gpus: Entries of CUDA_VISIBLE_DEVICES for the service; None for those of the process.
        url: Address of a service or of a cluster.
        services: Number of services of a node.
        compilers: Number of processors that compile alone.
    """

    mode: OwnerMode
    gpus: tuple[str, ...] | None
    url: str | None
    services: int
    compilers: int


@dataclass(frozen=True)
class Learning:
    """The learning of a policy.

    Attributes:
        micro_batch: Number of sequences of one backward pass of a process.
        max_length: Longest sequence in tokens; None where it follows from prompts and replies, or has no limit.
        checkpoints_gradients: Whether activations are computed again in the backward pass.
        bytes_per_parameter: Bytes of weights, gradients and moments of Adam for one trained parameter.
    """

    micro_batch: int
    max_length: int | None
    checkpoints_gradients: bool
    bytes_per_parameter: int


@dataclass(frozen=True)
class Plan:
    """The settings of a command.

    Attributes:
        launch: Start of the recipe.
        model: Name or folder of the model; None where the command names none.
        revision: Revision of the model.
        weight_bytes: Bytes of one weight as it is loaded: 2 or 4.
        lora_rank: Rank of the adapter that is trained; None where all weights are.
        data: Folder or file of the prompts or of the corpus.
        part: Part of the prompts.
        learning: Settings of learning; None where nothing is learnt.
        generation: Settings of generation; None where nothing is generated.
        evaluation: Settings of evaluation; None where nothing is evaluated.
    """

    launch: Launch
    model: str | None
    revision: str | None
    weight_bytes: int
    lora_rank: int | None
    data: str
    part: Literal["train", "held_out"]
    learning: Learning | None
    generation: Generation | None
    evaluation: Evaluation | None

    @property
    def holds_prompts(self) -> bool:
        """Whether `data` holds prompts, not a corpus."""
        return self.launch.recipe in ("grpo", "evaluate_policy")


class _NamesAlone(RecipeParser):
    """Fills no dataclasses: those of trainers ask for the GPUs of the machine that trains."""

    def parse_args_into_dataclasses(self, args: Any = None, *_: Any, **__: Any) -> Any:  # noqa: ANN401  # TRL's
        """The names with their values, and what is left over."""
        return self.parse_known_args(args)


def read_plan(launch: Launch) -> Plan:
    """Reads the arguments of a recipe as the recipe does, without what a GPU is needed for.

    Raises:
        ConfigError: An argument is unknown, missing, of no use, or its file cannot be read.
    """
    recipe = launch.recipe
    given = _parsed(recipe, launch.arguments)
    weight_bytes = {"bfloat16": 2, "float16": 2}.get(str(given.dtype), 2 if recipe == "evaluate_policy" else 4)
    learning, generation = _learning(launch, given, weight_bytes), None
    if recipe == "grpo":
        generation = _training_generation(launch, given)
    elif recipe == "evaluate_policy":
        generation = _evaluation_generation(given)
    evaluation = None
    if generation is not None:
        gpus = None if given.evaluation_gpus is None else tuple(map(str, given.evaluation_gpus))
        evaluation = Evaluation(
            mode=cast("OwnerMode", given.evaluation),
            gpus=gpus,
            url=given.evaluation_url,
            services=int(given.evaluation_services),
            compilers=int(given.evaluation_compilers),
        )
    return Plan(
        launch=launch,
        model=given.model_name_or_path,
        revision=given.model_revision,
        weight_bytes=weight_bytes,
        lora_rank=given.lora_r if getattr(given, "use_peft", False) else None,
        data=given.corpus if recipe == "sft" else given.prompts,
        part="held_out" if recipe == "evaluate_policy" and given.part == "held_out" else "train",
        learning=learning,
        generation=generation,
        evaluation=evaluation,
    )


def _parsed(recipe: Recipe, arguments: Iterable[str]) -> argparse.Namespace:
    parser = _NamesAlone(KINDS[recipe], prog=recipe, allow_abbrev=False)  # type: ignore[arg-type]  # its NewType
    try:
        given, unknown = cast(
            "tuple[argparse.Namespace, list[str]]",
            parser.parse_args_and_config(recipe_words(list(arguments), recipe), return_remaining_strings=True),
        )
    except OSError as error:
        raise ConfigError(f"{recipe}: cannot read {error.filename}: {error.strerror}") from error
    if unknown:
        names = [option.lstrip("-") for action in parser._actions for option in action.option_strings]
        raise ConfigError(unknown_argument(recipe, unknown[0].split("=")[0].lstrip("-"), names))
    return given


def _learning(launch: Launch, given: argparse.Namespace, weight_bytes: int) -> Learning | None:
    if launch.recipe == "evaluate_policy":
        return None
    is_sharded = launch.sharding in ("fsdp1", "fsdp2", "zero2", "zero3")
    # Adam's two moments are of the weights' dtype; sharded weights are kept in float32 under mixed precision.
    per_parameter = 16 if weight_bytes == 4 or (is_sharded and launch.mixed_precision) else 8
    max_length = None if launch.recipe == "grpo" else given.max_length
    # With trimmed reasoning a rollout has up to a sequence for each turn.
    sequences = given.max_turns if launch.recipe == "grpo" and given.trim_reasoning and not given.single_turn else 1
    return Learning(
        micro_batch=int(given.per_device_train_batch_size) * int(sequences),
        max_length=max_length,
        checkpoints_gradients=bool(given.gradient_checkpointing),
        bytes_per_parameter=per_parameter,
    )


def _training_generation(launch: Launch, given: argparse.Namespace) -> Generation:
    micro = int(given.per_device_train_batch_size)
    steps = given.steps_per_generation or given.gradient_accumulation_steps
    own = micro * int(steps)
    if given.generation_batch_size is not None:
        own = int(given.generation_batch_size) // launch.processes
    by: Generator = "transformers"
    if given.use_vllm:
        by = "vllm_server" if given.vllm_mode == "server" else "vllm_colocate"
    url = given.vllm_server_base_url or f"http://{given.vllm_server_host}:{given.vllm_server_port}"
    return Generation(
        by=by,
        memory_share=float(given.vllm_gpu_memory_utilization),
        tensor_parallel=int(given.vllm_tensor_parallel_size),
        sleeps=bool(given.vllm_enable_sleep_mode),
        max_model_length=given.vllm_max_model_length,
        server_url=url if by == "vllm_server" else None,
        batch=min(own, given.generation_chunk or own),
        episodes=own * launch.processes,
        group=int(given.num_generations or 1),
        max_tokens=int(given.max_completion_length),
        max_turns=1 if given.single_turn else int(given.max_turns),
        steps=int(given.max_steps) if given.max_steps and given.max_steps > 0 else None,
        dialogue=_dialogue(given),
    )


def _evaluation_generation(given: argparse.Namespace) -> Generation:
    return Generation(
        by="vllm_colocate" if given.backend == "vllm" else "transformers",
        memory_share=float(given.vllm_memory),
        tensor_parallel=1,
        sleeps=False,
        max_model_length=None,
        server_url=None,
        batch=int(given.batch_size),
        episodes=int(given.batch_size),
        group=int(given.samples),
        max_tokens=int(given.max_completion_length),
        max_turns=1 if given.single_turn else int(given.max_turns),
        steps=None,
        dialogue=_dialogue(given),
    )


def _dialogue(given: argparse.Namespace) -> DialogueOptions:
    return DialogueOptions(
        submission=cast("Submission", "code" if given.single_turn else given.submission),
        template=template_options(given.chat_template_kwargs),
        trim_reasoning=given.trim_reasoning,
        max_turn_tokens=given.max_turn_tokens,
        max_feedback_tokens=given.max_feedback_tokens,
    )
