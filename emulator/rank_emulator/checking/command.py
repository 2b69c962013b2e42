"""The command `check-ranks`."""

from __future__ import annotations

import argparse
import io
import itertools
import os
import re
import shlex
import sys
import tomllib
import traceback
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from rank_emulator.cuda_sources import CompileError
from rank_emulator.errors import EmulatorError
from rank_emulator.schedules import POLICIES, Schedule

from .buffers import Buffer, UsageError, declare, distinct, parse_buffers
from .checks import KINDS, check, default_cache
from .programs import Program, default_call
from .reference import Tolerance, load_reference
from .reports import as_json, as_sarif, as_text
from .runs import Options

DESCRIPTION = """\
Run a CUDA program of several ranks without a GPU, under many orders of execution, and print the races, deadlocks, bad
accesses and wrong outputs with their source lines. Options of nvcc, such as -DNAME, -I include, -std=c++20 and
--expt-relaxed-constexpr, go to it; what follows -- goes to main. Lines of the first source that begin with
"// check-ranks:" hold further options.

  check-ranks test.cu                                             every rank runs main, with RANK and WORLD_SIZE set
  check-ranks --gpus 4 test.cu                                    one process runs main, and has 4 GPUs
  check-ranks k.cu --args "x:f32[64],out:f32[64]" --call "f(x_ranks, out, rank, world_size, stream)"

exit status: 0 no problem, 1 problems found, 2 wrong usage, the program does not compile, or no check could be made
"""
BUFFERS_HELP = """\
symmetric buffers, name:type[shape] with commas between them, where an extent may be world_size; "=none" behind one
makes it an output (the default where the name begins with "out"), "=0" or another number makes it state that survives
calls, such as flags; the others are inputs with new random values for each call. Or a .toml file with a table
[buffers.NAME] of each: type, shape, fill
"""


CALL_HELP = """\
what each rank calls, in C++: NAME is its own pointer to a buffer, NAME_ranks the array of all ranks' pointers on the
host, NAME_table the same on the GPU, NAME_multicast what stands for all of them in multimem instructions; rank,
world_size (a constant), stream and call
"""

_NVCC_OPTIONS = frozenset(
    {"--device-debug", "--disable-warnings", "--expt-extended-lambda", "--expt-relaxed-constexpr", "--extended-lambda"}
    | {"--extra-device-vectorization", "--fmad", "--ftz", "--generate-line-info", "--prec-div", "--prec-sqrt"}
    | {"--device-c", "--device-link", "--dlink-time-opt"}
    | {"--resource-usage", "--restrict", "--use_fast_math", "--verbose"}
)
"""Long options of nvcc; some have a value behind =."""
_NVCC_VALUED = frozenset(
    {"-D", "-I", "-L", "-O", "-U", "-Xcompiler", "-Xlinker", "-Xptxas", "-arch", "-ccbin", "-code", "-default-stream"}
    | {"-diag-suppress", "-gencode", "-include", "-isystem", "-l", "-maxrregcount", "-rdc", "-std", "-x"}
    | {"--compiler-bindir", "--compiler-options", "--default-stream", "--define-macro", "--diag-suppress"}
    | {"--generate-code", "--gpu-architecture", "--gpu-code", "--include-path", "--library", "--library-path"}
    | {"--linker-options", "--maxrregcount", "--optimize", "--pre-include", "--ptxas-options"}
    | {"--relocatable-device-code", "--std", "--system-include", "--threads", "--undefine-macro"}
)
"""Options of nvcc that have a value: behind =, or else the next word."""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; returns the exit status."""
    words = list(sys.argv[1:] if argv is None else argv)
    words, arguments = _split(words)
    if argv is None and isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # of names of files, where its encoding lacks a character
    try:
        options, flags = _parse(words)
        return _check(options, flags, arguments)
    except CompileError as error:
        _tell(f"nvcc refuses the program:\n{error}")
    except UsageError as error:
        _tell(f"{error}\n`check-ranks --help` shows the options")
    except (EmulatorError, OSError) as error:
        _tell(str(error))
    except Exception:
        if argv is not None:
            raise
        _tell(traceback.format_exc())  # Python's own status, 1, would say that the program has problems
    return 2


def _tell(text: str) -> None:
    if sys.stderr is not None:
        with suppress(OSError):
            sys.stderr.write(f"check-ranks: {text}\n")


def _print(text: str) -> None:
    """Prints results, at once: while an error can still be told.

    Raises:
        EmulatorError: They cannot be written.
    """
    if sys.stdout is None:
        raise EmulatorError("cannot write standard output: it is closed")
    try:
        sys.stdout.write(f"{text}\n")
        sys.stdout.flush()
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for what is left in buffers
        raise EmulatorError(f"cannot write standard output: {error.strerror}") from None


def _split(words: list[str]) -> tuple[list[str], tuple[str, ...]]:
    if "--" not in words:
        return words, ()
    at = words.index("--")
    return words[:at], tuple(words[at + 1 :])


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="check-ranks",
        usage="check-ranks [options] PROGRAM.cu ... [-- ARGUMENTS]",
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("sources", nargs="+", type=Path, metavar="PROGRAM.cu", help="sources and objects of the program")
    add("--ranks", default="4", help="number of ranks, 1 to 16, or several with commas; each is compiled (default: 4)")
    add("--gpus", help="number of GPUs of one process, in place of ranks with a process and a GPU each")
    add("--schedules", type=int, default=20, metavar="N", help="orders of execution for each number (default: 20)")
    add("--schedule", action="append", metavar="POLICY:SEED", help="one order instead, as a finding names it")
    add("--args", default="", metavar="BUFFERS", help=BUFFERS_HELP)
    add("--call", metavar="EXPRESSION", help=CALL_HELP)
    add("--entry", metavar="NAME", help="short for a --call of NAME(x_ranks, out_ranks, ..., rank, world_size, stream)")
    add("--setup", metavar="EXPRESSION", help="what each rank calls once before its calls")
    add("--calls", type=int, default=2, metavar="N", help="calls of each rank, one after the other (default: 2)")
    add("--keep-inputs", action="store_true", help="write inputs once, not anew for each call")
    add("--include", action="append", default=[], metavar="FILE", help="header that declares what the call uses")
    add("--reference", type=Path, metavar="FILE.py", help="file with a function `reference` that gives the outputs")
    add("--rtol", type=float, help="relative tolerance of outputs (default: by the type)")
    add("--atol", type=float, default=0.0, help="absolute tolerance of outputs (default: 0)")
    add("--allow", action="append", default=[], metavar="KIND", choices=list(KINDS), help="leave out a kind of problem")
    add("--strict", action="store_true", help="hold kernels to the letter of PTX's memory model")
    add("--seed", type=int, default=0, help="seed of inputs and schedules (default: 0)")
    add("--timeout", type=int, default=120, metavar="S", help="seconds of a run (default: 120)")
    add("--heap-mib", type=int, default=64, metavar="MIB", help="symmetric heap of NVSHMEM and NCCL (default: 64)")
    add("--emulator", type=Path, metavar="FILE", help="compiled emulator (default: made once, in the user's cache)")
    add("--json", metavar="FILE", help="write the report as JSON; - for standard output, in place of text")
    add("--sarif", metavar="FILE", help="write the report as SARIF 2.1.0, for annotations in CI")
    add("--output", action="store_true", help="print what the first run prints, too")
    return parser


def _parse(words: list[str]) -> tuple[argparse.Namespace, tuple[str, ...]]:
    """The options, those of the first source included, and those of nvcc."""
    parser = _parser()
    own, flags = _without_nvcc(words)
    options, unknown = parser.parse_known_args(own)
    written = _options_of(options.sources[0])
    if written:
        own, flags = _without_nvcc([*written, *words])
        options, unknown = parser.parse_known_args(own)
    if unknown:
        raise UsageError(f"unknown option {unknown[0]}")
    return options, tuple(flags)


def _without_nvcc(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """The words that are not for nvcc, and those that are."""
    own: list[str] = []
    flags: list[str] = []
    rest = iter(words)
    for word in rest:
        if word in _NVCC_VALUED:
            flags += [word, *itertools.islice(rest, 1)]
        elif word != "-h" and (re.match("-[A-Za-z]", word) or word.partition("=")[0] in _NVCC_OPTIONS | _NVCC_VALUED):
            flags.append(word)
        else:
            own.append(word)
    return own, flags


def _options_of(source: Path) -> list[str]:
    """The words of a source's lines that begin with "// check-ranks:"; {folder} in them is its folder."""
    if not source.is_file() or source.suffix in (".o", ".a"):
        return []
    lines = re.findall(r"^// check-ranks:(.*)$", source.read_text(encoding="utf-8", errors="replace"), re.MULTILINE)
    return [word.replace("{folder}", str(source.parent)) for line in lines for word in shlex.split(line)]


def _check(options: argparse.Namespace, flags: tuple[str, ...], arguments: tuple[str, ...]) -> int:
    buffers = _buffers(options.args)
    if options.entry and options.call:
        raise UsageError("--entry is short for a --call; give one of them")
    call = default_call(options.entry, buffers) if options.entry else options.call
    sources, includes = tuple(options.sources), tuple(options.include)
    program = Program(sources, call, options.setup, buffers, includes, flags, arguments)
    if options.emulator is None and not any(default_cache().glob("rank-emulator-*.so")):
        _tell(f"compiling the emulator into {default_cache()}, once for this machine; it takes about a minute")
    report = check(
        program,
        _ranks("--ranks", options.ranks) if options.gpus is None else _ranks("--gpus", options.gpus),
        schedules=[_schedule(text) for text in options.schedule] if options.schedule else options.schedules,
        reference=load_reference(options.reference) if options.reference else None,
        tolerance=Tolerance(options.rtol, options.atol),
        allow=options.allow,
        options=Options(
            calls=options.calls,
            keep_inputs=options.keep_inputs,
            seed=options.seed,
            strict=options.strict,
            timeout_s=options.timeout,
            heap_bytes=options.heap_mib << 20,
            one_process=options.gpus is not None,
        ),
        emulator=options.emulator,
    )
    if options.output:
        sys.stderr.write(report.printed)
    _print(as_json(report) if options.json == "-" else as_text(report))
    if options.json and options.json != "-":
        Path(options.json).write_text(as_json(report) + "\n", encoding="utf-8")
    if options.sarif:
        Path(options.sarif).write_text(as_sarif(report, str(sources[0])) + "\n", encoding="utf-8")
    return 0 if report.passed else 1


def _ranks(option: str, text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise UsageError(f"{option}: expected a number, or several with commas, got {text!r}") from None


def _schedule(text: str) -> Schedule:
    for policy in POLICIES:
        found = re.fullmatch(rf"{policy}(?::(\d+))?", text)
        if found:
            return Schedule(policy, int(found[1] or 0))
    raise UsageError(f"--schedule: expected POLICY:SEED with a policy of {', '.join(POLICIES)}, got {text!r}")


def _buffers(text: str) -> tuple[Buffer, ...]:
    if not text.endswith(".toml"):
        return parse_buffers(text)
    try:
        content = tomllib.loads(Path(text).read_text(encoding="utf-8"))
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise UsageError(f"--args: {text}: {error}") from None
    tables = content.get("buffers")
    if not isinstance(tables, dict):
        raise UsageError(f'--args: {text} has no table such as [buffers.x] with type = "bf16" and shape = [1024]')
    buffers = []
    for name, table in tables.items():
        unknown = set(table) - {"type", "shape", "fill"} if isinstance(table, dict) else {str(table)}
        if unknown or not {"type", "shape"} <= set(table):
            raise UsageError(f"--args: {text}: [buffers.{name}] has type and shape, and may have fill")
        buffers.append(declare(name, table["type"], table["shape"], table.get("fill")))
    return distinct(buffers)


if __name__ == "__main__":
    sys.exit(main())
