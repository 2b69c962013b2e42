"""JSON with one record a line."""

from __future__ import annotations

import json
import math

import pytest

from pkb_gym.engine.support.row_json import row_json

CONTENT = {
    "commit": "6e15948f",
    "sizes": ["tiny", "published"],
    "empty": [],
    "about": {"machine": "m" * 80, "command": "c" * 80},
    "groups": [{"problem": "Gather", "parts": [{"rank": 0}, {"rank": 1}]}, {"problem": "Reduce", "parts": []}],
    "nothing": None,
}


def test_it_reads_back_as_the_same_content() -> None:
    assert json.loads(row_json(CONTENT)) == CONTENT


def test_a_record_has_one_line_and_a_long_object_several() -> None:
    lines = row_json(CONTENT).splitlines()
    assert '  {"problem": "Gather", "parts": [{"rank": 0}, {"rank": 1}]},' in lines
    assert ' "sizes": ["tiny", "published"],' in lines and ' "empty": [],' in lines
    assert f'  "command": "{"c" * 80}"' in lines and len(lines) == 14


@pytest.mark.parametrize("content", [{"us": math.nan}, {"rows": [{"us": math.inf}]}])
def test_numbers_are_finite(content: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        row_json(content)
