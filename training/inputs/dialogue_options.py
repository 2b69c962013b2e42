"""The options of what a policy and its environment write to each other, for every recipe that samples replies."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from pkb_gym.engine.errors import ConfigError
from pkb_gym.training.inputs.chat import Submission, TemplateOptions, template_options

TEMPLATE_HELP = 'Variables of the chat template as JSON, such as {"enable_thinking": false}.'

MIN_FEEDBACK_TOKENS = 32
"""Fewer hold no verdict."""


@dataclass(frozen=True)
class DialogueOptions:
    """The options of a dialogue.

    Attributes:
        submission: Form of a submission in a reply.
        template: Variables of the chat template.
        trim_reasoning: Whether the policy reads earlier replies without their reasoning.
        max_turn_tokens: Maximum number of tokens of one reply; None for no limit but that of the episode.
        max_feedback_tokens: Maximum number of tokens of the answer to a submission; None for no limit.

    Raises:
        ConfigError: A limit is too small.
    """

    submission: Submission = "tool"
    template: TemplateOptions = field(default_factory=dict)
    trim_reasoning: bool = False
    max_turn_tokens: int | None = None
    max_feedback_tokens: int | None = None

    def __post_init__(self) -> None:
        """Checks the limits."""
        for name, least in (("max_turn_tokens", 1), ("max_feedback_tokens", MIN_FEEDBACK_TOKENS)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise ConfigError(f"{name} must be at least {least}, got {value}")


WITH_TOOLS = DialogueOptions()
"""The default."""


@dataclass(kw_only=True)
class ConversationArguments:
    """Arguments of the recipes that learn from whole conversations."""

    submission: Submission = field(
        default="tool",
        metadata={"help": "Form of submissions that is taught: calls of the tool `submit`, or fenced blocks of code."},
    )
    chat_template_kwargs: dict[str, Any] | str | None = field(default=None, metadata={"help": TEMPLATE_HELP})

    @property
    def conversation_options(self) -> DialogueOptions:
        """The options of the conversations.

        Raises:
            ConfigError: An argument is of no use.
        """
        return DialogueOptions(self.submission, template_options(self.chat_template_kwargs))


@dataclass(kw_only=True)
class DialogueArguments:
    """Arguments of the recipes that sample replies."""

    submission: Submission = field(
        default="tool",
        metadata={
            "help": "tool: replies submit by calls of the tool `submit`; code: by fenced blocks, for models that call "
            "no tools."
        },
    )
    single_turn: bool = field(
        default=False, metadata={"help": "One submission, a block of code in the reply: submission=code, max_turns=1."}
    )
    max_turns: int = field(default=4, metadata={"help": "Submissions that are judged in an episode."})
    max_turn_tokens: int | None = field(
        default=None, metadata={"help": "Longest reply in tokens, reasoning included; by default all that is left."}
    )
    max_feedback_tokens: int | None = field(
        default=None,
        metadata={"help": "Longest answer to a submission in tokens; its middle is cut, the verdict is kept."},
    )
    trim_reasoning: bool = field(default=False, metadata={"help": "Earlier replies are read without their reasoning."})

    @property
    def turns(self) -> int:
        """Maximum number of submissions in an episode."""
        return 1 if self.single_turn else self.max_turns

    def dialogue_options(self, chat_template_kwargs: object) -> DialogueOptions:
        """The options of the dialogue.

        Args:
            chat_template_kwargs: Variables of the chat template, as `template_options` takes them.

        Raises:
            ConfigError: An argument is of no use, or two contradict each other.
        """
        if self.single_turn and self.max_turns != DialogueArguments.max_turns:
            raise ConfigError("single_turn has one submission; leave out max_turns")
        if self.max_turns < 1:
            raise ConfigError(f"max_turns must be at least 1, got {self.max_turns}")
        return DialogueOptions(
            "code" if self.single_turn else self.submission,
            template_options(chat_template_kwargs),
            self.trim_reasoning,
            self.max_turn_tokens,
            self.max_feedback_tokens,
        )
