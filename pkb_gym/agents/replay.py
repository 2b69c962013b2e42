"""Submits again what lies in a folder, or what a file of results holds.

A folder's files are named as those of `pkb eval-dir`; the first file of a problem is its sample 0, and so on by name. A
file of results gives sample and turn themselves, replies without a submission included; it may be named by the folder
of its run.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

from pkb_gym.agents.fixed import FixedProvider
from pkb_gym.agents.options import NoOptions, parse_options
from pkb_gym.agents.protocol import AgentProvider, AgentTask, NotCovered, Reply
from pkb_gym.engine.errors import ConfigError
from pkb_gym.engine.records.attempt import Attempt
from pkb_gym.engine.records.attempt_file import RESULTS, read_attempts
from pkb_gym.problems.catalogue import all_problems
from pkb_gym.problems.source_files import find_sources, read_source_file

Episodes = Mapping[tuple[str, int], tuple[Reply, ...]]
"""(problem, sample) -> its replies, in order."""


def open_provider(argument: str, options: Mapping[str, str]) -> AgentProvider:
    """The provider of recorded replies, for `registry.open_agent`.

    Raises:
        ConfigError: The path holds neither sources nor results.
    """
    parse_options("replay", NoOptions, options)
    path = Path(argument).expanduser()
    episodes = _of_folder(path) if path.is_dir() else {}
    if not path.is_dir() or (not episodes and (path / RESULTS).exists()):
        episodes = _of_results(read_attempts(path))
    if not episodes:
        raise ConfigError(f"agent replay: nothing in {path} was submitted for any problem")
    covered = {problem for problem, _ in episodes}

    def replies(task: AgentTask) -> tuple[Reply, ...]:
        if task.problem.name not in covered:
            raise NotCovered(f"{path} holds nothing for {task.problem.name}")
        if (task.problem.name, task.sample) not in episodes:
            raise NotCovered(f"{path} holds no sample {task.sample} of {task.problem.name}")
        return episodes[task.problem.name, task.sample]

    return FixedProvider({"sha256": _digest(episodes)}, replies)


def _of_folder(path: Path) -> Episodes:
    found: dict[tuple[str, int], tuple[Reply, ...]] = {}
    samples: dict[str, int] = defaultdict(int)
    for file, problem in find_sources(path, all_problems()).candidates:
        found[problem.name, samples[problem.name]] = (Reply("", submission=read_source_file(file)),)
        samples[problem.name] += 1
    return found


def _of_results(attempts: Sequence[Attempt]) -> Episodes:
    """Episodes of a run; files of `pkb eval-dir` have one for each file. Of equal places the last attempt counts."""
    places: dict[tuple[str, int], dict[int, Reply]] = defaultdict(dict)
    files: dict[str, dict[str, int]] = defaultdict(dict)
    for attempt in attempts:
        if attempt.refusal is not None:
            continue
        of_problem = files[attempt.problem]
        sample = attempt.sample
        if attempt.file is not None:
            sample = of_problem.setdefault(attempt.file, len(of_problem))
        places[attempt.problem, sample][attempt.turn] = Reply(attempt.reply or "", submission=attempt.source)
    return {place: tuple(reply for _, reply in sorted(turns.items())) for place, turns in places.items()}


def _digest(episodes: Episodes) -> str:
    """A digest of all submissions: a run is not resumed with other sources."""
    texts = [(place, [(reply.content, reply.submission) for reply in of]) for place, of in sorted(episodes.items())]
    return hashlib.sha256(repr(texts).encode("utf-8", "surrogatepass")).hexdigest()[:16]
