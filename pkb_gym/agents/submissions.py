"""Finds the submission of a reply: a call of the tool `submit`, or a fenced block of code."""

from __future__ import annotations

import json
import re

from pkb_gym.agents.protocol import SUBMIT, Reply
from pkb_gym.envs.text.reply import ExtractedSource, take_source

_CALL = re.compile(r"<tool_call>(.*?)(?:</tool_call>|\Z)", re.DOTALL)
"""Call as models write it, where the server leaves it in the text."""


def read_submission(reply: Reply) -> ExtractedSource:
    r"""The submission in a reply; of several calls the last, as models correct themselves.

    Example:
        >>> read_submission(Reply("", submission="int a;")).taken
        'the call of `submit`'
        >>> read_submission(Reply(as_text("submit", '{"source": "int a;"}'))).source
        'int a;'
        >>> read_submission(Reply("```cpp\nint a;\n```")).taken
        'the fenced block'
    """
    if reply.submission is not None:
        return ExtractedSource(reply.submission, f"the call of `{SUBMIT}`")
    calls = _CALL.findall(reply.content)
    return _of_call(calls[-1]) if calls else take_source(reply.content)


def source_of_arguments(arguments: str) -> str | None:
    """The source in a call's arguments, a JSON object; None where there is none."""
    try:
        # Not strict: models write line breaks into strings as they are.
        found = json.loads(arguments, strict=False)
    except (ValueError, RecursionError):
        return None
    source = found.get("source") if isinstance(found, dict) else None
    return source if isinstance(source, str) else None


def as_text(name: str, arguments: str) -> str:
    """A call that could not be understood, as it stands in the record."""
    return f'<tool_call>{{"name": {json.dumps(name)}, "arguments": {arguments}}}</tool_call>'


def _of_call(call: str) -> ExtractedSource:
    try:
        found = json.loads(call, strict=False)
    except (ValueError, RecursionError):
        return ExtractedSource(None, "nothing: a call of a tool is no JSON object")
    if not isinstance(found, dict) or found.get("name") != SUBMIT:
        return ExtractedSource(None, f"nothing: the tool that is called is not `{SUBMIT}`")
    arguments = found.get("arguments")
    source = source_of_arguments(arguments if isinstance(arguments, str) else json.dumps(arguments))
    if source is None:
        return ExtractedSource(None, f"nothing: the call of `{SUBMIT}` has no text `source`")
    return ExtractedSource(source, f"the call of `{SUBMIT}`")
