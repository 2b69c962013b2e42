"""docs/architecture.md shows the rooms in the order that import-linter checks, and modules that exist."""

from __future__ import annotations

import re
import tomllib

import pytest

from tests.docs.pages import DOCS, ROOT

PAGE = (DOCS / "architecture.md").read_text(encoding="utf-8")
ENGINE = "pkb_gym/engine/"


def layers() -> dict[str, list[set[str]]]:
    """Package -> its layers, top first; each is a set of modules that may not import each other."""
    config = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    found = {}
    for contract in config["tool"]["importlinter"]["contracts"]:
        if contract["type"] == "layers":
            named = [re.findall(r"\w+", layer) for layer in contract["layers"]]
            found[contract["containers"][0]] = [set(names) for names in named]
    return found


def test_the_table_has_every_room_in_the_order_of_imports():
    rows = [re.findall(r"`([\w/]+)/`", row) for row in re.findall(r"^\| (`[^|]+/`) \|", PAGE, re.MULTILINE)]
    engine = [{room.removeprefix(ENGINE) for room in row} for row in rows if row[0].startswith(ENGINE)]
    above = [{room.removeprefix("pkb_gym/") for room in row} for row in rows if not row[0].startswith(ENGINE)]
    checked = layers()
    assert engine == [layer for layer in checked["pkb_gym.engine"] if layer != {"errors"}]
    assert [*above, {"engine"}] == checked["pkb_gym"]


@pytest.mark.parametrize("path", sorted(set(re.findall(r"\b\w+/(?:\w+/)*\w+\.py\b", PAGE))))
def test_modules_exist(path):
    assert (ROOT / path).is_file() or (ROOT / ENGINE / path).is_file()


def test_messages_are_those_of_the_wire():
    orders = "".join((ROOT / ENGINE / name).read_text() for name in ("wire/orders.py", "reference/orders.py"))
    drawn = set(re.findall(r"── (\w+)[, ]", PAGE.split("runs one block of calls:")[1].split("Orders and replies")[0]))
    messages = drawn - {"SIGSTOP", "last"}
    assert len(messages) == 9
    assert all(f"class {message}(WireMessage)" in orders for message in messages)
