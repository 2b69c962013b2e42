"""The evaluator that has sources judged by the gangs of a Ray cluster."""

from __future__ import annotations

import contextlib
import secrets
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Self

from pydantic import ValidationError

import pkb_gym
from pkb_gym.cluster.address import ClusterAddress
from pkb_gym.cluster.connection import CONNECTION, NAMESPACE, in_one_line, require_ray
from pkb_gym.cluster.records import Hello, PoolReply, PoolRequest, PoolStatus, from_text, to_text
from pkb_gym.cluster.settings import PoolSettings
from pkb_gym.engine.errors import ConfigError, EvaluationNotFound, InfrastructureError
from pkb_gym.engine.evaluators.polling import Polling, growing_pauses, while_busy
from pkb_gym.engine.problem import Problem
from pkb_gym.engine.records.config import EvalConfig
from pkb_gym.engine.records.feedback import Feedback
from pkb_gym.engine.records.machine import Machine
from pkb_gym.engine.records.service import EvaluationRequest
from pkb_gym.engine.stages.progress import Progress

if TYPE_CHECKING:
    from ray.actor import ActorHandle

TIMEOUT_S = 3600.0
UNREACHABLE_S = 60.0
WAIT_S = 30.0
"""Longest time that a call waits in the pool; clients then repeat it."""

GRACE_S = 30.0
"""Deadline of a reply, beyond the time that the call may wait in the pool."""

END_S = 30.0
DESCRIBE_S = 120.0
"""Longest wait for the description of the machine: a worker of its node loads the package first."""

MAX_PAUSE_S = 5.0
"""Between attempts."""

ON_HEAD = "node:__internal_head__"
"""Resource of the head alone: without that node there is no cluster, so no other node takes the pool with it."""

MAX_CALLS = 100_000
"""Maximum number of clients' calls that may wait at the pool at the same time."""


class _PoolLost(Exception):
    """Raised when a call failed and may be repeated."""


class RayEvaluator:
    """Has sources judged on a Ray cluster; safe to use from several threads, and to pickle.

    The pool of gangs is started by its first client and shared by all that name it. When the pool, its node
    or the connection is lost, requests are submitted again for `unreachable_s`: the pool knows them by their keys, so
    that each is answered once. Then, or when an evaluation takes longer than `timeout_s`, `InfrastructureError` is
    raised.

    Args:
        address: Address of the cluster, see `ClusterAddress`.
        priority: Priority of all its requests; higher ones go first.
        timeout_s: Deadline of one evaluation in seconds, with waiting for others.
        unreachable_s: Seconds for which a cluster that does not answer is tried again.
        replay_key: Secret that, with the seed, fixes the inputs; by default the pool draws one.

    Raises:
        ConfigError: The address is none, or Ray is not installed.
    """

    def __init__(
        self,
        address: str = "ray",
        *,
        priority: int = 0,
        timeout_s: float = TIMEOUT_S,
        unreachable_s: float = UNREACHABLE_S,
        replay_key: bytes | None = None,
    ) -> None:
        self.address = address
        self._cluster = ClusterAddress.parse(address)
        require_ray()
        self._priority, self._timeout_s, self._unreachable_s = priority, timeout_s, unreachable_s
        self._replay_key = replay_key
        self._client = secrets.token_hex(8)
        self._lock, self._describing = threading.Lock(), threading.Lock()
        self._machine: Machine | None = None
        self._pool: Any = None
        self._uses_connection = False
        self._generation = 0

    def __reduce__(self) -> tuple[Callable[[str], RayEvaluator], tuple[str]]:
        """A copy has no connection, and is a client of its own."""
        rebuild = partial(
            RayEvaluator,
            priority=self._priority,
            timeout_s=self._timeout_s,
            unreachable_s=self._unreachable_s,
            replay_key=self._replay_key,
        )
        return rebuild, (self.address,)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"RayEvaluator({self.address!r})"

    def evaluate(self, problem: Problem, source: str, config: EvalConfig, progress: Progress | None = None) -> Feedback:
        """Has one source judged by the pool; see `Evaluator.evaluate`.

        Raises:
            ConfigError, SizeError, ProblemNotFound: The request makes no sense to the cluster.
            InfrastructureError: The cluster did not answer in time, or lost the evaluation too often.
        """
        polling = Polling.starting_now(str(self.address), self._timeout_s, WAIT_S)
        request = self._request(problem, source, config)
        reports, deadline = progress is not None, polling.deadline

        def submit(wait_s: float) -> PoolReply:
            return while_busy(lambda: self._send(request, deadline, wait_s, reports=reports), deadline, MAX_PAUSE_S)

        def poll(reply: PoolReply, wait_s: float) -> PoolReply:
            seen = reply.state if reports else None
            return self._call("wait", request.key, self._client, seen, wait_s, deadline=deadline)

        try:
            reply = polling.wait(submit, poll, progress)
        except BaseException:
            self._give_up(request.key)
            raise
        assert reply.feedback is not None
        try:
            return Feedback.model_validate_json(reply.feedback)
        except ValidationError as error:
            raise InfrastructureError(
                f"{self.address} answers with no Feedback of this version; is pkb-gym the same everywhere? {error}"
            ) from None

    def submit(self, problem: Problem, source: str, config: EvalConfig) -> str:
        """Has an evaluation begun, without waiting for it: a later `evaluate` of an equal request joins it.

        Returns:
            Key of the evaluation.

        Raises:
            ConfigError, SizeError, ProblemNotFound: The request makes no sense to the cluster.
            ServiceBusy: It has too much to do.
            InfrastructureError: It cannot be reached.
        """
        request = self._request(problem, source, config)
        return self._send(request, time.monotonic() + self._unreachable_s, 0.0, reports=False).key

    def status(self) -> PoolStatus:
        """State and counts of the pool.

        Raises:
            InfrastructureError: It cannot be reached.
        """
        deadline = time.monotonic() + self._unreachable_s
        return from_text(PoolStatus, self._retried("status", deadline=deadline))

    def machine(self) -> Machine:
        """The machine of the pool's gangs; requested once, and again while the CPU of its node is not measured yet.

        Raises:
            ConfigError: The pool is of an earlier version, which does not describe it.
            InfrastructureError: The cluster cannot be reached, or the node not be examined.
        """
        with self._describing:
            if self._machine is None or (self._machine.cpu or self._machine.gpu) is None:
                deadline = time.monotonic() + self._unreachable_s
                try:
                    self._machine = from_text(Machine, self._retried("machine", DESCRIBE_S, deadline=deadline))
                except AttributeError:
                    raise ConfigError(
                        f"the pool of {self.address} does not describe its machine, on which task texts and "
                        f"device='auto' depend: it was started by an earlier version than this pkb-gym "
                        f"{pkb_gym.__version__}; end it, or name another pool (ray?pool=NAME)"
                    ) from None
            return self._machine

    def close(self) -> None:
        """Takes back what was submitted; the last client of a pool ends it. It is connected anew if used again."""
        with self._lock:
            pool, self._pool = self._pool, None
            used, self._uses_connection = self._uses_connection, False
        if pool is not None:
            self._leave(pool)
        if used:
            CONNECTION.close()

    def _leave(self, pool: ActorHandle[Any]) -> None:
        import ray

        with contextlib.suppress(Exception):  # then the pool, or the cluster, is gone
            if ray.get(pool.leave.remote(self._client), timeout=END_S):
                ray.kill(pool, no_restart=True)

    def _request(self, problem: Problem, source: str, config: EvalConfig) -> EvaluationRequest:
        replay_key = None if self._replay_key is None else self._replay_key.hex()
        return EvaluationRequest(problem=problem.name, source=source, config=config, replay_key=replay_key)

    def _send(self, request: EvaluationRequest, deadline: float, wait_s: float, *, reports: bool) -> PoolReply:
        submission = PoolRequest(
            request=request,
            client=self._client,
            priority=self._priority,
            reports=reports,
            timeout_s=max(0.0, deadline - time.monotonic()) + GRACE_S,
        )
        return self._call("submit", to_text(submission), wait_s, deadline=deadline)

    def _give_up(self, key: str) -> None:
        with self._lock:
            pool = self._pool
        if pool is not None:
            with contextlib.suppress(Exception):  # the pool is gone, and the evaluation with it
                pool.give_up.remote(key, self._client)

    def _call(self, method: str, *arguments: object, deadline: float) -> PoolReply:
        """One call, repeated while the pool cannot be reached.

        Raises:
            PkbError: It was refused.
        """
        reply = from_text(PoolReply, self._retried(method, *arguments, deadline=deadline))
        if reply.error is not None:
            raise reply.error.exception()
        return reply

    def _retried(self, method: str, *arguments: object, deadline: float) -> str:
        until: float | None = None
        for pause_s in growing_pauses(MAX_PAUSE_S):
            try:
                return self._once(method, *arguments)
            except _PoolLost as error:
                if until is None:
                    until = min(deadline, time.monotonic() + self._unreachable_s)
                if time.monotonic() + pause_s > until:
                    raise InfrastructureError(f"the pool of {self.address} cannot be reached: {error}") from None
                time.sleep(pause_s)
                if method == "wait":  # whoever answers next may not know it: the caller submits again
                    raise EvaluationNotFound("the pool was lost") from None
        raise AssertionError("pauses never end")

    def _once(self, method: str, *arguments: object) -> str:
        """One call.

        Raises:
            _PoolLost: The pool or the connection failed.
        """
        pool = self._connected()
        import ray
        from ray.exceptions import RayError

        wait_s = next((each for each in reversed(arguments) if isinstance(each, float)), 0.0)
        generation = self._generation
        try:
            text: str = ray.get(getattr(pool, method).remote(*arguments), timeout=wait_s + GRACE_S)
        except (RayError, ConnectionError, TimeoutError, RuntimeError) as error:
            self._lose(pool, generation)
            raise _PoolLost(in_one_line(error)) from None
        return text

    def _connected(self) -> ActorHandle[Any]:
        """The handle of the pool, which is started if need be.

        Raises:
            _PoolLost: It is unavailable at this moment.
            PkbError: It refuses this client.
        """
        with self._lock:
            if self._pool is not None:
                return self._pool
            if not self._uses_connection:
                try:
                    CONNECTION.open(self._cluster.client_url)
                except InfrastructureError as error:  # the cluster may be starting
                    raise _PoolLost(str(error)) from None
                self._uses_connection = True
            try:
                pool = self._find_pool()
            except _PoolLost:
                with contextlib.suppress(InfrastructureError):  # it is tried again
                    CONNECTION.renew(self._generation)
                raise
            self._generation = CONNECTION.generation
            self._pool = pool
            return pool

    def _find_pool(self) -> ActorHandle[Any]:
        import ray
        from ray.exceptions import RayError

        settings = self._cluster.settings
        self._generation = CONNECTION.generation
        hello = Hello(
            client=self._client, version=pkb_gym.__version__, settings=settings.model_dump(exclude_unset=True)
        )
        try:
            pool = _pool_actor(settings)
            reply = from_text(PoolReply, ray.get(pool.hello.remote(to_text(hello)), timeout=WAIT_S + GRACE_S))
        except (RayError, ConnectionError, TimeoutError, RuntimeError) as error:
            raise _PoolLost(in_one_line(error)) from None
        if reply.error is not None:
            if reply.error.error == InfrastructureError.__name__:  # it is about to end
                raise _PoolLost(reply.error.message)
            raise reply.error.exception()
        return pool

    def _lose(self, pool: ActorHandle[Any], generation: int) -> None:
        """Has the next call find the pool anew; of several threads the first one does."""
        with self._lock:
            if self._pool is not pool:
                return
            self._pool = None
            with contextlib.suppress(InfrastructureError):  # it is tried again
                CONNECTION.renew(generation)


def _pool_actor(settings: PoolSettings) -> ActorHandle[Any]:
    """The pool of that name, which is started where there is none."""
    import ray

    from pkb_gym.cluster.pool import Pool

    return (
        ray.remote(Pool)
        .options(
            name=f"pkb-{settings.pool}",
            namespace=NAMESPACE,
            lifetime="detached",
            get_if_exists=True,
            num_cpus=0,
            resources={ON_HEAD: 0.001},
            max_restarts=-1,
            max_concurrency=MAX_CALLS,
        )
        .remote(to_text(settings))
    )
