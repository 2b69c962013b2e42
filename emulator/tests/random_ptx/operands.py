"""Inputs of random programs: values at the edges of each type, and random ones."""

from __future__ import annotations

import struct
from random import Random

from emulator.tests.random_ptx.form import Kind

_F32 = (
    *(0x00000000, 0x80000000, 0x3F800000, 0xBF800000, 0x7F800000, 0xFF800000, 0x7FC00000, 0x7F800001, 0xFFC12345),
    *(0x00000001, 0x80000001, 0x007FFFFF, 0x807FFFFF, 0x00800000, 0x80800000, 0x00800001, 0x7F7FFFFF, 0xFF7FFFFF),
    *(0x3F000000, 0x3FC00000, 0x40200000, 0xC0600000, 0x4EFFFFFF, 0x4F000000, 0xCF000000, 0xCF000001, 0x4F7FFFFF),
    *(0x4F800000, 0x5F000000, 0xDF000000, 0x5F800000, 0x47000000, 0x477FE000, 0x477FEFFF, 0x477FF000, 0x33800000),
    *(0x33000000, 0x387FC000, 0x38800000, 0x3F7FFFFF, 0x3F800001, 0x42FE0000, 0x7E800000, 0x7F000000, 0x4B000000),
    *(0x4B800001, 0x43E00000, 0x43E80000, 0x3C800000, 0x3B000000, 0x7F7F0000, 0x7F7F8000, 0x00400000, 0xC2FC0000),
)
_F64 = (
    *(0x0000000000000000, 0x8000000000000000, 0x3FF0000000000000, 0xBFF0000000000000, 0x7FF0000000000000),
    *(0xFFF0000000000000, 0x7FF8000000000000, 0x7FF0000000000001, 0xFFF8123456789ABC, 0x0000000000000001),
    *(0x800FFFFFFFFFFFFF, 0x0010000000000000, 0x7FEFFFFFFFFFFFFF, 0xFFEFFFFFFFFFFFFF, 0x3FE0000000000000),
    *(0x4004000000000000, 0xC00C000000000000, 0x41DFFFFFFFC00000, 0x41E0000000000000, 0xC1E0000000000000),
    *(0xC1E0000000200000, 0x43DFFFFFFFFFFFFF, 0x43E0000000000000, 0xC3E0000000000000, 0x43F0000000000000),
    *(0x380FFFFFFFFFFFFF, 0x3810000000000000, 0x36A0000000000000, 0x3690000000000000, 0x47EFFFFFEFFFFFFF),
    *(0x47EFFFFFF0000000, 0x40EFFE0000000000, 0x40EFFC0000000000, 0x3FF0000000000001, 0x3E60000000000000),
)
_HALF = (0, 0x8000, 0x3C00, 0xBC00, 0x7C00, 0xFC00, 0x7E00, 0x7C01, 0xFE55, 1, 0x8001, 0x03FF, 0x0400, 0x7BFF, 0xFBFF)
_BRAIN = (0, 0x8000, 0x3F80, 0xBF80, 0x7F80, 0xFF80, 0x7FC0, 0x7F81, 0xFFC5, 1, 0x8001, 0x007F, 0x0080, 0x7F7F, 0xFF7F)


def random_value(rng: Random, kind: Kind) -> int:
    """The bits of one value."""
    match kind:
        case Kind.PREDICATE:
            return rng.getrandbits(1)
        case Kind.F32:
            return _float(rng, 32, _F32, 23, 127)
        case Kind.F64:
            return _float(rng, 64, _F64, 52, 1023)
        case Kind.HALF:
            return _float(rng, 16, _HALF, 10, 15)
        case Kind.BRAIN:
            return _float(rng, 16, _BRAIN, 7, 127)
        case Kind.HALVES:
            return _float(rng, 16, _HALF, 10, 15) | _float(rng, 16, _HALF, 10, 15) << 16
        case Kind.BRAINS:
            return _float(rng, 16, _BRAIN, 7, 127) | _float(rng, 16, _BRAIN, 7, 127) << 16
        case _:
            return _integer(rng, 8 * kind.bytes)


def _integer(rng: Random, bits: int) -> int:
    sort, most = rng.getrandbits(2), (1 << bits) - 1
    if sort == 0:
        return (rng.getrandbits(7) - 64) & most
    if sort == 1:  # beside a power of two
        return ((1 << rng.getrandbits(6) % bits) + rng.getrandbits(2) - 1) & most
    return rng.getrandbits(bits)


def _float(rng: Random, bits: int, special: tuple[int, ...], mantissa: int, bias: int) -> int:
    sort = rng.getrandbits(3)
    if sort < 2:
        return special[rng.getrandbits(16) % len(special)]
    if sort < 4:
        return rng.getrandbits(bits)
    sign = rng.getrandbits(1) << (bits - 1)
    if sort < 6:  # a small multiple of 1/4
        value = rng.getrandbits(9) / 4
        if bits == 64:
            return sign | int.from_bytes(struct.pack("<d", value), "little")
        word = int.from_bytes(struct.pack("<f", value), "little")
        if mantissa == 10:
            return sign | int.from_bytes(struct.pack("<e", value), "little")
        return sign | (word if bits == 32 else word >> 16)
    exponent = bias - 12 + rng.getrandbits(8) % 25
    return sign | exponent << mantissa | rng.getrandbits(mantissa)


def literal(rng: Random, kind: Kind) -> str | None:
    """A constant as PTX writes it; None where a kind has none."""
    bits = random_value(rng, kind)
    if kind is Kind.F32:
        return f"0f{bits:08X}"
    if kind is Kind.F64:
        return f"0d{bits:016X}"
    return str(bits) if kind in (Kind.I16, Kind.I32, Kind.I64) else None
