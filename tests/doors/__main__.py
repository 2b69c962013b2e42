"""Sets up a virtual environment for each foreign framework and runs the tests of its door there: `make doors`.

    python -m tests.doors [--venvs FOLDER] [NAME ...]

Doors: the folders beside this file. The packages of a constraints.txt are installed from the package index; they were
resolved from the requirements.txt beside it. The service that judges runs in the environment of this interpreter, so
that the doors need no torch. A test that fails, or a door that cannot be installed, fails all. A framework that takes
no Python that can be had here is skipped and named at the end.
"""

from __future__ import annotations

import argparse
import os
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from pathlib import Path

from tests.doors.commands import HERE, ROOT, environment, run
from tests.doors.installation import Door, NotForThisPython, doors, install_all

CONTRACT_S, TESTS_S = 1200, 1200
"""Deadlines in seconds, on processors that other tests use too: of judging the contract, of the tests of one door."""

LONGEST_FIRST = ("vllm", "verifiers", "harbor", "openenv", "trl", "verl", "inspect_ai")
"""All doors, in the order in which their tests begin."""

AT_ONCE = ("vllm",)
"""Doors that submit nothing: their tests wait for no contract."""

SIDE_BY_SIDE = 2
"""Doors that are tested at once: each mostly imports its framework, and what it submits was judged before."""


@contextmanager
def service(contract: Path, token: str) -> Iterator[subprocess.Popen[str]]:
    """The service of the contract, which begins to judge at once."""
    command = [sys.executable, "-m", "tests.doors.service", str(contract)]
    # With what other tests compiled, precompiled and measured; the user's caches are left alone.
    caches = os.environ.get("PKB_TEST_COMPILED") or str(contract.with_name("caches"))
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        env=environment(PKB_TOKEN=token, PKB_CACHE_DIR=caches),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        assert process.stdin is not None
        process.stdin.close()
        try:
            process.wait(timeout=60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def run_tests(door: Door, contract: Path, token: str) -> subprocess.CompletedProcess[str]:
    """The tests of one door, in its environment."""
    pytest = [door.python, "-m", "pytest", "-c", str(HERE / "pytest.ini"), f"--rootdir={ROOT}"]
    # Nothing is written into the user's caches.
    shared = {
        "PKB_CACHE_DIR": str(contract.with_name(f"caches-{door.name}")),
        "PKB_DOORS_CONTRACT": str(contract),
        "PKB_TOKEN": token,
        "PKB_DOORS_PYTHON": sys.executable,
    }
    # The root holds the metadata of an editable installation, which names a plugin of the main environment.
    plugins = ["-p", "no:cacheprovider", "-p", "no:ranks"]
    options = [*plugins, f"--confcutdir={HERE}", "--durations=3"]
    return run([*pytest, *options, str(door.folder)], TESTS_S, **shared)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.doors", description=__doc__.splitlines()[0])
    parser.add_argument("--venvs", type=Path, default=ROOT / ".venv-doors", help="folder of the virtual environments")
    parser.add_argument("names", nargs="*", metavar="NAME", help="doors; all by default")
    options = parser.parse_args()
    venvs = options.venvs.absolute()
    chosen = doors(venvs, options.names)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that what was begun is ended
    token, began = secrets.token_hex(16), time.monotonic()

    def say(text: str) -> None:
        print(f"[{time.monotonic() - began:5.0f} s] {text}", flush=True)

    with tempfile.TemporaryDirectory(prefix="pkb-doors-") as folder:
        contract = Path(folder, "contract.json")
        with (
            service(contract, token) as judging,
            ThreadPoolExecutor(1) as threads,
            ThreadPoolExecutor(SIDE_BY_SIDE) as testers,
        ):
            assert judging.stdout is not None
            judged = threads.submit(judging.stdout.readline)  # while packages are installed
            say(f"installing {', '.join(door.name for door in chosen)}; the contract is being judged")
            missing = install_all(chosen, venvs)
            say("installed")
            present = [door for door in chosen if door.name not in missing]
            present.sort(key=lambda door: LONGEST_FIRST.index(door.name))

            def begin(doors: list[Door]) -> dict[Future[subprocess.CompletedProcess[str]], Door]:
                return {testers.submit(run_tests, door, contract, token): door for door in doors}

            running = begin([door for door in present if door.name in AT_ONCE])
            try:
                line = judged.result(timeout=CONTRACT_S).strip()
            except TimeoutError:
                judging.kill()
                line = ""
            if not line:
                say("the contract could not be judged; see above")
                return 1
            say(line)
            running |= begin([door for door in present if door.name not in AT_ONCE])
            failed = []
            for done in as_completed(running):
                result = done.result()
                say(f"tests of {running[done].name}:\n{result.stdout}")
                if result.returncode != 0:
                    failed.append(running[done].name)
    for name, reason in missing.items():
        if isinstance(reason, NotForThisPython):
            say(f"SKIPPED {name}: {reason}")
        else:
            say(f"{name} cannot be installed: {reason}")
            failed.append(name)
    say(f"FAILED: {', '.join(failed)}" if failed else f"{len(chosen) - len(missing)} of {len(chosen)} doors passed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
