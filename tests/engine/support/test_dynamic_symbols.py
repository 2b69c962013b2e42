"""Dynamic symbols of libraries, read off their bytes."""

from __future__ import annotations

import subprocess

import pytest
from elftools.common.exceptions import ELFError

from pkb_gym.engine.support.dynamic_symbols import dynamic_symbols

SOURCE = """
extern "C" int needed(int);
extern "C" int defined(int number) { return needed(number) + 1; }
"""


@pytest.fixture(scope="module")
def binary(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    folder = tmp_path_factory.mktemp("library")
    (folder / "source.cpp").write_text(SOURCE)
    subprocess.run(["g++", "-shared", "-fPIC", "source.cpp", "-o", "library.so"], cwd=folder, check=True)
    return (folder / "library.so").read_bytes()


def names_of(binary: bytes) -> list[tuple[str, bool]]:
    symbols = dynamic_symbols(binary)
    assert symbols is not None
    return [(symbols.names[at : symbols.names.index(b"\0", at)].decode(), defined) for at, defined in symbols]


def test_symbols_are_named_with_whether_they_are_defined(binary: bytes) -> None:
    assert {("needed", False), ("defined", True)} < set(names_of(binary))


def test_what_is_no_library_or_a_cut_one_is_an_error(binary: bytes) -> None:
    for broken in (b"", b"#!/bin/sh", binary[:50], binary[: len(binary) - 65]):
        with pytest.raises(ELFError):
            dynamic_symbols(broken)
