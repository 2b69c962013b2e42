"""References: what they get, what they must return, and how outputs are compared."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from rank_emulator.checking import Tolerance, UsageError, load_reference, parse_buffers
from rank_emulator.checking.buffers import random_content, to_bytes
from rank_emulator.checking.reference import difference, expected_outputs

BUFFERS = parse_buffers("x:bf16[8],out:f32[8],flags:u32[4]=0")


def test_it_gets_the_inputs_of_all_ranks_by_name() -> None:
    def reference(x: list[np.ndarray], world_size: int) -> Mapping[str, list[np.ndarray]]:
        assert len(x) == world_size == 3
        return {"out": [sum(x)] * 3}

    expected = expected_outputs(reference, BUFFERS, 3, call=1, seed=5)
    sums = sum(random_content(BUFFERS[0], rank, 1, 5) for rank in range(3))
    assert list(expected) == ["out"] and all((array == sums).all() for array in expected["out"])


@pytest.mark.parametrize(
    ("reference", "words"),
    [
        (lambda y: {}, "asks for y; inputs are world_size, x"),
        (lambda x: [sum(x)], "must return a dict of outputs by name, not a list"),
        (lambda x: {"flags": x}, "'flags', which is no output"),
        (lambda x: {"out": x[:1]}, "1 arrays of out for 2 ranks"),
        (lambda x: {"out": [x[0][:4]] * 2}, r"out of shape \(4,\), not \(8,\)"),
        (lambda x: x[0] / None, "has raised TypeError"),
    ],
)
def test_a_wrong_reference_says_what_was_expected(reference: object, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        expected_outputs(reference, BUFFERS, 2, call=0, seed=0)


def test_a_file_without_the_function_says_how_one_looks(tmp_path: Path) -> None:
    file = tmp_path / "ref.py"
    file.write_text("def other(): pass\n")
    with pytest.raises(UsageError, match="no function `reference`; for an all-reduce it is"):
        load_reference(file)
    file.write_text("import nothing_of_this_name\n")
    with pytest.raises(UsageError, match="ModuleNotFoundError"):
        load_reference(file)
    with pytest.raises(UsageError, match="no such file"):
        load_reference(tmp_path / "missing.py")


def test_outputs_differ_beyond_the_tolerance_of_their_type() -> None:
    out = BUFFERS[1]
    expected = np.arange(8, dtype=np.float32)
    got = expected.copy()
    assert difference(out, to_bytes(got, out), expected, Tolerance()) is None
    got[3] += 1e-6
    assert difference(out, to_bytes(got, out), expected, Tolerance()) is None
    got[5] = np.nan
    got[6] = 7
    text = difference(out, to_bytes(got, out), expected, Tolerance())
    assert text == "2 of 8 elements of `out` are wrong; the first is out[5]: got nan, expected 5"
    assert difference(out, to_bytes(got, out), expected, Tolerance(atol=1.0)).startswith("1 of 8")
