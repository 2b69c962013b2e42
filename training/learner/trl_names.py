"""The private names of TRL that our trainer overrides or uses, and the check that they still exist.

An override of a method that was renamed is dead in silence: without `_generate_and_score_completions`, turns would get
TRL's one advantage for a whole rollout.
"""

from __future__ import annotations

import inspect
from importlib.metadata import version

from trl import GRPOTrainer

from pkb_gym.engine.errors import ConfigError

OVERRIDDEN: dict[str, tuple[str, ...]] = {"_generate_and_score_completions": ("inputs",)}
"""Method -> its parameters after `self`."""

CALLED: dict[str, tuple[str, ...]] = {
    "_generate_single_turn": ("prompt_ids", "images", "multimodal_fields", "num_generations"),
    "_get_per_token_logps_and_entropies": ("model", "input_ids", "attention_mask", "logits_to_keep", "batch_size"),
}
"""Method that is called and not overridden -> its parameters after `self`."""

ATTRIBUTES = ("_buffered_inputs", "_dist", "_logs", "_metrics", "_step")
"""Attributes of an instance that are read or written."""


def check_methods(trainer: type = GRPOTrainer) -> None:
    """Looks for the methods; called before a trainer is made.

    Args:
        trainer: TRL's class.

    Raises:
        ConfigError: TRL has one no longer, or has given it other parameters.
    """
    for name, expected in {**OVERRIDDEN, **CALLED}.items():
        method = inspect.getattr_static(trainer, name, None)
        if not inspect.isfunction(method):
            raise ConfigError(
                f"{_installed()} has no GRPOTrainer.{name} any more, which this trainer relies on; {REMEDY}"
            )
        found = tuple(inspect.signature(method).parameters)[1:]
        if expected and found[: len(expected)] != expected:
            takes = f"GRPOTrainer.{name} takes ({', '.join(found)}), expected ({', '.join(expected)})"
            raise ConfigError(f"{_installed()}: {takes}; {REMEDY}")


def check_attributes(trainer: GRPOTrainer) -> None:
    """Looks for the attributes; called once a trainer was made.

    Raises:
        ConfigError: TRL sets one no longer.
    """
    if missing := [name for name in ATTRIBUTES if not hasattr(trainer, name)]:
        raise ConfigError(f"{_installed()} sets no GRPOTrainer.{', '.join(missing)} any more; {REMEDY}")


REMEDY = "install trl 1.16"


def _installed() -> str:
    return f"trl {version('trl')}"
