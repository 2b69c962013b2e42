r"""GRPO on rollouts over several turns: the policy submits kernels, reads the feedback, and submits better ones.

    accelerate launch --config_file pkb_gym/training/configs/accelerate/ddp_4.yaml \
        pkb_gym/training/grpo.py --config pkb_gym/training/configs/grpo_4_gpus.yaml --prompts data/prompts

Under `single_turn` there is one submission, a block of code in a plain reply.
"""

from __future__ import annotations

if __name__ == "__main__":
    from pkb_gym.training.inputs.option_names import refuse_unknown_options

    refuse_unknown_options(__file__)  # before the imports below, which take long

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from accelerate import PartialState
from datasets import Dataset
from transformers import AutoTokenizer
from trl import GRPOConfig, ModelConfig, get_peft_config

from pkb_gym.engine.errors import ConfigError
from pkb_gym.engine.records.config import EvalConfig
from pkb_gym.engine.support import env_vars
from pkb_gym.rewards.advantages import Over
from pkb_gym.rewards.presets import find_reward
from pkb_gym.rewards.recipes import find_recipe
from pkb_gym.rewards.returns import KEVIN_GAMMA
from pkb_gym.rewards.reward import Reward
from pkb_gym.training.evaluation.async_evaluator import AsyncEvaluator
from pkb_gym.training.evaluation.owner import EvaluationSchedule, OwnerMode, start_evaluation
from pkb_gym.training.inputs.arguments import checkpoint_to_resume, parse_arguments, run_recipe
from pkb_gym.training.inputs.dialogue_options import DialogueArguments
from pkb_gym.training.inputs.model_shape import ModelShape
from pkb_gym.training.inputs.rows import load_prompts
from pkb_gym.training.learner.best_window import BestWindow
from pkb_gym.training.learner.exact_resumption import ROLLOUT_FILES
from pkb_gym.training.learner.sequence_options import refuse_sequence_options
from pkb_gym.training.learner.sharded_generation import refuse_sharded_generation
from pkb_gym.training.learner.token_rows import refuse_losses_by_sequence
from pkb_gym.training.learner.trainer import KernelGRPOTrainer
from pkb_gym.training.learner.trainer_settings import TrainerSettings
from pkb_gym.training.learner.turn_credit import (
    AdvantageName,
    Credit,
    CreditName,
    check_negative_weight,
    find_credit,
)
from pkb_gym.training.processes.attention import use_sound_attention
from pkb_gym.training.processes.host_group import HostGroup
from pkb_gym.training.processes.offload import Offload
from pkb_gym.training.processes.vllm_weights import weights_by_folder
from pkb_gym.training.results.run_log import RunLog
from pkb_gym.training.rollout.rollouts import Rollouts
from pkb_gym.training.sft import model_arguments


@dataclass(kw_only=True)
class GrpoArguments(DialogueArguments):
    """Arguments of this recipe, beside those of TRL's `GRPOConfig` and `ModelConfig`."""

    prompts: str = field(metadata={"help": "Folder or JSONL file written by `pkb export prompts`."})
    reward: str = field(default="default", metadata={"help": "Preset or module:function, see docs/rewards.md."})
    credit: CreditName = field(
        default="improvement_only", metadata={"help": "Return of a turn, from the values of its episode."}
    )
    advantages: AdvantageName = field(
        default="leave_one_out", metadata={"help": "How the turns of a group are compared."}
    )
    gamma: float = field(
        default=KEVIN_GAMMA,
        metadata={"help": "Discount of later turns, for discounted_sum, discounted_max and improvement_ahead."},
    )
    over: Literal["turn", "group"] = field(
        default="turn", metadata={"help": "Compare turns of the same number, or all turns of the group."}
    )
    recipe: str | None = field(
        default=None,
        metadata={"help": "Reward, credit and advantages of published work, such as kevin; instead of the five above."},
    )

    negative_weight: float = field(
        default=1.0, metadata={"help": "Factor of negative advantages, from 0 to 1; below 1 the gradient is biased."}
    )
    drop_uniform_groups: bool = field(
        default=False,
        metadata={"help": "Leave groups whose advantages are all 0 out of the loss, the part of beta too."},
    )
    reference_model: str | None = field(
        default=None,
        metadata={"help": "beta: policy that training stays near; by default the one that it begins with."},
    )

    evaluation: OwnerMode = field(
        default="inline",
        metadata={
            "help": "inline: in this process; dedicated: on GPUs of its own; colocated: on the training GPUs; "
            "ray: on a Ray cluster."
        },
    )
    evaluation_gpus: list[str] | None = field(
        default=None, metadata={"help": "dedicated, colocated: entries of CUDA_VISIBLE_DEVICES for the service."}
    )
    evaluation_url: str | None = field(
        default=None,
        metadata={
            "help": "dedicated: a service that runs already; its token is read from PKB_TOKEN. ray: address of the "
            "cluster, by default ray."
        },
    )
    evaluation_services: int = field(
        default=1,
        metadata={"help": "`dedicated`: services side by side, which share out this node's processors and the GPUs."},
    )
    evaluation_compilers: int = field(
        default=0,
        metadata={"help": "dedicated, colocated: processors that compile CUDA sources alone, apart from the ranks'."},
    )
    evaluation_deadline_s: float = field(
        default=600.0, metadata={"help": "Longest wait for an evaluation; then it counts for nothing."}
    )
    until: Literal["compile", "check", "time", "profile"] = field(
        default="time", metadata={"help": "Last stage of an evaluation."}
    )
    timing_budget_s: float = field(default=0.3, metadata={"help": "Longest timing of a kernel."})
    kernel_timeout_s: float | None = field(
        default=None, metadata={"help": "Deadline of a block of calls; by default 10 s or 30 times the baseline."}
    )
    offload: Offload = field(
        default="cache", metadata={"help": "colocated, inline: what leaves the GPU in a reward phase."}
    )

    generate_ahead: bool = field(
        default=False,
        metadata={
            "help": "Generate each batch a step before it is learnt from, so that evaluations run meanwhile; dedicated "
            "and ray alone."
        },
    )
    generation_chunk: int | None = field(
        default=None, metadata={"help": "Sequences that a rank generates at once; by default all of a batch."}
    )
    vllm_weights_folder: str | None = field(
        default=None,
        metadata={
            "help": "vllm_mode server: folder that the server sees too, by which it gets weights; by default NCCL, "
            "which needs a GPU for the server alone."
        },
    )
    archive_keep: int = field(
        default=8, metadata={"help": "Kernels kept in the archive for each problem, language and world size."}
    )
    best_window: int = field(
        default=0,
        metadata={
            "help": "Keep the weights after the best window of so many steps, by mean reward, in the folder `best`; an "
            "epoch is a good length. 0: not."
        },
    )
    max_minutes: float | None = field(
        default=None, metadata={"help": "Save a checkpoint and end after so many minutes; resume with last."}
    )
    max_submissions: int | None = field(
        default=None,
        metadata={"help": "End after the step in which the run has so many submissions, repeated ones included."},
    )


def main(argv: list[str] | None = None) -> None:
    """Trains a policy and writes it into `output_dir`, with `archive.jsonl`, `rollouts.jsonl` and `phases.jsonl`.

    Raises:
        ConfigError: an argument or the prompts are of no use.
    """
    args, config, model = parse_arguments((GrpoArguments, GRPOConfig, ModelConfig), argv, prog="grpo")
    check(args, config)
    prompts = load_prompts(args.prompts, "train")
    PartialState()  # ranks find each other
    host = HostGroup()
    schedule = start_evaluation(
        args.evaluation,
        host,
        gpus=args.evaluation_gpus,
        url=args.evaluation_url,
        deadline_s=args.evaluation_deadline_s,
        services=args.evaluation_services,
        compilers=args.evaluation_compilers,
    )
    try:
        train(prompts, args, config, model, schedule, host)
    finally:
        schedule.close()


def check(args: GrpoArguments, config: GRPOConfig) -> None:
    """Refuses what does not fit together.

    Raises:
        ConfigError: see there.
    """
    if args.dialogue_options(config.chat_template_kwargs).trim_reasoning:
        refuse_losses_by_sequence(config)
    if args.max_submissions is not None and args.max_submissions < 1:
        raise ConfigError(f"max_submissions must be at least 1, got {args.max_submissions}")
    if config.max_tool_calling_iterations is not None:
        raise ConfigError("max_tool_calling_iterations follows from max_turns; leave it out")
    if args.recipe is not None and (args.reward, args.credit, args.advantages) != (
        GrpoArguments.reward,
        GrpoArguments.credit,
        GrpoArguments.advantages,
    ):
        raise ConfigError(f"recipe {args.recipe} has a reward, credit and advantages of its own; leave those out")
    check_negative_weight(args.negative_weight)
    if args.best_window and (args.best_window < 0 or config.logging_steps != 1 or config.save_strategy == "no"):
        raise ConfigError("best_window is a number of steps; it needs the log of each and checkpoints: logging_steps 1")
    if args.reference_model is not None and not config.beta:
        raise ConfigError("reference_model is the policy that beta is the weight of the distance to; give --beta too")
    refuse_sequence_options(config, args.turns)
    if args.generation_chunk is not None and config.use_vllm:
        raise ConfigError("generation_chunk is for transformers; vLLM makes batches of its own")
    if args.vllm_weights_folder is not None and not (config.use_vllm and config.vllm_mode == "server"):
        raise ConfigError("vllm_weights_folder is for a vLLM server: give --use_vllm true --vllm_mode server")


def train(
    prompts: Dataset,
    args: GrpoArguments,
    config: GRPOConfig,
    model: ModelConfig,
    schedule: EvaluationSchedule,
    host: HostGroup,
    trainer_class: type[KernelGRPOTrainer] = KernelGRPOTrainer,
) -> KernelGRPOTrainer:
    """Trains, and writes model, tokenizer and logs into `config.output_dir`.

    Args:
        prompts: Rows of `pkb export prompts`.
        args: Arguments of this recipe.
        config: Configuration of TRL.
        model: Name of the model, and the LoRA adapter if any.
        schedule: Schedule of evaluations, with the evaluator.
        host: Group of all ranks.
        trainer_class: Class of the trainer.

    Raises:
        ConfigError: there is no model, no checkpoint where one is named, or too few prompts for one batch.
    """
    if model.model_name_or_path is None:
        raise ConfigError("no model: give --model_name_or_path, for example what `sft.py` wrote")
    batch, group = config.generation_batch_size or 1, config.num_generations or 1
    if len(prompts) < batch // group:
        raise ConfigError(
            f"{len(prompts)} prompts do not fill a batch: {batch} rollouts, {group} of each prompt, take "
            f"{batch // group}; lower steps_per_generation (or gradient_accumulation_steps), or raise num_generations"
        )
    check_sharded_generation(model, config)
    checkpoint = checkpoint_to_resume(config, ROLLOUT_FILES.format(rank=0))
    dialogue = args.dialogue_options(config.chat_template_kwargs)
    reward, credit = reward_and_credit(args)
    evaluator = AsyncEvaluator(schedule.evaluator, args.evaluation_deadline_s)
    log = RunLog(Path(config.output_dir or "."), args.archive_keep, writes=PartialState().is_main_process)
    settings = TrainerSettings(
        rollouts=Rollouts(evaluator, reward, args.turns, evaluation_config(args)),
        credit=credit,
        schedule=schedule,
        host=host,
        log=log,
        dialogue=dialogue,
        generation_chunk=args.generation_chunk,
        offload=args.offload,
        max_minutes=args.max_minutes,
        max_submissions=args.max_submissions,
        generate_ahead=args.generate_ahead,
        drop_uniform_groups=args.drop_uniform_groups,
    )
    config.model_init_kwargs = model_arguments(model, config.model_init_kwargs)
    use_sound_attention()
    tokenizer = AutoTokenizer.from_pretrained(
        model.model_name_or_path, revision=model.model_revision, padding_side="left"
    )
    try:
        with weights_by_folder(args.vllm_weights_folder):
            trainer = trainer_class(
                settings,
                model=model.model_name_or_path,
                args=config,
                train_dataset=prompts,
                processing_class=tokenizer,
                peft_config=get_peft_config(model),
            )
        if args.best_window > 0:
            trainer.add_callback(BestWindow(args.best_window))
        if args.reference_model is not None:
            trainer.stay_near(args.reference_model)
        trainer.train(resume_from_checkpoint=checkpoint)
        trainer.save_model()
        trainer.save_state()
        trainer.judge_ahead()
    finally:
        evaluator.close()
        log.close()
    return trainer


def check_sharded_generation(model: ModelConfig, config: GRPOConfig) -> None:
    """Refuses to generate from the shards of a large model, before it is loaded; see `sharded_generation`.

    Raises:
        ConfigError: FSDP2 shards it, and vLLM does not generate.
    """
    if env_vars.accelerate_launch().fsdp_version != 2 or config.use_vllm:
        return
    shape = ModelShape.of(str(model.model_name_or_path), model.model_revision)
    refuse_sharded_generation(shape.parameters, is_fsdp2=True, use_vllm=False)


def reward_and_credit(args: GrpoArguments) -> tuple[Reward, Credit]:
    """The reward of a submission and the credit of turns that the arguments name.

    Raises:
        ConfigError: there is no such recipe or reward.
    """
    if args.recipe is not None:
        recipe = find_recipe(args.recipe)
        return find_reward(recipe.reward), Credit(recipe.returns, recipe.advantages, args.negative_weight)
    over: Over = args.over
    credit = find_credit(
        args.credit, args.advantages, gamma=args.gamma, over=over, negative_weight=args.negative_weight
    )
    return find_reward(args.reward), credit


def evaluation_config(args: GrpoArguments) -> EvalConfig:
    """The settings of an evaluation that no row of the prompts has."""
    return EvalConfig(until=args.until, timing_budget_s=args.timing_budget_s, timeout_s=args.kernel_timeout_s)


if __name__ == "__main__":
    run_recipe(main)
