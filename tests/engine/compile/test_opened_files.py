"""A source cannot have files of the machine opened, whatever its includes and directives look like in the text."""

from __future__ import annotations

import os
import re
import subprocess
import time
from pathlib import Path

import pytest

from pkb_gym.engine.compile import opened_files, sandboxed_compiler, toolchain
from pkb_gym.engine.compile.cache import CompileCache
from pkb_gym.engine.compile.gxx import compile_cpp
from pkb_gym.engine.compile.nvcc import compile_cuda, nvcc_available
from pkb_gym.engine.compile.opened_files import ASSEMBLED, checked, header_folders, linked_folders
from pkb_gym.engine.compile.sandboxed_compiler import Run
from pkb_gym.engine.gangs.sandbox import bubblewrap_works

SECRET = "a_line_that_nobody_may_see"
INCLUDES = {
    "absolute": '#include "{file}"',
    "in angle brackets": "#  include <{file}>",
    "upwards": '#include "../../../../..{file}"',
    "from a header folder upwards": "#include <bits/../../../../..{file}>",
    "macro": "#define F <{file}>\n#include F",
    "macro in pieces": "#define TEXT(path) #path\n#define IN(FILE_) TEXT({folder}/FILE_)\n#include IN({name})",
    "line splice": "#inc\\\nlude \\\n<{file}>",
    "digraph": "%:include <{file}>",
    "comment between": '#/**/include/* */"{file}"',
    "include_next": "#include_next <{file}>",
    "import": '#import "{file}"',
    "has_include first": "#if __has_include(<{file}>)\n#include <{file}>\n#else\n#error none\n#endif",
    "incbin": 'asm(".section .rodata\\n.incbin \\"{file}\\"\\n.text");',
    "incbin in pieces": 'asm(".section .rodata\\n.inc" "bin \\"{file}\\"\\n.text");',
    "assembler include": 'asm(".inc" "lude \\"{file}\\"");',
    "a long way": '#include "/usr/include/{long}../..{file}"',
    "a long way in the assembler": 'asm(".incbin \\"/usr/include/{long}../..{file}\\"");',
    "assembler macro": 'asm(".macro m a\\n.inc\\\\a \\"{file}\\"\\n.endm\\nm bin");',
}
ESCAPED = "\\056in\\143bin"  # as the compiler reads it, ".incbin"


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    path = tmp_path / "secret.h"
    path.write_text(f"{SECRET} +\n# {SECRET}\n")
    return path


def source(text: str, file: Path) -> str:
    parts = {"long": "./" * 1400, "file": str(file), "folder": str(file.parent), "name": file.name}
    directive = text
    for part, content in parts.items():
        directive = directive.replace(f"{{{part}}}", content)
    return f"{directive}\nvoid solution() {{}}\n"


@pytest.fixture(params=["bubblewrap", "limits"])
def mode(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "limits":
        monkeypatch.setattr(sandboxed_compiler, "bubblewrap_works", lambda: False)
    elif not bubblewrap_works():
        pytest.skip("needs bubblewrap")
    return str(request.param)


@pytest.mark.parametrize("text", [*INCLUDES.values(), f'asm(".section .rodata\\n{ESCAPED} \\"{{file}}\\"\\n.text");'])
def test_no_file_of_the_machine_is_opened(mode: str, text: str, secret: Path, tmp_path: Path) -> None:
    """`#include MACRO` compiled the text of an expert, and showed lines of /etc/passwd in the log."""
    artifact = compile_cpp(source(text, secret), CompileCache(tmp_path / "cache"), 60)
    assert not artifact.ok and artifact.binary is None
    assert SECRET not in artifact.log
    if mode == "limits":
        assert "no header of the compiler" in artifact.log, "nothing else hides it"


@pytest.mark.parametrize("mode", ["limits"], indirect=True)
@pytest.mark.usefixtures("mode")
def test_the_assemblers_list_is_not_written_over(secret: Path, tmp_path: Path) -> None:
    """Sections for link-time optimisation had the linker run the assembler once more, on a text of their own."""
    (tmp_path / "other.cpp").write_text("int other() { return 42; }\n")
    subprocess.run(["g++", "-flto", "-fPIC", "-S", "other.cpp"], cwd=tmp_path, check=True, timeout=60)
    sections = re.sub(r"\s\.(?:file|ident).*", "", (tmp_path / "other.s").read_text())
    text = f'asm(R"lto({sections}\n.text\n)lto");\n{INCLUDES["incbin"]}'
    artifact = compile_cpp(source(text, secret), CompileCache(tmp_path / "cache"), 60)
    assert not artifact.ok and "no header of the compiler" in artifact.log


@pytest.mark.parametrize(
    "directive",
    [
        *('#line 1 "', '# 1 "', '%:/**/li\\\nne 1 "', '#line 1 "../../../../../..'),
        '#line 1 "/usr/include/' + "./" * 1400 + "../..",
    ],
)
def test_nothing_is_quoted_of_a_file_whose_name_the_source_takes(
    mode: str, directive: str, secret: Path, tmp_path: Path
) -> None:
    """The compiler opened `#line 1 "/etc/passwd"` to show the line of an error."""
    text = f'{directive}{secret}"\nint wrong() {{ return not_there; }}\n'
    artifact = compile_cpp(text, CompileCache(tmp_path / "cache"), 60)
    assert not artifact.ok and ("not_there" in artifact.log or len(directive) > opened_files.MAX_LINE_CHARS)
    assert SECRET not in artifact.log


def test_a_source_may_call_itself_as_it_likes(tmp_path: Path) -> None:
    text = '#line 5 "generated/by.py"\nvoid solution() { int unused; }\n#line 4 "kernel.cpp"\nstatic int also;\n'
    artifact = compile_cpp(text, CompileCache(tmp_path), 60)
    assert artifact.ok and "generated/by.py:5:" in artifact.log
    assert "static int also" in artifact.log


@pytest.mark.parametrize("file", ["/proc/self/mountinfo", "/proc/version", "/etc/ld.so.cache", "/bin/sh"])
@pytest.mark.parametrize("text", [INCLUDES["macro"], INCLUDES["incbin in pieces"]])
def test_what_the_sandbox_itself_needs_is_not_opened_either(text: str, file: str, tmp_path: Path) -> None:
    artifact = compile_cpp(source(text, Path(file)), CompileCache(tmp_path), 60)
    assert not artifact.ok
    assert f"no header of the compiler: {file!r}" in artifact.log


@pytest.mark.slow
@pytest.mark.skipif(not nvcc_available(), reason="needs nvcc, of the CUDA toolkit, and g++")
@pytest.mark.parametrize(
    ("mode", "text"),
    [
        ("bubblewrap", INCLUDES["macro"]),
        ("limits", INCLUDES["macro"]),
        ("limits", INCLUDES["incbin in pieces"]),
        ("limits", f"#ifdef __CUDA_ARCH__\n{INCLUDES['macro']}\n#endif"),
    ],
    indirect=["mode"],
)
def test_nor_by_nvcc(mode: str, text: str, secret: Path, tmp_path: Path) -> None:
    artifact = compile_cuda(source(text, secret), CompileCache(tmp_path / "cache"), 100)
    assert not artifact.ok and SECRET not in artifact.log


@pytest.mark.slow
@pytest.mark.skipif(not nvcc_available(), reason="needs nvcc, of the CUDA toolkit, and g++")
@pytest.mark.parametrize("mode", ["limits"], indirect=True)
def test_nvcc_quotes_no_other_file(mode: str, secret: Path, tmp_path: Path) -> None:
    text = f'#line 1 "{secret}"\n__attribute__((error("no"))) void wrong();\nvoid solution() {{ wrong(); }}\n'
    artifact = compile_cuda(text, CompileCache(tmp_path / "cache"), 100)
    assert not artifact.ok and SECRET not in artifact.log


def test_headers_of_the_compiler_may_be_included_as_one_likes(tmp_path: Path) -> None:
    text = "#define H <vec\\\ntor>\n#include H\n#include <bits/../memory>\n#include <sys/socket.h>\n"
    artifact = compile_cpp(text + 'asm(".text");\nvoid solution() {}\n', CompileCache(tmp_path), 60)
    assert artifact.ok, artifact.log
    assert artifact.log == ""


def test_errors_are_shown_without_the_lists(tmp_path: Path) -> None:
    artifact = compile_cpp("#include <vector>\n#include <cassert>\nint solution( {}\n", CompileCache(tmp_path), 60)
    assert artifact.log.startswith("kernel.cpp:3:"), artifact.log
    assert "/usr/" not in artifact.log and ASSEMBLED not in artifact.log


def test_errors_name_headers_as_they_are_included() -> None:
    folder = toolchain.include_folders()[0]
    log = f"In file included from kernel.cpp:1:\n{folder}/pkb/symm.h:3: error: {folder}/pkb/comm.h\n     3 | x\n"
    assert "pkb/symm.h:3: error: pkb/comm.h\n     3 | x" in checked(Run(1, log, b"", 0.0), [folder]).output
    assert str(folder) not in checked(Run(1, log, b"", 0.0), [folder]).output


def test_errors_of_the_assembler_are_shown(tmp_path: Path) -> None:
    artifact = compile_cpp('void solution() { asm("no_such_instruction"); }\n', CompileCache(tmp_path), 60)
    assert not artifact.ok and "no such instruction" in artifact.log


@pytest.mark.parametrize("name", ["kernel.cpp/../../etc/passwd", "../x", "cc1/../../x.s", "/tmp/../etc/shadow"])
def test_names_that_look_like_the_compilers_own_do_not_pass(name: str) -> None:
    run = Run(status=0, output=f". {name}\n", result=b"made", duration_s=0.1)
    assert "no header of the compiler" in checked(run, header_folders()).output
    assert checked(run, header_folders()).result == b""


def test_what_is_not_read_to_its_end_is_no_success() -> None:
    run = Run(status=0, output="fine\n", result=b"made", duration_s=0.1, truncated=True)
    found = checked(run, header_folders())
    assert (found.status, found.result) == (1, b"") and "more than is read" in found.output


def test_an_include_that_never_ends_has_a_limit(tmp_path: Path) -> None:
    """Each level includes the next twice: the list alone would be of 2^200 lines."""
    text = "#if __INCLUDE_LEVEL__ < 190\n#include __FILE__\n#include __FILE__\n#endif\nvoid solution();\n"
    artifact = compile_cpp(text, CompileCache(tmp_path), 1)
    assert not artifact.ok and len(artifact.log) < 20_000


def test_folders_of_the_compiler_are_its_own() -> None:
    assert all(folder.is_absolute() for folder in header_folders())
    assert not {Path("/"), Path("/usr"), Path("/tmp")} & {Path(os.path.normpath(f)) for f in header_folders()}
    assert opened_files.header_folders() is header_folders()


def test_headers_of_the_kernel_may_be_links(tmp_path: Path) -> None:
    """On Debian 13, no source compiled that includes <cerrno>."""
    include, kernel = tmp_path / "include", tmp_path / "uapi" / "x86"
    (include / "asm").mkdir(parents=True)
    (kernel / "asm").mkdir(parents=True)
    (kernel / "asm/errno.h").touch()
    (include / "asm/errno.h").symlink_to("../../uapi/x86/asm/errno.h")
    run = Run(status=0, output=f". {include}/asm/errno.h\n", result=b"made", duration_s=0.1)
    assert linked_folders([include]) == (kernel,)
    assert checked(run, [include, *linked_folders([include])]).result == b"made"
    assert linked_folders([kernel]) == linked_folders([tmp_path]) == ()


def test_long_lines_are_cut(tmp_path: Path) -> None:
    name = "f" + "1" * 20_000
    artifact = compile_cpp(f"int {name}() {{ return {name}x; }}\nvoid solution() {{}}\n", CompileCache(tmp_path), 60)
    assert not artifact.ok and "error" in artifact.log
    assert max(map(len, artifact.log.splitlines())) <= opened_files.MAX_LINE_CHARS + 4


@pytest.mark.parametrize("name", ["/a" * 500_000, "/usr/include/" + "a/" * 500_000, ":1" * 500_000, "cc/" * 300_000])
def test_the_longest_names_are_looked_at_in_no_time(name: str) -> None:
    began = time.monotonic()
    for output in (f". {name}\n", f"{name}:1:2: error: x\n excerpt\n", f"x\n-- assembled --\nkernel.o: {name}\n"):
        checked(Run(status=1, output=output, result=b"", duration_s=0.1), header_folders())
    assert time.monotonic() - began < 2
