"""Options for finding mistakes: debug builds, sanitizers, runs and tensors that are kept."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from pkb_gym.engine.records.config import EvalConfig, Sanitizer

from .command import Session

if TYPE_CHECKING:
    from pkb_gym.engine.evaluators.evaluator import Evaluator

SANITIZERS: tuple[str, ...] = get_args(Sanitizer)


def add_debug_options(parser: argparse.ArgumentParser) -> None:
    """Adds what `debug_config` and `open_for_debugging` read."""
    parser.add_argument(
        "--debug",
        action="store_true",
        help="compile without optimisation, with checks of bounds; ends with the check, and no reward is given",
    )
    parser.add_argument(
        "--sanitize",
        type=_sanitizers,
        default=(),
        metavar="NAME,..",
        help="first run the checked calls under address, undefined or thread; C++ sources; implies --debug",
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
        hint = "; for CUDA sources keep the run (--keep DIR) and call DIR/run.sh memcheck" if "check" in text else ""
        raise argparse.ArgumentTypeError(f"no sanitizer {unknown[0]!r} among {', '.join(SANITIZERS)}{hint}")
    return names


def debug_config(config: EvalConfig, args: argparse.Namespace) -> EvalConfig:
    """A configuration with what `add_debug_options` was told."""
    if not (args.debug or args.sanitize):
        return config
    return config.model_copy(update={"debug": True, "sanitize": args.sanitize})


def open_for_debugging(args: argparse.Namespace, session: Session, key: bytes) -> Evaluator:
    """The session's evaluator, or where files are to be written one of this process."""
    if args.keep is None and args.dump is None:
        return session.open_evaluator(key)
    from pkb_gym.engine.evaluators.local import LocalEvaluator
    from pkb_gym.engine.stages.debug_tools import DebugFolders

    return LocalEvaluator(key=key, folders=DebugFolders(args.keep, args.dump))
