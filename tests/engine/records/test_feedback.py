"""What the records of an evaluation say of themselves."""

from __future__ import annotations

from tests.engine.records.mismatches import mismatch


def test_the_words_of_a_mismatch() -> None:
    assert str(mismatch()) == (
        "rank 2, out (4, 8) bfloat16, trial 3: 8 of 32 elements differ (25 %), indices [0..3, 6..7]; "
        "worst [1, 7]: got 0, expected 22.4; rule: exact"
    )
    shape = mismatch(reason="shape_or_dtype", got="(32,) float32", expected="(4, 8) bfloat16")
    assert str(shape) == "rank 2, out (4, 8) bfloat16, trial 3: expected (4, 8) bfloat16, got (32,) float32"
    modified = mismatch(
        reason="input_modified",
        output="x",
        bounding_box=None,
        worst_index=None,
        rule="this argument must stay as it is",
    )
    assert str(modified) == (
        "rank 2, x (4, 8) bfloat16, trial 3: 8 of 32 elements were modified (25 %); "
        "rule: this argument must stay as it is"
    )
    scalar = mismatch(shape=(), bounding_box=(), worst_index=(), wrong_elements=1, elements=1)
    assert "1 of 1 elements differ (100 %); worst []: got 0" in str(scalar)
