"""The page on training: its commands are understood, and its metrics are those that a run logs."""

from __future__ import annotations

import json
import re
import shlex

import pytest

from benchmarks import learning_run
from pkb_gym.cli.program import make_parser
from pkb_gym.problems.loading import load_module
from pkb_gym.training.inputs.arguments import parse_arguments
from tests.docs.pages import DOCS, ROOT
from tests.training.test_configs import RECIPES

generator = load_module(DOCS / "generate_training.py", "tests.docs.generate_training")
PAGE = (DOCS / "training.md").read_text(encoding="utf-8")


def commands() -> list[list[str]]:
    """Those in the page's console blocks, in words."""
    blocks = re.findall(r"```console\n(.*?)```", PAGE, re.DOTALL)
    lines = "".join(blocks).replace("\\\n", " ").splitlines()
    return [shlex.split(line, comments=True) for line in lines]


@pytest.mark.parametrize("words", [w for w in commands() if w[0] == "pkb"], ids=" ".join)
def test_pkb_takes_its_commands(words):
    make_parser().parse_args(words[1:])


@pytest.mark.parametrize("words", [w for w in commands() if "launch" in w], ids=" ".join)
def test_recipes_take_their_commands(words, tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    script = next(word for word in words if word.startswith("training/") and word.endswith(".py"))
    assert (ROOT / script).is_file() and (ROOT / words[words.index("--config_file") + 1]).is_file()
    kinds, _needed = RECIPES[script.removeprefix("training/").removesuffix(".py").split("_")[0]]
    argv = words[words.index(script) + 1 :]
    if len(kinds) == 3:  # this machine may have no GPU for the trainers' bfloat16
        argv += ["--output_dir", str(tmp_path), "--use_cpu", "true"]
    parse_arguments(kinds, argv, prog=script)


@pytest.mark.parametrize("words", [w for w in commands() if "benchmarks.learning_run" in w], ids=" ".join)
def test_the_learning_run_takes_its_commands(words):
    learning_run.make_options().parse_args(words[words.index("benchmarks.learning_run") + 1 :])


def test_there_are_commands_of_every_recipe():
    words_of_all = " ".join(word for words in commands() for word in words)
    assert all(f"training/{name}.py" in words_of_all for name in ("sft", "grpo", "rft", "evaluate_policy"))
    assert {"prompts", "corpus", "counts"} <= {words[2] for words in commands() if words[:2] == ["pkb", "export"]}


def one(mean: float, error: float | None = None) -> dict[str, object]:
    return {"mean": mean, "standard_error": error, "low": None, "high": None, "clusters": 2}


def ring(*correct: float) -> dict[str, object]:
    """Of two prompts with two episodes each, by turn."""
    turns = [
        {"compiled": one(0.8), "correct": one(share), "reward": one(share, 0.05), "fast_captured": one(0.0)}
        for share in correct
    ]
    figures = {"prompts": 2, "samples": 4, "correct": one(correct[-1], 0.1), "fast": one(0.25), "reward": one(0.7, 0.2)}
    best = {"1": one(0.7), "2": one(0.9, 0.3)}
    return {
        "figures": figures,
        "turns": turns,
        "best_of": best,
        "fast_captured": one(0.0),
        "solved_problems": ["Reduce"],
    }


@pytest.fixture
def found() -> dict[str, object]:
    second = {"episodes": 4, "failed_first": 2, "answered": 2, "repeated": 1} | {
        "repaired": one(0.5),
        "gain": one(0.25, 0.05),
    }
    arm = {"training_evaluations": 40, "evaluations": 12.0, "reward": one(1.2, 0.1), "subject_gain": None}
    gain = {"reward": one(0.3, 0.1), "correct": one(-0.05)}
    curves = {"reward": [0.1, 0.4], "correct": [0.0, None], "completions/mean_length": [900.0, 800.0]}
    return {
        "date": "2026-01-02",
        "commit": "c" * 12,
        "machine": "a processor",
        "gpus": ["a GPU"],
        "spent_s": {"sft": 80.4, "grpo": 300.0},
        "sft": {"steps": 2, "epochs": 1.5, "loss": [2.0, 1.0]},
        "policies": {"grpo": {"sizes": ring(0.5, 0.75)}, "base": {"sizes": ring(0.0)}},
        "gains": {"grpo over sft": {"sizes": gain}},
        "verdicts": {"grpo": {"sizes": {"passed": 3, "race": 1}}},
        "pretrained": {"date": "2026-01-01", "commit": "b" * 12},
        "by_problem": {"grpo": {"A": {"episodes": 2, "correct": 0.5, "reward": 1.25}}},
        "nearest": {
            "grpo": {"sizes": {"verbatim": {"submissions": 3, "right": 2}, "more": {"submissions": 1, "right": 0}}}
        },
        "second_turns": {"grpo": second, "base": {**second, "answered": 0}},
        "study": [{"arm": "grpo", **arm}, {"arm": "sft", **arm, "subject_gain": one(0.2, 0.05)}],
        "grpo": {
            "steps": 2,
            "evaluations": 40,
            "curves": {**curves, "frac_reward_zero_std": [0.5, 0.25]},
            "second_turn": {**second, "repeated": 2},
            "by_problem": {"A": [0.25, None], "C": [0.0, 0.0]},
            "verdicts": [{"race": 3, "passed": 1}, {"passed": 4}],
            "phases": {
                "steps": 2,
                "wall_s": 40.0,
                "evaluations_per_minute": 60.0,
                "gpu_utilisations": [0.5],
                "share": {"generation": 0.6, "evaluation": 0.4, "offload": 0.0},
            },
        },
    }


def test_sft_of_an_earlier_run_has_no_time(found):
    found["spent_s"] = {"grpo": 300.0}
    assert "1.5 epochs, by an earlier run, which judged it too. GRPO:" in generator.tables.sections(found)
    found["spent_s"] = {"grpo": 300.0, "rings_sft": 90.0}
    assert "1.5 epochs, by an earlier run. GRPO:" in generator.tables.sections(found)


def test_tables_hold_the_figures_of_the_result(found):
    text = generator.tables.sections(found)
    assert "a GPU, a processor. SFT: 2 steps, 1.5 epochs, 80 s. GRPO: 2 steps, 40 evaluations, 300 s." in text
    assert "| sizes | GRPO | 2 x 2 | 80 % | 75 ± 10 % | 25 % | 0.70 ± 0.20 | 0.90 ± 0.30 (k=2) | 1 of 2 |" in text
    assert text.index("| sizes | pretrained |") < text.index("| sizes | GRPO |")
    assert "| sizes | GRPO | 1 | 80 % | 50 % | 0.50 ± 0.05 |" in text
    assert "| sizes | grpo over sft | +0.30 ± 0.10 | +3.0 | -0.05 |" in text
    assert "| sizes | GRPO | 4 | 75% | 25% |" in text
    assert "| GRPO | 4 | 2 | 2 | 1 | 50 % |\n| GRPO, in training | 4 | 2 | 2 | 2 | 50 % |" in text
    assert "| pretrained | 4 |" not in text
    assert "| problem | GRPO correct | GRPO reward | steps 1 to 1 | steps 2 to 2 |" in text
    assert "| A | 50% | 1.25 | 25% |  |" in text
    assert f"judged by a run of 2026-01-01, commit {'b' * 12}." in text
    assert "| ring | policy | verbatim | more |" in text and "| sizes | GRPO | 3 (2) | 1 (0) |" in text
    assert "| sft | 40 | 12.0 | 1.20 ± 0.10 | +0.20 ± 0.05 | +4.0 |" in text
    assert "A step of GRPO took 20 s on average over 2 steps, with 60 evaluations a minute" in text
    assert "| evaluation alone | 8.0 s | 40% |" in text and "offload" not in text
    assert "Stages, the start of each call included: `sft` 80 s, `grpo` 300 s; 6 minutes in all." in text


def test_comparisons_are_there_where_their_results_are(found):
    comparisons = generator.comparisons
    assert comparisons.sections(found) == "" and comparisons.drawn(found) == {}
    second = found["second_turns"]["grpo"]
    answered = {"submissions": 6, "second_turn": second, "turns": ring(0.5, 0.75)["turns"]}
    verdict = {**answered, "submissions": 7, "second_turn": {**second, "repaired": None}}
    effect = {"seed": 2, "arm": "two_turns", "policy": "grpo", "ring": "sizes", "prompts": 2}
    found["feedback"] = [effect | {"whole": answered, "verdict": verdict, "reward": one(0.2, 0.1), "correct": one(0.1)}]
    text = comparisons.sections(found)
    assert "| 2 | sizes | GRPO, arm `two_turns` | whole | 6 | 2 | 2 | 1 | 50 % | 50 % then 75 % |" in text
    assert "| 2 | sizes | GRPO, arm `two_turns` | only that it failed | 7 | 2 | 2 | 1 |  | 50 % then 75 % |" in text
    assert "| 2 | sizes | GRPO, arm `two_turns` | 2 | +0.10 | +0.20 ± 0.10 | +2.0 |" in text
    assert "#### Arm" not in text and "CUDA" not in text


def test_an_arm_is_shown_beside_the_training_without_its_options(found):
    step = {"submissions": 40, "reward": 0.5, "correct": 0.75, "correct_first": 0.5}
    training = {"submissions": 80, "evaluations": 60, "curve": [step, {**step, "submissions": 80}]}
    training |= {"at_equal_submissions": step, "rings": {"sizes": ring(0.5, 0.75)}}
    gains = {"first": {"reward": one(0.0, 0.1), "correct": one(0.0)}, "last": {"reward": None, "correct": None}}
    arm = {"arm": "two_turns", "seed": 2, "equal_submissions": 80, "gains": {"other": {"sizes": gains}}}
    arm["trainings"] = {
        "arm": training | {"options": {"grpo-turns": 2, "group": 8}},
        "other": training | {"options": {"grpo-turns": 1, "group": 8}, "at_equal_submissions": None},
    }
    found["arms"] = [arm]
    text = generator.comparisons.sections(found)
    assert "#### Arm `two_turns`\n\nIt differs in `grpo-turns` 2 (1 without). Both trainings begin" in text
    assert "| `two_turns` | 2 | 80 | 60 | 50% | 75% | 0.50 |\n| without | 2 | 80 | 60 |  |  |  |" in text
    assert "| sizes | `two_turns` | 2 | 75 % | 0.75 ± 0.05 |" in text
    assert "| sizes | the training without | first | +0.00 ± 0.10 | +0.0 | +0.00 |" in text and "| last |" not in text
    drawn = generator.comparisons.drawn(found)
    assert list(drawn) == ["arm_two_turns.svg"] and "submissions of GRPO" in drawn["arm_two_turns.svg"]


def test_a_run_in_cuda_has_tables_of_its_own(found, tmp_path, monkeypatch):
    monkeypatch.setattr(generator.tables, "RESULT", tmp_path / "learning_run.json")
    (tmp_path / "learning_run.json").write_text(json.dumps(found))
    page = f"{generator.BEGIN}\n{generator.END}"
    assert "CUDA" not in generator.render(page) and "cuda_curves.svg" not in map(str, generator.drawn())
    cuda = {**found, "machine": "another", "evaluation_gpus": ["2", "3"]}
    (tmp_path / "learning_run_cuda.json").write_text(json.dumps(cuda))
    text = generator.render(page)
    assert "Submissions were evaluated on 2 GPUs, and the policy learnt on another." in text
    (tmp_path / "learning_run_cuda.json").write_text(json.dumps(cuda | {"takes_turns": True}))
    assert "2 GPUs, and the policy learnt on one of them, in turns with evaluation." in generator.render(page)
    assert "#### Kernels in CUDA, timed on GPUs" in text
    assert "`benchmarks/results/learning_run_cuda.json` (2026-01-02, commit cccccccccccc): a GPU, another." in text
    assert text.count("| sizes | GRPO | 2 x 2 |") == 2
    assert generator.FOLDER / "cuda_curves.svg" in generator.drawn()


def test_all_seeds_in_cuda_have_a_row_whichever_result_they_are_in(found, tmp_path, monkeypatch):
    monkeypatch.setattr(generator.tables, "RESULT", tmp_path / "learning_run.json")
    (tmp_path / "learning_run.json").write_text(json.dumps(found))
    first = {**found, "evaluation_gpus": ["2", "3"], "policies": {**found["policies"], "sft": {"sizes": ring(0.25)}}}
    first["policies"]["grpo"]["sizes"]["fast_captured"] = one(0.5, 0.1)
    (tmp_path / "learning_run_cuda.json").write_text(json.dumps(first))
    page = f"{generator.BEGIN}\n{generator.END}"
    alone, drawn = generator.render(page), generator.drawn()
    assert "seed by seed" not in alone.lower()

    def seed(share: float, gain: float) -> dict[str, object]:
        sft, grpo = ({"correct": one(of, 0.02), "reward": one(2 * of, 0.1)} for of in (share, share + 0.5))
        gains = {"reward": one(gain, 0.1), "correct": one(0.5)}
        policies = {"sft": {"sizes": sft}, "grpo": {"sizes": {**grpo, "fast_captured": one(0.25, 0.05)}}}
        return {"policies": policies, "gains": {"grpo over sft": {"sizes": gains}}}

    trained = [{"seed": 1, "grpo": found["grpo"]}, {"seed": 2, "grpo": None}]
    seeds = [{**trained[0], **seed(0.25, 0.4)}, {**trained[1], **seed(0.25, 0.6)}]
    more = {"seeds": seeds, "joined": {"seeds": [1, 2], **seed(0.25, 0.5)}, "evaluation_gpus": ["0", "1"]}
    further = {**found, **more, "takes_turns": True, "commit": "d" * 12, "machine": "another"}
    (tmp_path / "learning_run_cuda_seeds.json").write_text(json.dumps(further))
    text = generator.render(page)
    assert text.startswith(alone.removesuffix(f"\n\n{generator.END}")) and generator.drawn() == drawn
    of_both = text.partition("#### Kernels in CUDA, seed by seed\n\n")[2]
    assert of_both.startswith(
        f"- Seed 0: `benchmarks/results/learning_run_cuda.json` (2026-01-02, commit {'c' * 12}): a GPU, a processor. "
        "Submissions were evaluated on 2 GPUs, and the policy learnt on another.\n"
        f"- Seeds 1, 2: `benchmarks/results/learning_run_cuda_seeds.json` (2026-01-02, commit {'d' * 12}): a GPU, "
        "another. Submissions of each were evaluated on 2 GPUs, and the policy learnt on one of them, in turns with "
        "evaluation.\n\n"
    )
    policies, _, controls = of_both.partition("Controls of each seed")
    assert "| 0 | sft | 12.0 | 1.20 ± 0.10 | +0.20 ± 0.05 | +4.0 |" in controls
    rows = [line for line in policies.splitlines() if line.startswith("| ")][2:]
    assert rows == [
        "| 0 | 25 ± 10 % | 0.70 ± 0.20 | 75 ± 10 % | 50 ± 10 % | 0.70 ± 0.20 | +0.30 ± 0.10 | +3.0 | -0.05 | 2 | 40 |",
        "| 1 | 25 ± 2 % | 0.50 ± 0.10 | 75 ± 2 % | 25 ± 5 % | 1.50 ± 0.10 | +0.40 ± 0.10 | +4.0 | +0.50 | 2 | 40 |",
        "| 2 | 25 ± 2 % | 0.50 ± 0.10 | 75 ± 2 % | 25 ± 5 % | 1.50 ± 0.10 | +0.60 ± 0.10 | +6.0 | +0.50 |  |  |",
        "| All of 1, 2 | 25 ± 2 % | 0.50 ± 0.10 | 75 ± 2 % | 25 ± 5 % | 1.50 ± 0.10 | +0.50 ± 0.10 | +5.0 | +0.50 |"
        "  |  |",
    ]
    del further["seeds"][1]["policies"]["grpo"], further["seeds"][1]["gains"]["grpo over sft"]
    (tmp_path / "learning_run_cuda_seeds.json").write_text(json.dumps(further))
    assert "\n| 2 | 25 ± 2 % | 0.50 ± 0.10 |  |  |  |  |  |  |  |  |\n" in generator.render(page), "it was not judged"


def test_controls_of_all_seeds_in_cuda_are_listed(found):
    seeds = generator.comparisons.seeds
    arm = {"training_evaluations": 0, "evaluations": 22.25, "reward": one(1.25, 0.1), "subject_gain": one(-0.1, 0.2)}
    searched = [{**found["study"][0]}, {"arm": "sft", **arm}, {"arm": "evolve", **arm}]
    second = {**found, "seed": 2, "study": [found["study"][0], {"arm": "rft", **arm}], "study_evolve": searched}
    text = seeds.section({"learning_run_cuda.json": found, "learning_run_cuda_seed_2.json": second})
    controls = text.partition("Controls of each seed")[2]
    assert [line for line in controls.splitlines() if line.startswith("| ")][2:] == [
        "| 0 | sft | 12.0 | 1.20 ± 0.10 | +0.20 ± 0.05 | +4.0 |",
        "| 2 | rft | 22.2 | 1.25 ± 0.10 | -0.10 ± 0.20 | -0.5 |",
        "| 2 | evolve | 22.2 | 1.25 ± 0.10 | -0.10 ± 0.20 | -0.5 |",
    ]
    without = [{name: of for name, of in one.items() if name != "study"} for one in (found, found)]
    assert "Controls" not in seeds.section(dict(zip("ab", without, strict=True)))


def test_the_time_of_steps_is_shown_seed_by_seed_in_the_course_of_the_training(found):
    assert "In the course of the training" not in generator.tables.sections(found)
    share = {"generation": 0.5, "evaluation": 0.25}
    parts = [
        {"steps": 2, "wall_s": 50.0, "share": share, "evaluations_per_minute": 59.6},
        {"steps": 1, "wall_s": 10.0, "share": {"generation": 1.0}, "evaluations_per_minute": 90.0},
    ]
    found["grpo"]["phases_by_part"] = parts
    text = generator.tables.sections(found)
    assert "| 0 | 1 to 2 | 25.0 s | 25% | 60 |\n| 0 | 3 to 3 | 10.0 s | 0% | 90 |" in text


def test_a_policy_that_no_ring_has_judged_is_named(found):
    found["policies"]["sft"] = found["policies"]["base"]
    assert "No ring" not in generator.tables.sections(found)
    del found["policies"]["grpo"]
    text = generator.tables.sections(found)
    assert "GRPO: 2 steps, 40 evaluations, 300 s. No ring has judged the policy after GRPO." in text
    assert "| sizes | GRPO | 2 x 2 |" not in text


def test_pictures_are_drawn_also_where_a_step_has_no_figure(found):
    drawn = generator.tables.drawn(found)
    assert list(drawn) == ["curves.svg", "failures.svg"] and drawn == generator.tables.drawn(found)
    assert all("step of GRPO" in text for text in drawn.values())
    assert generator.tables.verdict_shares([{"race": 3, "passed": 1}]) == [{"race": 0.75, "passed": 0.25}]


def test_the_page_is_what_the_generator_writes_once_there_is_a_result(found, tmp_path, monkeypatch):
    result = generator.tables.RESULT
    assert (generator.BEGIN in PAGE) == result.exists(), (
        "run `python docs/generate_training.py`, or take the marks away"
    )
    if result.exists():
        assert generator.render(PAGE) == PAGE, "docs/training.md is stale: run `python docs/generate_training.py`"
    monkeypatch.setattr(generator.tables, "RESULT", tmp_path / "learning_run.json")
    (tmp_path / "learning_run.json").write_text(json.dumps(found))
    page = f"# Page\n\n{generator.BEGIN}\nold\n{generator.END}\n\n## Next\n"
    written = generator.render(page)
    assert "| sizes | GRPO | 2 x 2 |" in written and "old" not in written and written.endswith("\n\n## Next\n")
    assert generator.render(written) == written
