"""The evaluator of a node that runs several gangs at a time: a service for each, with GPUs and processors of its own.

Each is a process, as a Ray pool's gangs are: the clock of a block is Python's, and threads that judge other candidates
would hold it up. So no gang waits for the timing of another, and all have the same number of devices.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from pkb_gym.engine.errors import InfrastructureError
from pkb_gym.engine.evaluators.remote import RemoteEvaluator
from pkb_gym.engine.hardware.calibrate import measure_processors
from pkb_gym.engine.problem import Problem
from pkb_gym.engine.records.config import EvalConfig, ResolvedConfig
from pkb_gym.engine.records.feedback import Feedback
from pkb_gym.engine.records.machine import Machine
from pkb_gym.engine.stages.execution_environment import resolve_source
from pkb_gym.engine.stages.progress import Progress
from pkb_gym.serve.service_process import ServiceProcess
from pkb_gym.serve.shares import Share
from pkb_gym.serve.spread import MAX_IN_HAND, SpreadEvaluator

logger = logging.getLogger(__name__)

MAX_WAIT_S = 24 * 3600.0
"""The time that an evaluation may take in a gang's service, which has the deadline; beyond it something is broken."""


class GangGroup:
    """Has sources judged by the services of several gangs; see `OwningEvaluator`.

    Args:
        services: Services, at least one; all of them have as many devices. They are closed with the group.
        most_in_hand: Maximum number of concurrent requests to a service.
    """

    def __init__(self, services: Sequence[ServiceProcess], most_in_hand: int = MAX_IN_HAND) -> None:
        self._services = tuple(services)
        self._remotes = [RemoteEvaluator(one.url, one.token, timeout_s=MAX_WAIT_S) for one in services]
        self._spread = SpreadEvaluator(self._remotes, most_in_hand)
        self._is_paused = False
        for service, remote in zip(self._services, self._remotes, strict=True):
            service.on_restart = partial(self._after_restart, remote)

    def evaluate(
        self,
        problem: Problem,
        source: str,
        config: EvalConfig,
        progress: Progress | None = None,
        *,
        replay_key: bytes | None = None,
    ) -> Feedback:
        """Judges one source on the gang with the fewest requests; see `Evaluator.evaluate`.

        Raises:
            InfrastructureError: The gang's service did not answer.
        """
        assert replay_key is None, "a service with several gangs takes no keys from its clients"
        return self._spread.evaluate(problem, source, config, progress)

    def machine(self) -> Machine:
        """The machine of one gang: its share of the GPUs.

        Raises:
            InfrastructureError: The gang's service did not answer.
        """
        return self._remotes[0].machine()

    def resolve(self, problem: Problem, source: str, config: EvalConfig) -> ResolvedConfig:
        """The configuration that a gang would run under.

        Raises:
            ConfigError, SizeError: It cannot be met.
            InfrastructureError: The gang's service did not answer.
        """
        return resolve_source(config, problem, source, self.machine())[1]

    def pause(self, timeout_s: float | None = None) -> bool:
        """Leaves the devices of all gangs to another program until `resume`; whether nothing runs any more.

        Args:
            timeout_s: Longest wait in seconds; None for no limit.
        """
        self._is_paused = True
        wait_s = MAX_WAIT_S if timeout_s is None else timeout_s
        with ThreadPoolExecutor(len(self._remotes)) as pool:
            return all(list(pool.map(lambda remote: _is_idle(remote, wait_s), self._remotes)))

    def resume(self) -> None:
        """Ends a pause; calling it again changes nothing."""
        self._is_paused = False
        for remote in self._remotes:
            try:
                remote.resume()
            except InfrastructureError:  # it is being started anew, without a pause
                logger.warning("a gang's service does not resume", exc_info=True)

    def close(self) -> None:
        """Ends every process; calling it again changes nothing."""
        self._spread.close()
        with ThreadPoolExecutor(len(self._services)) as pool:
            list(pool.map(ServiceProcess.close, self._services))

    def _after_restart(self, remote: RemoteEvaluator) -> None:
        if self._is_paused:
            _is_idle(remote, 0)


def _is_idle(remote: RemoteEvaluator, timeout_s: float) -> bool:
    try:
        remote.pause(timeout_s)
    except InfrastructureError:
        return False
    return True


def open_gang_group(shares: Sequence[Share], replay_key: bytes, options: Sequence[str] = ()) -> GangGroup:
    """Starts the services of several gangs.

    Args:
        shares: Share of each gang in the node, at least one.
        replay_key: Key of the inputs of all gangs.
        options: Further words of the services' command lines.

    Raises:
        InfrastructureError: A service did not start.
    """
    if not shares[0].gpus:
        measure_processors(shares[0].processors)  # for all of them, which are as large, before any is at work
    start = partial(_start_service, replay_key=replay_key, options=options)
    with contextlib.ExitStack() as stack:
        with ThreadPoolExecutor(len(shares)) as pool:
            starts = [pool.submit(start, share) for share in shares]
        for one in starts:
            if one.exception() is None:
                stack.callback(one.result().close)
        group = GangGroup([one.result() for one in starts], max(MAX_IN_HAND, len(shares[0].processors)))
        stack.pop_all()
    return group


def _start_service(share: Share, replay_key: bytes, options: Sequence[str]) -> ServiceProcess:
    return ServiceProcess(share.gpus, processors=share.processors, options=options, replay_key=replay_key)
