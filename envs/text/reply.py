r"""Takes the source out of a chat model's reply: fenced blocks, thoughts between tags, or the reply itself.

reply                                       what is taken
one fenced block                            that
several, some of which mention `solution`   the last of those: models correct themselves
several others                              the last
none, and it looks like a source            all of it
none else, or a block that does not end     nothing
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from pkb_gym.engine.records.source import looks_like_source
from pkb_gym.engine.support.fences import fenced_blocks

THOUGHT_TAGS = ("think", "thinking", "thought", "reasoning")
"""Tags around text that a model writes for itself."""

_THOUGHT = re.compile(rf"<({'|'.join(THOUGHT_TAGS)})>(.*?)(?:</\1>|\Z)", re.DOTALL | re.IGNORECASE)
_END_OF_THOUGHT = re.compile(rf"\A(.*)</(?:{'|'.join(THOUGHT_TAGS)})>", re.DOTALL | re.IGNORECASE)


@dataclass(frozen=True)
class ExtractedSource:
    """The source found in a reply.

    Attributes:
        source: None where there was nothing to take.
        taken: what it was, or why there was nothing, in a few words.
    """

    source: str | None
    taken: str


@dataclass(frozen=True)
class SplitReply:
    """A reply in two parts.

    Attributes:
        thoughts: between tags, without these; None where there are none.
        answer: all else.
    """

    thoughts: str | None
    answer: str


def split_thoughts(reply: str) -> SplitReply:
    """Takes a model's thoughts out of its reply; one that ends within them has no answer.

    Example:
        >>> split_thoughts("<think>a sum, then</think>Here it is.")
        SplitReply(thoughts='a sum, then', answer='Here it is.')
        >>> split_thoughts("Here it is.").thoughts is None
        True
    """
    thoughts = [found[2] for found in _THOUGHT.finditer(reply)]
    answer = _THOUGHT.sub("", reply)
    if (end := _END_OF_THOUGHT.match(answer)) is not None:  # templates may put the first tag into the prompt
        thoughts.insert(0, end[1])
        answer = answer[end.end() :]
    return SplitReply("\n".join(thoughts).strip() if thoughts else None, answer)


def take_source(reply: str) -> ExtractedSource:
    r"""The source that a reply submits; see the module.

    Args:
        reply: all that the model wrote, its thoughts included.

    Example:
        >>> take_source("<think>```c\nint x;\n```</think>Here:\n```cpp\nint a;\n```")
        ExtractedSource(source='int a;\n', taken='the fenced block')
        >>> take_source("First:\n```cpp\nint a;\n```\nBetter:\n```cpp\nint b;\n```")
        ExtractedSource(source='int b;\n', taken='the last of 2 fenced blocks')
        >>> take_source("I do not know.")
        ExtractedSource(source=None, taken='nothing: no fenced block of code in the reply')
    """
    text = split_thoughts(reply).answer
    fenced = fenced_blocks(text)
    blocks = fenced.blocks
    if len(blocks) == 1:
        return ExtractedSource(blocks[0], "the fenced block")
    if blocks:
        complete = [number for number, block in enumerate(blocks) if re.search(r"\bsolution\b", block)]
        chosen = complete[-1] if complete else len(blocks) - 1
        place = "the last" if chosen == len(blocks) - 1 else f"number {chosen + 1}"
        return ExtractedSource(blocks[chosen], f"{place} of {len(blocks)} fenced blocks")
    if fenced.is_open:
        return ExtractedSource(None, "nothing: the fenced block of code does not end")
    if looks_like_source(text):
        return ExtractedSource(text, "the whole reply")
    if not text.strip() and reply.strip():
        return ExtractedSource(None, "nothing: the reply ends within its thoughts")
    return ExtractedSource(None, "nothing: no fenced block of code in the reply")
