"""The CPU machine's hardware record: measured once per machine, kept in the cache folder.

Measuring needs torch and an otherwise idle process, so it runs in a child that prints one JSON object,
`python -m pkb_gym.engine.hardware.calibrate`; the caller imports no torch.
"""

from __future__ import annotations

import argparse
import functools
import importlib.metadata
import shutil
import subprocess
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from pkb_gym.engine.errors import InfrastructureError
from pkb_gym.engine.hardware.cpu_info import CpuInfo, cpu_info
from pkb_gym.engine.hardware.limits import HardwareLimits
from pkb_gym.engine.hardware.peaks import HardwareSpec, Peaks
from pkb_gym.engine.hardware.tiers import MemoryTier
from pkb_gym.engine.support import env_vars
from pkb_gym.engine.support.atomic_write import write_atomically
from pkb_gym.engine.support.exclusive import exclusive

SCHEMA = 1
"""Rises when what is measured changes, so that stale files are not used."""

REPETITIONS = 3
TIMEOUT_S = 120.0

COMPUTE_MARGIN = 1.1
"""Margin over measured arithmetic rates: the clock may rise when the machine is cooler, or less busy, than it was
then."""

TRAFFIC_MARGIN = 1.5
"""Margin over measured memory and link rates. Neighbours on the same host take a share that they may give back, and
rates depend on where pages happen to lie: on a virtual machine, measurements minutes apart differed by that factor."""

BYTE_PRODUCTS = 4
"""Speed of a processor's products of bytes over those of float32; bytes take a quarter of a vector's width (VNNI). A
matrix unit's bytes are twice as fast as its 16-bit factors (AMX)."""


class Calibration(BaseModel):
    """The child's measurements, without margin, and the processor that it ran on."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    schema_version: Literal[1] = 1
    machine: str
    """`machine_key` of the machine that it describes."""
    core: Peaks
    """One core alone."""
    all_cores: Peaks
    """All of them together."""


@functools.cache
def cpu_hardware() -> HardwareSpec:
    """This machine as a "cpu" device; measures it (about 6 s) where that was not done before.

    Raises:
        InfrastructureError: it could not be measured.
    """
    return load_or_measure(env_vars.cache_dir())


def measure_processors(processors: Sequence[int]) -> None:
    """Measures a part of this machine, where that was not done before, for evaluators that will run on parts as large.

    To be called while nothing else runs: measured beside others they would seem slow, and right kernels faster than
    can be.

    Raises:
        InfrastructureError: they could not be measured.
    """
    bound = ["taskset", "--cpu-list", ",".join(map(str, processors))]
    measure = "from pkb_gym.engine.hardware.calibrate import cpu_hardware; cpu_hardware()"
    try:
        subprocess.run([*bound, sys.executable, "-c", measure], check=True, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.CalledProcessError) as error:
        raise InfrastructureError(f"processors {bound[-1]} could not be measured: {error}") from error


def load_or_measure(cache: Path, repetitions: int = REPETITIONS) -> HardwareSpec:
    """Measured hardware of this machine, cached in the caller's folder; a fault of that folder is a warning, no error.

    Raises:
        InfrastructureError: the machine could not be measured.
    """
    info = cpu_info()
    key = machine_key(info, find_compiler())
    path = cache / "hardware" / f"cpu-{key}.json"
    calibration, complaint = _kept(path, key)
    if calibration is None:
        with exclusive(cache, path.name):  # measured beside each other, processors would seem slow
            calibration, complaint = _kept(path, key)
            if calibration is None:
                calibration = run_child(repetitions)
                try:
                    write_atomically(path, calibration.model_dump_json(indent=1) + "\n")
                except OSError as error:
                    complaint = f"it cannot be written ({_first_line(error)}), so this is measured again each time"
    if complaint is not None:
        warnings.warn(
            f"hardware calibration {path}: {complaint}; measured anew. PKB_CACHE_DIR names another cache folder.",
            RuntimeWarning,
            stacklevel=2,
        )
    return to_hardware(info, calibration)


def _kept(path: Path, key: str) -> tuple[Calibration | None, str | None]:
    """The measurements in a file, if they are of this machine; else what is wrong with the file, where there is one."""
    try:
        calibration = Calibration.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return None, None
    except (OSError, ValidationError) as error:
        return None, f"it cannot be read ({_first_line(error)})"
    if calibration.machine != key:
        return None, f"it describes machine {calibration.machine}, not {key}"
    return calibration, None


def machine_key(info: CpuInfo, compiler: str | None) -> str:
    """Names everything that changes the outcome: processor, cores, caches, torch, whether there is a compiler."""
    torch_version = importlib.metadata.version("torch")
    caches = "-".join(f"{cache.name}.{cache.machine_bytes >> 10}k" for cache in info.caches)
    return f"{info.identity}-{info.cores}c-{caches}-torch{torch_version}-{'cxx' if compiler else 'nocxx'}-v{SCHEMA}"


def find_compiler() -> str | None:
    """Path of a C++ compiler that understands g++'s flags, None where there is none."""
    return shutil.which("g++") or shutil.which("clang++")


def run_child(repetitions: int) -> Calibration:
    """Measures in a child process.

    Raises:
        InfrastructureError: it failed, or took too long.
    """
    command = [sys.executable, "-m", "pkb_gym.engine.hardware.calibrate", "--repetitions", str(repetitions)]
    try:
        ran = subprocess.run(
            command,
            capture_output=True,
            timeout=TIMEOUT_S,
            env=env_vars.with_changes(OMP_NUM_THREADS="1"),
            check=True,
        )
        return Calibration.model_validate_json(ran.stdout)
    except subprocess.TimeoutExpired as error:
        raise InfrastructureError(f"calibrating this machine took over {TIMEOUT_S:.0f} s; is it overloaded?") from error
    except subprocess.CalledProcessError as error:
        output = error.stderr.decode(errors="replace").strip()[-2000:]
        raise InfrastructureError(f"{' '.join(command)} exited with {error.returncode}: {output}") from error
    except (OSError, ValidationError) as error:
        raise InfrastructureError(f"{' '.join(command)}: {error}") from error


def to_hardware(info: CpuInfo, calibration: Calibration) -> HardwareSpec:
    """The record with margins, so that the measured rates become ceilings."""
    peaks = with_margin(calibration.all_cores)
    return HardwareSpec(
        name=info.model,
        device="cpu",
        peaks=peaks,
        limits=limits_of(peaks),
        cores=info.cores,
        core=with_margin(calibration.core),
        measured=calibration.all_cores,
    )


def limits_of(peaks: Peaks) -> HardwareLimits:
    """The limits of a CPU machine with these peaks; ranks share its memory, so that it has no link."""
    return HardwareLimits(
        matrix_flops_per_s=BYTE_PRODUCTS * max(peaks.matrix_flops_per_s.values()),
        memory=peaks.memory,
        link_bytes_per_s=None,
        source=f"{peaks.source}, products of bytes x {BYTE_PRODUCTS}",
    )


def with_margin(measured: Peaks) -> Peaks:
    """Rates that a legal kernel will not beat, from the best that were seen."""
    return Peaks(
        matrix_flops_per_s={d: rate * COMPUTE_MARGIN for d, rate in measured.matrix_flops_per_s.items()},
        vector_flops_per_s={d: rate * COMPUTE_MARGIN for d, rate in measured.vector_flops_per_s.items()},
        memory=tuple(
            MemoryTier(tier.name, tier.capacity_bytes, tier.bytes_per_s * TRAFFIC_MARGIN) for tier in measured.memory
        ),
        link_bytes_per_s=measured.link_bytes_per_s * TRAFFIC_MARGIN,
        link_latency_s=None if measured.link_latency_s is None else measured.link_latency_s / TRAFFIC_MARGIN,
        source=f"{measured.source}, arithmetic x {COMPUTE_MARGIN}, traffic x {TRAFFIC_MARGIN}",
    )


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def main(argv: list[str] | None = None) -> int:
    """The child: measures and prints a `Calibration`."""
    from pkb_gym.engine.hardware.measure import measure

    parser = argparse.ArgumentParser(prog="python -m pkb_gym.engine.hardware.calibrate", description=main.__doc__)
    parser.add_argument("--repetitions", type=int, default=REPETITIONS, help="more is surer and slower")
    repetitions = parser.parse_args(argv).repetitions
    info, compiler = cpu_info(), find_compiler()
    core, all_cores = measure(info, compiler, repetitions)
    calibration = Calibration(machine=machine_key(info, compiler), core=core, all_cores=all_cores)
    sys.stdout.write(calibration.model_dump_json())
    return 0


if __name__ == "__main__":
    sys.exit(main())
