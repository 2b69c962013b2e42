"""Plays hand-written traces of events to the race detector: see `trace_player.cpp` for their form."""

from __future__ import annotations

import ctypes
import fcntl
import hashlib
import json
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from rank_emulator.building import SOURCES
from rank_emulator.interface import DetectorOptions, load_emulator

COMPILER = ("g++", "-std=c++20", "-O0", "-fPIC", "-shared", f"-I{SOURCES}")


WORLD = """
region segment 0 heap 0x100000 0x10000 0 1
region argument 0 x 0x100000 0x400 4 1
region output 0 out 0x101000 0x400 4 1
region scratch 0 scratch 0x102000 0x1000 0 1
region signals 0 signals 0x104000 0x1000 8 1
region segment 1 heap 0x200000 0x10000 0 1
region argument 1 x 0x200000 0x400 4 1
region output 1 out 0x201000 0x400 4 1
region scratch 1 scratch 0x202000 0x1000 0 1
region signals 1 signals 0x204000 0x1000 8 1
region shared 0 tile 0x900000 0x1000 4 1
"""
"""Two ranks: `x`, `out`, scratch and signals of rank r begin at 0x100000 (r + 1). Streams 10 and 20 are theirs."""


def _build(folder: Path, *, with_detector: bool) -> Path:
    """The player, compiled once for all test processes; with the detector, where no emulator holds one."""
    detector = [*sorted(SOURCES.glob("detector*.cpp")), SOURCES / "findings.cpp"]
    sources = [*(detector if with_detector else ()), Path(__file__).with_name("trace_player.cpp")]
    read = [path.read_bytes() for path in [*sources, *sorted(SOURCES.glob("*.h"))]]
    library = folder / f"player-{hashlib.sha256(repr(read).encode()).hexdigest()[:16]}.so"
    with (folder / "player.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not library.exists():
            with tempfile.TemporaryDirectory(dir=folder) as name:
                whole = Path(name, "player.cpp")  # one translation unit: the standard headers are read once
                whole.write_text("".join(f'#include "{source}"\n' for source in sources))
                compiled = whole.with_suffix(".so")
                subprocess.run([*COMPILER, str(whole), "-o", str(compiled)], check=True)
                compiled.rename(library)
    return library


class DetectorLibrary:
    """The detector and the player of traces.

    Args:
        folder: Folder of compiled files.
        emulator: Library whose detector it is; None compiles the detector alone.
    """

    def __init__(self, folder: Path, emulator: Path | None) -> None:
        self._player = ctypes.CDLL(str(_build(folder, with_detector=emulator is None)))
        self._library = self._player if emulator is None else load_emulator(str(emulator))
        self._library.pkb_emu_detector_create.restype = ctypes.c_void_p
        self._library.pkb_emu_detector_observer.restype = ctypes.c_void_p
        self._library.pkb_emu_detector_json.restype = ctypes.c_char_p
        self._library.pkb_emu_detector_count.restype = ctypes.c_uint64

    def report(self, trace: str, races: bool = True, max_findings: int = 0, strict: bool = False) -> dict[str, Any]:
        """What the detector finds in a trace, after `WORLD`."""
        options = DetectorOptions(ctypes.sizeof(DetectorOptions), int(strict), int(races), max_findings, None, None)
        detector = ctypes.c_void_p(self._library.pkb_emu_detector_create(ctypes.byref(options)))
        try:
            error = ctypes.create_string_buffer(400)
            observer = ctypes.c_void_p(self._library.pkb_emu_detector_observer(detector))
            line = self._player.play_trace(observer, (WORLD + trace).encode(), error, len(error))
            assert line == 0, error.value.decode()
            report = json.loads(self._library.pkb_emu_detector_json(detector))
            assert self._library.pkb_emu_detector_count(detector) == len(report["findings"])
            return report
        finally:
            self._library.pkb_emu_detector_destroy(detector)

    def findings(self, trace: str) -> list[dict[str, Any]]:
        """The findings alone."""
        return self.report(trace)["findings"]
