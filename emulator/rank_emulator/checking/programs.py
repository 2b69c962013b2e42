"""A program of several ranks, and its library for emulated GPUs."""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from io import BytesIO
from pathlib import Path

from rank_emulator.cuda_sources import FLAGS, LIBRARY_FLAGS, CompileError, find_toolkit
from rank_emulator.symbol_names import emulated_names

from . import relocatable
from .buffers import Buffer, UsageError

SHIMS = Path(__file__).resolve().parent.parent / "include"
"""Folder of the headers nvshmem.h, nccl.h and mpi.h of the emulator."""

SOURCE_SUFFIXES = frozenset({".cu", ".cpp", ".cc", ".cxx", ".c"})
OBJECT_SUFFIXES = frozenset({".o", ".a"})

_PROCESS = ("exit", "_exit", "getenv", "sched_yield", "usleep", "nanosleep", "syscall")
"""Functions of the C library that a rank's process has of its own, or that let the other ranks go on."""
_TRANSFERS = ("read", "write", "fread", "fwrite")
"""The same of those by which the system touches memory for the program."""
_THREADS = (
    *("create", "exit", "join", "detach", "mutex_lock", "mutex_trylock", "mutex_unlock", "cond_wait", "cond_signal"),
    *("cond_broadcast", "cond_timedwait", "cond_clockwait", "barrier_init", "barrier_wait", "barrier_destroy"),
    *("rwlock_rdlock", "rwlock_wrlock", "rwlock_tryrdlock", "rwlock_trywrlock", "rwlock_unlock"),
    *("spin_lock", "spin_unlock"),
)
"""Functions of pthread that let the other threads go on."""
_LIBSTDCXX = (
    "_ZNSt6thread15_M_start_threadESt10unique_ptrINS_6_StateESt14default_deleteIS1_EEPFvvE",
    "_ZNSt6thread4joinEv",
    "_ZNSt6thread6detachEv",
    "_ZNSt18condition_variable4waitERSt11unique_lockISt5mutexE",
    "_ZNSt18condition_variable10notify_oneEv",
    "_ZNSt18condition_variable10notify_allEv",
    "_ZNSt28__atomic_futex_unsigned_base19_M_futex_wait_untilEPjjbNSt6chrono8durationIlSt5ratioILl1ELl1EEEENS2_IlS3_"
    "ILl1ELl1000000000EEEE",
)
"""The same of the standard library: std::thread, std::condition_variable, std::future."""
_SEMAPHORES = ("sem_wait", "sem_trywait", "sem_post")
_LOOPS = tuple(
    f"GOMP_{name}"
    for kind in ("dynamic", "guided", "nonmonotonic_dynamic", "nonmonotonic_guided")
    for name in (f"loop_{kind}_start", f"loop_{kind}_next", f"parallel_loop_{kind}")
)
"""Loops whose threads take their iterations as they come, by chunks."""
_OPENMP = (
    *_LOOPS,
    *("GOMP_loop_end", "GOMP_loop_end_nowait", "GOMP_sections_start", "GOMP_sections_next", "GOMP_sections_end"),
    *("GOMP_sections_end_nowait", "GOMP_parallel_sections", "GOMP_single_copy_start", "GOMP_single_copy_end"),
    *("omp_init_lock", "omp_destroy_lock", "omp_set_lock", "omp_unset_lock", "omp_test_lock"),
    *("GOMP_parallel", "GOMP_barrier", "GOMP_single_start", "GOMP_critical_start", "GOMP_critical_end"),
    *("GOMP_critical_name_start", "GOMP_critical_name_end", "GOMP_atomic_start", "GOMP_atomic_end"),
    *("omp_get_thread_num", "omp_get_num_threads", "omp_get_max_threads", "omp_set_num_threads", "omp_in_parallel"),
)
"""Functions of OpenMP that are modelled."""
_WRAPPED = (*_PROCESS, *_TRANSFERS, *(f"pthread_{name}" for name in _THREADS), *_SEMAPHORES, *_LIBSTDCXX, *_OPENMP)
_HARMLESS_OPENMP = frozenset(
    {"omp_get_num_procs", "omp_get_wtick", "omp_get_wtime", "omp_set_dynamic", "omp_set_nested"}
)
_HOST_FLAGS = ("-Xcompiler=-g1", "-Xcompiler=-U_FORTIFY_SOURCE")
"""Lines of host code; and no checked variants, as Ubuntu's g++ calls: __read_chk is not wrapped where read is."""
_CREATE_THREAD = """#include <pthread.h>
extern "C" int pkb_emu_create_thread(pthread_t*, const pthread_attr_t*, void* (*)(void*), void*);
extern "C" __attribute__((visibility("hidden")))
int __wrap_pthread_create(pthread_t* id, const pthread_attr_t* attributes, void* (*function)(void*), void* argument) {
  return pkb_emu_create_thread(id, attributes, function, argument);
}
"""
"""A source of each program. Without it `--wrap=pthread_create` would find a function of libgcc, for split stacks."""
_ARCHITECTURE_OPTIONS = re.compile(r"-(?:-gpu-architecture|arch|-gpu-code|code|-generate-code|gencode)(=.*)?")
_MODELLED_LIBRARY = re.compile(r"cuda|cudart\w*|cudadevrt|mpi\w*|nccl\w*|nvidia-ml|nvshmem\w*")
"""Libraries whose functions the emulator and its headers have, or that no source needs here."""


@dataclass(frozen=True)
class Program:
    """What each rank runs: its `main`, or a call.

    Attributes:
        sources: Files of CUDA or C++, and objects.
        call: Expression of C++ that each rank evaluates for a call; None for `main`. It may use the names of the
            buffers (pointers to the rank's own), NAME_ranks (host array of the pointers of all ranks), NAME_table (the
            same array in memory of the GPU), NAME_multicast (an address that stands for all of them in `multimem`
            instructions), and rank, world_size (a constant expression), stream and call.
        setup: Expression that each rank evaluates once before its calls; None for nothing.
        buffers: Symmetric buffers.
        includes: Headers that declare what the expressions use; where there are none, the first source is compiled
            together with the expressions.
        flags: Further options of nvcc.
        arguments: Arguments of `main`, without the name of the program.
    """

    sources: tuple[Path, ...]
    call: str | None = None
    setup: str | None = None
    buffers: tuple[Buffer, ...] = ()
    includes: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()
    arguments: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.sources:
            raise UsageError("no source; name the .cu files of the program")
        for source in self.sources:
            if not source.is_file():
                raise UsageError(f"{source}: no such file")
            if source.suffix not in SOURCE_SUFFIXES | OBJECT_SUFFIXES:
                known = ", ".join(sorted(SOURCE_SUFFIXES | OBJECT_SUFFIXES))
                raise UsageError(f"{source}: neither a source nor an object; the suffixes are {known}")
        if self.call is None and (self.setup or self.buffers or self.includes):
            raise UsageError("buffers, --setup and --include go with --call; a program with main allocates by itself")
        if self.call is not None and self.sources[0].suffix in OBJECT_SUFFIXES and not self.includes:
            raise UsageError(f"{self.sources[0]} is an object: name a header that declares the function by --include")

    @property
    def has_main(self) -> bool:
        """Whether each rank runs `main`."""
        return self.call is None

    def of_ranks(self, world_size: int) -> Program:
        """The program for a number of ranks, by which the shapes of its buffers are known."""
        return replace(self, buffers=tuple(buffer.of_ranks(world_size) for buffer in self.buffers))


def default_call(entry: str, buffers: Sequence[Buffer]) -> str:
    """The call of a function by name: all buffers as host arrays of all ranks' pointers, then rank, number, stream."""
    return f"{entry}({', '.join([*(f'{buffer.name}_ranks' for buffer in buffers), 'rank', 'world_size', 'stream'])})"


def compile_program(program: Program, world_size: int) -> bytes:
    """Compiles and links a program for ranks of emulated GPUs.

    Raises:
        CompileError: nvcc refuses it.
        UsageError: It has neither a `main` nor a call, or an option that cannot hold.
        EmulatorError: There is no CUDA toolkit.
    """
    sources = [str(source.resolve()) for source in program.sources]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if program.call is not None:
            wrapper = folder / "check_ranks_call.cu"
            included = list(program.includes) or [sources[0]]
            wrapper.write_text(wrapper_source(program, world_size, included), encoding="utf-8")
            sources = [str(wrapper), *(sources if program.includes else sources[1:])]
        nvcc = str(find_toolkit() / "bin" / "nvcc")
        flags, is_relocatable = relocatable.without_options(program.flags)
        line = [nvcc, *FLAGS, *LIBRARY_FLAGS, *usable_flags(flags), *_HOST_FLAGS, f"-I{SHIMS}"]
        if is_relocatable and len(sources) > 1:  # one alone has all its code
            sources = _relocatable_objects(line, sources, folder)
        register = relocatable.registering_source([each for each in sources if Path(each).suffix in OBJECT_SUFFIXES])
        if register is not None:
            (folder / "register.cpp").write_text(register, encoding="utf-8")
            sources = [*sources, str(folder / "register.cpp")]
        (folder / "threads.cpp").write_text(_CREATE_THREAD, encoding="utf-8")
        sources = [*sources, str(folder / "threads.cpp")]
        wraps = [f"-Xlinker=--wrap={function}" for function in _WRAPPED]
        _compile([*line, *wraps, *sources, "-o", str(folder / "program.so")], folder)
        binary = (folder / "program.so").read_bytes()
    lacking = sorted(
        name
        for name in _symbols(binary, is_defined=False)
        if re.match("G?OMP_", name, re.I) and name not in _HARMLESS_OPENMP
    )
    if lacking:
        raise UsageError(f"not among the functions of OpenMP that the emulator models: {', '.join(lacking)}")
    if program.call is None and "main" not in _symbols(binary, is_defined=True):
        raise UsageError(
            f"{program.sources[0]} has no main; say what each rank calls, for example --args "
            '"x:f32[1024],out:f32[1024]" --call "all_reduce(x_ranks, out, rank, world_size, stream)"'
        )
    return emulated_names(binary)


def _relocatable_objects(line: Sequence[str], sources: Sequence[str], folder: Path) -> list[str]:
    """The sources with an object in place of each that is CUDA, compiled side by side."""

    def compiled(source: str) -> str:
        if not source.endswith(".cu"):
            return source
        made = folder / f"{Path(source).stem}.{sources.index(source)}.o"
        _compile([*line, "-dc", source, "-o", str(made)], folder)
        return str(made)

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return list(pool.map(compiled, sources))


def _compile(line: Sequence[str], folder: Path) -> None:
    done = subprocess.run(line, capture_output=True, text=True, errors="replace", check=False)
    if done.returncode != 0:
        text = (done.stdout + done.stderr).replace(f"{folder}/", "").strip()
        raise CompileError(text + _hint(text))


def usable_flags(flags: Sequence[str]) -> list[str]:
    """The user's options of nvcc without those that choose a GPU, which is always sm_90a.

    Libraries that are modelled are left out as well.
    """
    kept: list[str] = []
    rest = iter(flags)
    for flag in rest:
        found = _ARCHITECTURE_OPTIONS.fullmatch(flag)
        library = next(rest, "") if flag == "-l" else flag.removeprefix("-l") if flag.startswith("-l") else None
        if found is not None:
            if found[1] is None:
                next(rest, None)
        elif library is not None:
            kept += [] if _MODELLED_LIBRARY.fullmatch(library) else [f"-l{library}"]
        else:
            kept.append(flag)
    return kept


def wrapper_source(program: Program, world_size: int, included: Sequence[str]) -> str:
    """A translation unit that exports the program's call and setup as `check_ranks_call` and `check_ranks_setup`."""
    headers = sorted({buffer.type.header for buffer in program.buffers if buffer.type.header})
    names = "".join(
        _NAMES.format(name=buffer.name, type=buffer.type.c_type, index=index)
        for index, buffer in enumerate(program.buffers)
    )
    exported = "".join(
        _EXPORTED.format(name=name, world_size=world_size, names=names, expression=expression or "(void)0")
        for name, expression in (("call", program.call), ("setup", program.setup))
    )
    includes = "".join(f'#include "{_quoted(name)}"\n' for name in included)
    return "".join(f"#include <{header}>\n" for header in headers) + includes + _WRAPPER + exported


def _quoted(path: str) -> str:
    return str(Path(path).resolve()) if Path(path).exists() else path


_WRAPPER = """
#include <type_traits>
namespace check_ranks {
struct Arguments {
  void* const* own;
  void* const* const* ranks;
  void* const* tables;
  void* const* multicast;
  int rank, call;
  cudaStream_t stream;
};
template <class F> long status_of(F f) {
  using Result = decltype(f());
  if constexpr (std::is_integral_v<Result> || std::is_enum_v<Result>) {
    return static_cast<long>(f());
  } else {
    f();
    return 0;
  }
}
}  // namespace check_ranks
"""
_NAMES = """\
  [[maybe_unused]] auto* const {name} = static_cast<{type}*>(check_ranks_arguments->own[{index}]);
  [[maybe_unused]] auto* const {name}_ranks = reinterpret_cast<{type}* const*>(check_ranks_arguments->ranks[{index}]);
  [[maybe_unused]] auto* const {name}_table = static_cast<{type}**>(check_ranks_arguments->tables[{index}]);
  [[maybe_unused]] auto* const {name}_multicast = static_cast<{type}*>(check_ranks_arguments->multicast[{index}]);
"""
_EXPORTED = """
extern "C" int check_ranks_{name}(void* check_ranks_pointer) {{
  const auto* const check_ranks_arguments = static_cast<const check_ranks::Arguments*>(check_ranks_pointer);
{names}  [[maybe_unused]] const int rank = check_ranks_arguments->rank;
  [[maybe_unused]] constexpr int world_size = {world_size};
  [[maybe_unused]] const cudaStream_t stream = check_ranks_arguments->stream;
  [[maybe_unused]] const int call = check_ranks_arguments->call;
#line 1 "--{name}"
  return int(check_ranks::status_of([&] {{ return {expression}; }}));
}}
"""


def _hint(text: str) -> str:
    if "Unresolved extern function" in text:
        return "\nname all sources, and add -rdc=true: the GPU code of one calls that of another"
    if "kernel launch from __device__ or __global__ functions" in text:
        return "\nkernels that launch kernels (dynamic parallelism) are not modelled by the emulator"
    lacking = sorted(set(re.findall(r'identifier "((?:nvshmem|nccl|MPI_)\w+)" is undefined', text)))
    if not lacking:
        return ""
    return f"\nnot among the functions that the emulator models (see its README): {', '.join(lacking)}"


def _symbols(binary: bytes, *, is_defined: bool) -> set[str]:
    """Names of the functions that a library exports, or that it needs."""
    from elftools.elf.elffile import ELFFile
    from elftools.elf.sections import SymbolTableSection

    table = ELFFile(BytesIO(binary)).get_section_by_name(".dynsym")
    if not isinstance(table, SymbolTableSection):
        return set()
    return {symbol.name for symbol in table.iter_symbols() if (symbol["st_shndx"] != "SHN_UNDEF") is is_defined}
