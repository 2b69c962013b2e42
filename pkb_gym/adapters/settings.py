"""Settings of episodes in foreign frameworks: JSON, YAML or TOML."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Literal

from pydantic import Field, ValidationError

from pkb_gym.engine.errors import ConfigError
from pkb_gym.engine.records.base import Record
from pkb_gym.engine.records.config import Protocol, Until
from pkb_gym.engine.support import env_vars
from pkb_gym.envs.session import SubmissionSession
from pkb_gym.envs.text.turn import Style


class EpisodeSettings(Record):
    """Arguments of `SubmissionSession`; what is None is left to `PKBEnv`.

    Example:
        >>> settings = EpisodeSettings(split=["AllReduce"], device="cpu", world_size=2)
        >>> settings.open_session().reset("AllReduce").splitlines()[0]
        '# AllReduce'
    """

    evaluator: str = "local"
    """"local", or the url of an evaluation service; its token is read from PKB_TOKEN."""
    split: str | list[str] = "train"
    """Problems, see `pkb_gym.envs.suite.split_names`."""
    max_turns: int = Field(default=8, ge=1)
    """Submissions of an episode that are judged."""
    reward: str = "default"
    """Name of a reward, or "module:function"."""
    device: Literal["auto", "cpu", "cuda"] | None = None
    """Device that kernels run on."""
    world_size: int | None = None
    """Ranks."""
    size: str | dict[str, object] | None = None
    """Name of a size, or axes."""
    dtype: str | None = None
    """Floating dtype."""
    language: Literal["auto", "cpp", "cuda", "triton", "python"] | None = None
    """Language of the submissions."""
    style: Style | None = None
    """Length of the task text: "full", "standard" or "brief", which shortens feedback too."""
    protocol: Protocol | None = None
    """"robust" or "published"."""
    until: Until | None = None
    """Last stage of an evaluation."""
    timeout_s: float | None = None
    """Deadline of a block of calls, in seconds."""

    @classmethod
    def of(cls, fields: Mapping[str, object]) -> EpisodeSettings:
        """The settings of these fields.

        Raises:
            ConfigError: A setting is unknown, or takes no such value.
        """
        try:
            return cls.model_validate(dict(fields))
        except ValidationError as error:
            wrong = "; ".join(f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors())
            raise ConfigError(f"settings of an episode: {wrong}; known: {', '.join(cls.model_fields)}") from None

    @classmethod
    def from_environment(cls) -> EpisodeSettings:
        """The settings in the environment variable PKB_EPISODE; the defaults where it is not set.

        Raises:
            ConfigError: The variable holds no JSON object of settings.
        """
        try:
            fields = json.loads(env_vars.episode_settings())
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"PKB_EPISODE is no JSON: {error}") from None
        if not isinstance(fields, dict):
            raise ConfigError(f"PKB_EPISODE: expected a JSON object, got {fields!r}")
        return cls.of(fields)

    def open_session(self, problem: str | None = None) -> SubmissionSession:
        """A session, for one problem or for those of the split.

        Raises:
            ConfigError, ProblemNotFound: The settings do not fit the problem, or there is no such problem.
        """
        arguments = self.model_dump(exclude={"split", "max_turns"}, exclude_none=True)
        return SubmissionSession(self.split if problem is None else [problem], self.max_turns, **arguments)
