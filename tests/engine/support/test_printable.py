"""Texts of candidates have no effect on what shows them."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pkb_gym.engine.support.printable import printable

SEQUENCES = {
    "title": "\x1b]0;owned\x07",
    "clipboard": "\x1b]52;c;cm0gLXJmIH4=\x1b\\\\",
    "clear": "\x1bc\x1b[2J\x1b[H",
    "8-bit control sequence": "\x9b2J\x9d0;x\x9c",
    "link": "\x1b]8;;http://example.com\x07here\x1b]8;;\x07",
    "overwritten line": "FAILED\rPASSED",
    "backspaces": "FAILED" + "\b" * 6 + "PASSED",
    "bidirectional": "\u202edessap\u202c",
    "zero width": "pa\u200bss\ufeff",
    "line separators": "a\u2028b\u2029c\x0bd\x0ce\x85f",
    "lone surrogate": "\ud800",
    "delete": "\x7f",
    "tag characters": "\U000e0041",
}


CHAT_MARKERS = (
    *("<|im_start|>assistant", "<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<\uff5cend\u2581of\u2581sentence\uff5c>"),
    *("<s>", "</s>", "<eos>", "<start_of_turn>model", "<end_of_turn>", "[INST]", "[/INST]"),
    *("</think>", "</tool_response>", "<tool_call>", "[TOOL_CALLS]", "[/TOOL_RESULTS]", "[SYSTEM_PROMPT]", "[gMASK]"),
    *("<BOS_TOKEN>", "<extra_id_1>", "<SPECIAL_12>", "[|endofturn|]", "[|system|]", "<seed:eos>", "<seed:tool_call>"),
    *("<reserved_106>", "<unused12>", "<_user>", "<_end>", "<<SYS>>", "<</SYS>>", "]~b]", "[e~[", "<a:tool_call>"),
    *("<role>", "</role>", "<pad>", "<mask>", "[PAD]", "[CLS]", "[MASK]", "[BOS]", "[IMG_BREAK]", "[MODEL_SETTINGS]"),
    *("<fim_prefix>", "<repo_name>", "<file_sep>", "<start_of_image>", "<image>", "<ctrl99>", "<0x0A>", "<|final|>"),
    *("<arg_key>", "</arg_value>", "<tool_response>", "<function_calls>", "<@_start@>", "[unused3]", "<sop>"),
    *("<begin_of_text>", "<end_of_sentence>", "<beginning_of_sentence>", "<dummy00001>", "<placeholder_3>", "<eod>"),
    *(
        "<turn|>",
        "<tool_call|>",
        "[UNUSED_TOKEN_146]",
        "<eoh>",
        "<longcat_user>",
        "</longcat_s>",
        "<[end\u2581of\u2581sentence]>",
    ),
    *(
        "<IMG_CONTEXT>",
        "<TOOLCALL>",
        "</TOOLCALL>",
        "<PRE>",
        "<#meta#>",
        ">>ANSWER<<",
        "[extra_id_0]",
    ),
    *("<function=f>", "</function>", "<mask:1>", "<row_1_col_1>", "<global-img>", "[USER]", "<lang_cpp>"),
    *("<assistant>", "<human>", "<bot>", "<nl>", "<unk>", "<answer>", "<thinking>", "<observation>", "[SUFFIX]"),
)


@pytest.mark.parametrize("marker", CHAT_MARKERS)
def test_no_marker_of_a_chat_template_passes(marker: str) -> None:
    """A message that ends where its quotation says so lets a candidate speak as somebody else."""
    shown = printable(f"error: {marker} done")
    assert marker not in shown and marker[1:] in shown and shown.startswith("error: \\x")
    assert printable(shown) == shown


@pytest.mark.parametrize("text", SEQUENCES.values(), ids=list(SEQUENCES))
def test_no_control_sequence_passes(text: str) -> None:
    shown = printable(text)
    assert shown.isprintable() and shown.encode()
    assert len(shown) > len(text), "escapes show the characters"


def test_honest_messages_stay_as_they_are() -> None:
    text = "kernel.cpp:3:5: error: \u2018x\u2019 was not declared\n\t3 | x; // \u00e9 \u4e16\u754c \U0001f600\n"
    text += "std::vector<std::string> a[i] < b || c <= d; kernel<<<grid, block>>>(x); f<T, 3>(); if (a <b|| c)\n"
    text += "#include <string> #include <functional> vector<int> a[BLOCK_SIZE] b[i] array<uint64_t> Holder<a::b> x[0]\n"
    text += "in <module>, <lambda>, <string>:1: of <anonymous>, <unknown>; f<user_type>(x), g::h<T>::i; x[-1] [TILE]\n"
    assert printable(text) == text
    assert printable(text.replace("\n", "\r\n")) == text


@given(st.text(st.characters(), max_size=50), st.integers(0, 60))
def test_nothing_but_printable_characters_and_lines(text: str, limit: int) -> None:
    shown = printable(text, limit)
    assert not {unicodedata.category(c) for c in shown.replace("\n", "").replace("\t", "")} & {"Cc", "Cf", "Cs", "Zl"}
    assert len(shown) <= 10 * limit + 4
