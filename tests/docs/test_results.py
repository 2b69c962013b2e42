"""Measured figures have a result behind them, which names its commit and is no older than what it depends on."""

from __future__ import annotations

import datetime as dt
import json
import re
import shlex
import subprocess
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import pytest

from benchmarks.code_of import NotARenaming, code, identifiers
from benchmarks.common import RESULTS
from benchmarks.renamed import MOVED, RENAMED, renamed_in
from benchmarks.results_of import CPU_HEADERS, DEPENDENCIES, FIGURES_KEPT, GPU_HEADERS, REWRITTEN, paths_of
from tests.docs.pages import DOCS, ROOT

BENCHMARKS = ROOT / "benchmarks"
ALL = sorted(RESULTS.glob("*.json"))
PAGES = [ROOT / "README.md", *sorted(DOCS.glob("*.md")), *sorted(BENCHMARKS.glob("*.md"))]

UNIT = r"(?:us|ms|s|%|[MG]iB|[GT]B/s|Tflop/s)"
FIGURE = re.compile(rf"\d[\d.,]* ?{UNIT}|\d+\.\d+")
REST = re.compile(rf"\d[\d.,]*|\b(?:to|of|x|{UNIT})\b|[\s,/()%±-]")
"""What may stand beside figures in a cell."""

RENEWED_ROW_BY_ROW = ("false_alarms",)
"""Results whose rows are measured again where their own problem has changed; the commit is that of the last of them."""

NOT_OF_A_RESULT = {
    ("docs/roofline.md", "GPU"): "limits of the hardware, from its clocks and data sheets",
    (
        "docs/training.md",
        "configuration",
    ): "products of a configuration's numbers, which tests/training/test_configs.py makes",
    ("docs/robustness.md", "#"): "verdicts, not times: docs/generate_robustness.py computes them",
}
"""Tables of figures that no benchmark measured, by page and first column: the reason."""


def is_figure(cell: str) -> bool:
    """Whether a cell holds a time, a rate, a share or a decimal fraction, and no words."""
    return bool(FIGURE.search(cell)) and not REST.sub("", cell)


@cache
def git(*arguments: str) -> str:
    ran = subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True, text=True)
    return ran.stdout.strip() if ran.returncode == 0 else ""


@pytest.fixture(scope="module")
def history() -> None:
    """Skips where commits cannot be looked up."""
    try:
        top = git("rev-parse", "--show-toplevel")
    except FileNotFoundError:
        pytest.skip("needs git")
    if not top or Path(top).resolve() != ROOT:
        pytest.skip("needs a git checkout: this is a source distribution")
    if git("rev-parse", "--is-shallow-repository") == "true":
        pytest.skip("needs the whole history: this clone is shallow")


def stale(commit: str, paths: list[str]) -> list[str]:
    """The files at these paths whose code differs between a commit and the present one, by more than names."""
    specs = [f":(glob){path}" for path in paths]
    command = ("diff", "--raw", "--abbrev=40", "--no-renames", commit, "HEAD", "--")
    changed = [line.split()[2:] for line in git(*command, *specs).splitlines()] if specs else []
    return [
        name
        for before, now, _, name in changed
        if name not in MOVED.values() and not is_renaming(name, moved_from(commit, name) or before, now)
    ]


def commits_of(name: str, result: dict[str, object]) -> set[str]:
    """The commit of a result, and those of its rows, seeds and arms that name their own: they may be of other runs."""
    names = ("seeds", "arms") if name in RENEWED_ROW_BY_ROW else ("rows", "seeds", "arms")
    parts = [part for part in map(result.get, names) if isinstance(part, list)]
    own = {row["commit"] for part in parts for row in part if isinstance(row, dict) and row.get("commit")}
    return own | {str(result["commit"])}


def moved_from(commit: str, name: str) -> str:
    """The blob that a file was at its earlier path; empty where it had none."""
    return git("rev-parse", "--verify", "--quiet", f"{commit}:{MOVED[name]}") if name in MOVED else ""


@cache
def is_renaming(name: str, before: str, now: str) -> bool:
    """Whether two blobs of a file have the same code but for names."""
    suffix = Path(name).suffix
    try:
        return code(git("cat-file", "blob", before), suffix, renamed_in(name)) == code_now(now, suffix)
    except NotARenaming:
        return False


@cache
def code_now(blob: str, suffix: str) -> str:
    return code(git("cat-file", "blob", blob), suffix)


@pytest.mark.parametrize("path", ALL, ids=lambda path: path.stem)
def test_every_result_has_date_machine_command_and_commit(path: Path):
    result = json.loads(path.read_text(encoding="utf-8"))
    dt.date.fromisoformat(result["date"])
    assert result["machine"] and result["command"].startswith("python -m benchmarks.")
    assert re.fullmatch(r"[0-9a-f]{12}", result["commit"]), "measure a commit, without changes that are not in it"
    assert not [word for word in shlex.split(result["command"]) if re.search("(^|=)/", word)], "no folder of a machine"


@pytest.mark.parametrize("path", ALL, ids=lambda path: path.stem)
def test_no_result_is_older_than_its_dependencies(path: Path, history: None):
    result = json.loads(path.read_text(encoding="utf-8"))
    kept = {name: as_of for (result, name), as_of in FIGURES_KEPT.items() if result == path.stem}
    for commit in commits_of(path.stem, result):
        assert git("cat-file", "-t", commit) == "commit", f"{commit} is no commit of this repository"
        changed = [name for name in stale(commit, paths_of(path)) if name not in kept or stale(kept[name], [name])]
        assert not changed, f"{path.name} is of {commit}; measure or remove it, for these have changed: {changed}"


def test_figures_are_kept_as_of_commits_that_exist(history: None):
    """git knew two of them under no name, and what it cannot compare never became stale."""
    unknown = {as_of for as_of in FIGURES_KEPT.values() if git("cat-file", "-t", as_of) != "commit"}
    assert not unknown


def test_a_change_makes_a_result_stale(history: None):
    first = git("log", "--format=%H", "--diff-filter=M", "--", "problems/*/*/expert.cpp").splitlines()[-1]
    assert stale(f"{first}~", ["problems/*/*/expert.cpp"])
    assert not stale("HEAD", ["problems/*/*/expert.cpp"])


def test_renaming_and_moving_make_nothing_stale(monkeypatch: pytest.MonkeyPatch):
    answers = {
        "diff": ":000000 100644 0 now A\tnew.py\n:100644 000000 then 0 D\told.py",
        "rev-parse": "then",
        "then": "def told(): return 1",
        "now": "def reported(): return 1",
    }
    monkeypatch.setitem(globals(), "git", lambda *words: answers.get(words[0]) or answers.get(words[-1], ""))

    def found() -> list[str]:
        is_renaming.cache_clear()
        code_now.cache_clear()
        return stale("then", ["*.py"])

    assert found() == ["new.py", "old.py"]
    monkeypatch.setitem(MOVED, "new.py", "old.py")
    assert found() == ["new.py"]
    monkeypatch.setitem(RENAMED, "ne*.py", {"told": "reported"})
    assert found() == []
    answers["then"] = "def told(reported): return 1"
    assert found() == ["new.py"], "two names became one"


def test_two_new_names_for_one_are_an_error(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(RENAMED, "a/*.py", {"told": "reported"})
    monkeypatch.setitem(RENAMED, "a/b.py", {"told": "sent"})
    assert renamed_in("a/c.py") == {"told": "reported"}
    with pytest.raises(ValueError, match=r"a/b\.py: several new names for told"):
        renamed_in("a/b.py")


@pytest.mark.parametrize("path", RENAMED)
def test_no_old_name_is_left(path: str):
    files = [file for file in ROOT.glob(path) if file.is_file()]
    assert files, "the pattern fits no file"
    for file in files:
        left = RENAMED[path].keys() & identifiers(file.read_text(encoding="utf-8"), file.suffix)
        assert not left, f"{file}: {left}"


@pytest.mark.parametrize(("new", "old"), MOVED.items())
def test_moved_files_are_at_their_new_place_alone(new: str, old: str):
    assert (ROOT / new).is_file() and not (ROOT / old).exists()


@pytest.mark.parametrize("name", DEPENDENCIES)
def test_dependencies_of_results_exist(name: str):
    for path in DEPENDENCIES[name]:
        assert list(ROOT.glob(path.format(folder="all_reduce"))), path


@pytest.mark.parametrize(("suffix", "others", "listed"), [("cpp", "_cuda", CPU_HEADERS), ("cu", "_cpu", GPU_HEADERS)])
def test_headers_of_kernels_are_all_listed(suffix: str, others: str, listed: Sequence[str]):
    """Those that their sources include, and so on; what is for the other device says so in its name."""
    include = re.compile(r'#include "pkb/(\w+)\.h"')
    headers = ROOT / "pkb_gym/engine/include/pkb"
    found: set[str] = set()
    left = [text.read_text(encoding="utf-8") for text in ROOT.glob(f"problems/*/*/expert.{suffix}")]
    while left:
        new = {name for name in include.findall(left.pop()) if not name.endswith(others)} - found
        found |= new
        left += [(headers / f"{name}.h").read_text(encoding="utf-8") for name in new]
    assert {f"pkb_gym/engine/include/pkb/{name}.h" for name in found} == {
        str(path.relative_to(ROOT)) for pattern in listed for path in ROOT.glob(pattern)
    }


def test_a_result_that_is_not_listed_is_an_error(tmp_path: Path):
    with pytest.raises(LookupError, match=r"unheard_of\.json: list in benchmarks/results_of\.py"):
        paths_of(tmp_path / "unheard_of.json")


def test_further_seeds_depend_on_what_the_first_depends_on(tmp_path: Path):
    first, further = (tmp_path / f"learning_run_cuda{more}.json" for more in ("", "_seeds"))
    assert paths_of(first) == paths_of(further) != paths_of(tmp_path / "learning_run.json")


def test_references_that_baselines_precede_are_those_on_the_page():
    table = (
        (BENCHMARKS / "README.md").read_text(encoding="utf-8").split("| reference | written as |")[1].split("\n\n")[0]
    )
    names = ", ".join(row.split("|")[1] for row in table.splitlines()[2:])
    assert {name.strip() for name in names.split(",")} == REWRITTEN


def measured_tables(text: str) -> list[tuple[str, str]]:
    """(Header, text of the sections that it stands in, up to it) of each table with measured figures."""
    found: list[tuple[str, str]] = []
    sections: list[tuple[int, str]] = [(0, "")]
    text = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    for part in re.split(r"\n(?=#)|\n\n", text):
        if heading := re.match(r"(#+) ", part):
            depth = len(heading[1])
            sections = [section for section in sections if section[0] < depth] + [(depth, "")]
        lines = part.strip().splitlines()
        if lines and lines[0].startswith("|"):
            cells = [cell.strip() for row in lines[2:] for cell in row.strip("|").split("|")]
            if any(map(is_figure, cells)):
                found.append((lines[0], "\n".join(text for _, text in sections)))
        else:
            depth, before = sections[-1]
            sections[-1] = (depth, f"{before}\n{part}")
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_tables_of_measured_figures_name_their_results(page: Path):
    for header, before in measured_tables(page.read_text(encoding="utf-8")):
        if (str(page.relative_to(ROOT)), header.split("|")[1].strip()) in NOT_OF_A_RESULT:
            continue
        names = re.findall(r"\b((?:results|data)/[\w*]+\.json)", before)
        assert names, f"name the file of benchmarks/results/ before the table: {header}"
        for name in names:
            assert list(BENCHMARKS.glob(name)), f"{name} is gone: {header}"


def test_a_table_is_measured_if_it_has_figures_and_named_by_its_own_section():
    table = "| kernel | time |\n| --- | --- |\n| AllReduce | 7.2 us |"
    page = f"# Page\n\nFrom `results/a.json`.\n\n## One\n\nFrom `results/b.json`.\n\n{table}\n\n## Two\n\n{table}\n"
    (_, first), (_, second) = measured_tables(page)
    assert "results/a.json" in first and "results/b.json" in first
    assert "results/a.json" in second and "results/b.json" not in second
    assert all(map(is_figure, ("7.2 us", "1.08 (1.03)", "48 %, 9.2 %", "0.89 to 1.02", "989.4 (80%)")))
    assert not measured_tables("| option | default |\n| --- | --- |\n| `epochs` | 3 |\n| `size` | tiny, 2 ranks |")
