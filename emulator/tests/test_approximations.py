"""Approximations lie within the error bounds of the PTX manual."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from emulator.tests.worlds import EmulatorLibrary, entry, store_each
from rank_emulator import Outcome

COUNT = 512
ULP = 2.0**-23
Floats = np.ndarray


def relative(error: float) -> Callable[[Floats], Floats]:
    return lambda exact: error * np.abs(exact)


@pytest.mark.parametrize(
    ("opcode", "exact", "low", "high", "bound"),
    [
        ("rcp.approx.f32", lambda x: 1 / x, 1e-3, 1e3, relative(ULP)),
        ("sqrt.approx.f32", np.sqrt, 0, 1e6, relative(ULP)),
        ("rsqrt.approx.f32", lambda x: 1 / np.sqrt(x), 1e-3, 1e6, relative(2.0**-22.9)),
        ("sin.approx.f32", np.sin, -2 * np.pi, 2 * np.pi, lambda _: 2.0**-20.5),
        ("cos.approx.f32", np.cos, -2 * np.pi, 2 * np.pi, lambda _: 2.0**-20.5),
        ("lg2.approx.f32", np.log2, 2, 1e6, relative(2.0**-22)),
        ("ex2.approx.f32", np.exp2, -20, 20, relative(2.0**-22.5)),
        ("tanh.approx.f32", np.tanh, -4, 4, relative(2.0**-11)),
    ],
)
def test_an_approximation_is_within_its_bound(
    emulator: EmulatorLibrary,
    opcode: str,
    exact: Callable[[Floats], Floats],
    low: float,
    high: float,
    bound: Callable[[Floats], Floats],
) -> None:
    inputs = np.linspace(low, high, COUNT, dtype=np.float32)
    body = f"""
mul.wide.u32 %rd2, %r1, 4;
add.u64 %rd3, %rd0, %rd2;
ld.global.f32 %f1, [%rd3];
{opcode} %f2, %f1;
{store_each("%f2", "f32")}"""
    ended = emulator.run(entry(body), threads=COUNT, fill=lambda _: inputs)
    assert ended.outcome == Outcome.OK, ended.message
    expected = exact(inputs.astype(np.float64))
    errors = np.abs(ended.words(COUNT, dtype=np.float32) - expected)
    assert (errors <= bound(expected) + ULP * np.abs(expected)).all(), float(errors.max())
    assert len(np.unique(expected)) > COUNT // 4
