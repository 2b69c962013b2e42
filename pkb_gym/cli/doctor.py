"""`pkb doctor`: what this machine can and cannot do, and what to install."""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import platform
import sys
import tempfile
from dataclasses import asdict

from pkb_gym.cli.host_tools import output_of
from pkb_gym.engine.hardware.lookup import known_hardware
from pkb_gym.engine.support import env_vars

from .command import Session, Status, add_json_option, add_parser, stdout
from .diagnosis import Diagnosis, print_diagnoses
from .doctor_emulator import examine_emulator
from .doctor_gpus import examine_gpus
from .doctor_libraries import examine_libraries
from .doctor_ray import examine_cluster

EXAMPLE = "pkb doctor\npkb doctor --ray"
EXIT = "exit status: 0 this machine can judge kernels, 3 something that every evaluation needs is missing"
PACKAGES = ("torch", "apache-tvm-ffi", "gymnasium")
COMPILE = "native kernels (dialect cpp)"


def register(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds `pkb doctor`."""
    parser = add_parser(
        commands,
        "doctor",
        run,
        summary="Show the abilities of this machine, and what to install.",
        example=EXAMPLE,
        exit_statuses=EXIT,
    )
    parser.add_argument(
        "--ray",
        nargs="?",
        const="ray",
        metavar="ADDRESS",
        help="check a Ray cluster and its nodes instead: ray (the default), or ray://HOST:PORT",
    )
    add_json_option(parser, "the findings")


def run(args: argparse.Namespace, session: Session) -> int:  # noqa: ARG001  # every command has this signature
    """Looks at everything and prints it."""
    findings = examine() if args.ray is None else examine_cluster(args.ray)
    if args.json:
        print(json.dumps([asdict(finding) for finding in findings], indent=2))
    else:
        _print(findings, "This machine" if args.ray is None else "This cluster")
    return exit_status(findings)


def exit_status(findings: list[Diagnosis]) -> Status:
    """3 where something is missing that every evaluation needs."""
    return Status.NOT_JUDGED if any(finding.state == "missing" for finding in findings) else Status.PASSED


def examine() -> list[Diagnosis]:
    """Everything, what matters most first."""
    return [
        Diagnosis("python", "ok", f"{platform.python_version()} ({sys.executable})"),
        *(package(name) for name in PACKAGES),
        compiler(),
        sandbox(),
        cache(),
        calibration(),
        *examine_gpus(),
        examine_emulator(),
        *examine_libraries(),
    ]


def package(name: str) -> Diagnosis:
    """A Python package, by its metadata; it is not imported."""
    try:
        return Diagnosis(name, "ok", importlib.metadata.version(name))
    except importlib.metadata.PackageNotFoundError:
        return Diagnosis(name, "missing", "not installed", "pip install pkb-gym")


def compiler() -> Diagnosis:
    """The C++ compiler of native kernels."""
    from pkb_gym.engine.hardware.calibrate import find_compiler

    path = find_compiler()
    version = None if path is None else output_of([path, "--version"])
    if path is None or version is None:
        detail = f"none found; {COMPILE} cannot be compiled"
        return Diagnosis("C++ compiler", "missing", detail, "apt install g++ (or your system's equivalent)")
    return Diagnosis("C++ compiler", "ok", f"{version.splitlines()[0]} ({path})")


def sandbox() -> Diagnosis:
    """Whether candidates are shut in."""
    from pkb_gym.engine.gangs.sandbox import bubblewrap_works

    version = output_of(["bwrap", "--version"])
    if version is None:
        detail = "bubblewrap is not installed; candidates run under resource limits alone"
        return Diagnosis(
            "sandbox", "limited", detail, "apt install bubblewrap before judging code that you do not trust"
        )
    if not bubblewrap_works():
        detail = f"{version} cannot make namespaces here; candidates run under resource limits alone"
        remedy = (
            "allow unprivileged user namespaces (sysctl kernel.unprivileged_userns_clone=1, or the container's policy)"
        )
        return Diagnosis("sandbox", "limited", detail, remedy)
    return Diagnosis("sandbox", "ok", f"{version}, own user, pid, IPC, network and mount namespaces")


def cache() -> Diagnosis:
    """The folder of compiled kernels and measured peaks."""
    folder = env_vars.cache_dir()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return Diagnosis("cache folder", "ok", str(folder))
    except OSError as error:
        detail = f"{folder} cannot be written ({error.strerror}); nothing is kept between runs"
        return Diagnosis("cache folder", "limited", detail, "set PKB_CACHE_DIR to a writable folder")


def calibration() -> Diagnosis:
    """Whether the peaks of this CPU were measured."""
    if known_hardware("cpu") is not None:
        return Diagnosis("calibration", "ok", "peaks of this machine are measured")
    return Diagnosis(
        "calibration", "ok", "not done yet; the first evaluation measures this machine's peaks (about 6 s)"
    )


def _print(findings: list[Diagnosis], what: str) -> None:
    print_diagnoses(findings, "what")
    missing = [finding.name for finding in findings if finding.state == "missing"]
    stdout().print(
        f"{what} cannot judge kernels: {', '.join(missing)} missing." if missing else f"{what} can judge kernels."
    )
