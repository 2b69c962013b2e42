"""Arguments of the recipes: dataclasses filled from a YAML file, overridden on the command line."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn, TypeVar, overload

import yaml
from transformers import TrainingArguments
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR
from trl import TrlParser

from pkb_gym.engine.errors import ConfigError, PkbError
from pkb_gym.training.inputs.option_names import REHEARSE, unknown_argument

LAST = "last"
"""Value of `resume_from_checkpoint` that stands for the newest whole checkpoint, or none where there is none yet."""
TRAINER_STATE = "trainer_state.json"

A = TypeVar("A")
B = TypeVar("B")
C = TypeVar("C")


class RecipeParser(TrlParser):
    """TRL's parser, with errors that name the right spelling, and values from YAML held to the declared choices."""

    def error(self, message: str) -> NoReturn:
        """Called by argparse for what it cannot read.

        Raises:
            ConfigError: always.
        """
        raise ConfigError(f"{self.prog}: {message}")

    def set_defaults_with_config(self, **config: Any) -> list[str]:
        """Takes the values of a YAML file as defaults; see `TrlParser`.

        Raises:
            ConfigError: a key is no argument, or its value is not of the declared kind.
        """
        actions = {action.dest: action for action in self._actions}
        for key, value in config.items():
            if key not in actions:
                raise ConfigError(unknown_argument(self.prog, str(key), actions))
            action = actions[key]
            if action.choices is not None and value is not None and value not in action.choices:
                raise ConfigError(
                    f"{self.prog}: {key} must be one of {', '.join(map(str, action.choices))}, got {value}"
                )
            if action.nargs == "+" and value is not None:
                if not isinstance(value, list):
                    raise ConfigError(f"{self.prog}: {key} must be a list, got {value!r}; write `{key}: [{value}]`")
                # argparse converts texts alone: `[4, 5]` for a list of texts would stay numbers.
                config[key] = [action.type(str(item)) for item in value] if callable(action.type) else value
        return list(super().set_defaults_with_config(**config))


@overload
def parse_arguments(kinds: tuple[type[A]], argv: Sequence[str] | None = None, *, prog: str) -> tuple[A]: ...
@overload
def parse_arguments(kinds: tuple[type[A], type[B]], argv: Sequence[str] | None = None, *, prog: str) -> tuple[A, B]: ...
@overload
def parse_arguments(
    kinds: tuple[type[A], type[B], type[C]], argv: Sequence[str] | None = None, *, prog: str
) -> tuple[A, B, C]: ...
def parse_arguments(kinds: tuple[type, ...], argv: Sequence[str] | None = None, *, prog: str) -> tuple[object, ...]:
    """Fills dataclasses from `--config FILE` (YAML) and the command line, which comes last and wins.

    Args:
        kinds: Dataclasses of the arguments; a field's `metadata["help"]` is its help text.
        argv: Command line without the program's name; by default this process's.
        prog: Name of the recipe in messages.

    Returns:
        One object for each dataclass.

    Raises:
        ConfigError: the file cannot be read, or an argument is unknown, missing or not of the declared kind.
    """
    parser = RecipeParser(
        kinds,  # type: ignore[arg-type]  # its NewType takes no class
        prog=prog,
        allow_abbrev=False,
        epilog=f"{REHEARSE} TARGET checks the command for a machine, such as 8x80 (GPUs, gigabytes), and ends.",
    )
    filled: list[Any]
    unknown: Any
    try:
        *filled, unknown = parser.parse_args_and_config(recipe_words(argv, prog), return_remaining_strings=True)
    except OSError as error:
        raise ConfigError(f"{prog}: cannot read {error.filename}: {error.strerror}") from error
    except (ValueError, TypeError, yaml.YAMLError) as error:
        if isinstance(error, PkbError):
            raise
        raise ConfigError(f"{prog}: {error}") from error
    if unknown:
        names = [option.lstrip("-") for action in parser._actions for option in action.option_strings]
        raise ConfigError(unknown_argument(prog, unknown[0].split("=")[0].lstrip("-"), names))
    return tuple(filled)


def recipe_words(argv: Sequence[str] | None, prog: str) -> list[str]:
    """The command line as TRL's parser takes it, with `--config` and its value apart."""
    words = []
    for word in sys.argv[1:] if argv is None else argv:
        words += word.split("=", 1) if word.startswith("--config=") else [word]
    if words and words[-1] == "--config":
        raise ConfigError(f"{prog}: --config needs a YAML file")
    return words


def output_folder(args: TrainingArguments) -> Path:
    """`args.output_dir`, which TrainingArguments fills in where it was left open."""
    return Path(str(args.output_dir))


def checkpoint_to_resume(args: TrainingArguments, last_file: str = TRAINER_STATE) -> str | None:
    """The checkpoint folder that `args.resume_from_checkpoint` means.

    Args:
        args: Arguments of the trainer.
        last_file: Name of the file that is written last into a checkpoint.

    Raises:
        ConfigError: it names a folder that holds no whole checkpoint.
    """
    requested = args.resume_from_checkpoint
    if not requested:
        return None
    if requested == LAST:
        return _last_whole_checkpoint(output_folder(args), last_file)
    if not _is_whole(Path(requested)):
        raise ConfigError(
            f"resume_from_checkpoint: {requested} holds no whole checkpoint ({TRAINER_STATE} is missing or cut off); "
            f"`{LAST}` takes the newest whole one of {args.output_dir}"
        )
    return str(requested)


def _last_whole_checkpoint(folder: Path, last_file: str) -> str | None:
    """A run that was killed while it saved leaves a folder without the file that is written last."""
    found = folder.glob(f"{PREFIX_CHECKPOINT_DIR}-*") if folder.is_dir() else []
    whole = [path for path in found if _is_whole(path) and (path / last_file).exists()]
    newest = max(whole, key=lambda path: int(path.name.rpartition("-")[2]), default=None)
    return None if newest is None else str(newest)


def _is_whole(checkpoint: Path) -> bool:
    try:
        return isinstance(json.loads((checkpoint / TRAINER_STATE).read_bytes()), dict)
    except (OSError, ValueError):
        return False


def run_recipe(main: Callable[[], object]) -> NoReturn:
    """Runs a recipe as a script; wrong usage, faults of this machine and Ctrl-C end it with one line."""
    try:
        main()
    except PkbError as error:
        print(error, file=sys.stderr)
        sys.exit(2 if isinstance(error, ConfigError) else 3)
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # what still ends this process may be interrupted too
        print("interrupted", file=sys.stderr)
        sys.exit(130)
    sys.exit(0)
