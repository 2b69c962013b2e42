"""Finds the submission of a reply: a call of the tool `submit`, or a fenced block of code."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass

from pkb_gym.agents.protocol import SUBMIT, Reply
from pkb_gym.engine.records.attempt import is_truncated
from pkb_gym.envs.text.reply import ExtractedSource, take_source

_CALL = re.compile(
    r"<tool_call>(?P<json>.*?)(?:</tool_call>|\Z)"
    r"|(?P<xml><function=.*?(?:</function>|\Z))"
    r"|\[TOOL_CALLS\](?P<mistral>.*?)(?=\[TOOL_CALLS\]|</s>|\Z)",
    re.DOTALL,
)
"""Calls as models write them, where the server leaves them in the text."""
_FUNCTION = re.compile(r"<function=([^>\n]*)>")
_PARAMETER = re.compile(r"<parameter=source>\n?(.*?)\n?</parameter>", re.DOTALL)
_NAMED = re.compile(r"\s*(\w+)\s*(?:\[ARGS\])?\s*(?=\{)")

CUT_OFF = "nothing: the reply was cut off at its limit of tokens"


@dataclass(frozen=True)
class _WrittenCall:
    """A call in the text of a reply, from `begin` to `end`."""

    begin: int
    end: int
    found: ExtractedSource


def read_submission(reply: Reply, reference: str | None = None) -> ExtractedSource:
    r"""The submission in a reply; of several calls the last with a source, as models correct themselves.

    Args:
        reply: Reply of the agent.
        reference: Source of the baseline, which models quote; None where it is not known.

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
    calls = list(_written_calls(reply.content))
    for call in reversed(calls):
        if call.found.source is not None:
            return call.found
    text, end = "", 0
    for call in calls:
        text, end = f"{text}{reply.content[end : call.begin]}\n", call.end
    was_cut = is_truncated(reply.finish_reason)
    is_complete = reply.finish_reason is not None and not was_cut
    found = take_source(text + reply.content[end:], reference=reference, is_complete=is_complete)
    if found.source is not None:
        return found
    return ExtractedSource(None, CUT_OFF) if was_cut else calls[-1].found if calls else found


def source_of_arguments(arguments: str) -> str | None:
    """The source in a call's arguments, a JSON object; None where there is none."""
    source = _object(arguments).get("source")
    return source if isinstance(source, str) else None


def as_text(name: str, arguments: str) -> str:
    """A call that could not be understood, as it stands in the record."""
    return f'<tool_call>{{"name": {json.dumps(name)}, "arguments": {arguments}}}</tool_call>'


def _written_calls(text: str) -> Iterator[_WrittenCall]:
    """The calls in a text; a text that is one JSON object with a name is one as well."""
    whole = _object(text) if text.lstrip().startswith("{") else {}
    if "name" in whole and ("arguments" in whole or "parameters" in whole):
        yield _WrittenCall(0, len(text), _of_json(text))
        return
    for match in _CALL.finditer(text):
        written = match["json"] or match["xml"] or match["mistral"] or ""
        found = _of_xml(written) if "<function=" in written else _of_json(written)
        yield _WrittenCall(match.start(), match.end(), found)


def _of_xml(call: str) -> ExtractedSource:
    name = _FUNCTION.search(call)
    if name is None or name[1].strip() != SUBMIT:
        return ExtractedSource(None, f"nothing: the tool that is called is not `{SUBMIT}`")
    source = _PARAMETER.search(call)
    if source is None:
        return ExtractedSource(None, f"nothing: the call of `{SUBMIT}` has no text `source`")
    return ExtractedSource(source[1], f"the call of `{SUBMIT}`")


def _of_json(call: str) -> ExtractedSource:
    if (named := _NAMED.match(call)) is not None:  # the name, then the arguments
        call = f'{{"name": "{named[1]}", "arguments": {call[named.end() :]}}}'
    call = call.strip().removeprefix("[").removesuffix("]") if call.lstrip().startswith("[") else call
    found = _object(call)
    if not found:
        return ExtractedSource(None, "nothing: a call of a tool is no JSON object")
    if found.get("name") != SUBMIT:
        return ExtractedSource(None, f"nothing: the tool that is called is not `{SUBMIT}`")
    arguments = found.get("arguments", found.get("parameters"))
    source = source_of_arguments(arguments if isinstance(arguments, str) else json.dumps(arguments))
    if source is None:
        return ExtractedSource(None, f"nothing: the call of `{SUBMIT}` has no text `source`")
    return ExtractedSource(source, f"the call of `{SUBMIT}`")


def _object(text: str) -> dict[str, object]:
    """A JSON object; empty where the text is none."""
    try:
        # Not strict: models write line breaks into strings as they are.
        found = json.loads(text, strict=False)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
