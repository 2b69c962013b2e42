"""TRL's way to OpenEnv: an environment for `GRPOTrainer(environment_factory=...)` over a session of a server."""

from __future__ import annotations

from typing import Any

from openenv import GenericEnvClient


class RemoteKernelTool:
    """One rollout at a time on an OpenEnv server. `submit` is the one tool; TRL calls `reset` and `get_reward`.

    Args:
        base_url: Url of the server.
        timeout_s: Deadline of one message in seconds, evaluation included.

    Example:
        >>> factory = functools.partial(RemoteKernelTool, "http://node:8000")  # doctest: +SKIP
        >>> GRPOTrainer(..., environment_factory=factory)  # doctest: +SKIP
    """

    def __init__(self, base_url: str, timeout_s: float = 900.0) -> None:
        self._base_url, self._timeout_s = base_url, timeout_s
        self._client: Any = None
        self._total: float | None = 0.0

    def reset(self, *, problem: str | None = None, seed: int | None = None, **_: object) -> str:
        """Begins a rollout on a row of the dataset.

        Args:
            problem: Name of the problem, a column of the row; by default one drawn by the server.
            seed: Seed of the inputs, a column of the row.
            **_: Other columns of the row.

        Returns:
            The task text.
        """
        if self._client is None:
            self._client = GenericEnvClient(base_url=self._base_url, message_timeout_s=self._timeout_s).sync()
            self._client.connect()
        self._total = 0.0
        arguments = {name: value for name, value in (("problem", problem), ("seed", seed)) if value is not None}
        return str(self._client.reset(**arguments).observation["text"])

    def submit(self, source: str) -> str:
        """Compile a kernel, run it on all ranks, check it against the reference and time it against the baseline.

        Args:
            source: The complete source file of the kernel, in one of the languages that the task accepts.

        Returns:
            The feedback: compiler errors, wrong outputs, times, the roofline, and the profile.
        """
        result = self._client.step({"source": source})
        if result.reward is None or self._total is None:
            self._total = None
        else:
            self._total += result.reward
        return str(result.observation["text"])

    def get_reward(self) -> float | None:
        """The value of the best submission: the sum of the steps' rewards; None where one was not judged."""
        return self._total

    def __del__(self) -> None:
        if self._client is not None:
            self._client.close()
