"""The manifest of an exported folder: its origin, and counts by problem, stage, kind and length."""

from __future__ import annotations

import datetime as dt
import importlib.metadata
import platform
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from statistics import median
from typing import Any

from pkb_gym import __version__
from pkb_gym.corpus.conversations import CorpusRow, Exclusions
from pkb_gym.engine.hardware import gpus
from pkb_gym.engine.hardware.cpu_info import cpu_info
from pkb_gym.engine.hardware.host import processors
from pkb_gym.engine.records.feedback import Feedback

LENGTH_BUCKET = 500
"""Characters of a source, by which lengths are counted."""

VERSIONS = ("torch", "datasets", "apache-tvm-ffi")
"""Packages beside our own whose versions are listed."""


def origin(command: str) -> dict[str, Any]:
    """Command, date, machine and versions."""
    return {
        "command": command,
        "date": dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
        "machine": {
            "processor": cpu_info().model,
            "processors": processors(),
            "gpus": list(gpus.names()),
            "python": platform.python_version(),
        },
        "versions": {"pkb-gym": __version__} | {name: importlib.metadata.version(name) for name in VERSIONS},
    }


def corpus_counts(rows: Sequence[CorpusRow], left_out: Exclusions) -> dict[str, Any]:
    """Counts of the rows, and of what did not become one."""
    earlier = [Feedback.model_validate_json(text) for row in rows for text in row["feedback"][:-1]]
    return {
        "rows": len(rows),
        "sources": len({row["source_hash"] for row in rows}),
        "problems": _by(rows, lambda row: f"{row['problem']} {row['language']}"),
        "kinds": _by(rows, lambda row: row["kind"]),
        "stages": _by(rows, lambda row: str(row["stage"])),
        "workloads": _by(rows, lambda row: f"{row['dtype']} {row['size'] if row['size'][0] != '{' else 'axes'}"),
        "lengths": {str(bucket): n for bucket, n in sorted(Counter(map(length_bucket, rows)).items())},
        "breakages": _by([row for row in rows if row["breakage"]], lambda row: str(row["breakage"]).split("+")[0]),
        "failures_mended": dict(sorted(Counter(str(feedback.failure) for feedback in earlier).items())),
        "left_out": {
            "variants_that_failed": [list(entry) for entry in left_out.failed_variants],
            "breakages_that_did_no_harm": dict(sorted(left_out.harmless.items())),
            "duplicates": left_out.duplicates,
            "not_judged": left_out.not_judged,
            "only_compiled": left_out.compiled_only,
        },
    }


def length_bucket(row: CorpusRow) -> int:
    """The first length of the bucket that a row's kernel falls into."""
    return row["source_chars"] // LENGTH_BUCKET * LENGTH_BUCKET


def markdown(rows: Sequence[CorpusRow]) -> str:
    """Tables of a corpus: by problem, by what went wrong first, by length."""
    keys = sorted({(row["problem"], row["language"]) for row in rows})
    lines = [
        "| problem | language | single | repairs | sources | speedup: least, median, most | reward: least, most |",
        "| --- | --- | ---: | ---: | ---: | --- | --- |",
    ]
    for problem, language in keys:
        mine = [row for row in rows if (row["problem"], row["language"]) == (problem, language)]
        singles = [row for row in mine if row["kind"] == "single"]
        speeds = [row["speedup"] for row in singles if row["speedup"] is not None]
        rewards = [row["reward"] for row in singles]
        speed = f"{min(speeds):.2f}, {median(speeds):.2f}, {max(speeds):.2f}" if speeds else "not run"
        reward = f"{min(rewards):.2f}, {max(rewards):.2f}" if rewards else "-"
        sources = len({row["source_hash"] for row in mine})
        lines.append(
            f"| {problem} | {language} | {len(singles)} | {len(mine) - len(singles)} | {sources} | {speed} | {reward} |"
        )
    lines += ["", "| what was wrong | stage reached | repairs |", "| --- | --- | ---: |"]
    first = [Feedback.model_validate_json(row["feedback"][0]) for row in rows if row["kind"] == "repair"]
    wrong = Counter((str(feedback.failure), str(feedback.stage or "-")) for feedback in first)
    lines += [f"| {failure} | {stage} | {n} |" for (failure, stage), n in sorted(wrong.items())]
    lines += ["", "| characters of the kernel | rows |", "| --- | ---: |"]
    lengths = Counter(map(length_bucket, rows))
    lines += [f"| {start} to {start + LENGTH_BUCKET - 1} | {n} |" for start, n in sorted(lengths.items())]
    return "\n".join(lines)


def _by(rows: Sequence[CorpusRow], key: Callable[[CorpusRow], Hashable]) -> dict[str, int]:
    return {str(name): n for name, n in sorted(Counter(map(key, rows)).items(), key=lambda item: str(item[0]))}
