"""Prompts: complete, and never with a kernel for the same problem. `make all` writes those of every problem."""

from __future__ import annotations

import json
import statistics

import pytest

from pkb_gym.corpus.prompts import prompt_messages, prompt_rows
from pkb_gym.corpus.tasks import Task
from pkb_gym.engine.problem.signature import cpp_signature, plain_cpp_signature
from pkb_gym.engine.records.config import EvalConfig
from pkb_gym.engine.stages.execution_environment import this_machine
from pkb_gym.envs.suite import split_names
from pkb_gym.envs.text.example import HEADING
from pkb_gym.envs.text.python_sources import plain_source
from pkb_gym.envs.text.task import task_text
from pkb_gym.envs.text.turn import STYLES, Style
from pkb_gym.kernels.examples import example_for
from pkb_gym.problems.catalogue import catalogue, expert_source, find_problem, reference_source
from pkb_gym.problems.splits import near_duplicates
from tests.fake_gpus import gpu_node, pretend
from tests.token_count import tokens
from tests.whole_tables import sampled

TEST = set(split_names("test"))
SAMPLE = sampled(catalogue(), 4)
MAX_TOKENS: dict[Style, int] = {"full": 2900, "standard": 1800, "brief": 500}
"""Of the median problem, as docs/environments.md says."""


def _text(name: str, language: str, style: Style = "full") -> str:
    task = Task(name, language, 2, "tiny", find_problem(name).dtypes[0], 0, style)
    return "\n".join(message["content"] for message in prompt_messages(task))


@pytest.mark.parametrize("problem", SAMPLE, ids=lambda problem: problem.name)
def test_no_prompt_holds_a_kernel_for_the_same_problem_or_one_of_the_test_part(problem):
    """No line of such a kernel, but for those that every kernel has."""
    forbidden = near_duplicates(problem.name) | TEST
    for language in ("cpp", "cuda"):
        text, example = _text(problem.name, language), example_for(problem, language)
        assert example.problem not in forbidden and example.source in text
        rest = text.replace(example.source, "").replace(cpp_signature(problem), "")
        for name in forbidden:
            for kind in ("cpp", "cu"):
                source = expert_source(find_problem(name), kind) or ""
                assert not source or source not in text
                # The opening comment says how the kernel works, so no line of it may be there.
                assert not [
                    line for line in source.splitlines() if line.startswith("//") and len(line) > 3 and line in rest
                ]


@pytest.mark.parametrize("language", ["cpp", "cuda", "python"])
@pytest.mark.parametrize("style", ["full", "standard"])
def test_long_prompts_have_task_machine_and_example(language, style):
    text = _text("AllReduce", language, style)
    assert "# AllReduce" in text and "## Reference" in text and "## Machine" in text and HEADING in text
    assert "`submit`" in text


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("language", ["cpp", "cuda", "python"])
def test_every_style_holds_the_code_of_the_reference_and_the_signature(language, style):
    for problem in SAMPLE:
        text, source = _plain(_text(problem.name, language, style)), reference_source(problem)
        if style == "brief" or (style == "standard" and language != "python"):
            source = plain_source(source)
        assert _plain(source) in text, problem.name
        if language != "python":
            parameters = _plain(plain_cpp_signature(problem)).split("(")[1].rstrip(");").split(", ")
            assert all(parameter in text for parameter in parameters), problem.name


def _plain(text: str) -> str:
    return " ".join(text.replace("tvm::ffi::", "").split())


@pytest.mark.parametrize("machine", ["without GPUs", "with GPUs"])
@pytest.mark.parametrize("language", ["cpp", "cuda", "python", "triton"])
def test_prompts_are_short(language, machine, monkeypatch):
    pretend(monkeypatch, *(("NVIDIA H200",) * 4 if machine == "with GPUs" else ()))
    device = "cpu" if language in ("cpp", "python") else "cuda"
    judge, requested = this_machine(), EvalConfig(device=device, world_size=4, size="published", language=language)
    configs = {problem: judge.resolve(requested, problem) for problem in catalogue()}
    for style, most in MAX_TOKENS.items():
        lengths = [tokens(task_text(*each, (language,), judge, style)) for each in configs.items()]
        assert statistics.median(lengths) <= most, style


@pytest.mark.parametrize("language", ["cpp", "cuda", "python"])
def test_brief_prompts_are_short(language):
    for problem in SAMPLE:
        for size in problem.sizes:
            task = Task(problem.name, language, 4, size, problem.dtypes[0], 0, "brief")
            system, user = prompt_messages(task)
            text = user["content"].replace(plain_source(reference_source(problem)), "")
            assert len(system["content"]) + len(text) < 1200
            assert text.startswith(f"{problem.name}: ") and f"language: {language}" in text


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
