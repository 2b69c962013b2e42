"""Rows of `pkb export` and of the recipes' result files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

from datasets import Dataset, DatasetDict, load_from_disk

from pkb_gym.corpus.conversations import submissions
from pkb_gym.engine.errors import ConfigError

Row = dict[str, Any]

CORPUS_COLUMNS = frozenset({"problem", "kind", "messages", "feedback", "rewards", "reward"})
PROMPT_COLUMNS = frozenset({"problem", "language", "device", "world_size", "size", "dtype", "seed", "style", "prompt"})


def load_corpus(path: str) -> Dataset:
    """Conversations to imitate.

    Args:
        path: Folder `corpus` or file `corpus.jsonl` that `pkb export corpus` wrote, or the folder of both.

    Raises:
        ConfigError: there is no such thing, or its columns are others.
    """
    found = _open(Path(path), "corpus")
    if isinstance(found, DatasetDict):
        raise ConfigError(f"{path} holds parts ({', '.join(found)}); a corpus has one. Was it `pkb export prompts`?")
    return _with_columns(found, CORPUS_COLUMNS, path, "pkb export corpus")


def load_prompts(path: str, part: Literal["train", "held_out"]) -> Dataset:
    """Prompts to answer.

    Args:
        path: Folder `prompts` or file `prompts.jsonl` that `pkb export prompts` wrote, or the folder of both.
        part: Part of the prompts, such as "train".

    Raises:
        ConfigError: there is no such thing, its columns are others, or the part is missing.
    """
    found = _open(Path(path), "prompts")
    if isinstance(found, Dataset):
        if "part" not in found.column_names:
            raise ConfigError(f"{path} has no column `part`; expected a file of `pkb export prompts`")
        found = DatasetDict({part: found.filter(lambda row: row["part"] == part)})
    if part not in found or len(found[part]) == 0:
        raise ConfigError(f"{path} has no prompts in its part {part!r}; parts: {', '.join(found)}")
    return _with_columns(found[part], PROMPT_COLUMNS, path, "pkb export prompts")


def corpus_submissions(path: str) -> list[str]:
    """All sources of a corpus, the broken ones included, without repetition.

    Args:
        path: Path of the corpus, as `load_corpus` takes it.

    Raises:
        ConfigError: There is no corpus, as `load_corpus` says.
    """
    return list(dict.fromkeys(source for row in load_corpus(path) for source in submissions(row["messages"])))


def read_jsonl(path: Path) -> list[Row]:
    """Rows of a JSONL file; a last line that a killed writer left unfinished is passed over.

    Raises:
        ConfigError: it cannot be read, or a line is no JSON object.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error
    whole = content.rfind(b"\n") + 1
    rows = []
    for number, line in enumerate(content[:whole].splitlines(), start=1):
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"{path}, line {number}: no JSON ({error})") from error
        if not isinstance(row, dict):
            raise ConfigError(f"{path}, line {number}: expected a JSON object, got {type(row).__name__}")
        rows.append(row)
    return rows


def _open(path: Path, name: str) -> Dataset | DatasetDict:
    if path.is_dir():
        path = next((inner for inner in (path / name, path / f"{name}.jsonl") if inner.exists()), path)
    if path.is_file():
        return Dataset.from_list(read_jsonl(path))
    try:
        found: Dataset | DatasetDict = load_from_disk(str(path))
    except (FileNotFoundError, ValueError) as error:
        raise ConfigError(
            f"{path}: expected the folder `{name}` or the file `{name}.jsonl` that `pkb export {name}` writes ({error})"
        ) from error
    return found


def _with_columns(rows: Dataset, needed: frozenset[str], path: str, writer: str) -> Dataset:
    if missing := sorted(needed - set(rows.column_names)):
        raise ConfigError(f"{path}: no column {', '.join(missing)}; expected what `{writer}` writes")
    return rows
