"""The clients of a service: names, tokens and quotas."""

from __future__ import annotations

import hmac
import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from pydantic import Field, ValidationError

from pkb_gym.engine.errors import ConfigError
from pkb_gym.engine.evaluators.queue.quotas import Quota
from pkb_gym.engine.records.base import Record
from pkb_gym.serve.token import check_token

HIDDEN = "[token]"
"""Text in place of a token, in every text that leaves the service."""

NAME = r"[A-Za-z0-9_.-]{1,64}"
OPEN_TO_OTHERS = 0o077


@dataclass(frozen=True)
class Client(Quota):
    """A sender of requests, known by its token; the name stands in metrics, logs and the journal.

    Attributes:
        may_pause: Whether it may pause and resume the service, which all clients notice.
    """

    may_pause: bool = True


SOLE = Client("default")
"""The client of a service that has one token."""


class _Entry(Record):
    """A table of the file of clients."""

    token: str = Field(repr=False)
    max_queued: int | None = Field(default=None, ge=1)
    max_running: int | None = Field(default=None, ge=1)
    may_pause: bool = False


@dataclass(frozen=True)
class Clients:
    """All clients of a service. Tokens are in no representation of it.

    Args:
        tokens: Each client with its token.
    """

    tokens: tuple[tuple[Client, str], ...] = field(repr=False)

    @classmethod
    def sole(cls, token: str) -> Self:
        """One client without quotas."""
        return cls(((SOLE, token),))

    @classmethod
    def read(cls, path: Path) -> Self:
        """The clients of a TOML file: a table for each, by name, with `token` and the optional fields of `Client`.

        Raises:
            ConfigError: the file cannot be read, other users can read it, or a table is not understood. The message
                holds no token.
        """
        try:
            if path.stat().st_mode & OPEN_TO_OTHERS:
                raise ConfigError(f"{path} holds tokens and other users have access to it: chmod 600 {path}")
            content = tomllib.loads(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise ConfigError(f"cannot read the clients in {path}: {error.strerror}") from None
        except (tomllib.TOMLDecodeError, UnicodeDecodeError):
            # Not the parser's own words, which may quote a token.
            raise ConfigError(f"{path} is no TOML; expected a table [NAME] with a token for each client") from None
        if not content:
            raise ConfigError(f"{path} names no client; expected a table [NAME] with a token for each")
        found = tuple(_client(name, entry, path) for name, entry in content.items())
        if len({token for _, token in found}) < len(found):
            raise ConfigError(f"{path}: two clients have the same token; each needs one of its own")
        return cls(found)

    def __iter__(self) -> Iterator[Client]:
        return iter([client for client, _ in self.tokens])

    def authorized(self, header: bytes) -> Client | None:
        """The client of an Authorization header; None where its token is unknown.

        Every token is compared in constant time, so that the time does not reveal which one is near.
        """
        found = None
        for client, token in self.tokens:
            if hmac.compare_digest(header, f"Bearer {token}".encode()):
                found = client
        return found

    def hide_tokens(self, text: str) -> str:
        """A text in which `HIDDEN` stands for every token."""
        for _, token in self.tokens:
            text = text.replace(token, HIDDEN)
        return text


def _client(name: str, entry: object, path: Path) -> tuple[Client, str]:
    if not re.fullmatch(NAME, name):
        raise ConfigError(f"{path}: a client's name has 1 to 64 letters, digits, '_', '.' and '-'")
    if not isinstance(entry, dict):
        raise ConfigError(f"{path}: expected a table [NAME] with a token for each client, found a value without one")
    try:
        read = _Entry.model_validate(entry, strict=True)
    except ValidationError as error:
        wrong = "; ".join(f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors())
        raise ConfigError(f"{path}, client {name}: {wrong}") from None
    token = check_token(read.token, f"{path}, client {name}")
    return Client(name, read.max_queued, read.max_running, read.may_pause), token
