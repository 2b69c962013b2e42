r"""Evaluates a policy on prompts: samples episodes, has every submission judged, and sums them up.

    accelerate launch --config_file training/configs/accelerate/one_gpu.yaml \
        training/evaluate_policy.py --model_name_or_path runs/grpo --prompts data --output runs/grpo/held_out

Writes `results.jsonl`, an `Attempt` for each submission and for each reply without one, `summary.json`, and for prompts
of `ring_prompts.py` also `rings.json`, into the folder. Called again after it was interrupted or a budget was used up,
with the same arguments, it goes on where it was.
"""

from __future__ import annotations

if __name__ == "__main__":
    from pkb_gym.training.inputs.option_names import refuse_unknown_options

    refuse_unknown_options(__file__)  # before the imports below, which take long

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import torch
from accelerate import PartialState
from rich.console import Console
from rich.table import Table
from transformers import AutoTokenizer
from trl import ModelConfig

from pkb_gym.agents.registry import default_label
from pkb_gym.agents.run.budget import Budget, RunLimits, Usage
from pkb_gym.engine.errors import ConfigError
from pkb_gym.engine.evaluators.evaluator import machine_of
from pkb_gym.engine.records.attempt import Attempt
from pkb_gym.engine.records.config import EvalConfig
from pkb_gym.engine.records.setting_differences import refuse_differences
from pkb_gym.engine.support.atomic_write import write_atomically
from pkb_gym.engine.support.jsonl import LineFile
from pkb_gym.metrics.estimates import Estimate
from pkb_gym.rewards.presets import find_reward
from pkb_gym.training.evaluation.async_evaluator import AsyncEvaluator
from pkb_gym.training.evaluation.owner import OwnerMode, start_evaluation
from pkb_gym.training.inputs.arguments import parse_arguments, run_recipe
from pkb_gym.training.inputs.dialogue_options import TEMPLATE_HELP, DialogueArguments
from pkb_gym.training.inputs.rows import Row, corpus_submissions, load_prompts, read_jsonl
from pkb_gym.training.processes.host_group import HostGroup
from pkb_gym.training.results.attempts import attempts_of, read_rows, row_of, with_near_copies
from pkb_gym.training.results.policy_summary import PolicySummary, summarise
from pkb_gym.training.results.ring_summary import RingFigures, rings_of, summarise_rings
from pkb_gym.training.rollout.agent_player import AgentPlayer, open_control
from pkb_gym.training.rollout.dialogue import Dialogue
from pkb_gym.training.rollout.episodes import FeedbackText
from pkb_gym.training.rollout.player import EpisodeLimits, Player
from pkb_gym.training.rollout.rollouts import Rollouts
from pkb_gym.training.rollout.sampling import Backend, ReplySampler, SamplingConfig, open_sampler

RESULTS, SUMMARY, RING_SUMMARY = "results.jsonl", "summary.json", "rings.json"
REQUESTED, PARTS = "requested.json", "parts"
"""Names of the files in the output folder, and of the folder with each process's episodes."""

TABLE_WIDTH = 120
OPTION = "--output"


@dataclass(kw_only=True)
class EvaluationArguments(DialogueArguments):
    """Arguments of this recipe, beside those of TRL's `ModelConfig`."""

    prompts: str = field(metadata={"help": "Folder or JSONL file written by `pkb export prompts`."})
    output: str = field(metadata={"help": "Folder for results.jsonl and summary.json."})
    part: Literal["train", "held_out"] = field(default="held_out", metadata={"help": "Part of the prompts."})
    limit: int | None = field(default=None, metadata={"help": "Only so many prompts, from the first on."})
    samples: int = field(default=4, metadata={"help": "Episodes of each prompt."})
    max_completion_length: int = field(default=2048, metadata={"help": "Tokens after the prompt, feedback included."})
    chat_template_kwargs: dict[str, Any] | str | None = field(default=None, metadata={"help": TEMPLATE_HELP})
    temperature: float = field(default=1.0, metadata={"help": "Of the sampling; 0 takes the likeliest token."})
    top_p: float = field(default=1.0, metadata={"help": "Share of probability to choose from."})
    top_k: int = field(default=0, metadata={"help": "Tokens to choose from; 0 for all."})
    batch_size: int = field(default=32, metadata={"help": "Episodes that a process plays side by side."})
    seed: int = field(default=0, metadata={"help": "Of the sampling."})
    backend: Backend = field(default="transformers", metadata={"help": "What generates."})
    vllm_memory: float = field(default=0.9, metadata={"help": "Share of a GPU's memory that vLLM may take."})
    reward: str = field(default="default", metadata={"help": "Preset or module:function that values a submission."})
    feedback: FeedbackText = field(
        default="whole", metadata={"help": "whole; or verdict: of a failure, only that it was one (an ablation)."}
    )
    until: Literal["compile", "check", "time", "profile"] = field(
        default="time", metadata={"help": "Last stage of an evaluation."}
    )
    timing_budget_s: float = field(default=0.3, metadata={"help": "Longest timing of a kernel."})
    kernel_timeout_s: float | None = field(
        default=None, metadata={"help": "Deadline of a block of calls; by default 10 s or 30 times the baseline."}
    )
    evaluation_deadline_s: float = field(
        default=600.0, metadata={"help": "Longest wait for an evaluation; then it counts for nothing."}
    )
    evaluation: OwnerMode = field(default="inline", metadata={"help": "Who judges: see evaluation/owner.py."})
    evaluation_gpus: list[str] | None = field(
        default=None, metadata={"help": "`dedicated`, `colocated`: GPUs of the service."}
    )
    evaluation_url: str | None = field(default=None, metadata={"help": "A service (`dedicated`) or cluster (`ray`)."})
    evaluation_services: int = field(
        default=1,
        metadata={"help": "`dedicated`: services side by side, which share out this node's processors and the GPUs."},
    )
    evaluation_compilers: int = field(
        default=0,
        metadata={"help": "dedicated, colocated: processors that compile CUDA sources alone, apart from the ranks'."},
    )
    max_evaluations: int | None = field(
        default=None, metadata={"help": "Stop after so many submissions, earlier calls included."}
    )
    max_tokens: int | None = field(
        default=None, metadata={"help": "Stop after so many tokens read and written, likewise."}
    )
    max_hours: float | None = field(default=None, metadata={"help": "Stop so many hours after this call."})
    agent: str | None = field(
        default=None, metadata={"help": "An agent of `pkb run` in place of a model, a control: nearest:DATA, evolve."}
    )
    corpus: str | None = field(
        default=None, metadata={"help": "Corpus that the policy learned from: rings.json counts near copies apart."}
    )
    compare: str | None = field(
        default=None, metadata={"help": "results.jsonl of an earlier policy: the summary then has the gain over it."}
    )


def main(argv: list[str] | None = None) -> PolicySummary:
    """Evaluates a policy.

    Returns:
        The summary, on every rank.

    Raises:
        ConfigError: an argument, the prompts or an earlier result is of no use.
        InfrastructureError: the evaluator could not be started.
    """
    args, model = parse_arguments((EvaluationArguments, ModelConfig), argv, prog="evaluate_policy")
    if (model.model_name_or_path is None) == (args.agent is None):
        raise ConfigError("give --model_name_or_path for a policy, or --agent for one without a model")
    args.dialogue_options(args.chat_template_kwargs)  # refuses what does not fit together
    output = Path(args.output)
    prompts: list[Row] = load_prompts(args.prompts, args.part).to_list()[: args.limit]
    before = None if args.compare is None else read_rows(Path(args.compare))
    known = [] if args.corpus is None else corpus_submissions(args.corpus)
    PartialState(cpu=not torch.cuda.is_available())  # joins the other ranks, if there are any
    host = HostGroup()
    refuse_other_run(output, _requested(args, model, prompts), writes=host.rank == 0)
    done = host.from_first({(line["prompt"], line["sample"]) for line in _finished(output)})
    episodes = [(prompt, sample) for prompt in range(len(prompts)) for sample in range(args.samples)]
    budget = Budget(RunLimits(args.max_evaluations, args.max_tokens, args.max_hours), ())
    budget.use(host.from_first(Usage.of(*(attempt for line in _finished(output) for attempt in _attempts(line)))))
    stopped = None
    if waiting := [episode for episode in episodes if episode not in done]:
        stopped = _play(args, model, prompts, waiting, host, budget)
    host.barrier()  # every rank has written its part
    lines = sorted(_finished(output), key=lambda line: (line["prompt"], line["sample"]))
    attempts = [attempt for line in lines for attempt in line["attempts"]]
    rows = [row_of(attempt) for line in lines for attempt in _attempts(line)]
    summary = summarise(rows, before)
    if args.corpus is not None:
        rows = with_near_copies(rows, known)
    rings = summarise_rings(rows, rings_of(prompts))
    if host.rank == 0:
        write_atomically(output / RESULTS, "".join(json.dumps(attempt) + "\n" for attempt in attempts))
        write_atomically(output / SUMMARY, summary.model_dump_json(indent=2) + "\n")
        Console(width=TABLE_WIDTH).print(summary_table(summary))
        if rings:
            dumped = {ring: figures.model_dump(mode="json") for ring, figures in rings.items()}
            write_atomically(output / RING_SUMMARY, json.dumps(dumped, indent=2) + "\n")
            Console(width=TABLE_WIDTH).print(ring_table(rings))
        if stopped is not None:
            open_episodes = len(episodes) - len(lines)
            Console(stderr=True).print(f"stopped, {open_episodes} episodes open: {stopped}; the same command goes on")
    return summary


def refuse_other_run(output: Path, requested: Row, *, writes: bool) -> None:
    """Sees to it that a folder holds the results of one run; `writes` for the process that writes its arguments down.

    Raises:
        ConfigError: the folder was begun with other arguments, prompts or weights.
    """
    path = output / REQUESTED
    if path.exists():
        refuse_differences(output, json.loads(path.read_bytes()), requested, OPTION)
    elif writes:
        write_atomically(path, json.dumps(requested, indent=2) + "\n")


def summary_table(summary: PolicySummary) -> Table:
    """The summary for people."""
    table = Table("problem", "prompts", "episodes", "reward", "correct", "pass@k", "faster", "speedup", box=None)
    for name, figures in [*summary.problems.items(), ("all", summary.total)]:
        at = max(figures.pass_at, key=int, default=None)
        table.add_row(
            name,
            str(figures.prompts),
            f"{figures.samples}" + (f" ({figures.unjudged} not judged)" if figures.unjudged else ""),
            _estimate_text(figures.reward),
            _estimate_text(figures.correct),
            "" if at is None else f"{figures.pass_at[at].mean:.2f} (k={at})",
            _estimate_text(figures.fast),
            "" if figures.speedup_median is None else f"{figures.speedup_median:.2f}",
        )
    if summary.gain is not None:
        table.caption = f"gain in reward: {_estimate_text(summary.gain)}"
    return table


def ring_table(rings: Mapping[str, RingFigures]) -> Table:
    """The rings for people: a line after each turn."""
    table = Table("ring", "turns", "reward", "correct", "faster", "faster, captured", "solved", box=None)
    for ring, found in rings.items():
        for number, turn in enumerate(found.turns, start=1):
            estimates = (turn.reward, turn.correct, turn.fast, turn.fast_captured)
            solved = str(len(found.solved_problems)) if number == len(found.turns) else ""
            table.add_row(ring, str(number), *map(_estimate_text, estimates), solved)
    return table


def _estimate_text(estimate: Estimate | None) -> str:
    if estimate is None:
        return ""
    error = "" if estimate.standard_error is None else f" ± {estimate.standard_error:.3f}"
    return f"{estimate.mean:.3f}{error}"


def _play(
    args: EvaluationArguments,
    model: ModelConfig,
    prompts: Sequence[Row],
    waiting: Sequence[tuple[int, int]],
    host: HostGroup,
    budget: Budget,
) -> str | None:
    """Plays the episodes (prompt, sample) that are waiting; each batch is written as soon as it is complete.

    Returns:
        Name of the limit that ended it early; None for no limit.
    """
    state = PartialState()
    policy = _open_policy(args, model) if args.agent is None else None
    control = None if args.agent is None else open_control(args.agent)
    part = Path(args.output) / PARTS / f"{state.process_index}.jsonl"
    part.parent.mkdir(parents=True, exist_ok=True)
    with (
        LineFile(part, holds="episodes", writer="evaluate_policy.py", option=OPTION) as finished,
        closing(
            start_evaluation(
                args.evaluation,
                host,
                gpus=args.evaluation_gpus,
                url=args.evaluation_url,
                deadline_s=args.evaluation_deadline_s,
                services=args.evaluation_services,
                compilers=args.evaluation_compilers,
            )
        ) as schedule,
        closing(AsyncEvaluator(schedule.evaluator, args.evaluation_deadline_s)) as evaluator,
    ):
        finished.cut_off(finished.read()[1])
        base = EvalConfig(until=args.until, timing_budget_s=args.timing_budget_s, timeout_s=args.kernel_timeout_s)
        reward = find_reward(args.reward)
        rollouts = Rollouts(evaluator, reward, args.turns, base, args.feedback)
        player: Player | AgentPlayer
        if policy is not None:
            rollouts = replace(rollouts, shorten=policy.dialogue.shortened)
            player = Player(policy.sampler, policy.dialogue, rollouts, schedule, host, policy.limits)
        else:
            assert control is not None
            player = AgentPlayer(control, rollouts, schedule, machine_of(schedule.evaluator))
        agent = default_label(args.agent) if args.agent else Path(str(model.model_name_or_path)).name
        for batch in _batches(waiting, args.batch_size, state.process_index, state.num_processes):
            if (stopped := host.from_first(budget.exhausted)) is not None:  # ranks end with the same batch
                return stopped
            rows = [{**prompts[prompt], "sample": sample} for prompt, sample in batch]
            episodes = player.play(rows, _seed(args.seed, batch))
            played: list[Attempt] = []
            for (prompt, sample), episode in zip(batch, episodes, strict=True):
                attempts = attempts_of(sample, episode, args.reward, agent)
                dumped = [attempt.model_dump(mode="json") for attempt in attempts]
                finished.append(json.dumps({"prompt": prompt, "sample": sample, "attempts": dumped}))
                played += attempts
            for usage in host.gather(Usage.of(*played)):
                budget.use(usage)
    return None


@dataclass(frozen=True)
class _Policy:
    """A model that plays.

    Attributes:
        sampler: Sampler of the replies.
        dialogue: Dialogue with the model.
        limits: Limits of an episode.
    """

    sampler: ReplySampler
    dialogue: Dialogue
    limits: EpisodeLimits


def _open_policy(args: EvaluationArguments, model: ModelConfig) -> _Policy:
    tokenizer = AutoTokenizer.from_pretrained(model.model_name_or_path, revision=model.model_revision)
    sampling = SamplingConfig(args.temperature, args.top_p, args.top_k, args.batch_size, args.vllm_memory)
    sampling = replace(sampling, keep_memory=args.evaluation in ("dedicated", "ray"))
    sampler = open_sampler(args.backend, model, tokenizer, sampling)
    dialogue = Dialogue(tokenizer, args.dialogue_options(args.chat_template_kwargs))
    return _Policy(sampler, dialogue, EpisodeLimits(args.turns, args.max_completion_length, sampler.context))


def _batches(
    waiting: Sequence[tuple[int, int]], size: int, rank: int, ranks: int
) -> Iterator[Sequence[tuple[int, int]]]:
    """This rank's batches: as many as any other rank's, if need be empty, as playing one is a collective."""
    for begin in range(0, len(waiting), size * ranks):
        yield waiting[begin : begin + size * ranks][rank::ranks]


def _seed(seed: int, batch: Sequence[tuple[int, int]]) -> int:
    """Differs between runs and batches, so that no two share their randomness."""
    digest = hashlib.sha256(json.dumps([seed, batch]).encode()).digest()
    return int.from_bytes(digest[:4], "big") // 2


def _finished(output: Path) -> list[Row]:
    """Episodes that are complete, of all ranks."""
    parts = sorted((output / PARTS).glob("*.jsonl"))
    return [line for part in parts for line in read_jsonl(part)]


def _attempts(line: Row) -> list[Attempt]:
    """The attempts of an episode that is complete."""
    return [Attempt.model_validate(attempt) for attempt in line["attempts"]]


def _requested(args: EvaluationArguments, model: ModelConfig, prompts: Sequence[Row]) -> Row:
    """All that the results depend on, by name."""
    no_matter = {"output", "prompts", "corpus", "compare", "batch_size", "evaluation", "evaluation_gpus"}
    no_matter |= {"evaluation_url", "evaluation_services", "evaluation_compilers"}
    no_matter |= {"max_evaluations", "max_tokens", "max_hours"}
    requested = {name: value for name, value in asdict(args).items() if name not in no_matter}
    folder = Path(str(model.model_name_or_path))
    weights = sorted(folder.glob("*.safetensors")) if folder.is_dir() else []
    return requested | {
        "model": model.model_name_or_path,
        "revision": model.model_revision,
        "dtype": model.dtype,
        "weights": [[path.name, path.stat().st_size, path.stat().st_mtime_ns] for path in weights],
        "prompts": hashlib.sha256(json.dumps(prompts).encode()).hexdigest(),
    }


if __name__ == "__main__":
    run_recipe(main)
