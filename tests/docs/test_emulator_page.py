"""The measurements on docs/emulator.md are what docs/generate_emulator.py writes from results."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from benchmarks.emulated_experts import packed
from benchmarks.emulated_mutants import Row
from pkb_gym.problems.loading import load_module
from tests.docs.pages import DOCS

generator = load_module(DOCS / "generate_emulator.py", "tests.docs.generate_emulator")
tables = load_module(DOCS / "emulator_tables.py", "tests.docs.emulator_tables")
PAGE = generator.PAGE.read_text(encoding="utf-8")
HEADER = {"date": "2026-01-01", "machine": "a machine", "commit": "c" * 12, "command": "python -m b --jobs 14"}


def test_the_page_is_what_the_generator_writes() -> None:
    assert generator.render(PAGE) == PAGE, "docs/emulator.md is stale: run `python docs/generate_emulator.py`"


def write(folder: Path, name: str, **content: object) -> None:
    (folder / f"{name}.json").write_text(json.dumps(HEADER | content), encoding="utf-8")


def mutant(name: str, **found: object) -> dict[str, object]:
    places = ("kernel.cu:1", "kernel.cu:2") if found.get("failure") == "race" else ()
    return asdict(Row("Gather", "no wait", name, 1, places=places, **found))  # type: ignore[arg-type]


@pytest.fixture
def mutants(tmp_path: Path) -> Path:
    rows = [
        mutant("first", evaluations=1, seed=0, failure="race"),
        mutant("later", evaluations=3, seed=2, failure="deadlock"),
        mutant("missed", evaluations=20, reached=True),
        mutant("open", evaluations=4, reached=True),
        mutant("elsewhere", evaluations=1, reached=False),
        mutant("needless", evaluations=1, reached=True, equivalent="nobody is waited for"),
    ]
    write(tmp_path, "emulated_mutants", world_size=2, seeds=20, rows=rows)
    return tmp_path


def test_mutants_that_are_not_done_or_not_reached_do_not_count(mutants: Path) -> None:
    text = " ".join(tables.mutants(mutants).split())
    assert "3 mutants, drawn of each kind alike, whose operation 2 ranks come to: 2 (67%) are found within 20" in text
    assert "(race 1, deadlock 1), 1 of them as a race with both places, and 1 with the first seed. 1 more were" in text
    assert "| Gather | no wait | `needless` | nobody is waited for |" in text
    assert "and 1 were not done" in text and "| Gather | no wait | `missed` |" in text
    assert "| all | 3 | 2 | 1 | 0 | 1 | 3 |" in text and "`open`" not in text


def test_ranks_that_share_a_gpu_are_named(mutants: Path) -> None:
    rows = [
        mutant("first", evaluations=1),
        mutant("later", evaluations=1, seed=0, failure="timeout"),
        mutant("elsewhere", evaluations=1, seed=0, failure="race"),
        asdict(Row("Gather", "", "", None, evaluations=2)),
    ]
    write(mutants, "emulated_mutants_1_gpus_of_2_ranks", world_size=2, ranks_per_gpu=2, calls=100, rows=rows)
    text = tables.mutants(mutants)
    assert "2 of these mutants ran on 2 ranks that share 1 GPU" in text
    assert "100 calls each: 1 were refused (timeout 1). 1 of 1 unchanged expert passed under the same" in text
    assert "| no wait | 2 | 1 |" in text


def test_mutants_of_an_older_result_are_found_by_the_present_names(mutants: Path) -> None:
    write(mutants, "emulated_mutants", world_size=2, seeds=20, rows=[mutant("a:1: tell_begun()", evaluations=20)])
    rows = [mutant("a:1: signal_begun()", evaluations=1)]
    write(mutants, "emulated_mutants_2_gpus", world_size=2, ranks_per_gpu=1, calls=100, rows=rows)
    assert "1 of these mutants ran on 2 GPUs, 100 calls each: 0 were refused." in tables.mutants(mutants)


def row(kernel: str, ranks: int, verdict: str = "passed", **more: object) -> dict[str, object]:
    what = {"problem": "Gather", "kernel": kernel, "world_size": ranks, "seed": 0, "expected": "passed"}
    what |= {"digest": "0" * 16, "commit": "c" * 12}
    return what | {"verdict": verdict, "compile_s": 1.0, "check_s": 2.0, "warp_instructions": 3_000_000} | more


def test_evaluations_beyond_the_limit_say_what_takes_the_time(tmp_path: Path) -> None:
    rows = [
        row("expert", 2, compile_s=40.0),
        row("expert", 8, check_s=70.0, verdict="race", findings=["a race"]),
        row("good/copy.cu", 2),
        row("good/updates_its_graph.cu", 2, "load_error"),
        row("good/new.cu", 2, "race"),
    ]
    write(tmp_path, "emulated_experts", rows=packed(rows))
    text = " ".join(tables.experts(tmp_path).split())
    assert "2 evaluations of experts and of variants" in text and "1 are right, with 1 finding" in text
    assert "with 14 evaluations side by side on a machine" in text
    assert "| Gather | 2 | 1 | 1 | 1 | 40.0 | 2.0 | 3.0 |" in text
    assert "the larger part): Gather on 8 ranks (40 s and 70 s: the interpreter and its detector)." in text
    assert "Of 3 candidates in `tests/candidates/cuda`, 1 have the verdict of 2 H200; 2 have another" in text
    assert text.endswith("Not explained: `good/new.cu`.")
    rows[0] |= {"commit": "d" * 12, "check_s": 5.0}
    later_runs = [{"commit": "d" * 12, "machine": "another"}]
    write(tmp_path, "emulated_experts", rows=packed(rows), later_runs=later_runs)
    others = len(rows) - 1
    text = " ".join(tables.experts(tmp_path).split())
    assert f"Commits {'d' * 12} (1 evaluation) and {'c' * 12} ({others} evaluations)" in text
    assert f"on a machine (of Gather on 2 ranks: of commit {'d' * 12}, on another); the emulator" in text
    assert "| Gather | 2 | 1 | 1 | 1 | 40.0 | 5.0 | 3.0 |" in text, "the table has the seconds of the later run"


def test_random_programs_are_compared_with_their_bounds(tmp_path: Path) -> None:
    groups = {
        "integer": {"forms": 2, "compared": 100, "different": 3, "within_bound": 0},
        "approximations": {"forms": 1, "compared": 50, "different": 0, "within_bound": 20},
    }
    write(
        tmp_path,
        "emulated_random",
        gpu="NVIDIA H200",
        groups=groups,
        problems={},
        compared_programs=2000,
        programs_alike=1999,
    )
    text = " ".join(tables.random_programs(tmp_path).split())
    assert "97 of 100 exact results were the GPU's then. Of 50 approximations, 20 differed within the manual's" in text
    assert "left the same memory in 1999 of them" in text and "0 programs could not be compared" in text
