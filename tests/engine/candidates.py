"""Candidates as files: tests/candidates/{good,broken,hostile,racy}/*.{cpp,py}, in cuda/ those for GPUs, *.{cu,py}.

The first lines of a file are comments of the form `key: value`:

    expect: <a Failure, or passed> [words that the message, a finding's code or the race's kind must contain, between ;]
            (one of several where it is the driver's to decide: runtime_error|passed)
    race: <a kind of `Race`>       the only one that is right, where it is a race
    edge: <departure, scope ...>   that the detector misses (`detector_races.h`), in races/, which are run emulated as
                                   those in styles/ are, honest kernels of many ways to synchronise, where it is the
                                   edge of a warning
    problem: name                  (default AllReduce)
    world_size, size, until, memory_mib, compile_timeout_s: as in EvalConfig (default 2, tiny, check, the evaluator's
                                   own, 60); emulated ranks are always judged at tiny
    needs: bubblewrap              could harm the machine, or cannot be refused, without it
    needs: gpus                    shows its mistake only where each rank has a GPU of its own
    twice: true                    evaluated twice in a row; both times as expected
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from pkb_gym.engine.records.config import EvalConfig
from pkb_gym.engine.records.feedback import Feedback

FOLDER = Path(__file__).resolve().parent.parent / "candidates"
DEADLINE_S = 1.5
"""Of candidates that are expected to miss it; the others have time enough on a busy machine."""

KEYS = {
    "expect",
    "race",
    "edge",
    "problem",
    "world_size",
    "size",
    "until",
    "memory_mib",
    "compile_timeout_s",
    "needs",
    "twice",
}


@dataclass(frozen=True)
class Candidate:
    """One file."""

    path: Path
    source: str
    outcome: str
    words: tuple[str, ...]
    options: dict[str, str]

    @property
    def name(self) -> str:
        return str(self.path.relative_to(FOLDER))

    @property
    def kind(self) -> str:
        """good, broken, hostile or racy."""
        return self.path.parent.name

    @property
    def on_gpus(self) -> bool:
        return self.path.is_relative_to(FOLDER / "cuda")

    @property
    def problem(self) -> str:
        return self.options.get("problem", "AllReduce")

    @property
    def world_size(self) -> int:
        return int(self.options.get("world_size", 2))

    @property
    def config(self) -> EvalConfig:
        """On GPUs they are judged by the GPUs alone."""
        options = self.options
        memory_mib = options.get("memory_mib")
        return EvalConfig(
            device="cuda" if self.on_gpus else "cpu",
            size=options.get("size", "tiny"),
            world_size=self.world_size,
            until=options.get("until", "check"),
            timeout_s=DEADLINE_S if self.outcome in ("timeout", "deadlock") else 20.0,
            compile_timeout_s=float(options.get("compile_timeout_s", 60)),
            memory_bytes=None if memory_mib is None else int(memory_mib) << 20,
            timing_budget_s=0.1,
            race_check="off" if self.on_gpus else "auto",
        )

    def assert_as_expected(self, feedback: Feedback) -> None:
        outcome = "passed" if feedback.passed else feedback.failure
        codes = [finding.code for finding in feedback.integrity] + ([feedback.race.kind] if feedback.race else [])
        assert outcome in self.outcome.split("|"), f"{self.name}: {outcome}\n{feedback.message}\n{feedback.output}"
        assert Feedback.model_validate_json(feedback.model_dump_json()) == feedback, (
            f"{self.name}: does not survive JSON"
        )
        if "race" in self.options:
            assert feedback.race is not None and feedback.race.kind == self.options["race"], (
                f"{self.name}: {feedback.race}"
            )
        for word in self.words if outcome != "passed" else ():
            evidence = "\n".join([*codes, feedback.message])
            assert word in evidence, f"{self.name}: {word!r} is not in\n{evidence}"


def read(path: Path) -> Candidate:
    """Parses a file's first lines."""
    source = path.read_text(encoding="utf-8")
    options: dict[str, str] = {}
    for line in source.splitlines():
        found = re.match(r"(?://|#) (\w+): (.+)", line)
        if found is None or found[1] not in KEYS:
            break
        options[found[1]] = found[2]
    outcome, _, words = options.pop("expect").partition(" ")
    return Candidate(path, source, outcome, tuple(word.strip() for word in words.split(";") if word.strip()), options)


def candidates(kind: str) -> list[Candidate]:
    """Every file of one kind, in order of names: "good", "cuda/good", and so on."""
    return [read(path) for path in sorted((FOLDER / kind).iterdir()) if path.suffix in (".cpp", ".cu", ".py")]
