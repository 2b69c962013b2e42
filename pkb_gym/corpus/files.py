"""Data sets on disk: a folder that `datasets` loads, and the same rows as JSON lines; each is whole or not there."""

from __future__ import annotations

import io
import json
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pkb_gym.corpus.cards import parquet_file
from pkb_gym.engine.errors import ConfigError
from pkb_gym.engine.support.atomic_write import write_atomically

if TYPE_CHECKING:
    from datasets import Features

    from pkb_gym.corpus.conversations import CorpusRow
    from pkb_gym.corpus.lessons import LessonRow
    from pkb_gym.corpus.prompts import PromptRow

NAMES = ("problem", "language", "device", "size", "dtype", "style")


def write_prompts(out: Path, parts: Mapping[str, Sequence[PromptRow]]) -> None:
    """Writes `prompts/`, a DatasetDict, `prompts.jsonl`, with the column `part`, and the files of the card.

    Args:
        out: Folder of both; made where there is none.
        parts: "train" and "held_out" -> rows.

    Raises:
        ConfigError: the package `datasets` is missing.
    """
    features = _prompt_features()
    from datasets import Dataset, DatasetDict

    sets = {part: Dataset.from_dict(_columns(rows, features), features) for part, rows in parts.items()}
    _save(DatasetDict(sets), out / "prompts")
    save_parquet(out, "prompts", parts, features)
    lines = [json.dumps({"part": part} | dict(row)) for part, rows in parts.items() for row in rows]
    write_atomically(out / "prompts.jsonl", "".join(f"{line}\n" for line in lines))


def write_corpus(out: Path, rows: Sequence[CorpusRow]) -> None:
    """Writes `corpus/`, a Dataset, `corpus.jsonl`, and the file of the card.

    Args:
        out: Folder of both; made where there is none.
        rows: Rows in order.

    Raises:
        ConfigError: the package `datasets` is missing.
    """
    features = _corpus_features()
    from datasets import Dataset

    _save(Dataset.from_dict(_columns(rows, features), features), out / "corpus")
    save_parquet(out, "corpus", {"train": rows}, features)
    write_atomically(out / "corpus.jsonl", "".join(f"{json.dumps(row)}\n" for row in rows))


def write_lessons(out: Path, rows: Sequence[LessonRow]) -> None:
    """Writes `lessons/`, a Dataset, `lessons.jsonl`, and the file of the card.

    Args:
        out: Folder of both; made where there is none.
        rows: Rows in order.

    Raises:
        ConfigError: the package `datasets` is missing.
    """
    features = _lesson_features()
    from datasets import Dataset

    _save(Dataset.from_dict(_columns(rows, features), features), out / "lessons")
    save_parquet(out, "lessons", {"train": rows}, features)
    write_atomically(out / "lessons.jsonl", "".join(f"{json.dumps(row)}\n" for row in rows))


def read_corpus(out: Path) -> list[CorpusRow]:
    """The rows that `write_corpus` wrote.

    Raises:
        ConfigError: there are none.
    """
    path = out / "corpus.jsonl"
    if not path.exists():
        raise ConfigError(f"{path} does not exist: `pkb export corpus --out {out}` writes it")
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def save_parquet(out: Path, name: str, parts: Mapping[str, Sequence[Mapping[str, object]]], features: Features) -> None:
    """Writes the files that `load_dataset` finds by the card; empty splits, which it could not read, have none.

    Args:
        out: Folder of all data sets.
        name: Name of the data set.
        parts: Split -> rows.
        features: Types of the columns.

    Raises:
        ConfigError: the package `datasets` is missing.
    """
    ds = datasets_module()
    for part, rows in parts.items():
        path = parquet_file(out, name, part)
        if not rows:
            path.unlink(missing_ok=True)
            continue
        content = io.BytesIO()
        ds.Dataset.from_dict(_columns(rows, features), features).to_parquet(content)
        write_atomically(path, content.getvalue())


def _columns(rows: Sequence[Mapping[str, object]], features: Features) -> dict[str, list[object]]:
    """The rows by column; the features name the columns where there are no rows."""
    return {name: [row[name] for row in rows] for name in features}


def _save(dataset: Any, folder: Path) -> None:  # noqa: ANN401  # Dataset or DatasetDict
    """Writes beside the folder, then takes its place."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}.") as beside:
        dataset.save_to_disk(str(Path(beside) / "new"))
        if folder.exists():
            folder.rename(Path(beside) / "old")
        (Path(beside) / "new").rename(folder)
        shutil.rmtree(Path(beside) / "old", ignore_errors=True)


def _prompt_features() -> Features:
    ds = datasets_module()
    text, whole = ds.Value("string"), ds.Value("int64")
    columns = dict.fromkeys(NAMES, text) | {"world_size": whole, "seed": whole}
    return ds.Features(columns | {"prompt": ds.List({"role": text, "content": text})})


def _corpus_features() -> Features:
    ds = datasets_module()
    text, whole, number = ds.Value("string"), ds.Value("int64"), ds.Value("float64")
    texts = ("id", *NAMES, "kind", "variant", "breakage", "stage", "failure", "source_hash")
    columns = dict.fromkeys(texts, text)
    columns |= dict.fromkeys(("world_size", "seed", "prompt_chars", "source_chars"), whole)
    columns |= dict.fromkeys(("reward", "speedup"), number)
    lists = {"messages": _messages(), "rewards": ds.List(number), "feedback": ds.List(text)}
    return ds.Features(columns | lists)


def _lesson_features() -> Features:
    ds = datasets_module()
    text, whole, number = ds.Value("string"), ds.Value("int64"), ds.Value("float64")
    columns = dict.fromkeys(("id", *NAMES, "kind", "source_hash"), text)
    columns |= {"world_size": whole, "seed": whole, "reward": number}
    lists = dict.fromkeys(("steps", "times", "feedback"), ds.List(text))
    return ds.Features(columns | lists | {"messages": _messages(), "rewards": ds.List(number)})


def _messages() -> object:
    """The type of conversations."""
    ds = datasets_module()
    text = ds.Value("string")
    call = {"type": text, "function": {"name": text, "arguments": {"source": text}}}
    return ds.List({"role": text, "content": text, "name": text, "tool_calls": ds.List(call)})


def datasets_module() -> Any:  # noqa: ANN401  # the module, which has no types
    """The package `datasets`, without its progress bars.

    Raises:
        ConfigError: it is missing.
    """
    try:
        import datasets
    except ImportError as error:
        raise ConfigError("exporting needs the package `datasets`: pip install 'pkb-gym[train]'") from error
    datasets.disable_progress_bars()
    return datasets
