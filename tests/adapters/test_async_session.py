"""Sessions on an event loop."""

from __future__ import annotations

import asyncio

from pkb_gym.adapters.async_session import AsyncSession
from pkb_gym.adapters.settings import EpisodeSettings
from tests.envs.conftest import evaluator  # noqa: F401  # a fixture


def test_submissions_of_one_episode_follow_each_other(evaluator):  # noqa: F811
    settings = EpisodeSettings(split=["AllReduce"], evaluator="fake", device="cpu", world_size=2, max_turns=8)

    async def submit_all():
        playing = AsyncSession(settings.open_session())
        playing.session.reset(seed=1)
        return await asyncio.gather(*(playing.submit(f"speedup {number}") for number in range(1, 9)))

    replies = asyncio.run(submit_all())
    assert [reply.turn.number for reply in replies] == list(range(1, 9))
    assert [config.turn for _, _, config in evaluator.requested] == list(range(8))
