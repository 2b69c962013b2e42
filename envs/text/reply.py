r"""Takes the source out of a chat model's reply: fenced blocks, thoughts between tags, or the reply itself.

reply                                       what is taken
one fenced block                            that
several, some of which define `solution`    the last of those: models correct themselves
several, some of which mention `solution`   the last of those
several others                              the last
none, and it looks like a source            all of it, or what stands between <answer> tags
none else                                   nothing

Blocks that quote the reference are passed over where there are others. A last block that does not end is taken of a
reply that is known to be complete.

Tags count outside of fenced blocks, or alone on their line: a source may hold some. A block that is indented as a
whole, as in a list, loses that indentation.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pkb_gym.engine.records.source import looks_like_source
from pkb_gym.envs.equal_sources import code_of
from pkb_gym.envs.text.code_blocks import code_blocks, without_end_token
from pkb_gym.envs.text.python_sources import plain_source

THOUGHT_TAGS = ("think", "thinking", "thought", "reasoning")
"""Tags around text that a model writes for itself."""

FENCE = r" {0,3}(?P<fence>`{3,}(?=[^`\n]*$)|~{3,})(?P<info>[^\n]*)"
"""Pattern of a line that begins or ends a block, within which tags do not count."""

_NAMES = "|".join(THOUGHT_TAGS)
_FENCE_OR_TAG = re.compile(rf"^{FENCE}$|<(?P<tag>{_NAMES})>", re.IGNORECASE | re.MULTILINE)
_END_TAG = {name: re.compile(f"</{name}>", re.IGNORECASE) for name in THOUGHT_TAGS}
_ANY_END_TAG = re.compile(rf"</(?:{_NAMES})>", re.IGNORECASE)
_ALONE = re.compile(
    # Possessive, or a line of many blanks would be tried in every division of them.
    rf"^[ \t]*+(?:`{{3,}}+|~{{3,}}+)?+[ \t]*+</(?:{_NAMES})>[ \t\r]*+$",
    re.IGNORECASE | re.MULTILINE,
)

_DEFINES = re.compile(
    r"^(?:async )?def solution\b|^solution\s*=|TVM_FFI_DLL_EXPORT_TYPED_FUNC\(\s*solution\b", re.MULTILINE
)
"""Text of sources that can be submitted, as opposed to commands and examples of a call."""
_MENTIONS = re.compile(r"\bsolution\b")
_ANSWER = re.compile(r"<answer>[ \t]*\n?((?:(?!<answer>).)*?)</answer>", re.IGNORECASE | re.DOTALL)
_ZERO_WIDTH = "\ufeff\u200b\u200c\u200d\u2060"


@dataclass(frozen=True)
class ExtractedSource:
    """The source found in a reply.

    Attributes:
        source: Text of the source; None where the reply holds none.
        taken: Place of the source in the reply, or the reason why there is none, in a few words.
    """

    source: str | None
    taken: str


@dataclass(frozen=True)
class SplitReply:
    """A reply in two parts.

    Attributes:
        thoughts: Text between tags, without these; None where there are none.
        answer: Rest of the reply.
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
    thoughts, kept, end = [], [], 0
    for thought in _thoughts(reply):
        thoughts.append(thought.text)
        kept.append(reply[end : thought.begin])
        end = thought.end
    answer = "".join([*kept, reply[end:]])
    if (last := _last_end_tag(answer)) is not None:  # templates may put the first tag into the prompt
        thoughts.insert(0, answer[: last.start()])
        answer = answer[last.end() :]
    return SplitReply("\n".join(thoughts).strip() if thoughts else None, answer)


@dataclass(frozen=True)
class _Thought:
    """A part of a reply between tags, from `begin` to `end` with them."""

    begin: int
    end: int
    text: str


def _thoughts(reply: str) -> Iterator[_Thought]:
    """The thoughts that begin outside of fenced blocks; the last may not end."""
    fence, place = "", 0
    while (found := _FENCE_OR_TAG.search(reply, place)) is not None:
        place = found.end()
        if found["tag"] is None:
            fence = _fence_after(fence, found)
        elif not fence:
            end = _END_TAG[found["tag"].lower()].search(reply, place)
            text = reply[place : len(reply) if end is None else end.start()]
            place = len(reply) if end is None else end.end()
            yield _Thought(found.start(), place, text)


def _last_end_tag(answer: str) -> re.Match[str] | None:
    """The last end of a thought, outside of fenced blocks or alone on its line."""
    alone = [found.end() for found in _ALONE.finditer(answer)]
    last_alone = alone[-1] if alone else -1
    last, fence, place = None, "", 0
    fences = [found for found in _FENCE_OR_TAG.finditer(answer) if found["tag"] is None]
    for found in _ANY_END_TAG.finditer(answer):
        while place < len(fences) and fences[place].start() < found.start():
            fence = _fence_after(fence, fences[place])
            place += 1
        if not fence or found.end() <= last_alone:
            last = found
    return last


def _fence_after(fence: str, line: re.Match[str]) -> str:
    """The fence of the block that is open after a line with one; empty where none is.

    Args:
        fence: Fence of the block that is open before the line; empty for none.
        line: Match of `FENCE`.
    """
    if not fence:
        return line["fence"]
    return "" if line["fence"].startswith(fence) and not line["info"].strip() else fence


def take_source(reply: str, *, reference: str | None = None, is_complete: bool = False) -> ExtractedSource:
    r"""The source that a reply submits; see the module.

    Args:
        reply: Whole text that the model wrote, its thoughts included.
        reference: Source of the baseline in Python, which models quote as it is or without its comments, as tasks show
            it; None where it is not known.
        is_complete: Whether the reply is known to have ended by itself, and not at a limit of tokens.

    Example:
        >>> take_source("<think>```c\nint x;\n```</think>Here:\n```cpp\nint a;\n```")
        ExtractedSource(source='int a;\n', taken='the fenced block')
        >>> take_source("First:\n```cpp\nint a;\n```\nBetter:\n```cpp\nint b;\n```")
        ExtractedSource(source='int b;\n', taken='the last of 2 fenced blocks')
        >>> take_source("I do not know.")
        ExtractedSource(source=None, taken='nothing: no fenced block of code in the reply')
    """
    text = split_thoughts(reply).answer
    found = code_blocks(text)
    is_open = bool(found) and not found[-1].is_closed
    blocks = [block.code for block in found if block.is_closed]
    if is_open and is_complete:
        blocks.append(without_end_token(found[-1].code))
    if blocks:
        chosen = _chosen(blocks, reference)
        place = "the last" if chosen == len(blocks) - 1 else f"number {chosen + 1}"
        taken = "the fenced block" if len(blocks) == 1 else f"{place} of {len(blocks)} fenced blocks"
        if is_open:
            is_taken = is_complete and chosen == len(blocks) - 1
            taken += ", which does not end" if is_taken else ", before one that does not end"
        return ExtractedSource(_unindented(blocks[chosen]), taken)
    if is_open:
        return ExtractedSource(None, "nothing: the fenced block of code does not end")
    if (answers := _ANSWER.findall(text)) and looks_like_source(answers[-1]):
        return ExtractedSource(answers[-1], "the text between <answer> tags")
    if looks_like_source(text := text.lstrip(_ZERO_WIDTH)):
        return ExtractedSource(text, "the whole reply")
    if not text.strip() and reply.strip():
        return ExtractedSource(None, "nothing: the reply ends within its thoughts")
    return ExtractedSource(None, "nothing: no fenced block of code in the reply")


def _chosen(blocks: Sequence[str], reference: str | None) -> int:
    """The place of the block that is submitted."""
    places = list(range(len(blocks)))
    for wanted in (_DEFINES, _MENTIONS):
        if found := [place for place in places if wanted.search(textwrap.dedent(blocks[place]))]:
            places = found
            break
    if reference is not None and len(places) > 1:
        quoted = [code_of(text) for text in (reference, plain_source(reference))]
        own = [place for place in places if code_of(_unindented(blocks[place])) not in quoted]
        places = own or places
    return places[-1]


def _unindented(block: str) -> str:
    return textwrap.dedent(block) if block[:1] in (" ", "\t") else block
