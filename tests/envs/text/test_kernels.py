"""The CUDA compiler's report on kernels, as an agent reads it."""

from __future__ import annotations

from rich.text import Text

from pkb_gym.engine.records.compiler_report import InstructionCounts, KernelResources
from pkb_gym.engine.records.feedback import CompileReport
from pkb_gym.envs.render import card_text
from pkb_gym.envs.text.feedback import compiler_text, feedback_text
from pkb_gym.envs.text.kernels import MAX_KERNELS, kernels_text, transfers_text
from pkb_gym.problems.catalogue import find_problem
from tests.envs.fake_evaluator import failed, timed

COUNTS = InstructionCounts(loads=12, system_stores=2, bulk_copies=3, local_loads=4)


def kernel(name: str, **changes: int) -> KernelResources:
    sizes = {"registers": 40, "shared_bytes": 0, "stack_bytes": 0, "spill_store_bytes": 0, "spill_load_bytes": 0}
    return KernelResources(name=name, **(sizes | {"barriers": 1} | changes), instructions=None)


def report(*kernels: KernelResources, log: str = "") -> CompileReport:
    return CompileReport(duration_s=4.0, cached=False, log=log, binary_bytes=1000, kernels=kernels, transfers=COUNTS)


def test_the_table_has_a_line_for_each_kernel():
    text = kernels_text(report(kernel("reduce<8>", shared_bytes=4104), kernel("k", spill_store_bytes=172)))
    head, first, second, counts = text.splitlines()
    assert head.split("  ")[0] == "kernel" and "registers" in head
    assert first.split() == ["reduce<8>", "40", "4.01", "KiB", "0", "0", "0"]
    assert second.split() == ["k", "40", "0", "0", "172", "B", "0"]
    assert len(head) == len(first) == len(second)
    assert counts == (
        "Instructions in the machine code: loads 12, system-scope stores 2, bulk copies (cp.async.bulk) 3, "
        "local-memory loads 4."
    )


def test_long_names_and_many_kernels_are_cut():
    text = kernels_text(report(*(kernel("k" * 500, shared_bytes=1000 << 20) for _ in range(MAX_KERNELS + 3))))
    assert "and 3 more kernels" in text
    assert max(map(len, text.splitlines()[:-1])) < 84


def test_data_not_read_and_data_not_found_are_mentioned():
    assert "not read" in transfers_text(None) and "pkb-gym[cuda]" in transfers_text(None)
    assert transfers_text(InstructionCounts()) == "Instructions in the machine code: none that move data."
    assert kernels_text(report()) == ""


def test_the_compilers_paragraph_holds_log_and_table():
    compiled = report(kernel("k"), log="kernel.cu(3): warning #177-D: unused")
    text = compiler_text(timed().model_copy(update={"compile": compiled}))
    assert text.startswith("Compiler:\n| kernel.cu(3): warning #177-D: unused\nkernel ")
    assert compiler_text(timed().model_copy(update={"compile": report()})) == ""


def test_a_machine_without_a_gpu_says_how_far_it_came():
    note = "compiled for sm_90a; this machine has no GPU, so it was not run"
    feedback = failed("compiled_only").model_copy(
        update={"stage": "compile", "message": note, "compile": report(kernel("k"))}
    )
    text = feedback_text(feedback)
    assert text.startswith(f"COMPILED, NOT RUN: {note}.\n")
    assert "\n\nCompiler:\nkernel " in text


def test_the_card_shows_the_table_whole():
    compiled = report(kernel("(anonymous namespace)::reduce<__nv_bfloat16>", shared_bytes=4104, stack_bytes=1 << 20))
    feedback = timed().model_copy(update={"compile": compiled})
    card = Text.from_ansi(card_text(find_problem("AllReduce"), feedback.config, feedback, None)).plain
    assert "reduce<__nv_bfloat16>" in card and "4.01 KiB  1 MiB" in card and "spill ld" in card
    assert "Instructions in the machine code: loads 12" in card and "local-memory loads 4." in card
