"""Text that models hand in in place of code."""

from __future__ import annotations

from typing import Literal

import pytest

from pkb_gym.engine.records.source import Source
from pkb_gym.engine.records.source_wrapping import wrapping_note


@pytest.mark.parametrize(
    ("source", "note"),
    [
        ("--- a/solution.cpp\n+++ b/solution.cpp\n@@ -1,2 +1,3 @@\n+int solution;", "is a diff"),
        ("diff --git a/x b/x\n+int solution;", "is a diff"),
        ('{"source": "int solution;"}', "is JSON"),
        ('"int solution;\\n"', "is JSON"),
        (r"#include <a>\nint a;\nint b;\nint c;\nvoid solution();", "line breaks are escaped"),
        ('#include <a>\nvoid solution() { printf("a\\nb"); }', ""),
        ("{1, 2}[0]; // solution", ""),
    ],
)
def test_what_stands_in_place_of_code_is_named(source: str, note: str) -> None:
    found = wrapping_note(source)
    assert note in found and bool(found) is bool(note)


@pytest.mark.parametrize(
    ("text", "note"),
    [
        ("@@ -3 +3 @@\n-int a;\n+int b;\n", " (the source is a diff: hand in the complete file)"),
        ('{"code": "int a;"}', " (the source is JSON: hand in the code that it holds, as it is)"),
        ("```cpp\nint a;\n```", " (the source holds lines of Markdown, ```: hand in the code between them alone)"),
        ("int main() {}", ""),
    ],
)
@pytest.mark.parametrize("language", ["cpp", "python"])
def test_what_is_rejected_without_solution_is_named_as_well(text: str, note: str, language: Literal["cpp", "python"]):
    """A hunk of a diff seldom holds the function's name, and the model was told to export one."""
    defect = Source.parse(text, "cpu", language).defect
    assert defect is not None and "never mentions `solution`" in defect
    assert defect.endswith(note or ("solution)" if language == "cpp" else "signature"))
