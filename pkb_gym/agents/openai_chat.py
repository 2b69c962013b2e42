"""A model behind any OpenAI-compatible endpoint: OpenAI's own, vLLM, SGLang, llama.cpp, `transformers serve`, routers.

OPENAI_BASE_URL names the endpoint, OPENAI_API_KEY its key. Rate limits and failed connections are tried again by the
client, with the waits that the server asks for; so are streams that break off.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from pydantic import Field

from pkb_gym.agents.chat_format import chat_messages
from pkb_gym.agents.options import parse_options
from pkb_gym.agents.protocol import SUBMIT, Agent, AgentError, AgentProvider, AgentTask, Message, Reply, Setting
from pkb_gym.agents.submissions import as_text, source_of_arguments
from pkb_gym.engine.errors import ConfigError
from pkb_gym.engine.records.attempt import TokenCounts
from pkb_gym.engine.records.base import Record
from pkb_gym.engine.support import env_vars
from pkb_gym.engine.support.printable import printable
from pkb_gym.envs.text.reply import split_thoughts

if TYPE_CHECKING:
    from openai import OpenAI

NEEDED = "agent openai needs the package `openai`: pip install 'pkb-gym[agents]'"

REASONING_FIELDS = ("reasoning_content", "reasoning")
"""Fields in which servers put reasoning that they keep apart from the content."""

TOOL = {
    "type": "function",
    "function": {
        "name": SUBMIT,
        "description": (
            "Compile a kernel, run it on all ranks, check it against the reference and time it against the baseline."
        ),
        "parameters": {
            "type": "object",
            "properties": {
                "source": {
                    "type": "string",
                    "description": (
                        "The complete source file of the kernel, in one of the languages that the task accepts."
                    ),
                }
            },
            "required": ["source"],
        },
    },
}
"""The tool as models know it that were trained with `KernelTool`."""

TOO_LONG = ("context_length_exceeded", "maximum context length", "context length exceeded")
"""Parts of the errors of servers for a conversation that has become too long for the model."""

MAX_ERROR_CHARS = 500

BROKEN_OFF = "the endpoint broke off each of its replies; --set stream=false asks for them in one piece"


class ChatOptions(Record):
    """Options of the agent."""

    temperature: float | None = Field(default=None, ge=0)
    """Temperature of the sampling; the server's default where it is not given."""
    top_p: float | None = Field(default=None, gt=0, le=1)
    """Share of probability to choose from."""
    max_tokens: int | None = Field(default=None, ge=1)
    """Longest reply in tokens, reasoning included; the server's default where it is not given."""
    max_tokens_name: str = "max_tokens"
    """The request's field for it: OpenAI's own reasoning models take `max_completion_tokens`."""
    reasoning_effort: str | None = None
    """Effort of reasoning models: low, medium, high."""
    tools: bool = False
    """Whether the model is given the tool `submit`; fenced code is understood either way."""
    seeded: bool = False
    """Whether requests carry a seed, which follows from that of the run."""
    stream: bool = True
    """Whether replies are streamed, so that long ones do not run into a deadline between two bytes."""
    retries: int = Field(default=10, ge=0)
    """Further tries of a request after a rate limit, a server's error or a lost connection."""
    timeout_s: float = Field(default=600.0, gt=0)
    """Deadline of the connection, and of each wait for more of the reply."""
    prompt_price: float | None = Field(default=None, ge=0)
    """Dollars for a million tokens that are read."""
    completion_price: float | None = Field(default=None, ge=0)
    """Dollars for a million tokens that are written."""


def open_provider(argument: str, options: Mapping[str, str]) -> AgentProvider:
    """The provider of agents by a chat endpoint, for `registry.open_agent`.

    Raises:
        ConfigError: The package is missing, or neither an endpoint nor a key is named.
    """
    chosen = parse_options("openai", ChatOptions, options)
    try:
        import openai
    except ImportError:
        raise ConfigError(NEEDED) from None
    base_url, key = env_vars.openai_base_url(), env_vars.openai_api_key()
    if base_url is None and key is None:
        raise ConfigError("agent openai: set OPENAI_API_KEY, or OPENAI_BASE_URL for a server that asks for no key")
    client = openai.OpenAI(
        base_url=base_url, api_key=key or "none", max_retries=chosen.retries, timeout=chosen.timeout_s
    )
    return ChatProvider(argument.strip(), chosen, client)


@dataclass(frozen=True)
class ChatProvider:
    """Agents of one model.

    Attributes:
        model: Name of the model at the endpoint.
        options: Options of the requests.
        client: Client of the endpoint.
    """

    model: str
    options: ChatOptions
    client: OpenAI

    @property
    def settings(self) -> Mapping[str, Setting]:
        """Model, options, and host and path of the endpoint, without credentials."""
        url = urlsplit(str(self.client.base_url))
        port = "" if url.port is None else f":{url.port}"
        waits = {"retries", "timeout_s", "stream"}
        return {
            "model": self.model,
            "endpoint": f"{url.hostname}{port}{url.path.rstrip('/')}",
            **self.options.model_dump(exclude=waits),
        }

    def begin(self, task: AgentTask) -> Agent:
        """The agent of one episode."""
        return ChatAgent(self, task.seed)

    def close(self) -> None:
        """Closes the connections, also those that are waited on."""
        self.client.close()


@dataclass(frozen=True)
class ChatAgent:
    """One conversation with the model.

    Attributes:
        provider: Provider with model, options and client.
        seed: Seed of the episode.
    """

    provider: ChatProvider
    seed: int

    def act(self, messages: Sequence[Message]) -> Reply | None:
        """Asks the model; None where the conversation has become too long for it."""
        import openai

        options = self.provider.options
        request = self._request(messages)
        for left in reversed(range(1 + options.retries)):
            try:
                answer = self._streamed(request) if options.stream else self._whole(request)
            except openai.BadRequestError as error:
                if any(mark in f"{error.code} {error.message}".lower() for mark in TOO_LONG):
                    return None
                raise ConfigError(f"the endpoint refuses the request: {_error_text(error)}") from None
            except (openai.AuthenticationError, openai.PermissionDeniedError, openai.NotFoundError) as error:
                raise ConfigError(f"the endpoint refuses model {self.provider.model!r}: {_error_text(error)}") from None
            except _StreamInterrupted:  # within a reply, where the client does not try again by itself
                if left == 0:
                    raise AgentError(BROKEN_OFF) from None
            except (openai.OpenAIError, ValueError) as error:  # ValueError: an answer that is no JSON
                raise AgentError(f"the endpoint failed: {_error_text(error)}") from None
            else:
                return answer.reply(options)
        raise AssertionError("the last try raises or returns")

    def _request(self, messages: Sequence[Message]) -> dict[str, Any]:
        options = self.provider.options
        requested = {
            "temperature": options.temperature,
            "top_p": options.top_p,
            options.max_tokens_name: options.max_tokens,
            "reasoning_effort": options.reasoning_effort,
            # A turn has a seed of its own: the same one would repeat the same draws.
            "seed": (self.seed + len(messages)) % 2**31 if options.seeded else None,
            "tools": [TOOL] if options.tools else None,
        }
        return {
            "model": self.provider.model,
            "messages": chat_messages(messages, with_tools=options.tools),
            **{name: value for name, value in requested.items() if value is not None},
        }

    def _whole(self, request: Mapping[str, Any]) -> _Answer:
        found = self.provider.client.chat.completions.create(**request)
        answer = _Answer(usage=_usage(getattr(found, "usage", None)))
        choices = getattr(found, "choices", None)
        if not choices:
            raise AgentError("the endpoint answered without any choice")
        answer.add(choices[0].message)
        return answer

    def _streamed(self, request: Mapping[str, Any]) -> _Answer:
        import openai

        answer = _Answer()
        stream = self.provider.client.chat.completions.create(
            **request, stream=True, stream_options={"include_usage": True}
        )
        ended = False
        with stream:
            try:
                for chunk in stream:
                    answer.usage = _usage(getattr(chunk, "usage", None)) or answer.usage
                    for choice in getattr(chunk, "choices", None) or ():
                        answer.add(choice.delta)
                        ended = ended or choice.finish_reason is not None
            except openai.APIConnectionError as error:
                raise _StreamInterrupted from error
        if not ended:
            raise _StreamInterrupted
        return answer


class _StreamInterrupted(Exception):
    """Raised when a stream ends before its reply does."""


@dataclass
class _Call:
    """A call of a tool, as its pieces come."""

    name: str = ""
    arguments: str = ""


@dataclass(frozen=True)
class _Usage:
    """The tokens and the cost of a reply."""

    tokens: TokenCounts
    cost_usd: float | None


@dataclass
class _Answer:
    """The model's message, assembled from its pieces as they come."""

    content: list[str] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)
    calls: dict[int, _Call] = field(default_factory=dict)
    usage: _Usage | None = None

    def add(self, part: Any) -> None:  # noqa: ANN401  # a message or a delta, with fields that servers add
        """Adds a piece, or all of it."""
        if part is None:
            return
        self.content += [text for text in (getattr(part, "content", None),) if isinstance(text, str)]
        for name in REASONING_FIELDS:
            text = getattr(part, name, None)
            if isinstance(text, str) and text:
                self.reasoning.append(text)
                break  # some servers fill both with the same
        for place, call in enumerate(_listed(getattr(part, "tool_calls", None))):
            # Pieces of a stream name their call; those of a whole message come in order.
            index = getattr(call, "index", None)
            gathered = self.calls.setdefault(place if index is None else index, _Call())
            gathered.name += getattr(call.function, "name", None) or ""
            gathered.arguments += getattr(call.function, "arguments", None) or ""

    def reply(self, options: ChatOptions) -> Reply:
        """The complete reply; of several submissions the last counts, as models correct themselves."""
        split = split_thoughts("".join(self.content))
        reasoning = "".join(self.reasoning) or split.thoughts
        content, submission = split.answer, None
        for _, call in sorted(self.calls.items()):
            source = source_of_arguments(call.arguments) if call.name == SUBMIT else None
            if source is None:
                content += as_text(call.name, call.arguments)
            else:
                submission = source
        tokens = None if self.usage is None else self.usage.tokens
        return Reply(content, reasoning, submission, tokens, self._cost_usd(options))

    def _cost_usd(self, options: ChatOptions) -> float | None:
        """The cost by the prices given, else as the endpoint reports it, which routers do."""
        if self.usage is None:
            return None
        if options.prompt_price is None or options.completion_price is None:
            return self.usage.cost_usd
        tokens = self.usage.tokens
        return (tokens.prompt * options.prompt_price + tokens.completion * options.completion_price) / 1e6


def _usage(usage: Any) -> _Usage | None:  # noqa: ANN401  # as the server sends it
    if usage is None:
        return None
    reasoning = getattr(getattr(usage, "completion_tokens_details", None), "reasoning_tokens", None)
    tokens = TokenCounts(
        prompt=getattr(usage, "prompt_tokens", None) or 0,
        completion=getattr(usage, "completion_tokens", None) or 0,
        reasoning=reasoning or 0,
    )
    cost = getattr(usage, "cost", None)
    return _Usage(tokens, float(cost) if isinstance(cost, int | float) and cost >= 0 else None)


def _listed(calls: object) -> Iterable[Any]:
    return calls if isinstance(calls, list) else ()


def _error_text(error: Exception) -> str:
    """The endpoint's error message, in one line and without effect on a terminal."""
    return printable(" ".join(str(error).split()), MAX_ERROR_CHARS)
