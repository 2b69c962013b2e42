"""The failure that an exception of a candidate stands for."""

from __future__ import annotations

import pytest

from pkb_gym.engine.rankside.failures import CandidateError, kind_of, text_of


def undecodable(text: bytes) -> UnicodeDecodeError:
    """As tvm_ffi raises it in place of the error of a kernel whose text is not UTF-8."""
    with pytest.raises(UnicodeDecodeError) as caught:
        bytearray(text).decode()
    return caught.value


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (CandidateError("load_error", "no solution"), "load_error"),
        (ValueError("no"), "runtime_error"),
        (MemoryError(), "out_of_memory"),
        (RuntimeError("std::bad_alloc"), "out_of_memory"),
        (undecodable(b"caf\xe9: std::bad_alloc"), "out_of_memory"),
        (undecodable(b"caf\xe9"), "runtime_error"),
    ],
)
def test_the_kind_of_an_error(error: BaseException, kind: str) -> None:
    assert kind_of(error) == kind


def test_a_text_that_is_not_utf_8_is_escaped() -> None:
    assert text_of(undecodable(b"caf\xe9 \xe2\x82\xac")) == "caf\\xe9 \u20ac"
    assert text_of(ValueError("as it is")) == "as it is"
