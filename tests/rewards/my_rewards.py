"""Rewards as users write them, right and wrong."""

from __future__ import annotations

import torch


def squared_speedup(feedback):
    return None if feedback.failure == "infrastructure" else (feedback.speedup or 0.0) ** 2


def nan(feedback):
    return float("nan")


def nan_when_timed(feedback):
    return 0.0 if feedback.timing is None else float("inf")


def tensor(feedback):
    return torch.tensor(1.0)


def two_arguments(feedback, turn):
    return 0.0


def nan_when_it_deadlocks(feedback):
    return float("nan") if feedback.failure == "deadlock" else 1


def fails_when_it_deadlocks(feedback):
    return {None: 1.0}[feedback.failure] if feedback.failure == "deadlock" else 1


class Doubled:
    def __call__(self, feedback):
        return 2.0 * (feedback.speedup or 0.0)


doubled = Doubled()
not_callable = 5
