"""The private names of TRL and transformers that our trainer overrides or uses, and the check that they still exist.

An override of a method that was renamed is dead in silence: without `_generate_and_score_completions`, turns would get
TRL's one advantage for a whole rollout.
"""

from __future__ import annotations

import inspect
from importlib.metadata import version

from trl import GRPOTrainer

from pkb_gym.engine.errors import ConfigError

OVERRIDDEN: dict[str, tuple[str, ...]] = {
    "_calculate_rewards": ("inputs", "prompts", "completions", "completion_ids_list"),
    "_generate_and_score_completions": ("inputs",),
    "_generate_single_turn": (
        "prompt_ids",
        "images",
        "multimodal_fields",
        "num_generations",
        "has_tool_images",
    ),
    "_get_per_token_logps_and_entropies": (),
    "_get_train_sampler": (),
    "_load_rng_state": ("checkpoint",),
    "_save_rng_state": ("output_dir",),
    "_tool_call_loop": (
        "prompts",
        "prompt_ids",
        "completion_ids",
        "completions",
        "logprobs",
        "images",
        "multimodal_fields",
    ),
}
"""Method -> its parameters after `self`; none where our override passes on whatever it is given."""

CALLED: dict[str, tuple[str, ...]] = {"_get_tool_suffix_ids": ("tool_messages",)}
"""Method that is called and not overridden -> its parameters after `self`."""

ATTRIBUTES = ("_buffered_inputs", "_dist", "_logs", "_metrics", "_step", "_tokenizer")
"""Attributes of an instance that are read or written."""

SET_BY_ROLLOUTS = ("_async_tool_dicts", "_sync_tool_dicts")
"""Attributes that TRL sets as rollouts begin, not before; reading one that is gone raises AttributeError."""


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
