"""Whether a reward rests on what ranks report of themselves."""

from __future__ import annotations

from dataclasses import fields

from pkb_gym.rewards.component import Component, Recorded


def rests_on_rank_reports(value: object) -> bool:
    """Whether a reward, or a part of it, takes a profile for evidence, so that a candidate can raise it by a lie.

    Example:
        >>> from pkb_gym.rewards import Correctness, OwnKernelShare
        >>> rests_on_rank_reports(Correctness()), rests_on_rank_reports(Correctness() + 0.1 * OwnKernelShare())
        (False, True)
    """
    if isinstance(value, tuple):
        return any(rests_on_rank_reports(one) for one in value)
    if not isinstance(value, Recorded):
        return False
    own = isinstance(value, Component) and value.untrusted
    return own or any(rests_on_rank_reports(getattr(value, field.name)) for field in fields(value))  # type: ignore[arg-type]  # all are dataclasses
