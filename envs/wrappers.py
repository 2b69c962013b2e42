"""Wrappers for those who want something other than a Dict."""

from __future__ import annotations

from typing import Any, SupportsFloat

import gymnasium as gym

from pkb_gym.envs.source_text import SourceText
from pkb_gym.envs.spaces import MAX_TEXT_CHARS, Observation
from pkb_gym.envs.text.reply import take_source
from pkb_gym.envs.text.turn import left_text, turn_text
from pkb_gym.problems.catalogue import reference_source


class ChatObservation(gym.ObservationWrapper[str, str, Observation], gym.utils.RecordConstructorArgs):
    """Turns the Dict into the next message to a chat model.

    The first message of an episode is the task; each later one is the feedback on the submission just made, headed by
    its turn and closed by where the best submission so far stands and by the turns that are left, where they are
    limited. The conversation itself keeps the rest.

    Example:
        >>> import gymnasium as gym
        >>> import pkb_gym
        >>> env = ChatObservation(gym.make("PKB/AllReduce-v0"))
        >>> message, _ = env.reset(seed=0)
        >>> message.splitlines()[0]
        '# AllReduce'
    """

    def __init__(self, env: gym.Env[Observation, str]) -> None:
        gym.utils.RecordConstructorArgs.__init__(self)
        gym.ObservationWrapper.__init__(self, env)
        self.observation_space = SourceText(MAX_TEXT_CHARS)

    def observation(self, observation: Observation) -> str:
        """The next message to a chat model."""
        return chat_message(observation)


class ChatAction(gym.Wrapper[Any, str, Any, str], gym.utils.RecordConstructorArgs):
    r"""Takes the source out of a chat model's reply, see `take_source`, and submits it.

    A reply that holds no source is submitted as an empty one, which is rejected before a compiler runs; it costs a
    turn. `info["taken"]` describes in a few words what was taken, `info["source"]` is that, or None, and
    `info["reply"]` is the reply.

    Example:
        >>> import gymnasium as gym
        >>> import pkb_gym
        >>> from pkb_gym.envs import ChatObservation
        >>> env = ChatAction(ChatObservation(gym.make("PKB/AllReduce-v0", device="cpu")))
        >>> message, _ = env.reset(seed=0)
        >>> message, _, _, _, info = env.step("I do not know.")
        >>> info["taken"], str(info["feedback"].failure)
        ('nothing: no fenced block of code in the reply', 'rejected')
    """

    def __init__(self, env: gym.Env[Any, str]) -> None:
        gym.utils.RecordConstructorArgs.__init__(self)
        gym.Wrapper.__init__(self, env)
        self.action_space = SourceText(MAX_TEXT_CHARS)

    def step(self, action: str) -> tuple[Any, SupportsFloat, bool, bool, dict[str, Any]]:
        """Submits what the reply holds.

        Args:
            action: Whole reply of the model.

        Raises:
            InvalidAction: The action is not a string.
        """
        if not isinstance(action, str):
            raise gym.error.InvalidAction(f"an action is a model's reply (str), got {type(action).__name__}")
        found = take_source(action, reference=reference_source(self.get_wrapper_attr("problem")))
        observation, reward, terminated, truncated, info = self.env.step(found.source or "")
        taken = {"taken": found.taken, "source": found.source, "reply": action}
        return observation, reward, terminated, truncated, {**info, **taken}


def chat_message(observation: Observation) -> str:
    """The next message to a chat model, see `ChatObservation`."""
    entries: dict[str, Any] = dict(observation)
    turn = int(entries["turn"][0])
    if turn == 0:
        return str(entries["task"])
    best_value, best_speedup = float(entries["best_value"][0]), float(entries["best_speedup"][0])
    text = turn_text(turn, str(entries["feedback"]), int(entries["best_turn"][0]), best_value, best_speedup)
    return f"{text}\n{left_text(int(entries['turns_left'][0]))}" if entries["is_limited"] else text
