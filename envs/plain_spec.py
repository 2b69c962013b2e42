"""The spec of an environment in arguments that JSON can hold, as far as there are such."""

from __future__ import annotations

import dataclasses
from types import FunctionType

from gymnasium.envs.registration import EnvSpec

from pkb_gym.envs.samplers import sampler_mapping
from pkb_gym.rewards.component import Recorded
from pkb_gym.rewards.records import to_json


class PlainSpec:
    """Has an environment keep its spec with arguments that JSON can hold."""

    _spec: EnvSpec | None = None

    @property
    def spec(self) -> EnvSpec | None:
        """The spec that Gymnasium makes an equal environment of; None where this one was made without it."""
        return self._spec

    @spec.setter
    def spec(self, spec: EnvSpec | None) -> None:
        self._spec = plain_spec(spec)


def plain_spec(spec: EnvSpec | None) -> EnvSpec | None:
    """The spec with the record or the name of its reward in place of an object, and likewise its sampler's mapping.

    `EnvSpec.to_json` would write both as a dict of their fields, without the class, from which nothing can be made.
    Other objects stay: `gym.make` takes them, and `to_json` raises a TypeError.

    Args:
        spec: Spec as Gymnasium made it; it stays as it is.
    """
    if spec is None:
        return None
    kwargs = dict(spec.kwargs)
    if isinstance(reward := kwargs.get("reward"), Recorded):
        kwargs["reward"] = to_json(reward)
    elif isinstance(reward, FunctionType):
        kwargs["reward"] = f"{reward.__module__}:{reward.__qualname__}"
    if (mapping := sampler_mapping(kwargs.get("sampler"))) is not None:
        kwargs["sampler"] = mapping
    return dataclasses.replace(spec, kwargs=kwargs)
