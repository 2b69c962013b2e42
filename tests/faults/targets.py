"""Targets of the fault drill: an evaluator in a child process, or `pkb serve` with its client."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

from pkb_gym.engine.errors import InfrastructureError
from pkb_gym.engine.evaluators.remote import RemoteEvaluator
from pkb_gym.engine.records.config import EvalConfig
from pkb_gym.engine.records.feedback import Failure
from pkb_gym.engine.support.proc_files import read_proc
from pkb_gym.problems.catalogue import find_problem

Through = Literal["evaluator", "service"]
Victim = Literal[
    "evaluator", "zygote", "reference leader", "reference rank", "candidate leader", "candidate rank", "compiler"
]
Whose = Literal["reference", "candidate"]
ROOT = Path(__file__).resolve().parents[2]
ANSWER_S = 180.0
"""After so long without an answer, an evaluation counts as hung."""


@dataclass(frozen=True)
class Submission:
    """A source whose verdict is known.

    Attributes:
        name: Name in the report.
        problem: Name of the problem.
        source: Text of the source.
        failure: Expected failure; None for a source that passes.
        config: Settings of the evaluation.
    """

    name: str
    problem: str
    source: str
    failure: str | None
    config: EvalConfig


@dataclass(frozen=True)
class Verdict:
    """An answer: a failure by name, None for none, "no answer" for an evaluation that hung."""

    failure: str | None
    message: str = ""

    @property
    def is_infrastructure(self) -> bool:
        """Whether it is no verdict on the source."""
        return self.failure == Failure.INFRASTRUCTURE

    @property
    def names_a_kill(self) -> bool:
        """Whether it is that of a rank that somebody killed."""
        return self.failure == Failure.RUNTIME_ERROR and "was killed by SIGKILL" in self.message


class Target(Protocol):
    """Judges submissions by processes that can be killed."""

    def start(self) -> None:
        """Starts the process, if it does not run."""

    def evaluate(self, submission: Submission) -> Verdict:
        """Waits for the verdict; from several threads at once."""

    @property
    def pid(self) -> int:
        """The number of the process."""

    def close(self) -> None:
        """Ends it as a user would."""


class EvaluatorTarget:
    """`tests.faults.fault_evaluator` in a child process.

    Args:
        cache: Folder of compiled sources.
        environment: Environment of the process.
        arguments: Further arguments of the program.
        before: Words of a command that starts the program.
    """

    def __init__(
        self, cache: Path, environment: dict[str, str], arguments: Sequence[str] = (), before: Sequence[str] = ()
    ) -> None:
        program = [sys.executable, "-m", "tests.faults.fault_evaluator", str(cache), *arguments]
        self._command = [*before, *program]
        self._environment = environment
        self._process: subprocess.Popen[str] | None = None
        self._reader: threading.Thread | None = None
        self._numbers = itertools.count()
        self._lock = threading.Lock()
        self._waiting: dict[int, Future[dict[str, Any]]] = {}

    @property
    def pid(self) -> int:
        """Process id of the target."""
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Starts the target."""
        if self._process is not None and self._process.poll() is None:
            return
        self._reap()
        self._process = subprocess.Popen(
            self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=self._environment
        )
        self._reader = threading.Thread(target=self._read, args=(self._process,), daemon=True)
        self._reader.start()

    def ask(self, order: dict[str, Any]) -> dict[str, Any]:
        """Has an order carried out; the answer of a process that was killed is an infrastructure failure."""
        process = self._process
        assert process is not None and process.stdin is not None
        answer: Future[dict[str, Any]] = Future()
        with self._lock:
            number = next(self._numbers)
            self._waiting[number] = answer
            with contextlib.suppress(OSError):
                process.stdin.write(json.dumps({"id": number} | order) + "\n")
                process.stdin.flush()
        if process.poll() is not None:
            self._drop_waiting()
        try:
            return answer.result(ANSWER_S)
        except TimeoutError:
            return {"failure": "no answer", "message": f"within {ANSWER_S:g} s"}

    def evaluate(self, submission: Submission) -> Verdict:
        """Evaluates on the target."""
        config = submission.config.model_dump(mode="json")
        found = self.ask({"problem": submission.problem, "source": submission.source, "config": config})
        return Verdict(found["failure"], found["message"])

    def close(self) -> None:
        """Ends the target."""
        process = self._process
        if process is not None and process.stdin is not None:
            with contextlib.suppress(OSError):
                process.stdin.close()
            try:
                process.wait(ANSWER_S)
            except subprocess.TimeoutExpired:
                process.kill()
        self._reap()

    def _reap(self) -> None:
        if self._process is None:
            return
        self._process.wait()
        assert self._reader is not None and self._process.stdin is not None and self._process.stdout is not None
        self._reader.join()
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        self._process.stdout.close()
        self._process = None

    def _read(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            answer = json.loads(line)
            with self._lock:
                waiting = self._waiting.pop(answer["id"])
            waiting.set_result(answer)
        process.wait()
        self._drop_waiting()

    def _drop_waiting(self) -> None:
        with self._lock:
            dropped, self._waiting = list(self._waiting.values()), {}
        for answer in dropped:
            answer.set_result({"failure": Failure.INFRASTRUCTURE.value, "message": "the evaluator's process ended"})


class ServiceTarget:
    """`pkb serve` in a child process, and its client; a service that was killed is started anew at the same port.

    Args:
        token_file: File of the token; made where there is none.
        environment: Environment of the process.
    """

    def __init__(self, token_file: Path, environment: dict[str, str]) -> None:
        self._token_file, self._environment = token_file, environment
        self._port = 0
        self._process: subprocess.Popen[str] | None = None
        self._client: RemoteEvaluator | None = None
        self._starting = threading.Lock()

    @property
    def pid(self) -> int:
        """Process id of the target."""
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Starts the target."""
        with self._starting:
            if self._process is not None and self._process.poll() is None:
                return
            self._reap()
            program = [sys.executable, "-m", "pkb_gym.cli", "serve", "--port", str(self._port)]
            self._process = subprocess.Popen(
                [*program, "--token-file", str(self._token_file)],
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                cwd=ROOT,
                env=self._environment,
            )
            assert self._process.stdout is not None
            first = self._process.stdout.readline()
            if not first:
                raise RuntimeError(f"`pkb serve` ended with status {self._process.wait()} before it had an address")
            url = json.loads(first)["url"]
            if self._client is None:
                self._port = int(url.rpartition(":")[2])
                token = self._token_file.read_text(encoding="utf-8").strip()
                self._client = RemoteEvaluator(url, token, timeout_s=ANSWER_S)

    def evaluate(self, submission: Submission) -> Verdict:
        """Evaluates on the target; meanwhile, a service that was killed is started anew."""
        assert self._client is not None
        ended = threading.Event()
        watch = threading.Thread(target=self._keep_running, args=(ended,))
        watch.start()
        try:
            feedback = self._client.evaluate(find_problem(submission.problem), submission.source, submission.config)
        except InfrastructureError as error:
            hung = f"within {ANSWER_S:g} s" in str(error)
            return Verdict("no answer" if hung else Failure.INFRASTRUCTURE.value, str(error))
        finally:
            ended.set()
            watch.join()
        return Verdict(feedback.failure and feedback.failure.value, feedback.message)

    def close(self) -> None:
        """Ends the target."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
        self._reap()
        if self._client is not None:
            self._client.close()

    def _keep_running(self, ended: threading.Event) -> None:
        while not ended.wait(0.1):
            self.start()

    def _reap(self) -> None:
        if self._process is not None:
            assert self._process.stdout is not None
            self._process.wait()
            self._process.stdout.close()
            self._process = None


def victims(pid: int, kind: Victim) -> list[int]:
    """The pids of running processes of a kind that an evaluator, or a service, has started.

    A zygote forks the leaders of gangs, and these their ranks; the sandboxed one stands below bubblewrap.
    """
    if kind == "evaluator":
        return [pid]
    tree = _running()
    found: list[int] = []
    for child in tree.children(pid):
        if (whose := _gangs_of(child)) is not None:
            found += _of_zygote(tree, child, kind, whose)
        elif kind == "compiler":
            found += [child, *tree.descendants(child)]
    return found


def gangs(pid: int, whose: Whose) -> dict[int, list[int]]:
    """The gangs of one kind: the pid of each leader -> those of its ranks."""
    tree = _running()
    zygotes = [child for child in tree.children(pid) if _gangs_of(child) == whose]
    leaders = [leader for zygote in zygotes for leader in _of_zygote(tree, zygote, f"{whose} leader", whose)]
    return {leader: tree.children(leader) for leader in leaders}


@dataclass(frozen=True)
class _Processes:
    """Name and parent of each process that runs."""

    names: dict[int, str]
    parents: dict[int, int]

    def children(self, pid: int) -> list[int]:
        return [child for child, parent in self.parents.items() if parent == pid]

    def descendants(self, pid: int) -> list[int]:
        return [one for child in self.children(pid) for one in (child, *self.descendants(child))]


def _running() -> _Processes:
    names, parents = {}, {}
    with os.scandir("/proc") as entries:
        pids = [int(entry.name) for entry in entries if entry.name.isdigit()]
    for pid in pids:
        with contextlib.suppress(OSError):  # it has ended meanwhile
            stat = read_proc(f"/proc/{pid}/stat").decode(errors="replace")
            name, _, rest = stat.partition("(")[2].rpartition(")")
            state, parent = rest.split()[:2]
            if state not in "ZX":
                names[pid], parents[pid] = name, int(parent)
    return _Processes(names, parents)


def _strings(pid: int, name: str) -> list[bytes]:
    """The words of a process's command line, or the variables of its environment (proc(5))."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/{name}").read_bytes().split(b"\0")
    return []


def _gangs_of(pid: int) -> Whose | None:
    """Whose gangs a process forks, with a sandbox or without; None if it is no zygote."""
    if b"pkb_gym.engine.rankside.zygote" not in _strings(pid, "cmdline"):
        return None
    # The environment of targets names the folder of caches, which candidates are not given.
    is_trusted = any(variable.startswith(b"PKB_CACHE_DIR=") for variable in _strings(pid, "environ"))
    return "reference" if is_trusted else "candidate"


def _of_zygote(tree: _Processes, pid: int, kind: str, gang: Whose) -> list[int]:
    above = []
    while tree.names[pid] == "bwrap":
        above.append(pid)
        if not (below := tree.children(pid)):
            return []  # it has not started the zygote yet
        pid = below[0]
    leaders = tree.children(pid)
    if kind == "zygote":
        return [*above, pid]
    if kind == f"{gang} leader":
        return leaders
    return [rank for leader in leaders for rank in tree.children(leader)] if kind == f"{gang} rank" else []


def environment_of(temporary: Path, cache: Path) -> dict[str, str]:
    """The environment of targets: their temporary folders and caches are their own."""
    return {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(temporary), "PKB_CACHE_DIR": str(cache)}
