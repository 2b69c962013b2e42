"""Prompts: complete, and never with a kernel for the same problem."""

from __future__ import annotations

import json

import pytest

from pkb_gym.corpus.prompts import EXAMPLE, example_for, prompt_messages, prompt_rows
from pkb_gym.corpus.tasks import Task
from pkb_gym.engine.problem.signature import cpp_signature
from pkb_gym.envs.suite import split_names
from pkb_gym.problems.catalogue import catalogue, expert_source, find_problem
from pkb_gym.problems.splits import near_duplicates
from tests.fake_gpus import gpu_node, pretend

TEST = set(split_names("test"))
HEADING = EXAMPLE.split("\n")[0]


def _full(name: str, language: str) -> str:
    task = Task(name, language, 2, "tiny", find_problem(name).dtypes[0], 0, "full")
    return "\n".join(message["content"] for message in prompt_messages(task))


@pytest.mark.parametrize("problem", catalogue(), ids=lambda problem: problem.name)
def test_no_prompt_holds_a_kernel_for_the_same_problem_or_one_of_the_test_part(problem):
    """No line of such a kernel, but for those that every kernel has."""
    forbidden = near_duplicates(problem.name) | TEST
    for language, suffix in (("cpp", "cpp"), ("cuda", "cu")):
        text = _full(problem.name, language)
        example = example_for(problem.name, language)
        assert example is not None and example not in forbidden
        shown = expert_source(find_problem(example), suffix)
        assert shown is not None and shown in text
        rest = text.replace(shown, "").replace(cpp_signature(problem), "")
        for name in forbidden:
            for kind in ("cpp", "cu"):
                source = expert_source(find_problem(name), kind) or ""
                assert not source or source not in text
                # The opening comment says how the kernel works, so no line of it may be there.
                assert not [
                    line for line in source.splitlines() if line.startswith("//") and len(line) > 3 and line in rest
                ]


def test_a_full_prompt_has_task_machine_and_example():
    text = _full("AllReduce", "cpp")
    assert "# AllReduce" in text and "## Reference" in text and "## Machine" in text and HEADING in text
    assert "`submit`" in text
    assert HEADING not in _full("AllReduce", "python")


@pytest.mark.parametrize("language", ["cpp", "cuda", "python"])
def test_brief_prompts_are_short(language):
    for problem in catalogue():
        for size in problem.sizes:
            task = Task(problem.name, language, 4, size, problem.dtypes[0], 0, "brief")
            system, user = prompt_messages(task)
            assert len(system["content"]) + len(user["content"]) < 1000
            assert user["content"].startswith(f"{problem.name}: ") and f"language: {language}" in user["content"]


def test_brief_prompts_hold_signature_axes_dtype_and_ranks():
    user = prompt_messages(Task("Reduce", "cpp", 2, '{"M": 3, "N": 5, "dst": 1}', "float32", 0, "brief"))[1]["content"]
    assert "signature: void solution(TensorView tensor, int64_t dst, TensorView out, pkb::Comm comm)" in user
    assert "axes: M=3, N=5, dst=1\ndtype: float32\nranks: 2, cores of one CPU, shared memory" in user


def test_rows_have_every_seed_and_one_prompt():
    options = {"sizes": ["tiny"], "world_size": 2, "style": "brief", "variations": 2}
    problems = [find_problem("AllReduce")]
    rows = prompt_rows(problems, languages=["cpp", "cuda"], seeds=3, part="train", **options)
    assert len(rows) == 2 * 3 * 3
    assert {row["seed"] for row in rows} == {0, 1, 2}
    assert {row["device"] for row in rows if row["language"] == "cpp"} == {"cpu"}
    prompts = {json.dumps([row["language"], row["size"], row["dtype"], row["prompt"]]) for row in rows}
    assert len(prompts) == 6


def test_prompts_are_about_the_machine_that_judges(monkeypatch):
    pretend(monkeypatch)
    (row,) = prompt_rows(
        [find_problem("AllReduce")],
        languages=["cuda"],
        sizes=["published"],
        world_size=4,
        style="full",
        seeds=1,
        part="train",
        variations=0,
        machine=gpu_node(4),
    )
    assert row["device"] == "cuda" and "each on its own NVIDIA H200" in row["prompt"][1]["content"]
    brief = Task("AllReduce", "cuda", 4, "published", "bfloat16", 0, "brief", gpu_node(4))
    assert "ranks: 4, one NVIDIA H200 each, NVLink" in prompt_messages(brief)[1]["content"]
