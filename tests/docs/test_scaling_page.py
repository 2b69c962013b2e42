"""docs/scaling.md names every setting of a pool."""

from __future__ import annotations

import re

from pkb_gym.cluster.settings import PoolSettings
from tests.docs.pages import DOCS

PAGE = (DOCS / "scaling.md").read_text(encoding="utf-8")


def test_every_setting_is_explained():
    section = PAGE.partition("## Settings")[2].partition("\n## ")[0]
    named = [
        name for row in re.findall(r"^\| (`.+?) \|", section, re.MULTILINE) for name in re.findall(r"`(\w+)`", row)
    ]
    assert sorted(named) == sorted(PoolSettings.model_fields)
