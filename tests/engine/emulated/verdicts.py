"""Candidates of tests/candidates/cuda whose verdict on emulated GPUs is another than on GPUs, with the reason.

docs/emulator.md counts them by reason.
"""

from __future__ import annotations

from collections import Counter

ENDLESS = "ends sooner: the emulator sees that no memory changes any more"
THREAD = "threads that host code starts have no emulated GPU"
CONTEXT = "an emulated GPU has no context beside the primary one"

UNTIMED = "nothing is timed"

DIFFERENT: dict[str, tuple[str, str]] = {
    "good/joined_host_thread.cu": ("output_mismatch", THREAD),
    "broken/endless_kernel.cu": ("deadlock", ENDLESS),
    "hostile/finishes_in_a_thread.cu": ("output_mismatch", THREAD),
    "hostile/hoards_device_memory.cu": ("out_of_memory", "emulated GPUs share the memory that the evaluation may have"),
    "hostile/memoises_once_timed.cu": ("passed", UNTIMED),
    "hostile/pretends_to_wait.cu": ("deadlock", ENDLESS),
    "hostile/second_context.cu": ("runtime_error", CONTEXT),
    "hostile/spins_in_a_second_context.cu": ("runtime_error", CONTEXT),
    "hostile/finds_the_emulators_memory.cu": ("integrity", "a GPU has no memory that its host finds so"),
    "hostile/sums_behind_a_fill.cu": ("integrity", "a GPU has no memory that its host may write behind a fill"),
    "racy/works_ahead.cu": ("runtime_error", "it writes where the next call's tensors would lie, and none do"),
    "hostile/approximates_once_timed.cu": ("passed", UNTIMED),
    "hostile/answers_its_own_handovers.cu": ("passed", UNTIMED),
    "hostile/asks_from_within_its_kernel.cu": ("passed", UNTIMED),
    "hostile/asks_with_half_of_its_work_done.cu": ("passed", UNTIMED),
    "hostile/half_of_it_once_timed.cu": ("passed", UNTIMED),
    "hostile/hogs_memory_from_a_second_context.cu": ("runtime_error", CONTEXT),
    "hostile/late_from_its_first_kernel.cu": ("runtime_error", "its server meets a pointer before it was posted"),
    "hostile/leaves_a_server_running.cu": ("deadlock", ENDLESS),
    "hostile/opens_nccl.cu": ("runtime_error", "there is no NCCL"),
    "hostile/queues_kernels_in_a_second_context.cu": ("runtime_error", CONTEXT),
    "racy/puts_calls_off_until_it_is_quiet.cu": ("passed", UNTIMED),
    "racy/waits_in_its_first_calls.cu": ("passed", UNTIMED),
    "racy/works_ahead_by_learnt_stride.cu": ("passed", UNTIMED),
}
"""Name below tests/candidates/cuda -> verdict on emulated GPUs, and the reason."""


WORDS: dict[str, str] = {
    "hostile/sums_on_the_host.cu": "host code touched device memory at argument tensor of rank",
    "hostile/finds_the_emulators_memory.cu": "byte 0: no kernel, copy or fill of an emulated GPU has written it",
    "hostile/sums_behind_a_fill.cu": "byte 0: no kernel, copy or fill of an emulated GPU has written it",
}
"""Name -> part of the message on emulated GPUs, where it says more than the verdict."""


def table() -> str:
    """Reasons of several candidates, with their number and verdict, as Markdown; the others in one row."""
    counts = Counter((reason, verdict) for verdict, reason in DIFFERENT.values())
    rows = [f"| {reason} | {count} | {verdict} |" for (reason, verdict), count in counts.most_common() if count > 1]
    others = sum(count == 1 for count in counts.values())
    head = ["| reason | candidates | verdict when emulated |", "|---|---|---|"]
    return "\n".join([*head, *rows, f"| a reason of its own each | {others} | |"])
