"""The programs of docs/frameworks.md, as the tests of the doors run them."""

from __future__ import annotations

from tests.docs.pages import DOCS, code_blocks
from tests.doors import contract

SERVICE = "http://127.0.0.1:8900"


def example(door: str, **replaced: str) -> str:
    """The program of a door, with the service of the contract in the place of the page's.

    Args:
        door: Name of the door.
        **replaced: Replacements by name; the page's text is `PLACES[name]`.
    """
    text = code_blocks(DOCS / "frameworks.md", "door")[door]
    changes = {SERVICE: contract.url(), **{PLACES[name]: new for name, new in replaced.items()}}
    for old, new in changes.items():
        assert old in text or old == SERVICE, f"the page has no {old!r} any more"
        text = text.replace(old, new)
    return text


PLACES = {
    "model": "Qwen/Qwen3-0.6B",
    "output": "runs/doors",
    "server": "http://127.0.0.1:8000",
    "endpoint": "http://127.0.0.1:8000/v1",
}
"""What tests replace on the page."""
