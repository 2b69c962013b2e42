"""A submission is found in a call of the tool, in a call that the server left in the text, or in fenced code."""

from __future__ import annotations

import json

import pytest

from pkb_gym.agents.protocol import Reply
from pkb_gym.agents.submissions import as_text, read_submission, source_of_arguments

SOURCE = "void solution() {}\n"
QWEN = f"<function=submit>\n<parameter=source>\n{SOURCE}\n</parameter>\n</function>"
CALL = json.dumps({"name": "submit", "arguments": {"source": SOURCE}})


@pytest.mark.parametrize(
    ("reply", "source"),
    [
        (Reply("I call the tool", submission=SOURCE), SOURCE),
        (Reply("```\nother\n```", submission=SOURCE), SOURCE),
        (Reply(f"<tool_call>{CALL}</tool_call>"), SOURCE),
        (Reply(f"<tool_call>\n{CALL}\n"), SOURCE),
        (Reply(f'<tool_call>{{"name": "submit"}}</tool_call>x<tool_call>{CALL}</tool_call>'), SOURCE),
        (Reply(f"```cpp\n{SOURCE}```"), SOURCE),
        (Reply(as_text("submit", json.dumps({"source": SOURCE}))), SOURCE),
        (Reply(f"```cpp\n{SOURCE}```" + as_text("submit", "{}")), SOURCE),
        (Reply(f"<tool_call>{CALL}</tool_call>" + as_text("submit", "{}")), SOURCE),
        (Reply(f"<tool_call>\n{QWEN}\n</tool_call>"), SOURCE),
        (Reply(f"Now:\n{QWEN}"), SOURCE),
        (Reply(f"[TOOL_CALLS][{CALL}]"), SOURCE),
        (Reply(f"[TOOL_CALLS]submit[ARGS]{json.dumps({'source': SOURCE})}"), SOURCE),
        (Reply(CALL.replace("arguments", "parameters")), SOURCE),
        (Reply(f"```cpp\n{SOURCE}", finish_reason="stop"), SOURCE),
    ],
)
def test_what_is_submitted(reply, source):
    assert read_submission(reply).source == source


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ("<tool_call>{</tool_call>", "no JSON object"),
        ('<tool_call>{"name": "run", "arguments": {}}</tool_call>', "is not `submit`"),
        ('<tool_call>{"name": "submit", "arguments": {"code": "x"}}</tool_call>', "has no text `source`"),
        (as_text("submit", '{"source": "cut o'), "no JSON object"),
        ("<function=submit><parameter=source>int a;", "has no text `source`"),
        ("<function=run><parameter=source>ls</parameter></function>", "is not `submit`"),
        ("I cannot do that.", "no fenced block"),
        ("", "no fenced block"),
    ],
)
def test_why_nothing_is(content, why):
    found = read_submission(Reply(content))
    assert found.source is None and why in found.taken


def test_arguments_may_hold_bare_line_breaks():
    assert source_of_arguments('{"source": "a\nb"}') == "a\nb"
    assert source_of_arguments("[" * 100_000) is None


@pytest.mark.parametrize("content", [f"```cpp\n{SOURCE}", "<think>hm", "", as_text("submit", '{"source": "cut o')])
def test_a_reply_that_was_cut_off_tells_so(content):
    found = read_submission(Reply(content, finish_reason="length"))
    assert (found.source, found.taken) == (None, "nothing: the reply was cut off at its limit of tokens")


def test_a_whole_block_of_a_reply_that_was_cut_off_is_submitted():
    assert read_submission(Reply(f"```cpp\n{SOURCE}```\nIt", finish_reason="length")).source == SOURCE
