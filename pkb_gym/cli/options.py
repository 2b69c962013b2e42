"""Options of an evaluation, and the configuration made of them."""

from __future__ import annotations

import argparse
import ast
import os
from collections.abc import Callable, Iterable
from typing import TypeVar

from pkb_gym.engine.problem.axes import AxisValue
from pkb_gym.engine.records.config import EvalConfig
from pkb_gym.engine.records.config_request import checked_config, choices_of

Number = TypeVar("Number", int, float)

MAX_JOBS = 8

LITERALS: dict[str, AxisValue] = {"true": True, "false": False, "none": None}


def default_jobs() -> int:
    """Evaluations side by side: one for each core of this process, at most `MAX_JOBS`."""
    return min(MAX_JOBS, len(os.sched_getaffinity(0)))


def add_machine_options(parser: argparse.ArgumentParser) -> None:
    """Adds what decides shapes and bounds: device, world size, size, dtype, protocol."""
    parser.add_argument(
        "--device",
        choices=("auto", "cpu", "cuda", "emulated"),
        default="auto",
        help="default: GPUs where there are any, else the CPU; cuda without a GPU only compiles; emulated "
        "runs CUDA sources on a model of GPUs, slowly and untimed",
    )
    parser.add_argument(
        "--world-size", type=positive_int, metavar="N", help="ranks (default: 1, 2, 4 or 8, as GPUs allow; 4 without)"
    )
    parser.add_argument(
        "--ranks-per-gpu",
        type=positive_int,
        metavar="N",
        help="ranks that share a GPU, where there are fewer GPUs than ranks; above 1 nothing is timed (default: 1)",
    )
    parser.add_argument(
        "--size",
        type=parse_size,
        metavar="NAME|M=..,K=..",
        help="tiny, published or large, or axes that replace those of published (default: published; tiny on the CPU)",
    )
    parser.add_argument("--dtype", help="floating dtype (default: the problem's first)")
    parser.add_argument(
        "--protocol",
        choices=("robust", "published"),
        default="robust",
        help="inputs, tolerances and timing: ours, or the published benchmark's (default: robust)",
    )


def add_evaluation_options(parser: argparse.ArgumentParser) -> None:
    """Adds every option that `evaluation_config` reads."""
    add_machine_options(parser)
    parser.add_argument(
        "--language",
        choices=("auto", "cpp", "cuda", "triton", "python"),
        default="auto",
        help="default: found from the source",
    )
    parser.add_argument(
        "--until",
        choices=("compile", "check", "time", "profile"),
        help="stop after this stage (default: profile; check on device emulated)",
    )
    parser.add_argument(
        "--seed", type=int, default=0, metavar="N", help="seed of the inputs, with the key (default: 0)"
    )
    parser.add_argument(
        "--timeout",
        type=positive_float,
        metavar="S",
        help="deadline of a block of calls in seconds (default: 10; 120 on device emulated)",
    )
    parser.add_argument(
        "--race",
        dest="race_check",
        choices=choices_of("race_check"),
        default="auto",
        help="whether races are looked for: in CUDA sources by the race detector, in Triton sources by Triton's GSan, "
        "with lines; strict also fails order that PTX calls too weak (default: auto, on where this machine can)",
    )


def add_reward_option(parser: argparse.ArgumentParser) -> None:
    """Adds `--reward`, a name for `verdict.reward_of`."""
    parser.add_argument(
        "--reward",
        type=_reward_name,
        default="default",
        metavar="NAME",
        help="a preset such as kevin or fast_p:1.5, or a function of yours as module:function (default: default)",
    )


def _reward_name(text: str) -> str:
    """A name that stands for a reward; whether it does is found out before anything is evaluated."""
    from pkb_gym.engine.errors import ConfigError
    from pkb_gym.rewards import find_reward

    try:
        find_reward(text)
    except ConfigError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return text


def machine_config(args: argparse.Namespace) -> EvalConfig:
    """The values of the options of `add_machine_options`; the rest is left open.

    Raises:
        ConfigError: a field takes no such value.
    """
    return checked_config(_given(args, MACHINE_FIELDS))


def evaluation_config(args: argparse.Namespace) -> EvalConfig:
    """The values of the options of `add_evaluation_options`; the rest is left open.

    Raises:
        ConfigError: a field takes no such value.
    """
    fields = (*MACHINE_FIELDS, "language", "until", "seed", "race_check")
    return checked_config(_given(args, fields) | {"timeout_s": args.timeout})


MACHINE_FIELDS = ("device", "world_size", "ranks_per_gpu", "size", "dtype", "protocol")
"""Fields of the configuration that are options of the same name."""


def _given(args: argparse.Namespace, names: Iterable[str]) -> dict[str, object]:
    return {name: getattr(args, name) for name in names}


def parse_size(text: str) -> str | dict[str, AxisValue]:
    """A size's name, or axes: "M=1024,counts=(3,0),pattern=normal" -> {"M": 1024, "counts": (3, 0), ...}.

    Raises:
        argparse.ArgumentTypeError: it is neither.
    """
    if "=" not in text:
        return text
    axes: dict[str, AxisValue] = {}
    for part in _split_outside_brackets(text):
        name, equals, value = (piece.strip() for piece in part.partition("="))
        if not (name.isidentifier() and equals and value):
            raise argparse.ArgumentTypeError(f"{part!r} is no axis; write NAME=VALUE, for example M=1024,K=512")
        if name in axes:
            raise argparse.ArgumentTypeError(f"axis {name} is given twice")
        axes[name] = _axis_value(value)
    return axes


def _split_outside_brackets(text: str) -> list[str]:
    parts, depth = [""], 0
    for character in text:
        depth += (character == "(") - (character == ")")
        if character == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    return parts


def _axis_value(text: str) -> AxisValue:
    if text.lower() in LITERALS:
        return LITERALS[text.lower()]
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text
    return value if isinstance(value, int | float | str | tuple) or value is None else text


def parse_key(text: str) -> bytes:
    """A replay key, as hexadecimal digits.

    Raises:
        argparse.ArgumentTypeError: it is none.
    """
    try:
        key = bytes.fromhex(text)
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r} is no replay key: hexadecimal digits, as printed by a run"
        ) from None
    if not key:
        raise argparse.ArgumentTypeError("the replay key is empty")
    return key


def positive_int(text: str) -> int:
    """A whole number above 0.

    Raises:
        argparse.ArgumentTypeError: it is none.
    """
    return _positive(text, int, "a whole number")


def positive_float(text: str) -> float:
    """A number above 0.

    Raises:
        argparse.ArgumentTypeError: it is none.
    """
    return _positive(text, float, "a number")


def _positive(text: str, kind: Callable[[str], Number], expected: str) -> Number:
    try:
        value = kind(text)
    except ValueError:
        value = kind("0")
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} must be {expected} above 0")
    return value
