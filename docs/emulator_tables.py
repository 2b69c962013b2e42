"""The measurements on docs/emulator.md: random programs, mutants, experts; from results and data of `benchmarks`."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pkb_gym.problems.loading import load_module

HERE = Path(__file__).resolve().parent
sys.path.append(str(HERE.parent))  # for `benchmarks`, which is not installed
parts = load_module(HERE / "page_parts.py", "docs.page_parts")

RESULTS = HERE.parent / "benchmarks" / "results"
LIMIT_S = 60.0
"""Longest that an evaluation is meant to take."""
PAIR = 2


def sections(folder: Path = RESULTS) -> str:
    """All sections, without the results that are not there."""
    found = (random_programs(folder), mutants(folder), experts(folder))
    return "\n\n".join(text.strip() for text in found if text)


def _load(path: Path) -> dict[str, Any] | None:
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None


def random_programs(folder: Path) -> str:
    """Programs that leave the same memory as on a GPU, and the known causes of differences."""
    from benchmarks.random_ptx.kept import Kept
    from benchmarks.random_ptx.known_differences import KNOWN

    kept = Kept.load()
    alike = len(kept.digests) - len(kept.unlike)
    text = [
        "### Random programs\n",
        f"Of {len(kept.digests)} programs that ran on a GPU as well, {alike} leave the same memory, "
        "bit for bit (`benchmarks/data/emulated_random_digests.json`; a test repeats one in six).",
    ]
    result = _load(folder / "emulated_random.json")
    if result is not None:
        groups = result["groups"]
        exact = [counts for name, counts in groups.items() if name != "approximations"]
        near = groups.get("approximations", {"compared": 0, "different": 0, "within_bound": 0})
        compared, different = (sum(counts[key] for counts in exact) for key in ("compared", "different"))
        text[-1] += (
            f" {result['compared_programs']} of them ran on an {result['gpu']} with commit {result['commit']} "
            "(`benchmarks/results/emulated_random.json`), which left the same memory in "
            f"{result['programs_alike']} of them; differences that it showed are mended since. Compared instruction by "
            f"instruction, {compared - different} of {compared} exact results were the GPU's then. Of "
            f"{near['compared']} approximations, {near['within_bound']} differed within the manual's bound and "
            f"{near['different']} by more. {parts.count(len(result['problems']), 'program')} could not be compared."
        )
    causes = _load(folder / "emulated_random_causes.json")
    if causes is not None:
        text[-1] += (
            f" Of the {causes['programs']} programs that leave other memory, {causes['explained']} leave the GPU's, "
            "bit for bit, once uses of theirs have the GPU's behaviour of the table below "
            f"(`python -m benchmarks.emulated_random_causes`, commit {causes['commit']}, "
            "`benchmarks/results/emulated_random_causes.json`)."
        )
        left = causes["unexplained"]
        if left:
            text[-1] += f" Not explained: {', '.join(f'program {seed}' for seed in left)}."
    text.append("Known differences, where the emulator keeps to the manual or where PTX leaves the choice:\n")
    rows = [(known.instruction, known.on_gpus) for known in KNOWN]
    return "\n".join([*text, parts.table(("instruction", "on the GPU"), rows)])


def mutants(folder: Path) -> str:
    """Experts without one of their synchronisations, or with a weak one."""
    from benchmarks import emulated_mutants, emulated_mutants_on_gpus

    path = folder / "emulated_mutants.json"
    result = _load(path)
    if result is None:
        return ""
    rows = emulated_mutants.load(path)
    seeds = result["seeds"]
    wrong = [row for row in rows if row.is_wrong and row.evaluations and row.is_settled(seeds)]
    found = [row for row in wrong if row.seed is not None]
    pairs = sum(row.failure == "race" and len(row.places) >= PAIR for row in found)
    failures = ", ".join(f"{name} {count}" for name, count in Counter(row.failure for row in found).most_common())
    open_ = sum(row.is_wrong and not row.is_settled(seeds) for row in rows)
    text = [
        "### Mutants\n",
        f"`python -m benchmarks.emulated_mutants` removes or weakens one synchronisation of an expert. {len(wrong)} "
        f"mutants, drawn of each kind alike, whose operation {result['world_size']} ranks come to: {len(found)} "
        f"({len(found) / max(1, len(wrong)):.0%}) are found within {seeds} seeds ({failures}), {pairs} of them as a "
        f"race with both places, and {sum(row.seed == 0 for row in found)} with the first seed. "
        f"{sum(row.reached is False for row in rows)} more were drawn whose operation the kernel does not come to, "
        f"and {open_} were not done. Commit {result['commit']} (`benchmarks/results/{path.name}`).\n",
        emulated_mutants.markdown([row for row in rows if row.reached is not False], seeds).split("\n\n")[0],
    ]
    right = [row for row in rows if row.equivalent is not None]
    if right:
        text.append("\nDrawn too, but right all the same, and not counted:\n")
        reasons = [(row.problem, row.kind, f"`{row.mutant}`", row.equivalent) for row in right]
        text.append(parts.table(("kernel", "kind", "mutant", "why it is right"), reasons))
    missed = [row for row in wrong if row.seed is None]
    if missed:
        text.append("\nNot found:\n")
        names = [(row.problem, row.kind, f"`{row.mutant}`") for row in missed]
        text.append(parts.table(("kernel", "kind", "mutant"), names))
    operations = {emulated_mutants_on_gpus.operation_of(row) for row in wrong}
    text += [f"\n{_on_gpus(each, operations)}" for each in sorted(folder.glob("emulated_mutants_*.json"))]
    return "\n".join(text)


def _on_gpus(path: Path, operations: set[tuple[str, str, str]]) -> str:
    """The same mutants on GPUs: counts by kind."""
    from benchmarks import emulated_mutants, emulated_mutants_on_gpus

    result = _load(path) or {}
    judged = [row for row in emulated_mutants.load(path) if row.evaluations]
    rows = [row for row in judged if emulated_mutants_on_gpus.operation_of(row) in operations]
    shown = [row for row in rows if row.seed is not None]
    ranks, shared = result["world_size"], result["ranks_per_gpu"] > 1
    where = f"{ranks} ranks that share {ranks // result['ranks_per_gpu']} GPU" if shared else f"{ranks} GPUs"
    caches = ", with its caches and so without what system scope is for" if shared else ""
    failures = ", ".join(f"{name} {count}" for name, count in Counter(row.failure for row in shown).most_common())
    why = f" ({failures})" if shown else ""
    unchanged = [row for row in judged if not row.mutant]
    of_rows = [{"commit": row.commit or result["commit"]} for row in rows + unchanged]
    passed = sum(row.seed is None for row in unchanged)
    control = f"{passed} of {parts.count(len(unchanged), 'unchanged expert')} passed under the same conditions. "
    text = (
        f"{len(rows)} of these mutants ran on {where}{caches}, {result['calls']} calls each: {len(shown)} were refused"
        f"{why}. {control if unchanged else ''}{_commits(of_rows, 'mutant')} (`benchmarks/results/{path.name}`).\n"
    )
    kinds = sorted({row.kind for row in rows})
    of_kinds = [
        (kind, str(sum(row.kind == kind for row in rows)), str(sum(row.kind == kind for row in shown)))
        for kind in kinds
    ]
    return text + "\n" + str(parts.table(("kind", "mutants", "refused on the GPU"), of_kinds))


def experts(folder: Path) -> str:
    """Experts and variants of the corpus by number of ranks; candidates with another verdict than on GPUs."""
    from benchmarks.emulated_experts import unpacked

    path = folder / "emulated_experts.json"
    result = _load(path)
    if result is None:
        return ""
    rows = unpacked(result["rows"])
    kernels = [row for row in rows if not row["kernel"].endswith(".cu")]
    right = sum(row["verdict"] == "passed" for row in kernels)
    findings = sum(len(row.get("findings", ())) for row in kernels)
    command = result["command"].split()
    jobs = command[command.index("--jobs") + 1] if "--jobs" in command else "1"
    timed = _timed(kernels, result["commit"])
    variants: dict[tuple[str, str], set[int]] = {}
    for row in kernels:
        if row["kernel"] != "expert":
            variants.setdefault((row["problem"], row["kernel"]), set()).add(row["seed"])
    families = len({problem for problem, _ in variants})
    most = max(map(len, variants.values()), default=0)
    whole = sum(len(seeds) == most for seeds in variants.values())
    text = [
        "### Experts and variants\n",
        f"{len(kernels)} evaluations of experts and of variants of the corpus ({len(variants)} from its "
        f"{families} CUDA families, drawn at random, {whole} of them with all seeds) at size `tiny` with the "
        f"detector, seeds 0, 1, 2 ...: "
        f"{right} are right, with {parts.count(findings, 'finding')}. Seconds are the longest of the "
        f"first commit, with {jobs} evaluations side by side on {result['machine']}{_timed_later(result, timed)}; the "
        "emulator is one thread of an evaluation. "
        f"{_commits(rows)} (`benchmarks/results/{path.name}`).\n",
        _experts_table(kernels, timed),
        _beyond(timed),
        _candidates([row for row in rows if row["kernel"].endswith(".cu")]),
    ]
    return "\n".join(part for part in text if part)


def _timed(rows: Sequence[dict[str, Any]], commit: str) -> list[dict[str, Any]]:
    """Of each kernel and number of ranks the rows of a commit, or of the earliest later one where that has none."""
    timed: list[dict[str, Any]] = []
    for group in _grouped(rows).values():
        first = commit if any(row["commit"] == commit for row in group) else group[0]["commit"]
        timed += [row for row in group if row["commit"] == first]
    return timed


def _timed_later(result: dict[str, Any], timed: Sequence[dict[str, Any]]) -> str:
    """The kernels whose seconds are of later runs, with their machines."""
    machines = {run["commit"]: run["machine"] for run in result.get("later_runs", ())}
    later = [row for row in timed if row["commit"] != result["commit"]]
    ranks: dict[tuple[str, str], dict[int, None]] = {}
    for row in later:
        ranks.setdefault((_label(row), row["commit"]), {})[row["world_size"]] = None
    return "".join(
        f" (of {label} on {', '.join(map(str, sorted(sizes)))} {'rank' if list(sizes) == [1] else 'ranks'}: of commit "
        f"{commit}, on {machines.get(commit, 'another')})"
        for (label, commit), sizes in ranks.items()
    )


def _commits(rows: Sequence[Mapping[str, Any]], noun: str = "evaluation") -> str:
    """The commits that rows were run on."""
    counts = Counter(row["commit"] for row in rows)
    if len(counts) == 1:
        return f"Commit {next(iter(counts))}"
    return "Commits " + " and ".join(f"{name} ({parts.count(count, noun)})" for name, count in counts.items())


def _label(row: dict[str, Any]) -> str:
    problem: str = row["problem"]
    return problem if row["kernel"] == "expert" else f"{problem}, variants"


def _grouped(rows: Sequence[dict[str, Any]]) -> dict[tuple[str, int], list[dict[str, Any]]]:
    groups: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for row in sorted(rows, key=lambda row: (row["kernel"] != "expert", row["problem"], row["world_size"])):
        groups.setdefault((_label(row), row["world_size"]), []).append(row)
    return groups


def _most(rows: Sequence[dict[str, Any]], key: str) -> float:
    return max((row.get(key) or 0 for row in rows), default=0)


def _experts_table(rows: Sequence[dict[str, Any]], timed: Sequence[dict[str, Any]]) -> str:
    head = (
        "kernel",
        "ranks",
        "seeds",
        "evaluations",
        "right",
        "compile (s)",
        "check (s)",
        "10^6 warp instructions",
    )
    lines = []
    in_time = _grouped(timed)
    for (label, ranks), group in _grouped(rows).items():
        counts = len({row["seed"] for row in group}), len(group), sum(row["verdict"] == "passed" for row in group)
        check_s = _most(in_time.get((label, ranks), []), "check_s")
        times = _compile_s(timed, label), check_s, _most(group, "warp_instructions") / 1e6
        lines.append((label, str(ranks), *map(str, counts), *(f"{value:.1f}" for value in times)))
    return str(parts.table(head, lines))


def _compile_s(rows: Sequence[dict[str, Any]], label: str) -> float:
    """Of the first evaluation of a source; later ones find the result in the cache."""
    return _most([row for row in rows if _label(row) == label], "compile_s")


def _beyond(rows: Sequence[dict[str, Any]]) -> str:
    lines = []
    for (label, ranks), group in _grouped(rows).items():
        compile_s, check_s = _compile_s(rows, label), _most(group, "check_s")
        if compile_s + check_s > LIMIT_S:
            share = compile_s / (compile_s + check_s)
            why = "the compiler" if share > 0.5 else "the interpreter and its detector"
            lines.append(f"{label} on {parts.count(ranks, 'rank')} ({compile_s:.0f} s and {check_s:.0f} s: {why})")
    if not lines:
        return f"No evaluation takes more than {LIMIT_S:.0f} s, compiled anew.\n"
    return f"More than {LIMIT_S:.0f} s, compiled anew (compile and check: the larger part): {'; '.join(lines)}.\n"


def _candidates(rows: Sequence[dict[str, Any]]) -> str:
    from tests.engine.emulated.verdicts import DIFFERENT

    if not rows:
        return ""
    same = [row for row in rows if row["verdict"] in row["expected"].split("|")]
    other = [row for row in rows if row not in same]
    open_ = [row["kernel"] for row in other if row["verdict"] != DIFFERENT.get(row["kernel"], ("", ""))[0]]
    text = (
        f"Of {len(rows)} candidates in `tests/candidates/cuda`, {len(same)} have the verdict of 2 H200; {len(other)} "
        "have another, with the reason in the table above."
    )
    return text + (f" Not explained: {', '.join(f'`{name}`' for name in open_)}." if open_ else "")
