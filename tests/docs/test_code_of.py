"""Whether two sources are the same but for comments, layout and the names of identifiers."""

from __future__ import annotations

import pytest

from benchmarks.code_of import NotARenaming, code, identifiers


def test_texts_are_no_code():
    plain = "import os\nA = 1\ndef f():\n    return 2\n"
    assert code(
        '"""Of all."""\nA = 1\n"""An attribute\'s."""\ndef f():\n    """Two."""\n    return 2\n', ".py"
    ) == code(plain, ".py")
    assert code(plain, ".py") != code(plain.replace("2", "3"), ".py") != code('A = "a"\n', ".py")
    assert code("int a;  // one\n", ".h") == code("int a;\n", ".h") != code("int b;\n", ".h")


def test_comments_make_nothing_stale():
    assert code('def f(x):  # why\n    """What."""\n    return x\n', ".py") == code("def f(x): return x", ".py")
    assert code("int x;  // why\n", ".cu") == code("int  x;", ".cu") != code("int y;", ".cu")


BEFORE = """
def wait(journal, calls=3):
    for entry in journal:
        yield {"journal": entry.journal * calls}
"""

AFTER = """
def wait(log, calls=3):
    for entry in log:
        yield {"journal": entry.log * calls}
"""


def test_a_renamed_identifier_is_no_change():
    assert code(BEFORE, ".py", {"journal": "log"}) == code(AFTER, ".py")
    assert code(BEFORE, ".py") != code(AFTER, ".py"), "unless the table has it"


@pytest.mark.parametrize(
    "after",
    [
        AFTER.replace('"journal"', '"log"'),  # a string is data
        AFTER.replace("=3", "=4"),
        AFTER.replace("entry.log", "entry.journal"),  # half renamed
        AFTER.replace("for entry in log", "for entry in logs"),
    ],
)
def test_anything_else_is_a_change(after: str):
    assert code(BEFORE, ".py", {"journal": "log"}) != code(after, ".py")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("class Old(Base): pass", "class New(Base): pass"),
        ("def f():\n    global Old", "def f():\n    global New"),
        ("f(Old=1)", "f(New=1)"),
        ("try: g()\nexcept E as Old: pass", "try: g()\nexcept E as New: pass"),
        ("def f():\n    from m import Old", "def f():\n    from m import New"),
        ("match x:\n    case K(Old=1): pass", "match x:\n    case K(New=1): pass"),
    ],
)
def test_identifiers_of_every_kind_are_renamed(before: str, after: str):
    assert code(before, ".py", {"Old": "New"}) == code(after, ".py") != code(before, ".py")


def test_imports_and_exports_are_no_code():
    assert code('import a\n__all__ = ["a"]\nb = 1', ".py") == code("b = 1", ".py")
    assert code('names = ["a"]', ".py") != code('names = ["b"]', ".py")


def test_the_types_of_casts_are_no_code():
    assert code('from typing import cast\nx = cast("A", f())', ".py") == code(
        'from typing import cast\nx = cast("B", f())', ".py"
    )
    assert code('x = cast("A", f())', ".py") != code('x = cast("B", f())', ".py"), "another function of that name"


@pytest.mark.parametrize("suffix", [".py", ".h"])
@pytest.mark.parametrize(
    ("renamed", "message"),
    [
        ({"a": "b"}, "a cannot become b: the source has b already"),
        ({"a": "new", "b": "new"}, "a and b cannot both become new"),
    ],
)
def test_two_identifiers_cannot_become_one(suffix: str, renamed: dict[str, str], message: str):
    with pytest.raises(NotARenaming, match=message):
        code("a = 1; b = a", suffix, renamed)


def test_names_that_a_source_lacks_merge_nothing():
    assert code("a = 1", ".py", {"a": "new", "b": "new", "c": "a"}) == code("new = 1", ".py")


def test_whole_identifiers_of_cpp_are_renamed_outside_of_strings():
    before = 'bool sent = sent_before("sent \\" sent", \'t\');  // sent\n'
    assert code(before, ".h", {"sent": "reported"}) == code(
        'bool reported = sent_before("sent \\" sent", \'t\');', ".h"
    )
    assert code(before, ".h", {"t": "u"}) == code(before, ".h")


def test_identifiers_are_those_of_code_alone():
    assert identifiers('def f(a):  # b\n    """c"""\n    return "d", a.e', ".py") == {"f", "a", "e"}
    assert identifiers('int a = f("b");  // c', ".h") == {"int", "a", "f"}
