"""The source in a chat model's reply."""

from __future__ import annotations

import doctest
import time

import pytest

from pkb_gym.envs.text import code_blocks, reply
from pkb_gym.envs.text.python_sources import plain_source
from pkb_gym.envs.text.reply import take_source
from pkb_gym.problems.catalogue import expert_source, find_problem, reference_source

KERNEL = expert_source(find_problem("AllReduce"))


@pytest.mark.parametrize("module", [reply, code_blocks])
def test_examples_in_docstrings_hold(module):
    result = doctest.testmod(module)
    assert result.attempted > 0 and result.failed == 0


@pytest.mark.parametrize(
    ("text", "source", "taken"),
    [
        ("```cpp\nint a;\n```", "int a;\n", "the fenced block"),
        ("Here:\n\n```\nint a;\n```\nDone.", "int a;\n", "the fenced block"),
        ("~~~cpp\nint a;\n~~~", "int a;\n", "the fenced block"),
        ("   ```cpp\r\nint a;\r\n   ```\r\n", "int a;\r\n", "the fenced block"),
        ("a\u2028```\n```cpp\nint a;\f\n```", "int a;\f\n", "the fenced block"),
        ("~~~\n```\n~~~", "```\n", "the fenced block"),
        ("```\n~~~", None, "nothing: the fenced block of code does not end"),
        ("````md\n```cpp\nint a;\n```\n````", "```cpp\nint a;\n```\n", "the fenced block"),
        ("```cpp\nint a;\n```\n```cpp\nint b;\n```", "int b;\n", "the last of 2 fenced blocks"),
        ("```cpp\nvoid solution();\n```\nRun it:\n```sh\nls\n```", "void solution();\n", "number 1 of 2 fenced blocks"),
        ("```a\nsolution 1\n```\n```a\nsolution 2\n```", "solution 2\n", "the last of 2 fenced blocks"),
        ("<think>\n```cpp\nint x;\n```\n</think>\n```cpp\nint a;\n```", "int a;\n", "the fenced block"),
        ("```cpp\nint x;\n```\n</think>\n```cpp\nint a;\n```", "int a;\n", "the fenced block"),
        ("<THINKING>hm</THINKING>```\nno\n", None, "nothing: the fenced block of code does not end"),
        ("```cpp\nint a;\n", None, "nothing: the fenced block of code does not end"),
        ("<think>```cpp\nint a;\n```", None, "nothing: the reply ends within its thoughts"),
        ("I do not know a solution.", None, "nothing: no fenced block of code in the reply"),
        ("", None, "nothing: no fenced block of code in the reply"),
        (KERNEL, KERNEL, "the whole reply"),
        ("def solution(x):\n    return x\n", "def solution(x):\n    return x\n", "the whole reply"),
        (f"<think>hm</think>{KERNEL}", KERNEL, "the whole reply"),
        (
            '```python\nend = "</think>"\ndef solution(): ...\n```',
            'end = "</think>"\ndef solution(): ...\n',
            "the fenced block",
        ),
        (
            "```cpp\n// <think> of rows\nint a;\n// </think>\n```",
            "// <think> of rows\nint a;\n// </think>\n",
            "the fenced block",
        ),
        ("```cpp\nint x;\n``` </think>\n```cpp\nint a;\n```", "int a;\n", "the fenced block"),
        ("```cpp\nint x;\n</think>\n```cpp\nint a;\n```", "int a;\n", "the fenced block"),
        (
            "1. The kernel:\n   ```python\n   def solution(x):\n       return x\n   ```\n",
            "def solution(x):\n    return x\n",
            "the fenced block",
        ),
        (
            f"```cpp\n{KERNEL}```\nUse it:\n```python\nout = solution(x)\n```",
            KERNEL,
            "number 1 of 2 fenced blocks",
        ),
        (f"```cpp\n{KERNEL}```\n```sh\ng++ solution.cpp\n```", KERNEL, "number 1 of 2 fenced blocks"),
        ("```\nint a;\n```\nBetter:\n```\nint b;", "int a;\n", "the fenced block, before one that does not end"),
    ],
)
def test_what_is_taken(text, source, taken):
    found = take_source(text)
    assert (found.source, found.taken) == (source, taken)


CODE = "def solution(x):\n    if x:\n        return x\n"
BLOCK = f"```python\n{CODE}```"


def indented(text, by):
    return "".join(f"{by}{line}" if line.strip() else line for line in text.splitlines(keepends=True))


AS_WRITTEN = {
    "after words": f"Here is the kernel: {BLOCK}",
    "after words, without a language": f"The kernel:```\n{CODE}```",
    "after words in a list": f"1. The kernel: {BLOCK}",
    "after a tag": f"<answer>{BLOCK}</answer>",
    "text after the closing fence": f"{BLOCK} I hope that it helps.\n",
    "a token after the closing fence": f"{BLOCK}<|im_end|>",
    "a tag after the closing fence": f"<answer>\n{BLOCK}</answer>",
    "byte-order mark": f"\ufeff{BLOCK}",
    "zero-width space": f"Here:\n\u200b{BLOCK}",
    "zero-width space before the closing fence": f"```python\n{CODE}\u200b```\nDone.",
    "list, by four": f"- The kernel:\n\n{indented(BLOCK, '    ')}\n",
    "numbered list, by four": f"1. Read.\n2. The kernel:\n{indented(BLOCK, '    ')}\n3. Done.",
    "list in a list": f"- a\n  - b\n{indented(BLOCK, '      ')}\n",
    "by four, after a heading": f"**The kernel**\n\n{indented(BLOCK, '    ')}\n",
    "by a tab": f"-\tThe kernel:\n{indented(BLOCK, chr(9))}\n",
    "list, with code that is not indented": f"- The kernel:\n  ```python\n{CODE}  ```\n- Done.",
    "blockquote": f"He said:\n{indented(BLOCK, '> ')}\nDone.",
    "list in a blockquote": indented(f"- a\n{indented(BLOCK, '  ')}\n", "> "),
    "answer": f"<answer>\n{CODE}</answer>",
    "the last answer": f"<answer>x</answer> or rather <answer>{CODE}</answer> Done.",
    "zero-width space before the code": f"\u200b{CODE}",
    "a fence in a string of the code": f'```python\nDOC = """\n    ```\n    x\n    ```\n"""\n{CODE}```',
    "inline code": f"Put it between ```, as in ```x```:\n{BLOCK}",
    "fences of four": f"````python\n{CODE}````",
}


@pytest.mark.parametrize("text", AS_WRITTEN.values(), ids=list(AS_WRITTEN))
def test_markdown_as_models_write_it(text):
    assert (take_source(text).source or "").endswith(CODE)


@pytest.mark.parametrize("end", ["", "\n", "<|im_end|>", "<|endoftext|>\n"])
def test_a_last_block_that_does_not_end_is_taken_of_a_complete_reply(end):
    """Of a reply that was cut off, half a source would be judged."""
    text = f"```\nint a;\n```\nBetter:\n```python\n{CODE}{end}"
    found = take_source(text, is_complete=True)
    assert (found.source.strip(), found.taken) == (CODE.strip(), "the last of 2 fenced blocks, which does not end")
    assert take_source(text).taken == "the fenced block, before one that does not end"


def test_the_reference_quoted_after_the_kernel_is_no_submission():
    reference = reference_source(find_problem("AllReduce"))
    quoted = reference.replace("\n\n", "\n\n# as given\n", 1)
    text = f"{BLOCK}\nThe reference, for comparison:\n```python\n{quoted}```"
    assert take_source(text, reference=reference).source == CODE
    assert take_source(text).source == quoted
    assert take_source(f"```python\n{quoted}```", reference=reference).source == quoted, "alone, it is meant"
    as_shown = f"{BLOCK}\nIt replaces this:\n```python\n{plain_source(reference)}\n```"
    assert take_source(as_shown, reference=reference).source == CODE


def test_a_line_of_prose_that_ends_in_a_fence_opens_no_block():
    assert take_source("Put code between ``` and ```\nI do not know.").source is None
    assert take_source(f"Close it with ```\n\n{BLOCK}").source == CODE


@pytest.mark.parametrize(
    "text",
    [
        *("```a\n", "<think>", "</think>", "~~~\n```a\n", "<think></think>```\n", "```\n</think>\n"),
        *("- ```\nx\n", "- ", "> ", "a: ```cpp\n", "<answer>", "\ufeff```\n", "1. ", "- ```\n", "> ```cpp\n"),
    ],
)
def test_long_replies_take_no_longer_than_they_are(text):
    """A search for the end of each fence would go through the rest of the reply from each of them."""
    began = time.process_time()
    take_source(text * 50_000)
    assert time.process_time() - began < 5
