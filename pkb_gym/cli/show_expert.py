"""`pkb show --expert`: a problem's known-good kernel and its measured times. No prompt and no environment has them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict

from pkb_gym.engine.errors import ConfigError
from pkb_gym.engine.problem import Problem
from pkb_gym.engine.records.config import ResolvedConfig
from pkb_gym.envs.text.formatting import time_text
from pkb_gym.problems.catalogue import expert_source
from pkb_gym.problems.expert_times import ExpertTime, expert_times

from .command import stderr
from .listing import experts


def print_expert(problem: Problem, config: ResolvedConfig, as_json: bool) -> None:
    """Prints the expert of the configuration's device, or else the other one, and its times as comments behind it.

    Args:
        problem: Problem that is solved.
        config: Configuration, of which the device counts.
        as_json: Whether one record is printed in place of a source.

    Raises:
        ConfigError: The problem has no expert.
    """
    present = experts(problem)
    if not present:
        raise ConfigError(f"{problem.name} has no expert kernel; `pkb list` shows the problems that have one")
    wanted = "cpp" if config.device == "cpu" else "cu"
    suffix = wanted if wanted in present else present[0]
    source = expert_source(problem, suffix)
    assert source is not None
    times = expert_times(problem.name) if suffix == "cu" else ()
    if as_json:
        rows = [asdict(time) for time in times]
        print(
            json.dumps({"problem": problem.name, "file": f"expert.{suffix}", "source": source, "times": rows}, indent=2)
        )
        return
    if suffix != wanted:
        stderr().print(f"{problem.name} has no expert.{wanted}; this is expert.{suffix}", soft_wrap=True)
    print(source.rstrip("\n"))
    for line in measured_lines(times):
        print(line)


def measured_lines(times: Sequence[ExpertTime]) -> list[str]:
    """Comments with the times, one a line; none where nothing was measured.

    Args:
        times: Times of one expert.
    """
    return ["", "// Measured:", *(f"// {_line(time)}" for time in times)] if times else []


def _line(time: ExpertTime) -> str:
    ranks = "1 rank" if time.world_size == 1 else f"{time.world_size} ranks"
    baselines = f"{time_text(time.baseline_us)} eager"
    if time.captured_us is not None:
        baselines += f" and {time_text(time.captured_us)} captured"
    share = "" if time.utilisation is None else f", {100 * time.utilisation:.0f} % of the roofline"
    speedup = f"{time.speedup:.2f} (at least {time.speedup_low:.2f}) times as fast as the eager baseline"
    return (
        f"{time.size} on {ranks} of {time.gpu}: {time_text(time.expert_us)} beside {baselines}; {speedup}{share}"
        f" (commit {time.commit}, {time.date})"
    )
