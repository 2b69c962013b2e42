"""A rollout loop of your own: a chat model's replies in, feedback and rewards out, every attempt kept in a file."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

import gymnasium as gym

from pkb_gym.engine.evaluators.evaluator import Evaluator
from pkb_gym.engine.records.attempt import Attempt, ChatMessage
from pkb_gym.engine.records.attempt_file import AttemptFile
from pkb_gym.engine.records.config import EvalConfig
from pkb_gym.envs import ChatAction, ChatObservation
from pkb_gym.problems.catalogue import expert_source, find_problem

Model = Callable[[list[ChatMessage]], str]
"""Reads a conversation and writes the next message."""


def example_model(messages: list[ChatMessage]) -> str:
    """Stands for a model: it forgets the code first, and then knows the answer."""
    if len(messages) == 1:
        return "I would split the tensor among the ranks."
    return f"<think>The code!</think>Here it is:\n```cpp\n{expert_source(find_problem('AllReduce'))}```"


def play(model: Model, output: Path, *, turns: int = 2, evaluator: str | Evaluator = "local") -> list[float]:
    """Plays one episode on AllReduce; returns the reward of each turn."""
    base = gym.make("PKB/AllReduce-v0", device="cpu", world_size=2, evaluator=evaluator, max_episode_steps=turns)
    env = ChatAction(ChatObservation(base))
    message, _ = env.reset(seed=0)
    messages, is_over = [ChatMessage(role="user", content=message)], False
    rewards: list[float] = []
    with AttemptFile(output, writer="rollout_loop.py", option="the first argument") as file:
        while not is_over:
            reply = model(messages)
            message, reward, terminated, truncated, info = env.step(reply)
            is_over = terminated or truncated
            file.append(
                Attempt(
                    problem="AllReduce",
                    turn=len(rewards),
                    requested=EvalConfig(device="cpu", world_size=2),
                    source=info["source"],
                    reply=reply,
                    messages=tuple(messages),
                    feedback=info["feedback"],
                    reward=info.get("value"),  # of the submission; the reward of the turn is what it adds to the best
                )
            )
            rewards.append(float(reward))
            messages += [ChatMessage(role="assistant", content=reply), ChatMessage(role="user", content=message)]
    env.close()
    return rewards


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", nargs="?", type=Path, default=Path("attempts.jsonl"), help="of the attempts")
    print(play(example_model, parser.parse_args().file))
