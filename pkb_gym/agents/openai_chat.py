"""A model behind any OpenAI-compatible endpoint: OpenAI's own, vLLM, SGLang, llama.cpp, `transformers serve`, routers.

OPENAI_BASE_URL names the endpoint, OPENAI_API_KEY its key. Rate limits and failed connections are tried again by the
client, with the waits that the server asks for; streams that break off and replies that end in an error are tried again
here. A request that the server refuses ends its own episode.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from pydantic import Field

from pkb_gym.agents.chat_answer import ChatAnswer, ReplyFailed
from pkb_gym.agents.chat_errors import RETRIED, error_of, in_one_line
from pkb_gym.agents.chat_format import chat_messages
from pkb_gym.agents.chat_stream import DONE, event_data
from pkb_gym.agents.options import parse_options
from pkb_gym.agents.protocol import SUBMIT, Agent, AgentError, AgentProvider, AgentTask, Message, Reply, Setting
from pkb_gym.engine.errors import ConfigError
from pkb_gym.engine.records.base import Record
from pkb_gym.engine.support import env_vars

if TYPE_CHECKING:
    from openai import OpenAI

NEEDED = "agent openai needs the package `openai`: pip install 'pkb-gym[agents]'"

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

OPENAI_URL = "https://api.openai.com/v1"

BROKEN_OFF = "the reply broke off; --set stream=false asks for replies in one piece"

MAX_TRIES_UNREACHED = 2
"""Further tries while the endpoint has not answered at all: it is likely not there."""
PAUSE_S, MAX_PAUSE_S = 0.5, 8.0
"""Waiting time before a reply is asked for again, doubled from time to time."""


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
        ConfigError: The package is missing, neither an endpoint nor a key is named, or the endpoint is no URL.
    """
    chosen = parse_options("openai", ChatOptions, options)
    try:
        import openai
    except ImportError:
        raise ConfigError(NEEDED) from None
    base_url, key = env_vars.openai_base_url(), env_vars.openai_api_key()
    if base_url is None and key is None:
        raise ConfigError(
            "agent openai: set OPENAI_API_KEY, or OPENAI_BASE_URL for a server that asks for no key; both are empty"
        )
    if base_url is not None and urlsplit(base_url).scheme not in ("http", "https"):
        raise ConfigError(f"OPENAI_BASE_URL is {base_url!r}; expected a URL such as http://localhost:8000/v1")
    if key is not None and not (key.isascii() and key.isprintable()):
        raise ConfigError("OPENAI_API_KEY holds a character that no key has, such as a line break")
    client = openai.OpenAI(
        base_url=base_url or OPENAI_URL, api_key=key or "none", max_retries=chosen.retries, timeout=chosen.timeout_s
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
    _was_reached: threading.Event = field(default_factory=threading.Event)
    _is_closed: threading.Event = field(default_factory=threading.Event)

    @property
    def url(self) -> str:
        """Url of the endpoint, without credentials."""
        url = urlsplit(str(self.client.base_url))
        port = "" if url.port is None else f":{url.port}"
        return f"{url.scheme}://{url.hostname}{port}{url.path.rstrip('/')}"

    @property
    def settings(self) -> Mapping[str, Setting]:
        """Model, options, and host and path of the endpoint, without credentials."""
        waits = {"retries", "timeout_s", "stream"}
        endpoint = self.url.partition("://")[2]
        return {"model": self.model, "endpoint": endpoint, **self.options.model_dump(exclude=waits)}

    def begin(self, task: AgentTask) -> Agent:
        """The agent of one episode."""
        return ChatAgent(self, task.seed)

    def close(self) -> None:
        """Closes the connections, also those that are waited on."""
        self._is_closed.set()
        self.client.close()

    def ask(self, request: Mapping[str, Any]) -> Reply:
        """The reply to a request, asked for again while it fails.

        Raises:
            RequestRefused: The endpoint refuses the request.
            AgentError: It failed each time.
            ConfigError: The key is wrong, or there is no such model or endpoint.
        """
        import openai

        cause = ""
        for number in range(1 + self.options.retries):
            if number and self._is_closed.wait(min(PAUSE_S * 2 ** (number - 1), MAX_PAUSE_S)):
                break
            was_reached = self._was_reached.is_set()
            try:
                answer = self._streamed(request) if self.options.stream else self._whole(request)
            except ReplyFailed as failed:
                cause = str(failed)
            except openai.APIStatusError as error:
                self._was_reached.set()
                if was_reached or not (error.status_code in RETRIED or error.status_code >= 500):
                    raise error_of(error, self.url, self.model) from None
                cause = str(error_of(error, self.url, self.model))
            except openai.OpenAIError as error:
                raise error_of(error, self.url, self.model) from None
            else:
                return self._priced(answer.reply())
        raise AgentError(f"each reply of the endpoint {self.url} failed, the last one so: {in_one_line(cause)}")

    @property
    def _client(self) -> OpenAI:
        """The client, which gives up sooner while nothing has answered."""
        if self._was_reached.is_set():
            return self.client
        return self.client.with_options(max_retries=min(self.options.retries, MAX_TRIES_UNREACHED))

    def _whole(self, request: Mapping[str, Any]) -> ChatAnswer:
        found = self._client.chat.completions.with_raw_response.create(**request)
        self._was_reached.set()
        return _whole_answer(found.text)

    def _streamed(self, request: Mapping[str, Any]) -> ChatAnswer:
        create = self._client.chat.completions.with_streaming_response.create
        with create(**request, stream=True, stream_options={"include_usage": True}) as response:
            self._was_reached.set()
            if "json" in response.headers.get("content-type", ""):  # of servers that do not stream, and of errors
                return _whole_answer(b"".join(_received(response.iter_bytes())).decode(errors="replace"))
            answer, is_done = ChatAnswer(), False
            for data in event_data(_received(response.iter_bytes())):
                if data.strip() == DONE:
                    is_done = True
                    break
                answer.read(data)
        if answer.is_empty:
            raise ReplyFailed("a stream without any reply")
        if not is_done and answer.finish_reason is None:
            raise ReplyFailed(BROKEN_OFF)
        return answer

    def _priced(self, reply: Reply) -> Reply:
        """The reply with its cost by the prices given, else as the endpoint reports it."""
        tokens, options = reply.tokens, self.options
        if tokens is None or options.prompt_price is None or options.completion_price is None:
            return reply
        cost_usd = (tokens.prompt * options.prompt_price + tokens.completion * options.completion_price) / 1e6
        return replace(reply, cost_usd=cost_usd)


@dataclass(frozen=True)
class ChatAgent:
    """One conversation with the model.

    Attributes:
        provider: Provider with model, options and client.
        seed: Seed of the episode.
    """

    provider: ChatProvider
    seed: int

    def act(self, messages: Sequence[Message]) -> Reply:
        """Asks the model."""
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
        return self.provider.ask(
            {
                "model": self.provider.model,
                "messages": chat_messages(messages, with_tools=options.tools),
                **{name: value for name, value in requested.items() if value is not None},
            }
        )


def _whole_answer(text: str) -> ChatAnswer:
    answer = ChatAnswer()
    answer.read(text)
    if answer.is_empty:
        raise ReplyFailed(f"an answer without any choice: {text.strip()}")
    return answer


def _received(pieces: Iterator[bytes]) -> Iterator[bytes]:
    """The bytes of a response.

    Raises:
        ReplyFailed: The connection is lost.
    """
    try:
        yield from pieces
    except Exception as error:  # of the HTTP library that the client uses
        raise ReplyFailed(f"{BROKEN_OFF} ({str(error) or type(error).__name__})") from error
