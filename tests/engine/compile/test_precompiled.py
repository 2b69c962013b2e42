"""The precompiled header: who gets it, that it is used, and that it never outlives what went into it."""

from __future__ import annotations

import os
import threading
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from pkb_gym.engine.compile import gxx, precompiled, sandboxed_compiler
from pkb_gym.engine.compile.cache import CompileCache
from pkb_gym.engine.compile.gxx import FLAGS, compile_cpp
from pkb_gym.engine.compile.opened_files import checked
from pkb_gym.engine.compile.precompiled import MANIFEST, PRECOMPILED, begins_with_header, precompiled_header
from pkb_gym.engine.compile.sandboxed_compiler import Run
from pkb_gym.engine.support import env_vars
from pkb_gym.engine.support.exclusive import exclusive
from tests.engine.joined_libraries import QUICK_FLAGS

KERNEL = """// {id}
#include <vector>
#include "pkb/symm.h"
{more}
void solution(tvm::ffi::TensorView x, pkb::Comm comm) {{}}
TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
"""


@pytest.mark.parametrize(
    ("source", "begins"),
    [
        ('#include "pkb/symm.h"\n', True),
        ("\n  #  include <pkb/symm.h> // the dialect\nint x;", True),
        ('/* a\n kernel */ // of ours\n#include <vector>\n\n#include "pkb/bf16.h"\n#include "pkb/symm.h"\n', True),
        ('#define NDEBUG\n#include "pkb/symm.h"\n', False),
        ('int x;\n#include "pkb/symm.h"\n', False),
        ("#include <vector>\n", False),
        ('// #include "pkb/symm.h"\n#include <vector>\n', False),
        ('/*\n#include "pkb/symm.h"\n*/\n#include <vector>\n', False),
        ('// a comment that goes on \\\n#include "pkb/symm.h"\n', False),
        ('// a comment that goes on ??/\n#include "pkb/symm.h"\n', False),
        ('#include "pkb/symm.h.h"\n', False),
        ("", False),
        ("/* never ends", False),
    ],
)
def test_it_is_for_sources_that_begin_with_the_header(source: str, begins: bool) -> None:
    assert begins_with_header(source) is begins


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[Run]:
    """What compilers of this test wrote."""
    seen: list[Run] = []

    def checked_and_seen(run: Run, folders: tuple[Path, ...]) -> Run:
        seen.append(run)
        return checked(run, folders)

    monkeypatch.setattr(gxx, "checked", checked_and_seen)
    return seen


def compile_kernel(more: str, cache: Path, flags: Sequence[str] = FLAGS):
    return compile_cpp(KERNEL.format(id=uuid.uuid4(), more=more), CompileCache(cache), 60, flags)


@pytest.mark.parametrize("flags", [FLAGS, QUICK_FLAGS])
def test_it_is_used_and_leaves_no_trace_in_the_log(flags: Sequence[str], runs: list[Run], tmp_path: Path) -> None:
    artifact = compile_kernel("", tmp_path, flags)
    assert artifact.ok and artifact.log == ""
    assert f"{PRECOMPILED}\n" in runs[0].output and "! /" in runs[0].output
    assert "/pkb/symm.h\n" not in runs[0].output, "it was parsed all the same"


@pytest.mark.parametrize("more", ['#include "{file}"', 'asm(".section .rodata\\n.incbin \\"{file}\\"\\n.text");'])
def test_behind_it_no_file_of_the_machine_is_opened_either(
    more: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sandboxed_compiler, "bubblewrap_works", lambda: False)
    secret = tmp_path / "secret.h"
    secret.write_text("a_line_that_nobody_may_see +\n")
    secret.with_name("secret.h.gch").write_bytes(b"gpch and more")
    artifact = compile_kernel(more.replace("{file}", str(secret)), tmp_path / "cache")
    assert not artifact.ok and "nobody_may_see" not in artifact.log
    assert "opens a file that is no header" in artifact.log


@pytest.mark.parametrize("line", ["! {file}", "x {file}", "..! {file}", ".x {file}"])
def test_a_precompiled_header_of_others_is_refused(line: str) -> None:
    output = line.replace("{file}", "/home/somebody/secret.h.gch") + "\n"
    assert "opens a file that is no header" in checked(Run(0, output, b"\x7fELF", 1.0), (Path("/usr/include"),)).output


class FakeCompiler:
    """Writes a precompiled header that has gone through one header."""

    def __init__(self, header: Path) -> None:
        self.header, self.runs = header, 0
        self.status = 0

    def __call__(self, *_: object, **__: object) -> Run:
        self.runs += 1
        return Run(self.status, f". {self.header}\n", b"gpch" + self.header.read_bytes(), 1.0)


@pytest.fixture
def compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCompiler]:
    header = tmp_path / "some.h"
    header.write_text("int one();")
    fake = FakeCompiler(header)
    monkeypatch.setenv("PKB_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(precompiled, "run_sandboxed", fake)
    monkeypatch.setattr(precompiled, "_READY", {})
    yield fake
    end_process()


def end_process() -> None:
    """The kernel then gives up its locks."""
    for header in filter(None, precompiled._READY.values()):
        os.close(header.lock)
    precompiled._READY.clear()


def another_process() -> Path:
    end_process()
    folder = precompiled_header(["-O3"])
    assert folder is not None
    return folder


def test_it_is_made_once_for_all_processes(compiler: FakeCompiler, monkeypatch: pytest.MonkeyPatch) -> None:
    first = another_process()
    assert precompiled_header(["-O3"]) == another_process() == first and compiler.runs == 1
    assert precompiled_header(["-O1"]) != first and compiler.runs == 2


def test_a_header_that_changes_has_it_made_anew(compiler: FakeCompiler, monkeypatch: pytest.MonkeyPatch) -> None:
    """A library can be upgraded without its compiler."""
    folder = another_process()
    compiler.header.write_text("int two();")
    assert another_process() == folder and compiler.runs == 2
    assert (folder / PRECOMPILED).read_bytes() == b"gpchint two();"


@pytest.mark.parametrize("name", [PRECOMPILED, MANIFEST])
def test_a_damaged_one_is_made_anew(compiler: FakeCompiler, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    folder = another_process()
    (folder / name).write_bytes(b"gpch?")
    another_process()
    assert compiler.runs == 2 and (folder / PRECOMPILED).read_bytes() == b"gpchint one();"


def of_each(versions: range) -> list[Path]:
    return [folder for number in versions if (folder := precompiled_header([f"-DN={number}"]))]


def test_old_ones_are_removed(compiler: FakeCompiler) -> None:
    old = of_each(range(2))
    end_process()
    kept = of_each(range(2, 2 + precompiled.MAX_KEPT))
    assert [folder.exists() for folder in (*old, *kept)] == [False] * 2 + [True] * precompiled.MAX_KEPT


def test_other_processes_wait_while_it_is_made(compiler: FakeCompiler, monkeypatch: pytest.MonkeyPatch) -> None:
    """Four processes that began together each compiled it, for three seconds."""

    def other_process() -> None:
        with exclusive(env_vars.cache_dir(), key):
            began.set()

    def make(*_: object, **__: object) -> Run:
        other.start()
        assert not began.wait(0.1)
        return compiler()

    began, other = threading.Event(), threading.Thread(target=other_process)
    key = another_process().name
    end_process()
    compiler.header.write_text("int two();")
    monkeypatch.setattr(precompiled, "run_sandboxed", make)
    assert precompiled_header(["-O3"]) is not None
    assert began.wait(60)
    other.join()


def test_one_in_use_is_not_removed(compiler: FakeCompiler) -> None:
    """Installations share a cache: the header of a running evaluator was removed, and no kernel compiled any more."""
    folders = of_each(range(precompiled.MAX_KEPT + 2))
    assert len(folders) == precompiled.MAX_KEPT + 2 and all(folder.exists() for folder in folders)


def test_one_in_use_is_not_replaced(compiler: FakeCompiler, monkeypatch: pytest.MonkeyPatch) -> None:
    of_others = precompiled_header(["-O3"])
    assert of_others is not None
    compiler.header.write_text("int two();")
    with monkeypatch.context() as another:
        another.setattr(precompiled, "_READY", {})
        assert precompiled_header(["-O3"]) is None, "the other's is of another header: this process does without"
    assert (of_others / PRECOMPILED).read_bytes() == b"gpchint one();"
    assert another_process() == of_others and (of_others / PRECOMPILED).read_bytes() == b"gpchint two();"


def test_one_that_sandboxes_cannot_read_is_not_used(compiler: FakeCompiler, monkeypatch: pytest.MonkeyPatch) -> None:
    """Root's compilers said 'Permission denied' of another user's, which was kept as the fault of the source."""
    folder = another_process()
    assert folder.stat().st_mode & 0o777 == 0o777 & ~umask(), "others of an image's cache may read it"
    folder.chmod(0o700)
    assert another_process() == folder, "its own user's"
    end_process()
    cache, euid = env_vars.cache_dir(), os.geteuid()
    monkeypatch.setattr(env_vars, "cache_dir", lambda: cache)
    monkeypatch.setattr(os, "geteuid", lambda: euid + 1)
    assert precompiled_header(["-O3"]) is None
    precompiled._READY.clear()
    folder.chmod(0o755)
    assert another_process() == folder


def umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def test_where_it_cannot_be_made_one_does_without(
    compiler: FakeCompiler, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    compiler.status = 1
    assert precompiled_header(["-O3"]) is None
    assert not list((tmp_path / "cache" / "headers").iterdir())
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("PKB_CACHE_DIR", str(tmp_path / "file"))
    assert precompiled_header(["-O3"]) is None
