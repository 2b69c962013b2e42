"""Pieces of text that several families are made of: dispatch by dtype, and copies."""

from __future__ import annotations

import textwrap

from pkb_gym.kernels.family import Knob
from pkb_gym.kernels.text import fill

BYTES = "uint64_t({0}.numel()) * {0}.dtype().bits / 8"
"""Bytes of a tensor."""


def lines(*parts: str) -> str:
    """Returns the parts that are not empty, one below the other, each with its first line at the left."""
    return "\n".join(textwrap.dedent(part).strip("\n") for part in parts if part)


# ---- on the CPU -----------------------------------------------------------------------------------------------------

CPP_DTYPES = """
const DLDataType type = $tensor.dtype();
if (type.code == kDLBfloat) return $function<pkb::bf16, float>($arguments);
if (type.bits == 16) return $function<pkb::fp16, float>($arguments);
$rest
"""


def cpp_dispatch(function: str, tensor: str, arguments: str, has_double: bool = True) -> str:
    """Calls function<T, Sum> for the element type T of a tensor and the type Sum that sums of it are made in.

    Args:
        function: Name of a function template of two types.
        tensor: Name of the tensor whose dtype decides.
        arguments: Arguments of the call.
        has_double: Whether the problem has float64.
    """
    rest = f"{function}<float, float>({arguments});"
    if has_double:
        rest = f"if (type.bits == 32) return {rest}\n{function}<double, double>({arguments});"
    return fill(CPP_DTYPES, function=function, tensor=tensor, arguments=arguments, rest=rest)


_CPP_BFLOAT16 = """
if ($tensor.dtype() != DLDataType{kDLBfloat, 16, 1}) {
  TVM_FFI_THROW(TypeError) << "expected bfloat16, got " << $tensor.dtype();
}
"""


def cpp_bfloat16(tensor: str) -> str:
    """Returns lines that refuse every dtype but bfloat16, which a kernel would read in place of the tensor's own."""
    return fill(_CPP_BFLOAT16, tensor=tensor)


_CPP_CHUNKS = """
constexpr uint64_t kChunk = $chunk;

void move(char* to, const char* from, uint64_t bytes) {
  for (uint64_t at = 0; at < bytes; at += kChunk) std::memcpy(to + at, from + at, std::min(kChunk, bytes - at));
}
"""

_CPP_WORDS = """
using Word = $word;

void move(char* to, const char* from, uint64_t bytes) {
  volatile Word* target = reinterpret_cast<Word*>(to);
  const volatile Word* source = reinterpret_cast<const Word*>(from);
  const uint64_t words = bytes / sizeof(Word);
  $unroll
  for (uint64_t i = 0; i < words; ++i) target[i] = source[i];
  for (uint64_t i = words * sizeof(Word); i < bytes; ++i) to[i] = from[i];
}
"""

_CPP_THREADS = """
void move(char* to, const char* from, uint64_t bytes) {
  std::vector<std::thread> workers;
  for (uint64_t k = 0; k < $threads; ++k) {
    const uint64_t begin = bytes * k / $threads, end = bytes * (k + 1) / $threads;
    workers.emplace_back([=] { std::memcpy(to + begin, from + begin, end - begin); });
  }
  for (auto& worker : workers) worker.join();
}
"""

_CPP_MEMCPY = "void move(char* to, const char* from, uint64_t bytes) { std::memcpy(to, from, bytes); }"

CPP_COPIES: dict[Knob, str] = {
    "comm": "",
    "memcpy": _CPP_MEMCPY,
    "chunks of 512": fill(_CPP_CHUNKS, chunk=512),
    "chunks of 4096": fill(_CPP_CHUNKS, chunk=4096),
    "chunks of 65536": fill(_CPP_CHUNKS, chunk=65536),
    "words of 8": fill(_CPP_WORDS, word="uint64_t", unroll=""),
    "words of 8, unrolled": fill(_CPP_WORDS, word="uint64_t", unroll="#pragma GCC unroll 8"),
    "words of 4": fill(_CPP_WORDS, word="uint32_t", unroll=""),
    "words of 2": fill(_CPP_WORDS, word="uint16_t", unroll=""),
    "words of 1": fill(_CPP_WORDS, word="uint8_t", unroll=""),
    "threads 2": fill(_CPP_THREADS, threads=2),
}
"""Function `move` for each way of copying bytes on the CPU; "comm" is comm.put and comm.get."""


def cpp_copy(direction: Knob, copy: Knob, to: str, source: str, size: str, rank: str) -> str:
    """A copy to another rank ("push") or from it ("pull").

    Args:
        direction: "push" or "pull".
        copy: Key of `CPP_COPIES`.
        to: Target, as an address of this rank.
        source: Source, as an address of this rank.
        size: Number of bytes.
        rank: Number of the other rank.
    """
    push = direction == "push"
    if copy == "comm":
        return f"comm.{'put' if push else 'get'}({to}, {source}, {size}, {rank});"
    if rank == "comm.rank":
        return f"move({to}, {source}, {size});"
    if push:
        return f"move(comm.peer({to}, {rank}), {source}, {size});"
    return f"move({to}, comm.peer({source}, {rank}), {size});"


# ---- on GPUs --------------------------------------------------------------------------------------------------------

_CUDA_MOVE = """
using Word = $word;

__device__ void move(char* to, const char* from, uint64_t bytes) {
  const uint64_t first = blockIdx.x * uint64_t(kThreads) + threadIdx.x, step = uint64_t(gridDim.x) * kThreads;
  const uint64_t misfit = (reinterpret_cast<uintptr_t>(to) | reinterpret_cast<uintptr_t>(from)) % sizeof(Word);
  const uint64_t words = misfit ? 0 : bytes / sizeof(Word);
  auto* target = reinterpret_cast<Word*>(to);
  auto* source = reinterpret_cast<const Word*>(from);
  $loop
  for (uint64_t i = words * sizeof(Word) + first; i < bytes; i += step) to[i] = from[i];
}
"""

_CUDA_BYTES = """
__device__ void move(char* to, const char* from, uint64_t bytes) {
  const uint64_t first = blockIdx.x * uint64_t(kThreads) + threadIdx.x, step = uint64_t(gridDim.x) * kThreads;
  for (uint64_t i = first; i < bytes; i += step) to[i] = from[i];
}
"""

_CUDA_LOOP = "for (uint64_t i = first; i < words; i += step) target[i] = source[i];"

_CUDA_UNROLLED = """
for (uint64_t i = first; i < words; i += $count * step) {
  Word held[$count];
  #pragma unroll
  for (int k = 0; k < $count; ++k) if (i + k * step < words) held[k] = source[i + k * step];
  #pragma unroll
  for (int k = 0; k < $count; ++k) if (i + k * step < words) target[i + k * step] = held[k];
}
"""

CUDA_COPIES: dict[Knob, str] = {
    "words of 16, 4 at once": fill(_CUDA_MOVE, word="uint4", loop=fill(_CUDA_UNROLLED, count=4)),
    "words of 16, 2 at once": fill(_CUDA_MOVE, word="uint4", loop=fill(_CUDA_UNROLLED, count=2)),
    "words of 16": fill(_CUDA_MOVE, word="uint4", loop=_CUDA_LOOP),
    "words of 8": fill(_CUDA_MOVE, word="uint2", loop=_CUDA_LOOP),
    "words of 4": fill(_CUDA_MOVE, word="uint32_t", loop=_CUDA_LOOP),
    "words of 4, 4 at once": fill(_CUDA_MOVE, word="uint32_t", loop=fill(_CUDA_UNROLLED, count=4)),
    "words of 1": _CUDA_BYTES.strip("\n"),
    "pkb::copy": "",
    "copy engine": "",
    "copy engines": "",
}
"""Device function `move` for each way of copying bytes on GPUs, by all blocks of blockIdx.x together. "copy engine" is
comm.put and comm.get, one after the other; "copy engines" are copies side by side."""

COPY_ENGINES = ("copy engine", "copy engines")


def cuda_copy(copy: Knob, to: str, source: str, size: str) -> str:
    """A copy within a kernel.

    Args:
        copy: Key of `CUDA_COPIES`.
        to: Address of the target.
        source: Address of the source.
        size: Number of bytes.
    """
    if copy == "pkb::copy":
        return f"pkb::copy({to}, {source}, {size}, blockIdx.x, gridDim.x);"
    return f"move({to}, {source}, {size});"


def cuda_geometry(threads: Knob, blocks: Knob, size: str, tile: str = "(16 * kThreads)") -> tuple[str, str, str]:
    """Threads and blocks of a kernel.

    Args:
        threads: Threads of a block.
        blocks: Number of blocks, or "by size".
        size: Amount of work, as an expression of the host.
        tile: Amount of work for which there is one more block.

    Returns:
        Constants, a line before the launch, and the number of blocks in it.
    """
    if blocks == "by size":
        line = f"const unsigned blocks = unsigned(std::min<uint64_t>({size} / {tile} + 1, 512));"
        return f"constexpr int kThreads = {threads};", line, "blocks"
    return f"constexpr int kThreads = {threads}, kBlocks = {blocks};", "", "kBlocks"


def are_resident(threads: Knob, blocks: Knob) -> bool:
    """Whether blocks that wait for each other surely fit onto the GPU together, and signals suffice for them."""
    return blocks != "by size" and int(blocks) <= 64 and int(threads) <= 1024
