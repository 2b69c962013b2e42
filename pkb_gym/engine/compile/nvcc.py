"""Native sources of the CUDA device: one translation unit, nvcc, a shared object; and the compiler's report on it.

Needs the CUDA toolkit and a host compiler, and no GPU.
"""

from __future__ import annotations

import dataclasses
import importlib.metadata
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

from pkb_gym.engine.compile.cache import CompileCache
from pkb_gym.engine.compile.cached_compile import Compiled, cached_compile
from pkb_gym.engine.compile.library_headers import (
    NO_DEVICE_LINK,
    included_libraries,
    missing_libraries_note,
    with_libraries,
)
from pkb_gym.engine.compile.opened_files import NO_LTO, NVCC_FLAGS, checked, header_folders, listing
from pkb_gym.engine.compile.ptxas import KernelUsage, read_ptxas
from pkb_gym.engine.compile.sandboxed_compiler import CompilerLimits, Run, compiled_of, run_sandboxed
from pkb_gym.engine.compile.sass import count_instructions, disassembler_version
from pkb_gym.engine.compile.toolchain import (
    DEBUG_INFORMATION,
    INCLUDE,
    compiler_version,
    ffi_root,
    header_digest,
    include_arguments,
    include_folders,
    library_arguments,
)
from pkb_gym.engine.errors import InfrastructureError
from pkb_gym.engine.hardware import gpus
from pkb_gym.engine.records.artifact import Artifact
from pkb_gym.engine.records.compiler_report import InstructionCounts, KernelResources
from pkb_gym.engine.support import env_vars
from pkb_gym.engine.support.header_libraries import FoundLibrary
from pkb_gym.engine.support.printable import printable

LINK_FLAGS = (
    "-shared",
    NO_DEVICE_LINK,
    "-Xlinker=-z,defs",
    f"-Xcompiler={NO_LTO}",
)
FLAGS = (
    "-O3",
    "--expt-relaxed-constexpr",  # std::numeric_limits and the like in kernels, as in PyTorch's extensions
    "--expt-extended-lambda",
    f"-Xcompiler=-fPIC,{','.join(DEBUG_INFORMATION)},-fmax-errors=20,-fdiagnostics-color=never",
    "-Xptxas=-v",
    *LINK_FLAGS,
    *NVCC_FLAGS,
)
LIGHT = "-DPKB_LIGHT_FFI"
"""Definition that has `pkb/symm.h` include `pkb/ffi_light.h`, the part of the FFI that most kernels use, not the
FFI's own headers, which take nvcc's front ends longer than all else in a short kernel."""

_MORE_OF_FFI = re.compile(
    r"\btvm/|\bffi::(?!TensorView\b)\w|\bTVM_FFI_(?!THROW\b|DLL_EXPORT_TYPED_FUNC\b)\w|\busing\s+namespace\s+tvm\b"
)
MEMORY_KIB = 12 << 20
"""Address space of each compiler stage: cicc reserves much more than it uses."""

DEFAULT_ARCHITECTURE = "sm_90a"
FEATURE_SPECIFIC = frozenset({(9, 0), (10, 0), (10, 3), (12, 0), (12, 1)})
"""Compute capabilities with instructions that only code for exactly this GPU may use (wgmma, tcgen05)."""

MAX_KERNELS = 64
MAX_NAME_CHARS = 200
_TOOLKIT_FOLDERS = ("bin", "include", "lib", "lib64", "nvvm", "targets")
_DEMANGLE = CompilerLimits(timeout_s=10.0, memory_kib=1 << 20)


def compile_cuda(
    source: str,
    compile_cache: CompileCache,
    timeout_s: float,
    architecture: str | None = None,
    flags: Sequence[str] | None = None,
    *,
    low_priority: bool = False,
    keeps_object: bool = False,
    emulated: bool = False,
) -> Artifact:
    """Compiles a CUDA source, or takes the result from the cache.

    Args:
        source: Source text of one translation unit.
        compile_cache: Cache of compile results.
        timeout_s: Deadline of the compiler, in seconds.
        architecture: Architecture of the target GPU; by default this machine's, or sm_90a where there is none.
        flags: Flags of the compiler, architecture included; by default those of candidates.
        low_priority: Whether the compiler leaves processors to whatever else wants them.
        keeps_object: Whether the artifact has the object too, which is then linked in a step of its own.
        emulated: Whether it is for emulated GPUs.

    Raises:
        InfrastructureError: there is no compiler, or it does not know the architecture.
    """
    architecture = architecture or default_architecture()
    toolkit, flags = find_toolkit(), flags or (gencode(architecture), *FLAGS)
    key = compile_key(source, architecture, (*flags, "-c") if keeps_object else flags, emulated=emulated)
    libraries = included_libraries(source, toolkit, emulated=emulated)
    flags = with_libraries(flags, libraries, architecture, toolkit)
    limits = CompilerLimits(timeout_s, memory_kib=MEMORY_KIB, low_priority=low_priority)
    return cached_compile(
        compile_cache, key, lambda: _compile_sandboxed(source, toolkit, flags, libraries, limits, keeps_object)
    )


def compile_key(source: str, architecture: str, flags: Sequence[str], *, emulated: bool = False) -> str:
    """The key of a compiled source in a cache.

    Args:
        source: Source text of one translation unit.
        architecture: Architecture of the target GPU.
        flags: Flags of the compiler, architecture included.
        emulated: Whether it is for emulated GPUs.

    Raises:
        InfrastructureError: there is no compiler.
    """
    toolkit = find_toolkit()
    libraries = included_libraries(source, toolkit, emulated=emulated)
    return CompileCache.key(
        source=source,
        flags=with_libraries(flags, libraries, architecture, toolkit),
        compiler=nvcc_version(),
        host_compiler=compiler_version(),
        disassembler=disassembler_version(toolkit),
        headers=header_digest(),
        ffi=importlib.metadata.version("apache-tvm-ffi"),
        libraries=[found.identity for found in libraries],
    )


def _compile_sandboxed(
    source: str,
    toolkit: Path,
    flags: Sequence[str],
    libraries: Sequence[FoundLibrary],
    limits: CompilerLimits,
    keeps_object: bool,
) -> Compiled:
    """Compiles; the artifact has the resources of kernels and the instructions that transfer data."""
    folders = [folder for found in libraries for folder in found.shown]
    nvcc = str(toolkit / "bin" / "nvcc")
    links_alone = keeps_object or any(found.is_device_linked for found in libraries)
    made = "kernel.o" if links_alone else "kernel.so"
    to_make = [flag for flag in flags if flag not in LINK_FLAGS] + ["-c"] if links_alone else flags

    def compile_text(text: str, *definitions: str) -> Run:
        return run_sandboxed(
            listing(
                [nvcc, *to_make, *definitions, *include_arguments(), "kernel.cu", "-o", made, *library_arguments()]
            ),
            files={"kernel.cu": text.encode()},
            result=made,
            readable=(*readable(toolkit), INCLUDE, ffi_root(), *folders),
            limits=limits,
        )

    run = compile_text(source, LIGHT) if takes_light_headers(source) else None
    if run is None or run.status not in (0, None):  # it may use what only the FFI's headers have
        tried_s = 0.0 if run is None else run.duration_s
        run = compile_text(source)
        run = dataclasses.replace(run, duration_s=tried_s + run.duration_s)
    # A source can call itself so (`#line`), and would have no verdict for its errors.
    if _is_fatal(run) and _is_fatal(empty := compile_text("")):
        raise InfrastructureError(f"nvcc does not take its options: {empty.output.strip()[:500]}")
    run = checked(run, (*header_folders(), *include_folders(), *_header_folders(toolkit), *folders))
    usage, log = read_ptxas(run.output)
    compiled = compiled_of(dataclasses.replace(run, output=log), limits)
    if links_alone and compiled.artifact.binary is not None:
        link_flags = [flag for flag in flags if flag in LINK_FLAGS or _OF_LINKER.match(flag)]
        compiled = _linked(compiled.artifact, link_flags, folders, limits)
        if not keeps_object:
            compiled = dataclasses.replace(compiled, artifact=dataclasses.replace(compiled.artifact, object_file=None))
    binary = compiled.artifact.binary
    if binary is None:
        failed = dataclasses.replace(
            compiled.artifact, log=compiled.artifact.log + missing_libraries_note(source, libraries)
        )
        return dataclasses.replace(compiled, artifact=failed)
    counts = count_instructions(binary, toolkit)
    if counts is not None and any(found.is_device_linked for found in libraries):  # of the source's kernels alone
        counts = {kernel.mangled: counts[kernel.mangled] for kernel in usage if kernel.mangled in counts}
    total = None if counts is None else sum(counts.values(), InstructionCounts())
    artifact = dataclasses.replace(compiled.artifact, kernels=_resources(usage, counts), transfers=total)
    return dataclasses.replace(compiled, artifact=artifact)


def takes_light_headers(source: str) -> bool:
    """Whether a source includes the dialect's headers and names nothing of the FFI that `LIGHT` leaves out."""
    return "pkb/" in source and _MORE_OF_FFI.search(source) is None


_OF_LINKER = re.compile(r"-gencode=|-L|-Xlinker=|-l(?!ineinfo$)")


def _linked(compiled: Artifact, flags: Sequence[str], folders: Sequence[Path], limits: CompilerLimits) -> Compiled:
    """The library of an object, which the artifact has as its binary."""
    assert compiled.binary is not None
    linked = link(compiled.binary, flags, limits, folders)
    artifact = dataclasses.replace(
        linked.artifact,
        log="\n".join(filter(None, [compiled.log, linked.artifact.log])),
        duration_s=compiled.duration_s + linked.artifact.duration_s,
        object_file=compiled.binary if linked.artifact.ok else None,
    )
    return dataclasses.replace(linked, artifact=artifact)


def link(object_file: bytes, flags: Sequence[str], limits: CompilerLimits, folders: Sequence[Path] = ()) -> Compiled:
    """Links a library of an object.

    Args:
        object_file: Object that nvcc has compiled.
        flags: Flags of the linker, as nvcc takes them.
        limits: Limits of the linker.
        folders: Folders of libraries to link with.
    """
    toolkit = find_toolkit()
    run = run_sandboxed(
        [str(toolkit / "bin" / "nvcc"), *flags, "kernel.o", "-o", "kernel.so", *library_arguments()],
        files={"kernel.o": object_file},
        result="kernel.so",
        readable=(*readable(toolkit), ffi_root(), *folders),
        limits=limits,
    )
    return compiled_of(run, limits)


def _is_fatal(run: Run) -> bool:
    """Whether nvcc itself has failed, to judge by its output."""
    return bool(run.status) and run.output.startswith("nvcc fatal")


def gencode(architecture: str) -> str:
    """The option that compiles for one architecture, such as "sm_90a"."""
    return f"-gencode=arch={architecture.replace('sm_', 'compute_', 1)},code={architecture}"


def architecture_of(capability: tuple[int, int]) -> str:
    """The nvcc architecture for a GPU's compute capability: (9, 0) -> "sm_90a", (8, 0) -> "sm_80"."""
    major, minor = capability
    return f"sm_{major}{minor}{'a' if capability in FEATURE_SPECIFIC else ''}"


def nvcc_available() -> bool:
    """Whether CUDA sources can be compiled here."""
    return _find_nvcc() is not None and shutil.which("g++") is not None


@cache
def find_toolkit() -> Path:
    """The CUDA toolkit that nvcc belongs to; nvcc itself may be a wrapper elsewhere, so it is asked.

    Raises:
        InfrastructureError: there is none, or its output does not show its folder.
    """
    nvcc = _find_nvcc()
    if nvcc is None:
        raise InfrastructureError("no nvcc on this machine; install the CUDA toolkit, or set CUDA_HOME to where it is")
    command = [nvcc, "--dryrun", "-x", "cu", "-c", "/dev/null", "-o", "/dev/null"]
    try:
        run = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False, timeout=20)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise InfrastructureError(f"{nvcc} does not run: {error}") from None
    here = re.search(r"^#\$ _HERE_=(.+)$", run.stderr, re.MULTILINE)
    if run.returncode != 0 or here is None:
        printed = (run.stderr + run.stdout).strip()[-500:]
        raise InfrastructureError(
            f"{nvcc} --dryrun does not show its toolkit's folder (status {run.returncode}): {printed!r}"
        )
    toolkit = Path(here[1]).resolve().parent
    if not (toolkit / "bin" / "nvcc").is_file():
        raise InfrastructureError(f"{nvcc} names {toolkit} as its toolkit, where there is no bin/nvcc")
    return toolkit


@cache
def nvcc_version() -> str:
    """For example "nvcc 13.0.88".

    Raises:
        InfrastructureError: there is no nvcc.
    """
    nvcc = find_toolkit() / "bin" / "nvcc"
    output = subprocess.run([nvcc, "--version"], capture_output=True, text=True, check=False, timeout=20).stdout
    found = re.search(r"\bV(\d[\d.]*)", output)
    if found is None:
        raise InfrastructureError(f"{nvcc} does not print its version: {output[:200]!r}")
    return f"nvcc {found[1]}"


def default_architecture() -> str:
    """The architecture of this machine's first GPU; where there is none, PKB_CUDA_ARCHITECTURE, or sm_90a."""
    capability = gpus.compute_capability()
    return env_vars.cuda_architecture() or DEFAULT_ARCHITECTURE if capability is None else architecture_of(capability)


def _find_nvcc() -> str | None:
    home = env_vars.cuda_home()
    places = [shutil.which("nvcc"), *([str(home / "bin" / "nvcc")] if home else []), "/usr/local/cuda/bin/nvcc"]
    return next((place for place in places if place is not None and Path(place).is_file()), None)


def readable(toolkit: Path) -> tuple[Path, ...]:
    """The toolkit's own folders: what holds them may hold much else, such as a whole Python installation."""
    return tuple(toolkit / name for name in _TOOLKIT_FOLDERS if (toolkit / name).is_dir())


def _header_folders(toolkit: Path) -> list[Path]:
    return [toolkit / "include", *toolkit.glob("targets/*/include")]


def _resources(
    usage: Sequence[KernelUsage], counts: Mapping[str, InstructionCounts] | None
) -> tuple[KernelResources, ...]:
    shown = usage[:MAX_KERNELS]
    names = _demangled([kernel.mangled for kernel in shown])
    return tuple(
        KernelResources(
            name=name,
            registers=kernel.registers,
            shared_bytes=kernel.shared_bytes,
            stack_bytes=kernel.stack_bytes,
            spill_store_bytes=kernel.spill_store_bytes,
            spill_load_bytes=kernel.spill_load_bytes,
            barriers=kernel.barriers,
            instructions=None if counts is None else counts.get(kernel.mangled),
        )
        for name, kernel in zip(names, shown, strict=True)
    )


def _demangled(names: Sequence[str]) -> list[str]:
    """C++ names without parameters, or the names as they are where nobody can read them."""
    run = run_sandboxed(
        ["sh", "-c", "exec c++filt -p < names"], files={"names": "\n".join(names).encode()}, limits=_DEMANGLE
    )
    read = run.output.splitlines()
    sound = run.status == 0 and len(read) == len(names)
    return [printable(name[:MAX_NAME_CHARS]) for name in (read if sound else names)]
