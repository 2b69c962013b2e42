"""Declarations of buffers, and their bytes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from rank_emulator.checking import Role, UsageError, parse_buffers
from rank_emulator.checking.buffers import from_bytes, random_content, to_bytes
from rank_emulator.checking.command import _buffers


def test_roles_follow_from_fills_and_names() -> None:
    x, out, flags, slots, other = parse_buffers(
        "x:bf16[4, 8],out:f32[2x3] , flags:u32[64]=0,slots:i64[2]=-1,y:f16[1]=none"
    )
    assert (x.role, x.shape, x.nbytes) == (Role.INPUT, (4, 8), 64)
    assert (out.role, out.shape, out.nbytes) == (Role.OUTPUT, (2, 3), 24)
    assert (flags.role, flags.fill, flags.type.c_type) == (Role.STATE, 0, "unsigned int")
    assert (slots.role, slots.fill) == (Role.STATE, -1)
    assert other.role is Role.OUTPUT


def test_a_shape_may_depend_on_the_number_of_ranks() -> None:
    (out,) = parse_buffers("out:f32[world_size,8]")
    assert out.of_ranks(3).shape == (3, 8) and out.of_ranks(3).nbytes == 96


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("x", "name:type[shape], for example"),
        ("x:f32", "cannot read 'x:f32'"),
        ("x:float[4]", "no type 'float'; the types are bf16, f16"),
        ("x:f32[0]", "a number of at least 1, got [0]"),
        ("x:f32[4] y:f32[4]", "expected a comma before 'y:f32[4]'"),
        ("x:f32[4],x:f32[8]", "x is declared twice"),
        ("rank:f32[4]", "have a meaning in call expressions"),
        ("x:f32[4]=ones", "must be random, none or a number, got 'ones'"),
    ],
)
def test_a_wrong_declaration_says_what_was_expected(text: str, words: str) -> None:
    with pytest.raises(UsageError) as refused:
        parse_buffers(text)
    assert words in str(refused.value)


def test_a_toml_file_declares_the_same(tmp_path: Path) -> None:
    file = tmp_path / "buffers.toml"
    file.write_text(
        '[buffers.x]\ntype = "bf16"\nshape = [4, 8]\n[buffers.out]\ntype = "f32"\nshape = [2]\n'
        '[buffers.flags]\ntype = "u32"\nshape = [64]\nfill = 0\n'
    )
    assert _buffers(str(file)) == parse_buffers("x:bf16[4,8],out:f32[2],flags:u32[64]=0")
    file.write_text('[buffers.x]\ntype = "bf16"\n')
    with pytest.raises(UsageError, match=r"\[buffers.x\] has type and shape, and may have fill"):
        _buffers(str(file))
    file.write_text("x = 1\n")
    with pytest.raises(UsageError, match="has no table such as"):
        _buffers(str(file))


def test_bfloat16_is_rounded_to_nearest_even() -> None:
    (x,) = parse_buffers("x:bf16[4]")
    values = np.array([1.0, 1 + 2**-8, 1 + 3 * 2**-8, -2.5], np.float32)
    assert from_bytes(to_bytes(values, x), x).tolist() == [1.0, 1.0, 1 + 2**-6, -2.5]


@pytest.mark.parametrize("name", ["bf16", "f16", "f32", "f64", "i8", "u8", "i32", "u32", "i64", "u64"])
def test_inputs_differ_between_ranks_and_calls_and_are_exact(name: str) -> None:
    (x,) = parse_buffers(f"x:{name}[64]")
    contents = [random_content(x, rank, call, 0) for rank in range(2) for call in range(2)]
    assert len({content.tobytes() for content in contents}) == 4
    for content in contents:
        np.testing.assert_array_equal(from_bytes(to_bytes(content, x), x), content)
    np.testing.assert_array_equal(random_content(x, 1, 1, 0), contents[3])
