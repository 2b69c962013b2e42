"""The token of a service: a file that its user alone can read."""

from __future__ import annotations

import secrets
from pathlib import Path

from pkb_gym.engine.errors import ConfigError
from pkb_gym.engine.support.atomic_write import FOR_OWNER, write_atomically

MIN_CHARS = 16


def read_or_make_token(path: Path) -> str:
    """The token in a file; where there is no file, a random one is written there, for this user alone.

    Raises:
        ConfigError: The file cannot be read or written, or holds no token.
    """
    try:
        if not path.exists():
            write_atomically(path, secrets.token_urlsafe(32) + "\n", FOR_OWNER)
        token = path.read_text(encoding="ascii").strip()
    except UnicodeDecodeError:  # its words quote what was read
        token = ""
    except OSError as error:
        raise ConfigError(f"token file {path}: {error.strerror}; name another, or set PKB_CACHE_DIR") from None
    return check_token(token, f"token file {path}")


def check_token(token: str, place: str) -> str:
    """The token, if it is one.

    Args:
        token: Token to check.
        place: Place of the token, for the error.

    Raises:
        ConfigError: It is too short, or cannot be sent in a header. The message does not hold it.
    """
    if len(token) < MIN_CHARS or not token.isascii() or not token.isprintable() or " " in token:
        raise ConfigError(f"{place}: expected one word of at least {MIN_CHARS} ASCII characters")
    return token
