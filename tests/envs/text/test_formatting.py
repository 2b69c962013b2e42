"""Numbers as people read them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pkb_gym.envs.text.formatting import decimal_text, rate_text, size_text, three_digits, time_text

AMOUNTS = st.floats(0.01, 1e17)


@given(AMOUNTS)
def test_no_amount_has_an_exponent(amount: float) -> None:
    """1010 KiB was "1.01e+03 KiB", and 999.7 us "1e+03 us"."""
    for text in (three_digits(amount), time_text(amount), size_text(amount), rate_text(amount)):
        assert "e+" not in text, text


def test_units_begin_where_rounding_reaches_them() -> None:
    assert [size_text(size) for size in (0, 1000 * 2**10, 1023 * 2**10, 2**20 - 1)] == [
        "0 B",
        "1000 KiB",
        "1023 KiB",
        "1 MiB",
    ]
    assert [time_text(time_us) for time_us in (999.4, 999.7, 2e6)] == ["999 us", "1 ms", "2 s"]
    assert [decimal_text(amount, "flop") for amount in (0, 999, 1e3, 4.5e17)] == [
        "0 flop",
        "999 flop",
        "1 kflop",
        "450 Pflop",
    ]
