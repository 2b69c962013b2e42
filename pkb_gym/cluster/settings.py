"""Settings of a pool of gangs, as an address of a cluster gives them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import Field, ValidationError, model_validator

from pkb_gym.engine.errors import ConfigError
from pkb_gym.engine.records.base import Record
from pkb_gym.engine.support.suggestions import did_you_mean

LOCAL_EVALUATOR = "pkb_gym.engine.evaluators.local:LocalEvaluator"


class PoolSettings(Record):
    """Limits of one pool; those for gangs hold for each device and world size."""

    pool: str = Field(default="pkb", pattern=r"^[\w.-]{1,64}$")
    """Name of the pool: clients that name the same one share it."""
    shared_least: int = Field(default=0, ge=0)
    """Gangs for checks that are kept when nothing waits."""
    shared_most: int | None = Field(default=None, ge=0)
    """Gangs for checks at most; 0 has exclusive gangs check as well. By default a quarter of those that fit on the
    cluster, and 0 where a single one fits."""
    checks_per_gang: int = Field(default=2, ge=1)
    """Checks that run on the devices of one shared gang at the same time."""
    exclusive_least: int = Field(default=0, ge=0)
    """Gangs for timing that are kept when nothing waits."""
    exclusive_most: int | None = Field(default=None, ge=1)
    """Gangs for timing at most; by default as many as fit beside the shared ones."""
    gpus_per_node: int | None = Field(default=None, ge=1)
    """GPUs of a node that an autoscaler may add; by default the cluster is taken as it is."""
    cpus_per_rank: float = Field(default=1.0, ge=0, le=64)
    """Logical CPUs that a gang reserves for each rank. On the CPU device a fraction lets ranks share processors."""
    compile_cpus: float = Field(default=1.0, ge=0, le=64)
    """Logical CPUs that one compile reserves."""
    compilers_most: int | None = Field(default=None, ge=1)
    """Compiles at the same time; by default as many as the cluster has CPUs."""
    architecture: str | None = Field(default=None, pattern=r"^sm_\d+[a-z]?$")
    """GPU architecture that nodes without a GPU compile for, such as "sm_100a"; by default sm_90a."""
    most_waiting: int = Field(default=4096, ge=1)
    """Evaluations that may wait or run; further ones are refused, and clients submit again."""
    deadline_s: float = Field(default=300.0, gt=0)
    """Wall time of one step (compile, check, or time and profile) of an evaluation; then its gang is replaced."""
    retries: int = Field(default=3, ge=0)
    """Further attempts at a step whose node, gang or evaluator failed."""
    place_s: float = Field(default=600.0, gt=0)
    """Time that the cluster has to find room for a gang; then evaluations that wait for it fail."""
    shrink_s: float = Field(default=120.0, gt=0)
    """Idle time after which a gang beyond the least number is ended."""
    idle_s: float = Field(default=900.0, gt=0)
    """Time without a request after which the pool ends itself."""
    problems: tuple[str, ...] = ()
    """Folders of problems outside the package, at the same path on every node."""
    evaluator: str = LOCAL_EVALUATOR
    """`module:factory` of the evaluators that gangs hold; the factory takes `key` and `cache`."""

    @model_validator(mode="after")
    def _limits_are_in_order(self) -> PoolSettings:
        for name in ("shared", "exclusive"):
            least, most = getattr(self, f"{name}_least"), getattr(self, f"{name}_most")
            if most is not None and least > most:
                raise ValueError(f"{name}_least={least} is more than {name}_most={most}")
        return self


def checked_settings(choices: Mapping[str, Sequence[str]]) -> PoolSettings:
    """The settings of a query; the others have their defaults.

    Args:
        choices: Name -> values in the order given; only `problems` takes several.

    Raises:
        ConfigError: A setting does not exist, is given twice or takes no such value.

    Example:
        >>> checked_settings({"exclusive_most": ["3"]}).exclusive_most
        3
        >>> checked_settings({"exclusive_max": ["3"]})
        Traceback (most recent call last):
        ...
        pkb_gym.engine.errors.ConfigError: no pool setting 'exclusive_max'. Did you mean 'exclusive_most'?
    """
    known = PoolSettings.model_fields
    unknown = [name for name in choices if name not in known]
    if unknown:
        listed = ", ".join(repr(name) for name in unknown)
        raise ConfigError(f"no pool setting {listed}.{did_you_mean(unknown[0], known) or f' There are {_listed()}.'}")
    values: dict[str, Any] = {}
    for name, given in choices.items():
        if name == "problems":
            values[name] = tuple(given)
        elif len(given) == 1:
            values[name] = given[0]
        else:
            raise ConfigError(f"pool setting {name} is given {len(given)} times: {', '.join(given)}")
    try:
        return PoolSettings.model_validate(values)
    except ValidationError as error:
        raise ConfigError("; ".join(_complaint(each, values) for each in error.errors())) from None


def differing(mine: PoolSettings, running: PoolSettings) -> list[str]:
    """Descriptions of the settings given in `mine` that differ from those of a running pool."""
    return [
        f"{name}={getattr(mine, name)!r} (the pool has {getattr(running, name)!r})"
        for name in sorted(mine.model_fields_set)
        if getattr(mine, name) != getattr(running, name)
    ]


def _complaint(error: Mapping[str, Any], values: Mapping[str, Any]) -> str:
    if not error["loc"]:
        return str(error["msg"]).removeprefix("Value error, ")
    name = str(error["loc"][0])
    return f"pool setting {name}={values.get(name)!r}: {error['msg']}"


def _listed() -> str:
    return ", ".join(PoolSettings.model_fields)
