"""Results of `learning`, gathered from the folders of its runs, as tables."""

from __future__ import annotations

import json
import statistics
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pkb_gym.training.inputs.rows import Row, read_jsonl

Result = dict[str, Any]

STAGES = ("compile", "check", "time")
"""Stages of an evaluation whose seconds are shown."""

GPUS_BUSY = "gpus_busy.jsonl"
"""For each start of the benchmark, its seconds and the share of them in which each GPU was busy."""

CURVES = ("reward", "correct", "speedup", "frac_reward_zero_std", "entropy")
"""Metrics of `grpo.py` that are kept of every step."""


def collect(data: Path, runs: Path, seeds: Sequence[int]) -> Result:
    """Figures of all seeds, of those that are not finished as far as they are."""
    return {
        "corpus": corpus_figures(read_jsonl(data / "corpus.jsonl")),
        "held_out_prompts": sum(row["part"] == "held_out" for row in read_jsonl(data / "prompts.jsonl")),
        "gpus_busy": read_jsonl(runs / GPUS_BUSY),
        "seeds": [_seed(runs / f"seed-{seed}", seed) for seed in seeds],
    }


def corpus_figures(corpus: Sequence[Row]) -> Result:
    """Mean reward of the kernels of the corpus that SFT is shown, by problem."""
    by_problem: dict[str, list[Row]] = defaultdict(list)
    for row in corpus:
        if row["kind"] == "single":
            by_problem[row["problem"]].append(row)
    return {
        problem: {
            "kernels": len(rows),
            "reward_mean": statistics.fmean(row["reward"] for row in rows),
            "speedup_mean": statistics.fmean(row["speedup"] for row in rows),
            "speedup_median": statistics.median(row["speedup"] for row in rows),
            "speedup_best": max(row["speedup"] for row in rows),
        }
        for problem, rows in sorted(by_problem.items())
    }


def _seed(folder: Path, seed: int) -> Result:
    found: Result = {"seed": seed, "steps": {}}
    for name in ("sft", "before", "grpo", "after"):
        if (path := folder / f"{name}.finished.json").exists():
            found["steps"][name] = json.loads(path.read_bytes())
    for name in ("before", "after"):
        if (path := folder / name / "summary.json").exists():
            found[name] = json.loads(path.read_bytes())
    for name in ("sft", "grpo"):
        if (path := folder / name / "trainer_state.json").exists():
            history = json.loads(path.read_bytes())["log_history"]
            found[f"{name}_loss"] = [round(entry["loss"], 4) for entry in history if "loss" in entry]
            if name == "grpo":
                found["curves"] = step_curves(history)
    if (path := folder / "grpo" / "phases.jsonl").exists():
        found["phases"] = phase_figures(read_jsonl(path))
    if (path := folder / "grpo" / "rollouts.jsonl").exists():
        lines = read_jsonl(path)
        found["submissions"] = len(lines)
        found["duplicates"] = sum(line["is_duplicate"] for line in lines)
        found["faults"] = dict(Counter(line["fault"] for line in lines if line["fault"] is not None))
    return found


def step_curves(history: Sequence[Row]) -> dict[str, list[float | None]]:
    """Metrics of every step of `grpo.py`, from the history of its trainer state; None where a step has none."""
    steps = [entry for entry in history if "reward" in entry]
    names = [*CURVES, *sorted({name for entry in steps for name in entry if name.startswith("reward/")})]
    return {name: [round(entry[name], 4) if name in entry else None for entry in steps] for name in names}


def phase_figures(steps: Sequence[Row]) -> Result:
    """Seconds of each phase over all steps, evaluations per minute, and how busy each GPU was."""
    wall_s = sum(step["wall_s"] for step in steps)
    phases, stages = Counter[str](), Counter[str]()
    for step in steps:
        phases.update(step["phases_s"])
        stages.update(step["stages_s"])
    evaluations = sum(step["evaluations"] for step in steps)
    busy = [step["gpu_utilisations"] for step in steps if step["gpu_utilisations"]]
    return {
        "steps": len(steps),
        "wall_s": round(wall_s, 1),
        "share": {name: round(spent_s / wall_s, 4) for name, spent_s in phases.items()},
        "stages_s": {name: round(spent_s, 1) for name, spent_s in stages.items()},
        "evaluations": evaluations,
        "evaluations_per_minute": round(60 * evaluations / wall_s, 1),
        "gpu_utilisations": [round(statistics.fmean(column), 3) for column in zip(*busy, strict=True)],
    }


def markdown(result: Result) -> str:
    """Tables: of all seeds, of each problem, of where the time went."""
    tables = (_seeds_table(result), _problems_table(result), _phases_table(result), _gpus_table(result))
    return "\n\n".join(filter(None, tables))


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _estimate(estimate: Row | None, spec: str = ".3f") -> str:
    if estimate is None:
        return "-"
    error = estimate["standard_error"]
    return format(estimate["mean"], spec) + ("" if error is None else f" ± {format(error, spec)}")


def _times(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _seeds_table(result: Result) -> str:
    rows = []
    for seed in result["seeds"]:
        for name, after in (("before", "SFT"), ("after", "GRPO")):
            if name not in seed:
                continue
            total = seed[name]["total"]
            gain = seed[name]["gain"]
            errors = "" if gain is None or not gain["standard_error"] else gain["mean"] / gain["standard_error"]
            rows.append(
                [
                    str(seed["seed"]),
                    after,
                    _estimate(total["reward"]),
                    "" if gain is None else _estimate(gain),
                    f"{errors:.1f}" if errors != "" else "",
                    _estimate(total["correct"]),
                    _estimate(total["fast"]),
                    _times(total["speedup_median"]),
                ]
            )
    head = ("seed", "after", "reward", "gain", "in errors", "correct", "faster than the baseline", "median speedup")
    return _table(head, rows)


def _problems_table(result: Result) -> str:
    rows = []
    for problem, corpus in result["corpus"].items():
        found = {
            name: [seed[name]["problems"][problem] for seed in result["seeds"] if problem in _problems(seed, name)]
            for name in ("before", "after")
        }

        def mean(name: str, pick: str, found: dict[str, list[Row]] = found) -> str:
            values = [figures[pick] for figures in found[name] if figures[pick] is not None]
            values = [value["mean"] if isinstance(value, dict) else value for value in values]
            return f"{statistics.fmean(values):.2f}" if values else "-"

        rows.append(
            [
                problem,
                str(corpus["kernels"]),
                f"{corpus['reward_mean']:.2f}",
                *(mean(name, "reward") for name in found),
                f"{corpus['speedup_median']:.2f}",
                *(mean(name, "speedup_median") for name in found),
            ]
        )
    head = ("problem", "kernels in the corpus", "their reward", "after SFT", "after GRPO")
    return _table((*head, "their median speedup", "after SFT", "after GRPO"), rows)


def _problems(seed: Result, name: str) -> Row:
    problems: Row = seed[name]["problems"] if name in seed else {}
    return problems


def _phases_table(result: Result) -> str:
    seeds = [seed for seed in result["seeds"] if "phases" in seed]
    phases = list(dict.fromkeys(name for seed in seeds for name in seed["phases"]["share"]))
    rows = [
        [
            str(seed["seed"]),
            str(seed["phases"]["steps"]),
            f"{seed['phases']['wall_s'] / seed['phases']['steps']:.1f} s",
            *(f"{100 * seed['phases']['share'][name]:.0f} %" for name in phases),
            f"{seed['phases']['evaluations_per_minute']:.1f}",
            *(f"{seed['phases']['stages_s'][name] / max(1, seed['phases']['evaluations']):.2f} s" for name in STAGES),
            f"{100 * seed['duplicates'] / max(1, seed['submissions']):.0f} %",
            ", ".join(f"{100 * busy:.0f} %" for busy in seed["phases"]["gpu_utilisations"]) or "-",
        ]
        for seed in seeds
    ]
    each = (f"{name} of each" for name in STAGES)
    head = ("seed", "steps", "a step", *phases, "evaluations a minute", *each, "duplicates", "own GPU busy")
    return _table(head, rows)


def _gpus_table(result: Result) -> str:
    """How busy each GPU was, those of the evaluations too; nothing where there are none."""
    starts = [start for start in result["gpus_busy"] if start["shares"]]
    if not starts:
        return ""
    rows = [[f"{start['wall_s']:.0f} s", *(f"{100 * share:.0f} %" for share in start["shares"])] for start in starts]
    count = max(len(start["shares"]) for start in starts)
    return _table(("start that took", *(f"GPU {place}" for place in range(count))), rows)


def draw(result: Result, path: Path) -> None:
    """The curves of all seeds as an SVG picture."""
    import matplotlib as mpl

    mpl.use("Agg")
    mpl.rcParams["svg.hashsalt"] = "pkb-gym"
    from matplotlib import pyplot as plt

    panels = (("reward", "mean reward"), ("correct", "share correct"), ("speedup", "median speedup of what is right"))
    figure, axes = plt.subplots(1, len(panels), figsize=(11, 3.2), constrained_layout=True)
    for panel, (name, label) in zip(axes, panels, strict=True):
        for seed in result["seeds"]:
            values = seed.get("curves", {}).get(name, [])
            places = [place for place, value in enumerate(values) if value is not None]
            panel.plot(places, [values[place] for place in places], label=f"seed {seed['seed']}", linewidth=1.2)
        panel.set_xlabel("step of GRPO")
        panel.set_title(label, fontsize=10)
        panel.grid(alpha=0.3)
    axes[0].legend(fontsize=8)
    figure.savefig(path, metadata={"Date": None, "Creator": None})
    plt.close(figure)
