"""The secret that fixes the inputs of an evaluation, and the nonce of one attempt behind it."""

from __future__ import annotations

import secrets

KEY_BYTES, NONCE_BYTES = 16, 8


def new_nonce() -> str:
    """The nonce of an attempt, as hexadecimal digits."""
    return secrets.token_hex(NONCE_BYTES)


def split(replay_key: bytes) -> tuple[bytes, str]:
    """The key and the nonce of a replay key; no nonce where it has not the length of both."""
    if len(replay_key) != KEY_BYTES + NONCE_BYTES:
        return replay_key, ""
    return replay_key[:KEY_BYTES], replay_key[KEY_BYTES:].hex()
