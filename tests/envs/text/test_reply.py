"""The source in a chat model's reply."""

from __future__ import annotations

import doctest
import time

import pytest

from pkb_gym.envs.text import reply
from pkb_gym.envs.text.reply import take_source
from pkb_gym.problems.catalogue import expert_source, find_problem

KERNEL = expert_source(find_problem("AllReduce"))


def test_examples_in_docstrings_hold():
    result = doctest.testmod(reply)
    assert result.attempted > 0 and result.failed == 0


@pytest.mark.parametrize(
    ("text", "source", "taken"),
    [
        ("```cpp\nint a;\n```", "int a;\n", "the fenced block"),
        ("Here:\n\n```\nint a;\n```\nDone.", "int a;\n", "the fenced block"),
        ("~~~cpp\nint a;\n~~~", "int a;\n", "the fenced block"),
        ("   ```cpp\r\nint a;\r\n   ```\r\n", "int a;\r\n", "the fenced block"),
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


@pytest.mark.parametrize(
    "text", ["```a\n", "<think>", "</think>", "~~~\n```a\n", "<think></think>```\n", "```\n</think>\n"]
)
def test_long_replies_take_no_longer_than_they_are(text):
    """A search for the end of each fence would go through the rest of the reply from each of them."""
    began = time.process_time()
    take_source(text * 50_000)
    assert time.process_time() - began < 5
