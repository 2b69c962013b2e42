"""Faults of resources in the fault drill: descriptors, disk, and damaged cache entries."""

from __future__ import annotations

import contextlib
import random
import shutil
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path

from tests.faults.targets import EvaluatorTarget, Target, Through

DISK_BYTES = 160 << 20
"""More than `sandboxed_compiler.DISK_BYTES`: with nothing else on it, there is room for a compiler."""

SPARE_DESCRIPTORS = 40
"""An evaluation on two ranks takes fewer than so many at a time."""

FLIPS = 8


class Fault(ABC):
    """One fault at a target of its own; a context manager that starts and ends that.

    Args:
        target: Target that it strikes.
        through: Kind of the target.

    Attributes:
        name: Name in the report.
        compiles: Whether it is to strike sources that no cache knows.
        target, through: Target of the fault, and the way to it.
    """

    name: str
    compiles: bool

    def __init__(self, target: Target, through: Through) -> None:
        self.target, self.through = target, through

    def __enter__(self) -> Target:
        self.target.start()
        return self.target

    def __exit__(self, *_: object) -> None:
        self.target.close()

    @abstractmethod
    def taken_away(self, draw: random.Random) -> contextlib.AbstractContextManager[None]:
        """Has the fault while the block runs, or strikes before it."""


class ResourceFault(Fault):
    """One fault at an evaluator of its own."""

    def __init__(self, evaluator: EvaluatorTarget) -> None:
        super().__init__(evaluator, "evaluator")
        self.evaluator = evaluator

    def __enter__(self) -> Target:
        self.evaluator.start()
        self.evaluator.ask({"spare": None})  # it runs now
        return self.evaluator


class FewDescriptors(ResourceFault):
    """Leaves a random number of descriptors, from none to enough."""

    name, compiles = "descriptors exhausted", True

    @contextlib.contextmanager
    def taken_away(self, draw: random.Random) -> Iterator[None]:
        """Takes the resource away while the context lasts."""
        self.evaluator.ask({"spare": draw.randrange(SPARE_DESCRIPTORS)})
        try:
            yield
        finally:
            self.evaluator.ask({"spare": None})


class FullDisk(ResourceFault):
    """Leaves a random part of a small disk, which holds the temporary files and the cache.

    Args:
        folder: Mount point of the disk, for the evaluator's process alone.
        environment: Environment of that process.
        sandboxed: Whether it has bubblewrap, so that compilers write to a file system of their own.
    """

    compiles = True

    def __init__(self, folder: Path, environment: dict[str, str], *, sandboxed: bool) -> None:
        folder.mkdir(parents=True)
        self.name = f"disk full{'' if sandboxed else ', no bubblewrap'}"
        mount = f'mount -t tmpfs -o size={DISK_BYTES} none "$0" && mkdir "$0/temporary" && exec "$@"'
        before = ["unshare", "--mount", "--map-root-user", "sh", "-c", mount, str(folder)]
        arguments = () if sandboxed else ("--without-sandbox",)
        changed = environment | {"TMPDIR": str(folder / "temporary")}
        self._folder = folder
        super().__init__(EvaluatorTarget(folder / "cache", changed, arguments, before))

    @contextlib.contextmanager
    def taken_away(self, draw: random.Random) -> Iterator[None]:
        """Takes the resource away while the context lasts."""
        disk = Path(f"/proc/{self.target.pid}/root{self._folder}")  # as that process sees it
        ballast = disk / "ballast"
        spare = draw.choice((0, 1 << 12, 1 << 16, 1 << 17, 1 << 18))
        with ballast.open("wb", buffering=0) as file, contextlib.suppress(OSError):
            for block_bytes in (1 << 20, 4096):
                with contextlib.suppress(OSError):
                    while file.write(bytes(block_bytes)) == block_bytes:
                        pass
        with ballast.open("r+b") as file:
            file.truncate(max(0, ballast.stat().st_size - spare))
        try:
            yield
        finally:
            ballast.unlink()


class FlippedBytes(ResourceFault):
    """Flips bits in every file of the compile cache."""

    name, compiles = "bytes of the cache flipped", False

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        self._folder = folder
        super().__init__(EvaluatorTarget(folder, environment))

    @contextlib.contextmanager
    def taken_away(self, draw: random.Random) -> Iterator[None]:
        """Takes the resource away while the context lasts; the files stay as the evaluator leaves them."""
        for path in sorted(self._folder.glob("compile/*/*")):
            content = bytearray(path.read_bytes())
            for _ in range(FLIPS):
                content[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
            path.write_bytes(content)
        yield


def can_mount() -> bool:
    """Whether a process may have file systems of its own here."""
    if shutil.which("unshare") is None:
        return False
    probe = ["unshare", "--mount", "--map-root-user", "mount", "-t", "tmpfs", "none", "/mnt"]
    return subprocess.run(probe, capture_output=True, check=False).returncode == 0


def resource_faults(folder: Path, environment: dict[str, str]) -> Iterator[ResourceFault]:
    """Every fault that this machine can make.

    Args:
        folder: Folder for caches and disks.
        environment: Environment of evaluators.
    """
    yield FewDescriptors(EvaluatorTarget(folder / "few-descriptors", environment))
    yield FlippedBytes(folder / "flipped", environment)
    if can_mount():
        yield FullDisk(folder / "disk", environment, sandboxed=True)
        yield FullDisk(folder / "disk-without-sandbox", environment, sandboxed=False)
