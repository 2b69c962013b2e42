"""The owner of evaluations during training: one per node, shared by all ranks.

    dedicated   a service on GPUs of its own, here or on another node: evaluations run while the policy generates
    colocated   a service on the training GPUs, beside others if they are named: sources are compiled while the policy
                generates; they run in the reward phase alone, while no rank computes
    ray         the gangs of a Ray cluster (docs/scaling.md): each rank submits as it generates, and a node that is lost
                costs a retry
    inline      an evaluator inside the process, in turns with it: for one process, on the CPU or a single GPU

Under `colocated` and `inline` evaluations begin at once and wait, compiled, as the evaluator is paused. In a reward
phase ranks free their memory; when all have arrived, so that none computes any more, the evaluator is resumed; when
every rank has its answers, it is paused again. Ranks meet by way of their hosts (`HostGroup`): waiting must not keep a
GPU busy.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Literal, Protocol, TypeAlias

from pkb_gym.engine.compile.nvcc import default_architecture
from pkb_gym.engine.errors import ConfigError, InfrastructureError
from pkb_gym.engine.evaluators.evaluator import Evaluator
from pkb_gym.engine.evaluators.remote import RemoteEvaluator
from pkb_gym.engine.hardware.calibrate import measure_processors
from pkb_gym.engine.support import env_vars
from pkb_gym.serve.service_process import ServiceProcess
from pkb_gym.serve.shares import share_out_gpus, share_out_processors
from pkb_gym.serve.spread import SpreadEvaluator
from pkb_gym.training.evaluation.compile_farm import CompileFarm, processors_apart
from pkb_gym.training.processes.host_group import HostGroup
from pkb_gym.training.processes.phases import PhaseClock

logger = logging.getLogger(__name__)

OwnerMode: TypeAlias = Literal["inline", "dedicated", "colocated", "ray"]

PAUSE_S = 300.0
"""The time that the owner may take to finish its work when it is paused."""


class Pausable(Protocol):
    """The interface that pauses evaluations, though not compiles: `LocalEvaluator`, `RemoteEvaluator`."""

    def pause(self, timeout_s: float) -> object:
        """Lets nothing begin on the devices, and waits for the evaluation that runs there."""

    def resume(self) -> None:
        """Ends the pause."""


class Memory(Protocol):
    """The memory that a rank frees for the time of a reward phase."""

    def offload(self) -> None:
        """Moves the chosen contents to main memory, and hands GPU memory back."""

    def restore(self) -> None:
        """Moves them to the GPU again."""


class EvaluationSchedule:
    """The evaluator of a training run, and when it may run; each rank has one.

    Args:
        evaluator: Evaluator of the submissions.
        host: Group of all ranks.
        pausable: Service that is paused while the policy generates and learns; None where evaluations disturb nobody.
        pauses: Whether this rank pauses and resumes the service.
        services: Services that this rank started.
    """

    def __init__(
        self,
        evaluator: Evaluator,
        host: HostGroup,
        *,
        pausable: Pausable | None = None,
        pauses: bool = True,
        services: Sequence[ServiceProcess] = (),
    ) -> None:
        self.evaluator = evaluator
        self._host, self._pausable, self._pauses, self._services = host, pausable, pauses, tuple(services)
        self._is_resumed = True
        for service in self._services:
            service.on_restart = self._after_restart
        self._pause()

    @property
    def takes_turns(self) -> bool:
        """Whether evaluations run in reward phases alone, in which all ranks have to take part."""
        return self._pausable is not None

    @contextlib.contextmanager
    def reward_phase(self, clock: PhaseClock, memory: Memory | None = None) -> Iterator[None]:
        """While it lasts, evaluations run; a collective where they take turns with training.

        Args:
            clock: Clock for the waits for other ranks, and for moving memory.
            memory: Memory that this rank frees during evaluations, where these take turns with training.
        """
        if self._pausable is None:
            yield
            return
        memory = memory or _NoMemory()
        with clock.phase("offload"):
            memory.offload()
        with clock.phase("ranks"):
            self._host.barrier()
        self._resume()
        try:
            yield
        finally:
            with clock.phase("ranks"):
                self._host.barrier()
            self._pause()
            with clock.phase("ranks"):
                self._host.barrier()  # no rank computes before what was late has ended
            with clock.phase("offload"):
                memory.restore()

    def close(self) -> None:
        """Ends what this rank started; calling it again changes nothing."""
        for service in self._services:
            service.close()
        self.evaluator.close()

    def _after_restart(self) -> None:
        if not self._is_resumed:
            self._pause()

    def _resume(self) -> None:
        self._is_resumed = True
        if self._pausable is not None and self._pauses:
            try:
                self._pausable.resume()
            except InfrastructureError:
                logger.warning("the evaluation service does not resume; new requests are not judged", exc_info=True)

    def _pause(self) -> None:
        self._is_resumed = False
        if self._pausable is not None and self._pauses:
            try:
                self._pausable.pause(PAUSE_S)
            except InfrastructureError:
                logger.warning("the evaluation service may still run something", exc_info=True)


def check_owner(mode: OwnerMode, gpus: Sequence[str] | None, url: str | None, services: int, compilers: int) -> None:
    """Refuses arguments of `start_evaluation` that contradict each other.

    Raises:
        ConfigError: The arguments do not fit together.
    """
    if mode == "ray":
        if gpus:
            raise ConfigError(
                "evaluation 'ray' takes no evaluation GPUs: the cluster has its own; give its address as url"
            )
        return
    if mode == "inline" and (gpus or url):
        raise ConfigError("evaluation 'inline' takes neither evaluation GPUs nor a url; use 'dedicated' for that")
    if mode == "colocated" and url:
        raise ConfigError("evaluation 'colocated' takes no url, as the service is one of this node; use 'dedicated'")
    if gpus and url:
        raise ConfigError("give evaluation GPUs or the url of a service, not both")
    if services != 1 and (mode != "dedicated" or url):
        raise ConfigError("several evaluation services share out this node: evaluation 'dedicated', without url")
    if compilers and (mode not in ("dedicated", "colocated") or url or services != 1):
        raise ConfigError(
            "compilers have processors apart from those of one service of this node: 'dedicated' or 'colocated', no url"
        )


def start_evaluation(
    mode: OwnerMode,
    host: HostGroup,
    *,
    gpus: Sequence[str] | None = None,
    url: str | None = None,
    deadline_s: float = 600.0,
    services: int = 1,
    compilers: int = 0,
) -> EvaluationSchedule:
    """Starts the owner of this node, or connects to it; a collective of all ranks.

    Args:
        mode: Mode of sharing the GPUs between training and evaluation.
        host: Group of all ranks.
        gpus: `dedicated`, `colocated`: entries of CUDA_VISIBLE_DEVICES for the service, such as ["2", "3"]; by default
            those of this process.
        url: `dedicated`: a service that runs already, here or elsewhere; its token is read from PKB_TOKEN. `ray`: the
            address of the cluster, by default "ray".
        deadline_s: Maximum wait for a running evaluation in seconds; one that waits for its reward phase may take
            longer.
        services: `dedicated`: number of services side by side on this node's CPU, each on processors of its own.
        compilers: `dedicated`, `colocated`: processors that compile CUDA sources and do nothing else, see
            `compile_farm`; 0 where the service compiles beside its ranks.

    Raises:
        ConfigError: the arguments do not fit together, or compilers leave no processor for ranks.
        InfrastructureError: the owner did not start.
    """
    check_owner(mode, gpus, url, services, compilers)
    if mode == "ray":
        return _on_cluster(url, host, deadline_s)
    if mode == "inline":
        return _inline(host)
    timeout_s = deadline_s + 24 * 3600.0  # it may wait for a reward phase; `AsyncEvaluator` keeps the deadline
    if url is not None:
        return EvaluationSchedule(RemoteEvaluator(url, timeout_s=timeout_s), host)
    is_owner = env_vars.local_rank() == 0
    start = partial(_start_farm, gpus, compilers) if compilers else partial(_start_services, gpus, services)
    mine = start() if is_owner else []
    here = socket.gethostname()
    reached = host.gather([(here, service.url, service.token) for service in mine])
    of_node = [(at, word) for rank in reached for name, at, word in rank if name == here]
    remotes = [RemoteEvaluator(at, token, timeout_s=timeout_s) for at, token in of_node]
    if len(remotes) > 1 and not compilers:
        return EvaluationSchedule(SpreadEvaluator(remotes), host, services=mine)
    evaluator: Evaluator = CompileFarm(*remotes) if compilers else remotes[0]
    pausable = remotes[-1] if mode == "colocated" else None  # the judge: the farm has no GPU
    return EvaluationSchedule(evaluator, host, pausable=pausable, pauses=is_owner, services=mine)


def _start_services(gpus: Sequence[str] | None, count: int) -> list[ServiceProcess]:
    """One that may use all processors, or several that share out processors, and the GPUs that are named."""
    if count == 1:
        return [ServiceProcess(gpus)]
    started: list[ServiceProcess] = []
    shares = list(zip(share_out_gpus(count, gpus or ()), share_out_processors(count), strict=True))
    if not gpus:
        measure_processors(shares[0][1])  # for all of them, which are as large, before any is at work
    try:
        for own_gpus, processors in shares:
            service = ServiceProcess(own_gpus, processors=processors)
            started.append(service)
    except InfrastructureError:
        for service in started:
            service.close()
        raise
    return started


def _start_farm(gpus: Sequence[str] | None, compilers: int) -> list[ServiceProcess]:
    """The service that compiles for this node's GPUs, and the one that judges; see `compile_farm`."""
    ranks, apart = processors_apart(compilers, sorted(os.sched_getaffinity(0)))
    compiler = ServiceProcess([], processors=apart, variables={"PKB_CUDA_ARCHITECTURE": default_architecture()})
    try:
        return [compiler, ServiceProcess(gpus, processors=ranks)]
    except InfrastructureError:
        compiler.close()
        raise


def _on_cluster(url: str | None, host: HostGroup, deadline_s: float) -> EvaluationSchedule:
    from pkb_gym.cluster.evaluator import RayEvaluator

    return EvaluationSchedule(RayEvaluator(url or "ray", timeout_s=deadline_s), host)


def _inline(host: HostGroup) -> EvaluationSchedule:
    from pkb_gym.engine.evaluators.local import LocalEvaluator
    from pkb_gym.engine.hardware import gpus

    ranks = len(host.gather(os.getpid()))
    if ranks > 1 and gpus.names():
        raise ConfigError(f"evaluation 'inline' is for one process, this run has {ranks}; use colocated or dedicated")
    evaluator = LocalEvaluator()
    return EvaluationSchedule(evaluator, host, pausable=evaluator)


class _NoMemory:
    """Nothing to offload."""

    def offload(self) -> None:
        """Does nothing."""

    def restore(self) -> None:
        """Does nothing."""
