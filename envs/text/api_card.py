"""The API card: the functions of `pkb/symm.h` and of its helpers that a kernel needs, as declarations with a note."""

from __future__ import annotations

from pkb_gym.kernels.examples import Pattern
from pkb_gym.kernels.text import NativeLanguage

_HOST = """\
// pkb/symm.h: pkb::Comm{enqueued}
int32_t rank, world_size; uint64_t epoch, scratch_bytes;
T* peer<T>(const TensorView& own, int r);  // rank r's counterpart; or peer(T* own, int r)
T* scratch<T>(uint64_t offset);  // symmetric, keeps its contents
void put(void* to, const void* from, uint64_t bytes, int r);  // to rank r's counterpart of `to`
void get(void* to, const void* from, uint64_t bytes, int r);  // from that of `from`
void signal(int slot, int r, uint64_t value = epoch);  // sets word `slot` (0 .. 1023) of rank r
void wait(int slot, uint64_t value = epoch);  // until own word >= value; sees what was written before the signal
"""

_BARRIER = """\
void barrier();  // all ranks meet
"""

_GROUPS = """\
void barrier(int64_t group_index);  // ranks of a group argument meet; -1, or without: all
Group group(int64_t index);  // size, rank, ranks[]
"""

_CPU = """\
// pkb/bf16.h, pkb/fp16.h: stored elements pkb::bf16, pkb::fp16, made from float and read as float
"""

_DEVICE = """\
cudaStream_t cuda_stream(); Device device();  // for kernels, by value
// pkb::Device in kernels: the same for pointers; signal, wait by a thread, put, get by a block; and
void barrier_blocks(int phase, int64_t group_index);  // block b of all ranks; phases 0, 1, .. 63 of a call
"""

_DEVICE_GROUPS = """\
int group_size(int64_t index), group_rank(int64_t index), group_member(int64_t index, int place_in_group);
"""

_TRANSFERS = """\
// pkb/transfer_cuda.h, in pkb::
PKB_CUDA(call); PKB_CUDA_LAUNCHED();  // throw on errors
void with_float_type(DLDataType dtype, F f);  // f(T{}); sums of T are Accumulator<T>
"""

_COPIES = """\
void copy(char* to, const char* from, uint64_t bytes, uint64_t part, uint64_t parts);
  // by block `part` of `parts`, of 256 threads
"""

_SUMS = """\
void add_up<T>(uint64_t count, int terms, const Term& term, int results, const Result& result, uint64_t part,
  uint64_t parts);  // the sum of all term(k)[i] to each result(k)[i]
"""

_PRODUCTS = """\
// pkb/gemm_simt.h, in pkb::gemm
struct SimtProduct<T>;  // out[d] (rows, cols) = sum of a[s] (rows, depth) b[s] (depth, cols) over `segments`; strides
  // a_stride, b_stride, out_stride; pointers to any rank
void launch_simt(const SimtProduct<T>& product, cudaStream_t stream);
"""


def api_card(language: NativeLanguage, pattern: Pattern | None = None, *, groups: bool = True) -> str:
    """The card of a native language, at most 600 tokens.

    Declarations are without `const` after them, `inline`, `__device__` and heads of templates.

    Args:
        language: "cpp" or "cuda".
        pattern: Pattern of the problem, which leaves out helpers of others; None for all helpers.
        groups: Whether the functions for group arguments are on it.
    """
    meetings = _GROUPS if groups else _BARRIER
    if language == "cpp":
        return _HOST.format(enqueued="") + meetings + _CPU
    card = _HOST.format(enqueued=" on the host; operations are enqueued on cuda_stream()") + meetings + _DEVICE
    card += (_DEVICE_GROUPS if groups else "") + _TRANSFERS
    if pattern is None:
        return card + _COPIES + _SUMS + _PRODUCTS
    return card + {"gemm": _PRODUCTS, "reduce": ""}.get(pattern, _COPIES)
