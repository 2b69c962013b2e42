"""The figures of the learning run on docs/training.md, as Markdown and pictures."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from pkb_gym.problems.loading import load_module

HERE = Path(__file__).resolve().parent
parts = load_module(HERE / "page_parts.py", "docs.page_parts")
pictures = load_module(HERE / "reward_pictures.py", "docs.reward_pictures")

RESULT = HERE.parent / "benchmarks" / "results" / "learning_run.json"

RINGS = {
    "sizes": "other sizes and dtypes of trained problems",
    "left_out": "problems of the train split that no training saw",
    "test": "problems of the test split",
}
POLICIES = {"base": "pretrained", "sft": "SFT", "grpo": "GRPO", "rft": "rejection sampling"}
PHASES = {"generation": "generation", "evaluation": "evaluation alone", "learning": "learning"}
SHOWN_VERDICTS = ("passed", "compile_error", "no_submission", "output_mismatch")

Found = Mapping[str, Any]


def read() -> dict[str, Any]:
    """The result."""
    found: dict[str, Any] = json.loads(RESULT.read_text(encoding="utf-8"))
    return found


def sections(found: Found) -> str:
    """All tables, with what is needed to read them."""
    texts = (_about(found), _rings(found), _turns(found), _gains(found), _verdicts(found))
    texts = (*texts, _by_problem(found), _nearest(found))
    more = (_second_turns(found), _study(found), _seeds(found), _time(found))
    return "\n\n".join(text.strip() for text in (*texts, *more) if text)


def drawn(found: Found) -> dict[str, str]:
    """File -> picture."""
    curves = found["grpo"]["curves"]
    steps = list(range(1, len(curves["reward"]) + 1))

    def panel(title: str, **lines: Sequence[float | None]) -> Any:  # noqa: ANN401  # of a module that is loaded
        values = {name: [float("nan") if one is None else one for one in of] for name, of in lines.items()}
        return pictures.Curve(title, "step of GRPO", steps, {name.replace("_", " "): of for name, of in values.items()})

    shares = verdict_shares(found["grpo"]["verdicts"])[: len(steps)]
    failures: dict[str, list[float | None]] = {
        name: [of.get(name, 0.0) if of else None for of in shares] for name in SHOWN_VERDICTS
    }
    failures["other failures"] = [
        1.0 - sum(of.get(name, 0.0) for name in SHOWN_VERDICTS) if of else None for of in shares
    ]
    sft = found["sft"]
    loss = pictures.Curve("SFT", "step of SFT", list(range(1, len(sft["loss"]) + 1)), {"loss": sft["loss"]}, log=False)
    return {
        "curves.svg": pictures.curves(
            [
                loss,
                panel("mean reward of an episode", reward=curves["reward"]),
                panel("share of episodes", correct=curves["correct"], groups_of_one_reward=curves[FLAT]),
            ]
        ),
        "failures.svg": pictures.curves(
            [
                panel("submissions that pass or fail to compile", **_some(failures, SHOWN_VERDICTS[:2])),
                panel("other failures", **_some(failures, (*SHOWN_VERDICTS[2:], "other failures"))),
                panel("tokens after the prompt", mean=curves["completions/mean_length"]),
            ]
        ),
    }


FLAT = "frac_reward_zero_std"


def _some(of: Mapping[str, Sequence[float | None]], names: Sequence[str]) -> dict[str, Sequence[float | None]]:
    return {name: of[name] for name in names}


def verdict_shares(steps: Sequence[Mapping[str, int]]) -> list[dict[str, float]]:
    """Counts of each step as shares; empty where nothing was counted."""
    return [{name: count / sum(step.values()) for name, count in step.items()} for step in steps]


def _about(found: Found) -> str:
    spent = found["spent_s"]
    grpo, sft = found["grpo"], found["sft"]
    gpu = ", ".join(found.get("gpus") or ()) or "no GPU"
    return (
        f"`benchmarks/results/learning_run.json` ({found['date']}, commit {found['commit']}): {gpu}, "
        f"{found['machine']}. SFT: {sft['steps']} steps, {sft['epochs']:g} epochs{_of_sft(spent)}. "
        f"GRPO: {grpo['steps']} steps, {grpo['evaluations']} evaluations, {spent.get('grpo', 0.0):.0f} s."
        f"{_not_judged(found)}{_pretrained(found)}"
    )


def _of_sft(spent_s: Mapping[str, float]) -> str:
    """Its seconds, or that it was stored by an earlier run, which may have judged it too."""
    if "sft" in spent_s:
        return f", {spent_s['sft']:.0f} s"
    return ", by an earlier run" + ("" if "rings_sft" in spent_s else ", which judged it too")


def _not_judged(found: Found) -> str:
    """The policies that were trained and that no ring has judged; empty where there is none."""
    missing = [POLICIES[name] for name in ("sft", "grpo") if not found["policies"].get(name)]
    return f" No ring has judged the policy after {' and '.join(missing)}." if missing else ""


def _pretrained(found: Found) -> str:
    """The run that judged the pretrained model, where that is another one; else empty."""
    of = found.get("pretrained")
    return "" if of is None else f" The pretrained model was judged by a run of {of['date']}, commit {of['commit']}."


def _rings(found: Found) -> str:
    rows = []
    captured = any(ring["fast_captured"] and _mean(ring["fast_captured"]) for _, _, ring in _each(found))
    for ring, policy, one in _each(found):
        figures, last = one["figures"], one["turns"][-1]
        best = max(one["best_of"], key=int, default=None)
        fast = [_share(figures["fast"])] + ([_share(one["fast_captured"])] if captured else [])
        solved = f"{len(one['solved_problems'])} of {_problems(one)}"
        rows.append(
            (
                *(ring, POLICIES[policy], f"{figures['prompts']} x {figures['samples'] // max(1, figures['prompts'])}"),
                *(_share(last["compiled"]), _share(figures["correct"]), *fast, _value(figures["reward"])),
                "" if best is None else f"{_value(one['best_of'][best])} (k={best})",
                solved,
            )
        )
    faster = ("faster than eager", "faster than captured") if captured else ("faster than the baseline",)
    head = ("ring", "policy", "prompts x samples", "compiled", "correct", *faster, "reward", "best of k", "solved")
    about = "\n".join(f"- `{name}`: {text}" for name, text in RINGS.items())
    return (
        f"Rings:\n\n{about}\n\nShares of episodes and mean reward after the last turn, with standard errors clustered "
        f"by problem; *solved* counts problems with a right submission in any episode.\n\n{parts.table(head, rows)}"
    )


def _each(found: Found) -> list[tuple[str, str, Found]]:
    return [
        (ring, policy, found["policies"][policy][ring])
        for ring in RINGS
        for policy in POLICIES
        if ring in found["policies"].get(policy, {})
    ]


def _problems(ring: Found) -> int:
    reward = ring["figures"]["reward"]
    return 0 if reward is None else int(reward["clusters"])


def _turns(found: Found) -> str:
    rows = [
        (ring, POLICIES[policy], str(number), _share(turn["compiled"]), _share(turn["correct"]), _value(turn["reward"]))
        for ring, policy, one in _each(found)
        for number, turn in enumerate(one["turns"], start=1)
    ]
    head = ("ring", "policy", "turns", "compiled", "correct", "reward")
    return f"As if every episode had ended after its first turn, and after its second:\n\n{parts.table(head, rows)}"


def _gains(found: Found) -> str:
    rows = [
        (ring, name, _signed(gain["reward"]), _errors(gain["reward"]), _signed(gain["correct"]))
        for ring in RINGS
        for name, rings in found["gains"].items()
        if (gain := rings.get(ring)) is not None and gain["reward"] is not None
    ]
    head = ("ring", "gain", "in reward", "in standard errors", "in share correct")
    return f"Gains are paired by prompt:\n\n{parts.table(head, rows)}"


def _verdicts(found: Found) -> str:
    shown = {name: of for name, of in found["verdicts"].items() if name in POLICIES}
    names = sorted(
        {name for of in shown.values() for counts in of.values() for name in counts},
        key=lambda name: (name != "passed", name),
    )
    rows = []
    for ring in RINGS:
        for policy, of in shown.items():
            if counts := of.get(ring):
                total = sum(counts.values())
                shares = [f"{counts[name] / total:.0%}" if name in counts else "" for name in names]
                rows.append((ring, POLICIES[policy], str(total), *shares))
    heads = [f"`{name}`" for name in names]
    return f"Verdicts of first turns:\n\n{parts.table(('ring', 'policy', 'episodes', *heads), rows)}"


def _by_problem(found: Found) -> str:
    """On the ring, and in the parts of the training."""
    policies = found["by_problem"]
    training = found["grpo"]["by_problem"]
    problems = sorted({problem for of in policies.values() for problem in of})
    if not problems:
        return ""
    steps = found["grpo"]["steps"]
    count = max((len(of) for of in training.values()), default=0)
    ends = [round(steps * part / count) for part in range(count + 1)]
    parts_of = [f"steps {first + 1} to {last}" for first, last in pairwise(ends)]
    rows = []
    for problem in problems:
        of_rings = {name: of.get(problem, {}) for name, of in policies.items()}
        shares = [_percent(of_rings[name].get("correct")) for name in policies]
        in_training = [_percent(share) for share in training.get(problem, [None] * count)]
        rewards = [format(of["reward"], ".2f") if of.get("reward") is not None else "" for of in of_rings.values()]
        rows.append((problem, *shares, *rewards, *in_training))
    heads = [f"{POLICIES[name]} {figure}" for figure in ("correct", "reward") for name in policies]
    return (
        "Problem by problem: episodes of `sizes`, and first submissions in GRPO:\n\n"
        f"{parts.table(('problem', *heads, *parts_of), rows)}"
    )


def _percent(share: float | None) -> str:
    return "" if share is None else f"{share:.0%}"


def _nearest(found: Found) -> str:
    if not (policies := found.get("nearest")):
        return ""
    names = [*next(of for rings in policies.values() for of in rings.values())]
    rows = [
        (ring, POLICIES[policy], *(f"{of[name]['submissions']} ({of[name]['right']})" for name in names))
        for ring in RINGS
        for policy, rings in policies.items()
        if (of := rings.get(ring)) is not None
    ]
    return (
        "First submissions, and in brackets the right ones of them, by their distance to the nearest kernel of the "
        "corpus: words that were inserted, left out or replaced. The last column counts those whose nearest kernel "
        f"solves another problem:\n\n{parts.table(('ring', 'policy', *names), rows)}"
    )


def _second_turns(found: Found) -> str:
    """On the rings, and in the training."""
    of_rollouts = {"GRPO, in training": found["grpo"]["second_turn"]}
    named = {POLICIES[name]: one for name, one in found["second_turns"].items()} | of_rollouts
    rows = [
        (
            name,
            *(str(one[column]) for column in ("episodes", "failed_first", "answered", "repeated")),
            _share(one["repaired"]),
        )
        for name, one in named.items()
        if one["answered"]
    ]
    head = ("policy", "episodes", "first failed", "submitted again", "the same source", "repaired")
    return f"Second turns; *repaired* is the share of the failed:\n\n{parts.table(head, rows)}" if rows else ""


def _study(found: Found) -> str:
    tables = []
    for name in ("study", "study_evolve"):
        arms = found.get(name)
        if not arms:
            continue
        rows = [
            (
                arm["arm"],
                str(arm["training_evaluations"]),
                f"{arm['evaluations']:.1f}",
                _value(arm["reward"]),
                *_more(arm),
            )
            for arm in arms
        ]
        head = ("arm", "training evaluations", "evaluations of a prompt", "reward", "GRPO has more", "in errors")
        tables.append(parts.table(head, rows))
    if not tables:
        return ""
    intro = (
        "Mean reward of the best submission on a prompt of `sizes`, with the evaluations that each arm had; those of "
        "the training are charged to the prompts in equal parts:"
    )
    where = "beside the others" if found.get("evolve_on_same_machine") else "on another machine"
    evolve = f"The same on the prompts that `evolve` searched, a search without a model that ran {where}:"
    return f"\n\n{evolve}\n\n".join([f"{intro}\n\n{tables[0]}".strip(), *tables[1:]])


def _seeds(found: Found) -> str:
    """Gains of every seed, and of all joined; nothing where there is one."""
    if "joined" not in found:
        return ""
    joined = found["joined"]
    rows = []
    for pair, rings in joined["gains"].items():
        for ring in RINGS:
            of_seeds = [one["gains"].get(pair, {}).get(ring) for one in found["seeds"]]
            cells = ["" if of is None else _signed(of["reward"]) for of in of_seeds]
            both = rings.get(ring)
            if both is not None and both["reward"] is not None:
                gains = (_signed(both["reward"]), _errors(both["reward"]), _signed(both["correct"]))
                rows.append((ring, pair, *cells, *gains))
    seeds = [f"seed {one['seed']}" for one in found["seeds"]]
    head = ("ring", "gain in reward", *seeds, "all", "in errors", "in share correct")
    arms = [(name, _signed(one), _errors(one)) for name, one in joined["study"].items() if one is not None]
    texts = [
        "Seed by seed, and all seeds joined: their episodes on a prompt are taken together, and standard errors are "
        f"clustered by problem:\n\n{parts.table(head, rows)}"
    ]
    if arms:
        head = ("arm", "GRPO has more, all seeds", "in errors")
        texts.append(f"At equal evaluations, the mean of the seeds on each prompt:\n\n{parts.table(head, arms)}")
    return "\n\n".join(text.strip() for text in texts)


def _more(arm: Found) -> tuple[str, str]:
    return ("", "") if arm["subject_gain"] is None else (_signed(arm["subject_gain"]), _errors(arm["subject_gain"]))


def _time(found: Found) -> str:
    phases = found["grpo"]["phases"]
    share = phases["share"]
    steps, each = phases["steps"], phases["wall_s"] / phases["steps"]
    rows = [(PHASES.get(name, name), f"{each * of:.1f} s", f"{of:.0%}") for name, of in share.items() if of >= 0.005]
    busy = ", ".join(f"{one:.0%}" for one in phases["gpu_utilisations"])
    return (
        f"A step of GRPO took {each:.0f} s on average over {steps} steps, with {phases['evaluations_per_minute']:.0f} "
        f"evaluations a minute{f', and kept the GPU busy for {busy}' if busy else ''}:\n\n"
        f"{parts.table(('phase', 'of a step', 'share'), rows)}\n{_time_by_part(found)}{_stages(found['spent_s'])}"
    )


def _time_by_part(found: Found) -> str:
    """How the steps became quicker, for each seed; nothing where that is not known."""
    seeds = found.get("seeds") or [{"seed": found.get("seed", 0), "grpo": found["grpo"]}]
    rows = []
    for one in seeds:
        done = 0
        for part in (one["grpo"] or {}).get("phases_by_part", ()):
            first, done = done + 1, done + part["steps"]
            share = f"{part['share'].get('evaluation', 0.0):.0%}"
            each = f"{part['wall_s'] / part['steps']:.1f} s"
            rows.append((str(one["seed"]), f"{first} to {done}", each, share, f"{part['evaluations_per_minute']:.0f}"))
    head = ("seed", "steps", "a step", "evaluation alone", "evaluations a minute")
    return f"In the course of the training:\n\n{parts.table(head, rows)}\n" if rows else ""


def _stages(spent_s: Mapping[str, float]) -> str:
    took = ", ".join(f"`{stage}` {seconds:.0f} s" for stage, seconds in spent_s.items())
    return f"Stages, the start of each call included: {took}; {sum(spent_s.values()) / 60:.0f} minutes in all."


def _mean(found: Found | None) -> float:
    return 0.0 if found is None else float(found["mean"])


def _value(found: Found | None, spec: str = ".2f") -> str:
    if found is None:
        return ""
    error = found["standard_error"]
    return format(found["mean"], spec) + ("" if error is None else f" ± {format(error, spec)}")


def _share(found: Found | None) -> str:
    if found is None:
        return ""
    error = found["standard_error"]
    return f"{100 * found['mean']:.0f}" + (" %" if error is None else f" ± {100 * error:.0f} %")


def _signed(found: Found | None) -> str:
    return "" if found is None else _value(found, "+.2f").replace("± +", "± ")


def _errors(found: Found | None) -> str:
    if found is None or not found["standard_error"]:
        return ""
    return f"{found['mean'] / found['standard_error']:+.1f}"
