"""The environment: OpenEnv's protocol around one `SubmissionSession`."""

from __future__ import annotations

import html
import uuid
from typing import Any

from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import EnvironmentMetadata
from pkb_gym import __version__
from pkb_gym.adapters.settings import EpisodeSettings
from pkb_gym.engine.errors import ConfigError
from pkb_gym.envs.loop import TurnResult
from pkb_gym.envs.session import SubmissionSession
from pkb_gym.envs.suite import split_names
from pkb_gym.problems.catalogue import find_problem
from pkb_openenv.models import KernelAction, KernelObservation, PKBState

SPLITS = ("train", "test", "all")


class KernelEnvironment(Environment[KernelAction, KernelObservation, PKBState]):
    """Episodes of one session, one after another; an instance starts nothing before `reset`.

    Args:
        settings: Settings of the episodes.
    """

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self, settings: EpisodeSettings) -> None:
        super().__init__()
        self._settings = settings
        self._session: SubmissionSession | None = None
        self._episode_id = ""

    def reset(
        self,
        seed: int | None = None,
        episode_id: str | None = None,
        problem: str | None = None,
        split: str | None = None,
        index: int | None = None,
        **kwargs: Any,
    ) -> KernelObservation:
        """Begins an episode on the problem named, on that of a split and index, or on one that is drawn.

        Raises:
            ConfigError, ProblemNotFound: An argument is unknown, or there is no such problem.
        """
        if kwargs:
            known = "seed, episode_id, problem, split, index"
            raise ConfigError(f"reset: no argument {', '.join(sorted(kwargs))}; there are {known}")
        self.close()
        if split is not None or index is not None:
            if problem is not None or split is None or index is None:
                raise ConfigError("reset: give problem, or split and index together")
            problem = self.get_task(split, index)["problem"]
        session = self._settings.open_session(problem)
        text = session.reset(problem, seed)
        self._session, self._episode_id = session, episode_id or uuid.uuid4().hex
        left = session.episode.turns_left
        return KernelObservation(text=text, problem=session.problem, turns_left=left, done=False, reward=None)

    def step(self, action: KernelAction, timeout_s: float | None = None, **kwargs: Any) -> KernelObservation:  # noqa: ARG002
        """Has a source judged; the service's own deadlines count, not `timeout_s`.

        Raises:
            ConfigError: There was no `reset`.
        """
        if self._session is None:
            raise ConfigError("step: no episode has begun in this session; call reset first, over the WebSocket")
        return self._observation(self._session, self._session.submit(action.source))

    @staticmethod
    def _observation(session: SubmissionSession, reply: TurnResult) -> KernelObservation:
        turn = reply.turn
        feedback = None if turn is None else turn.feedback
        return KernelObservation(
            text=reply.text,
            problem=session.problem,
            turn=len(session.episode.turns),
            turns_left=session.episode.turns_left,
            failure=None if feedback is None or feedback.failure is None else str(feedback.failure),
            value=None if turn is None else turn.value,
            speedup=None if feedback is None else feedback.speedup,
            feedback=None if feedback is None else feedback.model_dump(mode="json"),
            done=session.is_over,
            reward=reply.gain,
        )

    @property
    def state(self) -> PKBState:
        """The state of the episode."""
        if self._session is None:
            return PKBState()
        episode = self._session.episode
        best = episode.best
        return PKBState(
            episode_id=self._episode_id,
            step_count=len(episode.turns),
            problem=self._session.problem,
            best_turn=0 if best is None else best.number,
            best_value=episode.best_value,
            best_source="" if best is None else best.source,
            is_over=self._session.is_over,
        )

    def close(self) -> None:
        """Ends the episode."""
        if self._session is not None:
            self._session.close()

    def get_metadata(self) -> EnvironmentMetadata:
        """Name, version and description, for the web page and `/metadata`."""
        return EnvironmentMetadata(
            name="pkb",
            description="87 multi-GPU kernel problems: a source is compiled, run, checked, timed and profiled",
            version=__version__,
        )

    def render_web(self, observation: dict[str, Any]) -> str | None:
        """The message to the model, as it is."""
        return f"<pre style='white-space: pre-wrap'>{html.escape(str(observation.get('text', '')))}</pre>"

    def list_splits(self) -> list[str]:
        """Names of the splits."""
        return list(SPLITS)

    def list_tasks(self, split: str) -> list[dict[str, Any]]:
        """Tasks of a split, in order."""
        return [_task(name, index) for index, name in enumerate(_names(split))]

    def num_tasks(self, split: str) -> int:
        """Number of tasks of a split."""
        return len(_names(split))

    def get_task(self, split: str, index: int) -> dict[str, Any]:
        """The task of a split at an index.

        Raises:
            IndexError: The split has no such index.
        """
        names = _names(split)
        if not 0 <= index < len(names):
            raise IndexError(f"split {split!r} has tasks 0 to {len(names) - 1}, got {index}")
        return _task(names[index], index)

    def get_task_range(self, split: str, start: int | None = None, stop: int | None = None) -> list[dict[str, Any]]:
        """Tasks of a split from `start` to before `stop`."""
        return self.list_tasks(split)[start:stop]


def _names(split: str) -> tuple[str, ...]:
    if split not in SPLITS:
        raise ConfigError(f"no split {split!r}; there are {', '.join(SPLITS)}")
    return split_names(split)


def _task(name: str, index: int) -> dict[str, Any]:
    problem = find_problem(name)
    return {"id": name, "index": index, "problem": name, "category": problem.category, "summary": problem.summary}
