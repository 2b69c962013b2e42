"""Files of a command: the source that is read, with the language of its name, and what is written."""

from __future__ import annotations

import sys
from pathlib import Path, PurePath

from pkb_gym.engine.errors import ConfigError
from pkb_gym.engine.records.config import EvalConfig, Language
from pkb_gym.engine.support.atomic_write import write_atomically
from pkb_gym.problems.source_files import MAX_BYTES, decode_source, read_source_file


def read_source(name: str) -> str:
    """The text of a file, or of standard input for "-"; see `read_source_file`.

    Raises:
        ConfigError: it cannot be read.
    """
    if name != "-":
        return read_source_file(Path(name))
    try:
        return decode_source(sys.stdin.buffer.read(MAX_BYTES))
    except OSError as error:
        raise ConfigError(f"cannot read standard input: {error.strerror}") from error


LANGUAGE_OF: dict[str, Language] = {".cu": "cuda", ".cpp": "cpp", ".cc": "cpp", ".cxx": "cpp"}


def language_of(name: str, config: EvalConfig) -> EvalConfig:
    """The configuration with the language of an unambiguous suffix; the content decides the other languages."""
    suffix = PurePath(name).suffix
    if config.language != "auto" or suffix not in LANGUAGE_OF:
        return config
    return config.model_copy(update={"language": LANGUAGE_OF[suffix]})


def write_file(path: Path, text: str) -> None:
    """Writes a whole file or none.

    Raises:
        ConfigError: it cannot be written.
    """
    try:
        write_atomically(path, text)
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror}") from None
