r"""`evolve` on prompts: a search without a model, with as many evaluations of each prompt as a trained policy had.

The prompts are those of `ring_prompts.py` or `pkb export prompts`. Each is an episode of its own, valued by the reward
of the training. A prompt that is complete is not searched again: the same command goes on. With `--services`, prompts
are searched side by side, each by a service with processors of its own, as `learning_run` evaluates. `--minutes` ends
the searches that are under way: they count as complete, with the evaluations that they have.

    python -m benchmarks.learning_search --prompts RINGS/prompts.jsonl --ring sizes --per-problem 2 \
        --evaluations 30 --output RUNS/evolve
"""

from __future__ import annotations

import argparse
import contextlib
import math
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

from benchmarks.common import make_parser
from benchmarks.learning_prompts import first_of_each
from pkb_gym.agents.protocol import AgentProvider, AgentTask, Message, NotCovered
from pkb_gym.agents.registry import open_agent
from pkb_gym.engine.evaluators.evaluator import Evaluator
from pkb_gym.engine.evaluators.local import LocalEvaluator
from pkb_gym.engine.records.attempt import Attempt
from pkb_gym.engine.records.config import EvalConfig
from pkb_gym.engine.stages.execution_environment import resolve_here
from pkb_gym.engine.support.jsonl import LineFile
from pkb_gym.envs.attempts import judged_attempt
from pkb_gym.envs.episode import Episode
from pkb_gym.rewards import find_reward
from pkb_gym.rewards.empty_value import empty_value
from pkb_gym.training.evaluation.owner import start_evaluation
from pkb_gym.training.inputs.rows import Row, read_jsonl
from pkb_gym.training.processes.host_group import HostGroup
from pkb_gym.training.results.attempts import read_rows
from pkb_gym.training.results.policy_summary import prompt_key
from pkb_gym.training.rollout.episodes import RolloutTask

NAME = "learning_search"
AGENT = "evolve"


def search(
    row: Row,
    evaluator: Evaluator,
    provider: AgentProvider,
    base: EvalConfig,
    evaluations: int,
    reward_name: str,
    deadline: float = math.inf,
) -> Iterator[Attempt]:
    """The submissions on one prompt, as they are judged.

    Args:
        row: of the prompts.
        evaluator: judges.
        provider: of the agent.
        base: the settings of evaluations that rows leave open.
        evaluations: submissions, at most; the family may have fewer kernels.
        reward_name: values them, and so steers the search.
        deadline: no evaluation begins after it, in seconds of `time.monotonic`.

    Raises:
        NotCovered: there are no families for the problem.
        ConfigError: the row cannot be understood.
    """
    task, reward = RolloutTask.of_row(row, base), find_reward(reward_name)
    config = resolve_here(task.config, task.problem)
    agent = provider.begin(AgentTask(task.problem, config, 0, task.config.seed))
    episode = Episode(reward, evaluations, empty_value(reward))
    messages: list[Message] = []
    while (
        episode.turns_left
        and time.monotonic() < deadline
        and (reply := agent.act(messages)) is not None
        and reply.submission is not None
    ):
        turn = episode.record(reply.submission, evaluator.evaluate(task.problem, reply.submission, task.config))
        messages.append(Message("tool", "", turn=turn))
        requested = Attempt(
            problem=task.problem.name, agent=AGENT, turn=turn.number - 1, requested=task.config, reward_name=reward_name
        )
        yield judged_attempt(requested, turn, None)


@contextlib.contextmanager
def evaluators(services: int) -> Iterator[Evaluator]:
    """What judges: this process, or several services side by side on shares of the processors."""
    if services == 1:
        with LocalEvaluator() as evaluator:
            yield evaluator
        return
    schedule = start_evaluation("dedicated", HostGroup(), services=services)
    try:
        yield schedule.evaluator
    finally:
        schedule.close()


def options() -> argparse.ArgumentParser:
    """Its command line."""
    parser = make_parser(NAME, __doc__)
    parser.add_argument("--prompts", type=Path, required=True, metavar="FILE", help="rows of the prompts")
    parser.add_argument("--ring", help="only prompts of this ring")
    parser.add_argument("--per-problem", type=int, default=2, help="prompts of each problem (default: %(default)s)")
    parser.add_argument("--evaluations", type=int, required=True, help="of each prompt")
    parser.add_argument("--reward", default="default", help="preset (default: %(default)s)")
    parser.add_argument("--timing-budget", type=float, default=0.1, help="seconds (default: %(default)s)")
    parser.add_argument("--kernel-timeout", type=float, help="seconds of a block of calls, see `grpo.py`")
    parser.add_argument("--jobs", type=int, help="prompts side by side (default: as many as services)")
    parser.add_argument("--services", type=int, default=1, help="evaluation services (default: %(default)s)")
    parser.add_argument("--minutes", type=float, default=math.inf, help="time limit of this call (default: none)")
    parser.add_argument("--output", type=Path, required=True, metavar="FOLDER")
    return parser


def main(argv: Sequence[str] | None = None) -> None:
    """Searches for each prompt, and writes `results.jsonl`."""
    args = options().parse_args(argv)
    args.output.mkdir(parents=True, exist_ok=True)
    path = args.output / "results.jsonl"
    base = EvalConfig(until="time", timing_budget_s=args.timing_budget, timeout_s=args.kernel_timeout)
    provider = open_agent(AGENT, {})
    deadline = time.monotonic() + 60 * args.minutes
    with (
        LineFile(path, holds="attempts", writer=NAME, option="--output") as lines,
        evaluators(args.services) as evaluator,
        ThreadPoolExecutor(args.jobs or args.services) as pool,
    ):
        lines.cut_off(lines.read()[1])
        done = {prompt_key(row) for row in read_rows(path)}
        rows = first_of_each(read_jsonl(args.prompts), args.ring, args.per_problem)
        waiting = [row for row in rows if prompt_key(row) not in done]

        def play(row: Row) -> list[Attempt]:
            try:
                return list(search(row, evaluator, provider, base, args.evaluations, args.reward, deadline))
            except NotCovered as error:
                print(f"{row['problem']}: {error}")
                return []

        begun = {pool.submit(play, row): row for row in waiting}
        for ended in as_completed(begun):
            row, attempts = begun[ended], ended.result()
            if attempts:  # at once: a prompt is complete or absent
                lines.append("\n".join(attempt.to_line() for attempt in attempts))
            best = max((attempt.reward for attempt in attempts if attempt.reward is not None), default=None)
            print(
                f"{row['problem']} {row['size']} {row['dtype']}: {len(attempts)} evaluations, best {best}", flush=True
            )


if __name__ == "__main__":
    main()
