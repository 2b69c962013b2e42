r"""Figures of a `learning_run`, from what it collected.

    python -m benchmarks.learning_run_report run.tar.gz [seed-1/run.tar.gz ...] --prompts RINGS/prompts.jsonl \
        [--corpus DATA/corpus.jsonl] [--pretrained OTHER.tar.gz] [--evolve EVOLVE/results.jsonl] \
        [--out benchmarks/results]

writes `learning_run.json`: figures of every policy on
the three rings, gains that are paired by prompt, second turns, failures, distances of kernels to those of the corpus,
curves of the training, where its time went, and controls at equal evaluations. Stages that are missing or were broken
off appear as far as they came. The pretrained model may have been judged by another run, and `evolve` have searched
elsewhere. With the archives of further seeds, there are figures of each seed and of all joined (`learning_seeds`); a
seed without an SFT has that of the first, and its samples. The archives of arms may follow in any order, and are
compared with that of their seed (`learning_arms`). `feedback` says what the text of the feedback adds to second turns
(`learning_feedback`), for every seed and arm that was judged without it. A run with kernels in another language has a
result of its own: `--name learning_run_cuda` is shown on the page too, and results with further seeds of it, such as
`learning_run_cuda_seeds`, in a table of all seeds.
"""

from __future__ import annotations

import json
import tarfile
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from benchmarks.common import RESULTS, make_parser
from benchmarks.learning_arms import Trained, arm_figures
from benchmarks.learning_by_problem import PARTS, ring_by_problem, training_by_problem
from benchmarks.learning_feedback import in_order, second_turn, text_effects
from benchmarks.learning_nearest import Shown, nearness, shown_kernels
from benchmarks.learning_report import phase_figures, step_curves
from benchmarks.learning_seeds import SeedResults, seeds_figures
from benchmarks.learning_study import Arm, compare, rewards_by_prompt, training_evaluations
from pkb_gym.engine.errors import ConfigError
from pkb_gym.engine.records.attempt import NO_SUBMISSION, Attempt
from pkb_gym.engine.support.atomic_write import write_atomically
from pkb_gym.training.inputs.rows import Row, read_jsonl
from pkb_gym.training.results.attempts import read_rows, row_of
from pkb_gym.training.results.policy_summary import (
    EpisodeResult,
    correct_of,
    episodes_by_prompt,
    gain,
    prompt_key,
    turns_by_prompt,
)
from pkb_gym.training.results.ring_summary import rings_of, summarise_rings

NAME, RESULT = "learning_run_report", "learning_run"
PASSED = "passed"
POLICIES = {"base": "rings_base", "sft": "rings_sft", "grpo": "rings_grpo", "rft": "rings_rft"}
"""Name of a policy -> the stage that judged it."""
WITHOUT_TEXT = {"sft": "verdict_sft", "grpo": "verdict_grpo"}
"""Likewise, of stages in which failures were answered by a verdict alone."""
ABOUT = ("date", "machine", "commit", "gpus", "spent_s")
"""What a figure says of its run."""
GAINS = (("sft", "base"), ("grpo", "sft"), ("rft", "sft"), ("grpo", "rft"))
STUDY_RING = "sizes"
"""Ring on which arms are compared at equal evaluations: that of the trained problems."""
CURVES = ("completions/mean_length", "completions/clipped_ratio", "evaluations", "unread_replies", "grad_norm")
"""Kept of every step of GRPO, besides those of `learning_report`."""


def first_verdicts(rows: Sequence[Row], ring_of_prompt: Mapping[str, str]) -> dict[str, dict[str, int]]:
    """Ring -> verdict of the first turn -> episodes, the most frequent first."""
    found: dict[str, Counter[str]] = {}
    for key, episodes in turns_by_prompt(rows).items():
        if key in ring_of_prompt:
            counts = found.setdefault(ring_of_prompt[key], Counter())
            counts.update(in_order(turns)[0]["failure"] or PASSED for turns in episodes)
    return {ring: dict(counts.most_common()) for ring, counts in sorted(found.items())}


def verdicts_by_step(rollouts: Sequence[Row]) -> list[dict[str, int]]:
    """Of each step of GRPO: verdict -> submissions and replies without one; empty where none was generated."""
    steps: list[Counter[str]] = [Counter() for _ in range(1 + max((row["step"] for row in rollouts), default=-1))]
    for row in rollouts:
        steps[row["step"]][row["failure"] or PASSED] += 1
    return [dict(step.most_common()) for step in steps]


def stage_rows(folder: Path) -> list[Row]:
    """Results of an evaluation, also of one that was broken off; empty where there is none."""
    if (whole := folder / "results.jsonl").exists():
        return read_rows(whole)
    lines = [line for part in sorted(folder.glob("parts/*.jsonl")) for line in read_jsonl(part)]
    return [row_of(Attempt.model_validate(attempt)) for line in lines for attempt in line["attempts"]]


def policy_rows(run: Path) -> dict[str, list[Row]]:
    """Policy -> its results on the rings; of those that were judged."""
    rows = {name: stage_rows(run / stage) for name, stage in POLICIES.items()}
    return {name: of for name, of in rows.items() if of}


def figures(
    run: Path, prompts: Sequence[Row], evolve: Sequence[Row] = (), corpus: Sequence[Shown] = ()
) -> dict[str, Any]:
    """All figures of a run.

    Args:
        run: folder with what was collected.
        prompts: of `ring_prompts.py`.
        evolve: results of `learning_search` on prompts of the rings.
        corpus: kernels that SFT was shown.
    """
    rings, rows = rings_of(prompts), policy_rows(run)
    found = _about(run)
    found["prompts"] = dict(Counter(row.get("ring") or "train" for row in prompts))
    found["policies"] = {
        name: {ring: figures.model_dump(mode="json") for ring, figures in summarise_rings(of, rings).items()}
        for name, of in rows.items()
    }
    found["verdicts"] = {name: first_verdicts(of, rings) for name, of in rows.items()}
    found["gains"] = {
        f"{after} over {before}": _gains(rows[before], rows[after], rings)
        for after, before in GAINS
        if before in rows and after in rows
    }
    found["second_turns"] = {name: second_turn(of).model_dump(mode="json") for name, of in rows.items()}
    found["by_problem"] = {name: ring_by_problem(of, rings, STUDY_RING) for name, of in rows.items() if name != "base"}
    if corpus:
        found["nearest"] = {name: nearness(of, rings, corpus) for name, of in rows.items() if name != "base"}
    found["sft"] = _sft(run / "sft")
    found["grpo"] = _grpo(run / "grpo")
    if "grpo" in rows and found["grpo"] is not None:
        arms = _arms(run, rows, found["grpo"]["evaluations"], rings)
        found["study"] = [one.model_dump(mode="json") for one in compare(arms, "grpo")]
        own = stage_rows(run / "evolve")
        found["evolve_on_same_machine"] = bool(own)
        if own or evolve:
            arms.append(_arm("evolve", own or evolve, 0, rings))
            found["study_evolve"] = [one.model_dump(mode="json") for one in compare(arms, "grpo")]
    return found


def figures_of_seeds(runs: Sequence[Path], prompts: Sequence[Row]) -> dict[str, Any]:
    """Figures of each seed and of all joined; see `learning_seeds`.

    Args:
        runs: folders with what was collected, that of the first seed first.
        prompts: of `ring_prompts.py`.
    """
    rings, shared = rings_of(prompts), policy_rows(runs[0])
    seeds = []
    for run in runs:
        about = _about(run)
        own = shared if run == runs[0] else policy_rows(run)
        of_sft = (run, own) if "sft" in own else (runs[0], shared)
        rows = {name: of for name, of in (own | {"sft": of_sft[1].get("sft", [])}).items() if of and name != "base"}
        training = _grpo(run / "grpo")
        arms = []
        if training is not None and "grpo" in rows:
            arms = _arms(run, rows, training["evaluations"], rings, of_sft[0])
        seed = int(about.get("seed", 0))
        arms = [replace(arm, seed=seed) for arm in arms]
        named = {name: about[name] for name in ABOUT if name in about}
        seeds.append(SeedResults(seed, rows, arms, named, training))
    return seeds_figures(seeds, rings, [pair for pair in GAINS if "base" not in pair], STUDY_RING)


def figures_of_arms(arms: Sequence[Path], seeds: Sequence[Path], prompts: Sequence[Row]) -> list[dict[str, Any]]:
    """Figures of each arm beside the training of its seed, see `learning_arms`; an arm that was not judged is left out.

    Args:
        arms: folders with what was collected.
        seeds: likewise, one of them of each arm's seed.
        prompts: of `ring_prompts.py`.

    Raises:
        ConfigError: an arm has no run of its seed.
    """
    rings = rings_of(prompts)
    of_seed = {_about(run).get("seed", 0): run for run in seeds}
    found = []
    for arm in arms:
        about = _about(arm)
        run = of_seed.get(about["seed"])
        if run is None:
            raise ConfigError(
                f"arm {about['arm']} needs the archive of seed {about['seed']}, which it is compared with"
            )
        pair = [_trained(one) for one in (arm, run)]
        if missing := [one.about.get("arm") or "its seed" for one in pair if not one.rows or not one.rollouts]:
            print(f"arm {about['arm']} is left out: {' and '.join(missing)} has not trained, or was not judged")
            continue
        found.append(arm_figures(pair[0], pair[1], stage_rows(run / POLICIES["sft"]), rings))
    return found


def _trained(run: Path) -> Trained:
    rollouts = run / "grpo" / "rollouts.jsonl"
    return Trained(_about(run), stage_rows(run / POLICIES["grpo"]), read_jsonl(rollouts) if rollouts.exists() else [])


def text_figures(runs: Sequence[Path], prompts: Sequence[Row]) -> list[dict[str, Any]]:
    """What the text of the feedback adds, for each policy that was judged without it; see `learning_feedback`.

    Args:
        runs: folders with what was collected, of seeds and arms.
        prompts: of `ring_prompts.py`.
    """
    rings, found = rings_of(prompts), []
    for run in runs:
        about = _about(run)
        for policy, stage in WITHOUT_TEXT.items():
            effects = text_effects(stage_rows(run / POLICIES[policy]), stage_rows(run / stage), rings)
            named = {"seed": about.get("seed", 0), "arm": about.get("arm"), "policy": policy}
            found += [named | effect.model_dump(mode="json") for effect in effects]
    return found


def _about(run: Path) -> dict[str, Any]:
    about: dict[str, Any] = json.loads((run / "about.json").read_bytes())
    return about


def _gains(before: Sequence[Row], after: Sequence[Row], rings: Mapping[str, str]) -> dict[str, Any]:
    def of(rows: Sequence[Row], ring: str) -> dict[str, list[EpisodeResult]]:
        return {key: episodes for key, episodes in episodes_by_prompt(rows).items() if rings.get(key) == ring}

    found = {}
    for ring in sorted(set(rings.values())):
        old, new = of(before, ring), of(after, ring)
        gains = {"reward": gain(old, new), "correct": gain(old, new, correct_of)}
        found[ring] = {name: None if one is None else one.model_dump(mode="json") for name, one in gains.items()}
    return found


def _history(folder: Path) -> list[Row]:
    """Log of a trainer: at its end, or of the newest checkpoint."""
    states = [json.loads(path.read_bytes()) for path in folder.rglob("trainer_state.json")]
    return list(max(states, key=lambda state: state["global_step"])["log_history"]) if states else []


def _sft(folder: Path) -> dict[str, Any]:
    steps = [entry for entry in _history(folder) if "loss" in entry]
    return {
        "steps": len(steps),
        "epochs": round(steps[-1]["epoch"], 1) if steps else 0,
        "loss": [round(float(entry["loss"]), 4) for entry in steps],
        "token_accuracy": [round(float(entry["mean_token_accuracy"]), 4) for entry in steps],
    }


def _grpo(folder: Path) -> dict[str, Any] | None:
    phases = read_jsonl(folder / "phases.jsonl") if (folder / "phases.jsonl").exists() else []
    if not phases:
        return None  # not a step
    history = [entry for entry in _history(folder) if "reward" in entry]
    rollouts = read_jsonl(folder / "rollouts.jsonl")
    further = {name: [entry.get(name) for entry in history] for name in CURVES}
    return {
        "steps": len(history),
        "curves": step_curves(history) | further,
        "verdicts": verdicts_by_step(rollouts),
        "by_problem": training_by_problem(rollouts),
        "second_turn": second_turn(_of_all_steps(rollouts)).model_dump(mode="json"),
        "evaluations": training_evaluations(rollouts),
        "phases": phase_figures(phases),
        "phases_by_part": phases_by_part(phases),
    }


def phases_by_part(steps: Sequence[Row], parts: int = PARTS) -> list[dict[str, Any]]:
    """The phases of each of so many parts of the steps, which are equally long but for rounding; without empty parts.

    A policy that fails less often waits less for evaluations: failures take longest, up to their deadlines.
    """
    ends = [round(len(steps) * part / parts) for part in range(parts + 1)]
    return [phase_figures(steps[first:last]) for first, last in pairwise(ends) if first < last]


def _of_all_steps(rollouts: Sequence[Row]) -> list[Row]:
    """Rollouts whose samples have numbers of their own in all steps."""
    return [{**row, "sample": row["step"] * AFTER + row["sample"]} for row in rollouts]


def _arms(
    run: Path,
    rows: Mapping[str, Sequence[Row]],
    trained: int,
    rings: Mapping[str, str],
    sampled: Path | None = None,
) -> list[Arm]:
    """Policies at equal evaluations; the kernels that `rft` learns from were found by those of GRPO.

    Args:
        run: of a seed.
        rows: of its policies.
        trained: evaluations of its GRPO.
        rings: prompt key -> ring.
        sampled: run of the same SFT that has its samples; by default this one.
    """
    arms = [_arm("grpo", rows["grpo"], trained, rings)]
    if "sft" in rows:
        arms.append(_arm("sft", rows["sft"], 0, rings))
    if samples := stage_rows((sampled or run) / "samples"):
        later = [{**row, "sample": row["sample"] + AFTER} for row in samples]
        arms.append(_arm("best of n", [*rows.get("sft", ()), *later], 0, rings))
    if "rft" in rows:
        arms.append(_arm("rft", rows["rft"], trained, rings))
    return arms


AFTER = 1000
"""More samples than an evaluation has of a prompt, or a step of GRPO in all."""


def _arm(name: str, rows: Sequence[Row], training: int, rings: Mapping[str, str]) -> Arm:
    kept = [row for row in rows if rings.get(prompt_key(row)) == STUDY_RING]
    silent = {prompt_key(row): row["reward"] for row in kept if row["failure"] == NO_SUBMISSION}
    return Arm(0, name, rewards_by_prompt(kept), training, silent)


def take_pretrained(archive: Path, run: Path) -> dict[str, Any]:
    """Copies the results of the pretrained model from another run, and returns when and on which code it was judged.

    Raises:
        ConfigError: this run has judged it too.
    """
    if (run / POLICIES["base"]).exists():
        raise ConfigError("the run has judged the pretrained model itself; leave out --pretrained")
    with tarfile.open(archive) as opened:
        names = [name for name in opened.getnames() if name.startswith(f"{POLICIES['base']}/")]
        opened.extractall(run, [opened.getmember(name) for name in names], filter="data")
        file = opened.extractfile("about.json")
        about: dict[str, Any] = json.loads(file.read()) if file is not None else {}
    return {name: about[name] for name in ("date", "machine", "commit", "gpus") if name in about}


def main(argv: Sequence[str] | None = None) -> None:
    """Reads what was collected, and writes the result."""
    parser = make_parser(NAME, __doc__)
    parser.add_argument("runs", type=Path, nargs="+", metavar="RUN", help="run.tar.gz of `learning_run`, of each seed")
    parser.add_argument("--prompts", type=Path, required=True, metavar="FILE", help="of `ring_prompts.py`")
    parser.add_argument("--corpus", type=Path, metavar="FILE", help="corpus.jsonl that SFT learned from")
    parser.add_argument("--pretrained", type=Path, metavar="RUN", help="of another run, whose `rings_base` is taken")
    parser.add_argument("--evolve", type=Path, metavar="FILE", help="results.jsonl of `learning_search`")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the result (default: %(default)s)")
    parser.add_argument("--name", default=RESULT, help="of the result (default: %(default)s)")
    args = parser.parse_args(argv)
    evolve = [] if args.evolve is None else read_rows(args.evolve)
    corpus = [] if args.corpus is None else shown_kernels(read_jsonl(args.corpus))
    prompts = read_jsonl(args.prompts)
    with tempfile.TemporaryDirectory() as folder:
        runs = [Path(folder) / str(number) for number in range(len(args.runs))]
        for archive, run in zip(args.runs, runs, strict=True):
            with tarfile.open(archive) as opened:
                opened.extractall(run, filter="data")
        arms = [run for run in runs if _about(run).get("arm") is not None]
        seeds = [run for run in runs if run not in arms]
        if not seeds:
            raise ConfigError("there are arms alone; give the archives of their seeds too")
        before = None if args.pretrained is None else take_pretrained(args.pretrained, seeds[0])
        found = figures(seeds[0], prompts, evolve, corpus)
        found |= figures_of_seeds(seeds, prompts) if len(seeds) > 1 else {}
        found |= {"arms": figures_of_arms(arms, seeds, prompts)} if arms else {}
        found |= {"feedback": texts} if (texts := text_figures(runs, prompts)) else {}
    found |= {} if before is None else {"pretrained": before}
    result = args.out / f"{args.name}.json"
    write_atomically(result, json.dumps(found, indent=1) + "\n")
    print(f"{result}: {', '.join(found['policies'])}")


if __name__ == "__main__":
    main()
