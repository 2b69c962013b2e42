"""Mistakes that authors of kernels make, as edits of a right source.

An edit that applies need not do harm. Whether a source is broken is for the evaluator to judge. Waits are found by the
comments that `pkb_gym.kernels.meetings` gives them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Breakage:
    """One kind of mistake.

    Attributes:
        name: Unique name.
        about: Mistake of the author, in a few words.
        edits: (pattern, replacement), as `re.sub` takes them; the first pattern that is found is replaced.
        everywhere: Whether all places that match are edited, rather than the first.
    """

    name: str
    about: str
    edits: tuple[tuple[str, str], ...]
    everywhere: bool = False

    def apply(self, source: str) -> str | None:
        r"""The broken source; None where there is nothing to get wrong.

        Args:
            source: Text of a kernel.

        Example:
            >>> missing = Breakage("missing_semicolon", "a statement without its end", ((r";\n", "\n"),))
            >>> missing.apply("int i;\nint j;\n"), missing.apply("")
            ('int i\nint j;\n', None)
        """
        for pattern, replacement in self.edits:
            broken, count = re.subn(pattern, replacement, source, count=0 if self.everywhere else 1, flags=re.MULTILINE)
            if count and broken != source:
                return broken
        return None


BREAKAGES = (
    # ---- what the compiler or the loader finds ----
    Breakage(
        "missing_include",
        "a header is not included",
        (
            (r'^#include "pkb/(?!symm)[^\n]*\n', ""),
            (r"^#include <(?!algorithm|vector|cstring)[^\n]*\n", ""),
            (r'^#include "pkb/symm.h"\n', ""),
        ),
    ),
    Breakage(
        "missing_symm",
        "the communicator's header is not included",
        ((r'^#include "pkb/symm.h"\n', ""),),
    ),
    Breakage(
        "missing_semicolon",
        "a statement without its end",
        ((r"(static_cast<(?:const )?(?:char|T)\*>\([^;\n]*\));", r"\1"), (r"(comm\.world_size);", r"\1")),
    ),
    Breakage(
        "missing_cast",
        "a void pointer is used as if it had a type",
        ((r"static_cast<[^<>]*\*>\((\w+\.data_ptr\(\))\)", r"\1"),),
    ),
    Breakage(
        "wrong_type",
        "a variable has a type that its value does not convert to",
        ((r"const uint64_t (block|n|bytes|row) =", r"const char* \1 ="), (r"const int64_t (n|M|begin) =", r"T* \1 =")),
    ),
    Breakage(
        "misspelt_member",
        "a member that the communicator does not have",
        (
            (r"comm\.world_size", "comm.size"),
            (r"comm\.rank\b", "comm.rank_id"),
            (r"comm\.peer\(", "comm.remote("),
            (r"comm\.get\(", "comm.read("),
        ),
    ),
    Breakage(
        "undeclared_name",
        "a name that was never declared",
        ((r"const int r = ([^;]*);", r"const int peer = \1;"), (r"char\* recv = ", "char* received = ")),
    ),
    Breakage(
        "missing_export",
        "`solution` is not exported",
        ((r"^TVM_FFI_DLL_EXPORT_TYPED_FUNC[^\n]*\n", ""),),
    ),
    Breakage(
        "misspelt_export",
        "another function than `solution` is exported",
        ((r"TVM_FFI_DLL_EXPORT_TYPED_FUNC\(solution, solution\)", "TVM_FFI_DLL_EXPORT_TYPED_FUNC(run, solution)"),),
    ),
    Breakage(
        "wrong_signature",
        "parameters in another order than the task has them",
        ((r"(TensorView \w+),(\s+)pkb::Comm comm\) \{", r"pkb::Comm comm,\2\1) {"),),
    ),
    Breakage(
        "host_communicator",
        "a kernel is given the host's communicator",
        ((r"comm\.device\(\)", "comm"),),
    ),
    # ---- what the check finds ----
    Breakage(
        "wrong_peer",
        "the block of another rank than the one that is meant",
        (
            (r"(comm\.peer\([^;\n]*?), r\)", r"\1, (r + 1) % comm.world_size)"),
            (r"(comm\.(?:put|get)\([^;\n]*), r\);", r"\1, (r + 1) % comm.world_size);"),
            (r"(comm\.peer\([^;\n]*?), i\)", r"\1, 0)"),
            (r", int\((src|dst)\)\)", r", 0)"),
        ),
    ),
    Breakage(
        "wrong_split",
        "a part that begins one part too far",
        (
            (r"comm\.rank \* (block|part|rows|row)\b", r"(comm.rank + 1) * \1"),
            (r"\* comm\.rank / W", "* (comm.rank + 1) / W"),
            (r"\+ r \* (block|part)\b", r"+ (r + 1) * \1"),
        ),
    ),
    Breakage(
        "forgotten_rank",
        "a loop over ranks that leaves out the last one",
        ((r"i < W;", "i < W - 1;"), (r"r < W;", "r < W - 1;"), (r"i < comm\.world_size;", "i < comm.world_size - 1;")),
    ),
    Breakage(
        "one_element_short",
        "a loop that ends one element too early",
        (
            (r"\b(\w+) < (words|end|count|bytes); ", r"\1 + 1 < \2; "),
            (r"(\(|, )(block|bytes)(, r\)|\);)", r"\1\2 - 1\3"),
            (r"count \* sizeof\(T\)", "(count - 1) * sizeof(T)"),
        ),
    ),
    Breakage(
        "wrong_bytes",
        "elements are taken for bytes",
        ((r" \* \w+\.dtype\(\)\.bits / 8", ""), (r"\b(n|count) \* sizeof\(T\)", r"\1")),
    ),
    Breakage(
        "wrong_accumulator",
        "a sum in whole numbers",
        (
            (r"\bSum (sums?\b)", r"int \1"),
            (r"pkb::Accumulator<T> (sums?\b)", r"int \1"),
            (r"\b(?:float|double) (sums?\b|total\b|square\b)", r"int \1"),
        ),
    ),
    Breakage(
        "own_rank_only",
        "this rank's own memory in place of the peer's",
        ((r"comm\.peer\((\w+(?: \+ [^,()]*)?), (?:r|i|int\(src\)|int\(dst\))\)", r"(\1)"),),
        everywhere=True,
    ),
    # ---- what delayed ranks show: the call contract is broken ----
    Breakage(
        "missing_entry",
        "peers' memory is touched before their calls have begun",
        ((r"^[^\n]*;  // peers' [^\n]* their calls have begun\n", ""),),
    ),
    Breakage(
        "missing_exit",
        "a call ends while peers still use this rank's memory",
        ((r"^[^\n]*;  // by now peers [^\n]*\n", ""),),
    ),
    Breakage(
        "missing_wait",
        "what others send is read without waiting for it",
        (
            (r"^[^\n]*;  // (?:what peers have (?:sent|staged)|peers have updated)[^\n]*\n", ""),
            (r"pkb::wait_tagged\(([^,\n]*), tag\)", r"__uint_as_float(uint32_t(*(\1)))"),
        ),
    ),
    Breakage(
        "unawaited_rank",
        "a wait for all ranks but the last",
        ((r"r < (W|comm\.world_size); \+\+r\) comm\.wait", r"r < \1 - 1; ++r) comm.wait"),),
        everywhere=True,
    ),
    Breakage(
        "flag_without_epoch",
        "a flag that stays set from call to call",
        (
            (r"2 \* comm\.epoch \+ phase", "1 + phase"),
            (r"uint32_t\(comm\.epoch\);", "1;"),
            (r"comm\.(signal|wait)\(((?:(?!epoch)[^;\n])*)\);", r"comm.\1(\2, 1);"),
        ),
        everywhere=True,
    ),
    Breakage(
        "unguarded_scratch",
        "scratch that the next call overwrites before all have read it",
        ((r"^ *comm\.barrier\(\);  // the next call[^\n]*\n", ""),),
    ),
    Breakage(
        "one_half",
        "all calls use the same scratch, where those of even and of odd epochs need their own",
        (
            (r"^ *// Two halves[^\n]*\n( *[^\n]*comm\.scratch<\w+>)\(comm\.epoch[^;]*\);", r"\1();"),
            (r"^ *// Two halves[^\n]*\n( *const int64_t half = )[^;]*;", r"\g<1>0;"),
        ),
        everywhere=True,
    ),
    Breakage(
        "unacknowledged",
        "a rank that only sends overwrites what slow readers have not read",
        ((r"^[^\n]*;  // \w+ has read what came[^\n]*\n", ""),),
    ),
    Breakage(
        "wrong_slot",
        "waiting for a signal that nobody sends",
        ((r"comm\.wait\(([^;\n]*)\);", r"comm.wait(\1 + 500);"),),
    ),
    # ---- what a GPU finds ----
    Breakage(
        "wrong_stream",
        "a launch on another stream than the call's",
        ((r", 0, comm\.cuda_stream\(\)>>>", ">>>"),),
        everywhere=True,
    ),
    Breakage(
        "too_many_threads",
        "more threads than a block can have",
        ((r"kThreads = \d+", "kThreads = 2048"),),
    ),
)
"""All of them; names are unique."""

COMPILE_TIME = (
    "missing_include",
    "missing_symm",
    "missing_semicolon",
    "missing_cast",
    "wrong_type",
    "misspelt_member",
    "undeclared_name",
    "host_communicator",
)
"""Names of those that a compiler may find, without running anything."""

SYNCHRONISATION = (
    "missing_entry",
    "missing_exit",
    "missing_wait",
    "unawaited_rank",
    "flag_without_epoch",
    "unguarded_scratch",
    "one_half",
    "unacknowledged",
)
"""Names of those that leave out what the call contract asks for: most such kernels are right while no rank is late."""
