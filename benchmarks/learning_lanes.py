"""Parts of a machine on which seeds of a learning run go on side by side."""

from __future__ import annotations

import argparse
import contextlib
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pkb_gym.engine.errors import ConfigError
from pkb_gym.engine.hardware import gpus
from pkb_gym.engine.hardware.calibrate import measure_processors
from pkb_gym.engine.stages.machine_sharing import folder_apart
from pkb_gym.engine.support.ownership import TemporaryFolder
from pkb_gym.training.evaluation.service_group import share_out_processors


@dataclass(frozen=True)
class Lane:
    """Where the stages of one seed run.

    Attributes:
        gpu: of the policy: entry of CUDA_VISIBLE_DEVICES; None for the GPUs of this process.
        processors: numbers of the processors; empty for those of this process.
        evaluation_gpus: of its evaluation service: entries of the service's own CUDA_VISIBLE_DEVICES, which are the
            machine's numbers whatever the policy sees; empty where submissions are evaluated on the CPU.
        temporary: folder for temporary files; None for that of this process.
    """

    gpu: str | None = None
    processors: tuple[int, ...] = ()
    evaluation_gpus: tuple[str, ...] = ()
    temporary: Path | None = None

    def bound(self, command: Sequence[str]) -> list[str]:
        """The command, on these processors alone."""
        numbers = ",".join(map(str, self.processors))
        return [*(["taskset", "--cpu-list", numbers] if numbers else []), *command]

    @property
    def environment(self) -> Mapping[str, str]:
        """Variables that keep a program to the GPU and the folder."""
        visible = {} if self.gpu is None else {"CUDA_VISIBLE_DEVICES": self.gpu}
        return visible | ({} if self.temporary is None else {"TMPDIR": str(self.temporary)})


WHOLE = Lane()
"""All that this process may use."""


def lanes_of(args: argparse.Namespace) -> list[Lane]:
    """A lane for each seed and arm, and one for controls apart.

    With `--take-turns`, lanes share out the evaluation GPUs, and a policy has the first of its share. Without, all
    lanes evaluate on the same ones, in turns.

    Args:
        args: of `learning_run`.

    Raises:
        ConfigError: lanes cannot have equal shares, or would time kernels on the same GPUs at once.
    """
    count = len(args.seed) + len(args.arm) + args.controls_apart
    lanes = side_by_side(count)
    if not args.take_turns:
        if args.evaluation_gpus and args.evaluation_compilers and count > 1:  # whose services wait for no others
            raise ConfigError(
                "--evaluation-compilers side by side is for lanes with evaluation GPUs of their own: give --take-turns"
            )
        return [replace(lane, evaluation_gpus=tuple(args.evaluation_gpus)) for lane in lanes]
    if not args.evaluation_gpus:
        return lanes
    if args.controls_apart:
        raise ConfigError("--controls-apart: evaluation GPUs are shared out to seeds and arms alone; leave it out")
    shares = share_out_gpus(args.evaluation_gpus, count)
    if args.evaluation_compilers >= (each := len(lanes[0].processors)):
        raise ConfigError(f"--evaluation-compilers {args.evaluation_compilers}: a lane has {each} processors for all")
    return [replace(lane, gpu=share[0], evaluation_gpus=share) for lane, share in zip(lanes, shares, strict=True)]


def share_out_gpus(numbers: Sequence[str], lanes: int) -> list[tuple[str, ...]]:
    """Equal shares of the evaluation GPUs, in their order.

    Raises:
        ConfigError: there are none, or one would be in two shares.

    Example:
        >>> share_out_gpus(["0", "1", "2", "3"], 2)
        [('0', '1'), ('2', '3')]
    """
    each, left = divmod(len(numbers), lanes)
    if left or len(set(numbers)) < len(numbers):
        raise ConfigError(
            f"--evaluation-gpus: {lanes} lanes need equal shares of different GPUs, got {' '.join(numbers)}"
        )
    return [tuple(numbers[at * each : (at + 1) * each]) for at in range(lanes)]


@contextlib.contextmanager
def folders_apart(lanes: Sequence[Lane]) -> Iterator[list[Lane]]:
    """Gives each lane a folder for temporary files of its own, so that none waits for a timing of another.

    It lies two levels down, as the folder above it is locked too, by whoever waits to time (`machine_sharing`). Lanes
    that evaluate on the same GPUs keep the common folder, by which they take turns.
    """
    used = Counter(gpu for lane in lanes for gpu in lane.evaluation_gpus)
    if any(count > 1 for count in used.values()):
        yield list(lanes)
        return
    with TemporaryFolder() as folder:
        yield [replace(lane, temporary=folder_apart(folder.path / str(at))) for at, lane in enumerate(lanes)]


def side_by_side(count: int) -> list[Lane]:
    """Lanes with a GPU each, as far as there are GPUs, and equal shares of the processors.

    Args:
        count: of the lanes; where there are fewer GPUs, lanes share them in turn.

    Raises:
        ConfigError: there are fewer processors than lanes.
    """
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    found = visible.split(",") if visible else [str(number) for number in range(len(gpus.names()))]
    shares = share_out_processors(count)
    return [Lane(found[at % len(found)] if found else None, share) for at, share in enumerate(shares)]


def measure_share(lane: Lane, services: int) -> None:
    """Measures what processors of one evaluation service can do, before lanes keep each other's memory busy.

    It is measured once for shares of a size; rewards are made of it.

    Args:
        lane: with processors.
        services: of the lane.

    Raises:
        ConfigError: there are fewer processors than services.
        InfrastructureError: they could not be measured.
    """
    measure_processors(share_out_processors(services, lane.processors)[0])
