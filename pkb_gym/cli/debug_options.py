"""Options for finding mistakes: debug builds, sanitizers, runs and tensors that are kept."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from pkb_gym.engine.errors import ConfigError
from pkb_gym.engine.records.config import EvalConfig, Sanitizer
from pkb_gym.engine.records.feedback import Stage
from pkb_gym.engine.support.suggestions import did_you_mean

from .command import stderr
from .evaluator_choice import judged_here

if TYPE_CHECKING:
    from pkb_gym.engine.evaluators.evaluator import Evaluator
    from pkb_gym.engine.records.feedback import Feedback

SANITIZERS: tuple[str, ...] = get_args(Sanitizer)


def add_debug_options(parser: argparse.ArgumentParser) -> None:
    """Adds what `debug_config` and `open_for_debugging` read."""
    parser.add_argument(
        "--debug",
        action="store_true",
        help="compile without optimisation and with bounds checks; stops after the check, without a reward",
    )
    parser.add_argument(
        "--sanitize",
        type=_sanitizers,
        default=(),
        metavar="NAME,..",
        help="first run the checked calls under address, undefined or thread (C++), or under memcheck, racecheck, "
        "synccheck or initcheck (CUDA); implies --debug",
    )
    parser.add_argument(
        "--keep",
        type=Path,
        metavar="DIR",
        help="write source, library and checked calls there, with a run.sh for gdb and sanitizers; native sources",
    )
    parser.add_argument(
        "--dump", type=Path, metavar="DIR", help="write wrong outputs there: .npy as got and expected, and a heat map"
    )


def _sanitizers(text: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",")))
    unknown = [name for name in names if name not in SANITIZERS]
    if unknown:
        raise argparse.ArgumentTypeError(
            f"no sanitizer {unknown[0]!r} among {', '.join(SANITIZERS)}.{did_you_mean(unknown[0], SANITIZERS)}"
        )
    return names


def debug_config(config: EvalConfig, args: argparse.Namespace) -> EvalConfig:
    """Adds the values of the options of `add_debug_options` to a configuration.

    Raises:
        ConfigError: calls of emulated ranks are to be kept.
    """
    if args.keep is not None and config.device == "emulated":
        raise ConfigError(
            "--keep writes calls for gdb and compute-sanitizer to run; on device emulated leave it out: the "
            "race detector names lines"
        )
    if not (args.debug or args.sanitize):
        return config
    return config.model_copy(update={"debug": True, "sanitize": args.sanitize})


def open_for_debugging(args: argparse.Namespace, key: bytes | None) -> Evaluator | None:
    """An evaluator of this process, which writes files; None where none are asked for.

    Args:
        args: Values of the options of `add_debug_options` and `add_evaluator_options`.
        key: Key of the inputs; None where a service draws them.

    Raises:
        ConfigError: a service is asked for too, or a folder cannot be written.
    """
    if args.keep is None and args.dump is None:
        return None
    for folder in filter(None, (args.keep, args.dump)):
        _check_folder(folder)
    if not judged_here(args) or key is None:
        raise ConfigError("--keep and --dump write what this machine evaluates; leave out --service and --evaluator")
    from pkb_gym.engine.debugging.debugger import DebugFolders
    from pkb_gym.engine.evaluators.local import LocalEvaluator

    return LocalEvaluator(key=key, folders=DebugFolders(args.keep, args.dump))


def _check_folder(folder: Path) -> None:
    """Before the evaluation, which takes longer than it takes to see that its files have no place."""
    there = next(place for place in (folder.absolute(), *folder.absolute().parents) if place.exists())
    if not there.is_dir():
        raise ConfigError(f"cannot write to {folder}: {there} is no folder")
    if not os.access(there, os.W_OK | os.X_OK):
        raise ConfigError(f"cannot write to {folder}: no permission to write to {there}")


def print_files(args: argparse.Namespace, feedback: Feedback) -> None:
    """Says what was written, or why nothing was."""
    if args.keep is not None:
        if feedback.config.dialect != "native":
            what = f"nothing was kept in {args.keep}: there is no standalone harness for Python sources"
        elif Stage.CHECK not in feedback.durations_s:
            what = f"nothing was kept in {args.keep}: no call was made"
        else:
            what = f"the checked calls are in {args.keep}; {args.keep / 'run.sh'} runs them alone"
        stderr().print(what, soft_wrap=True)
    if args.dump is not None:
        wrong = feedback.check is not None and feedback.check.mismatches
        what = f"wrong outputs are in {args.dump}" if wrong else "nothing was dumped: no compared output was wrong"
        stderr().print(what, soft_wrap=True)
