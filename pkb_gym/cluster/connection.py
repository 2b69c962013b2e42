"""This process's connection to a Ray cluster, shared by all evaluators that use it."""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import os
import threading
from typing import Any

from pkb_gym.engine.errors import ConfigError, InfrastructureError
from pkb_gym.engine.hardware import host
from pkb_gym.engine.support import env_vars
from pkb_gym.engine.support.printable import printable

MAX_CHARS = 500
NAMESPACE = "pkb"
MIN_CPUS = 5
"""Logical CPUs of a cluster that is started here: a gang of four ranks, and a compiler. They share the processors."""

UNREACHABLE = (ConnectionError, RuntimeError, ValueError, OSError)
"""Exceptions of Ray where there is no cluster at an address."""


def in_one_line(error: Exception) -> str:
    """Class and last line of an error of Ray, whose text may be the traceback of another process."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [""]
    return printable(f"{type(error).__name__}: {lines[-1]}", MAX_CHARS)


def require_ray() -> None:
    """Makes sure that Ray is installed; imports nothing.

    Raises:
        ConfigError: It is not.
    """
    if importlib.util.find_spec("ray") is None:
        raise ConfigError("evaluations on a cluster need Ray: pip install 'pkb-gym[ray]'")


class Connection:
    """The one connection that Ray allows a process; safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users = 0
        self._made_here = False
        self._client_url: str | None = None
        self._generation = 0

    def open(self, client_url: str | None) -> None:
        """Connects this process, unless it is connected already; `close` must follow.

        Args:
            client_url: URL of Ray Client; None for the cluster that RAY_ADDRESS names or that runs on this machine;
                where there is none, one is started, which ends with the connection.

        Raises:
            ConfigError: Ray is not installed.
            InfrastructureError: The cluster cannot be reached.
        """
        require_ray()
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        import ray

        with self._lock:
            if not ray.is_initialized():
                self._connect(client_url)
            self._users += 1

    def close(self) -> None:
        """Ends one use; with the last one the connection ends, if it was made here."""
        with self._lock:
            self._users = max(0, self._users - 1)
            if self._users == 0:
                self._disconnect()

    @property
    def generation(self) -> int:
        """Grows whenever the connection is made."""
        return self._generation

    def renew(self, seen: int) -> None:
        """Makes the connection anew where it broke; Ray itself mends that of a process on a node of the cluster.

        Args:
            seen: Generation of the connection that broke; where another thread has renewed it, nothing happens.

        Raises:
            InfrastructureError: The cluster cannot be reached.
        """
        import ray

        with self._lock:
            if seen == self._generation and (self._client_url is not None or not ray.is_initialized()):
                url = self._client_url
                self._disconnect()
                self._connect(url)

    def _connect(self, client_url: str | None) -> None:
        """Called with the lock held."""
        self._client_url = client_url
        try:
            _init(client_url)
        except UNREACHABLE as error:
            self._made_here = True
            self._disconnect()  # a connection that was half made
            where = client_url or env_vars.ray_address() or "here"
            raise InfrastructureError(f"no Ray cluster can be reached ({where}): {error}") from error
        self._made_here = True
        self._generation += 1

    def _disconnect(self) -> None:
        """Called with the lock held."""
        if self._made_here:
            import ray

            with contextlib.suppress(*UNREACHABLE):
                ray.shutdown()
        self._made_here = False


CONNECTION = Connection()


def _init(client_url: str | None) -> None:
    import ray

    if client_url is not None:
        ray.init(client_url, namespace=NAMESPACE, log_to_driver=False)
        return
    options: dict[str, Any] = {"namespace": NAMESPACE, "log_to_driver": False, "logging_level": logging.WARNING}
    try:
        ray.init(address="auto", **options)
    except ConnectionError:
        if env_vars.ray_address() is not None:
            raise
        cpus = max(host.processors(), MIN_CPUS)
        ray.init(address="local", num_cpus=cpus, include_dashboard=False, **options)
