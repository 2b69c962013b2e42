"""Problems outside the package: registered, by path, and of installed packages; a broken one costs only itself."""

from __future__ import annotations

import json
import pickle
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import gymnasium as gym
import pytest

import pkb_gym
from pkb_gym.engine.errors import ConfigError, DeclarationError, ProblemNotFound
from pkb_gym.engine.gangs.sandbox import zygote_policy
from pkb_gym.engine.gangs.visible_folders import hidden_folders, is_below
from pkb_gym.engine.gangs.zygote import Zygote
from pkb_gym.engine.records.config import EvalConfig
from pkb_gym.engine.support import problem_folders
from pkb_gym.problems.catalogue import all_problems, catalogue, choose_problem, find_problem
from pkb_gym.problems.own_problems import own_folders
from tests.docs.pages import DOCS

TEMPLATE = DOCS / "own_problem" / "my_pkb_problems" / "sharded_softmax"


@pytest.fixture(autouse=True)
def no_others(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Forgets afterwards what a test registers."""
    monkeypatch.setattr(problem_folders, "_REGISTERED", {})
    before = dict(gym.registry)
    yield
    gym.registry.clear()
    gym.registry.update(before)


def make_problem(folder: Path, name: str = "ShardedSoftmax", extra: str = "") -> Path:
    folder.mkdir(parents=True)
    text = (TEMPLATE / "problem.py").read_text()
    (folder / "problem.py").write_text(text.replace('name="ShardedSoftmax"', f'name="{name}"') + extra)
    (folder / "reference.py").write_text((TEMPLATE / "reference.py").read_text())
    return folder


def test_a_registered_problem_has_an_environment_and_is_found_by_name(tmp_path):
    folder = make_problem(tmp_path / "mine", "RowShares")
    env_id = pkb_gym.register_problem(folder)
    assert env_id == pkb_gym.register_problem(folder / "problem.py") == "PKB/RowShares-v0"
    assert gym.make(env_id, device="cpu", world_size=2).unwrapped.problem.name == "RowShares"
    assert find_problem("row_shares") is not None and find_problem(env_id).declared_in == str(folder / "problem.py")
    assert find_problem("RowShares").number == 0
    assert [problem.name for problem in all_problems()] == [*(p.name for p in catalogue()), "RowShares"]
    env = gym.make("PKB/Suite-v0", split=["RowShares", "AllReduce"], device="cpu", world_size=2)
    assert env.unwrapped.problem_names == ("AllReduce", "RowShares")


def test_an_environment_is_made_of_a_path(tmp_path, monkeypatch):
    make_problem(tmp_path / "mine", "RowShares")
    monkeypatch.chdir(tmp_path)
    env = gym.make("PKB/Path-v0", problem="./mine", device="cpu", world_size=2)
    assert env.unwrapped.problem.name == "RowShares"
    with pytest.raises(ConfigError, match="PKB/Path-v0: give problem=PATH"):
        gym.make("PKB/Path-v0", device="cpu")
    with pytest.raises(ProblemNotFound, match=r"For the folder of that name write './mine'\."):
        choose_problem("mine")


def test_its_environment_pickles_into_another_process(tmp_path):
    """A pickle held the name alone, which a process that had not registered the folder did not know."""
    env = gym.make("PKB/Path-v0", problem=make_problem(tmp_path / "mine", "RowShares"), device="cpu", world_size=2)
    (tmp_path / "env").write_bytes(pickle.dumps(env))
    code = "import pickle, sys; print(pickle.load(open(sys.argv[1], 'rb')).unwrapped.problem.name)"
    assert subprocess.check_output([sys.executable, "-c", code, tmp_path / "env"], text=True) == "RowShares\n"


def test_registering_a_problem_does_not_import_gymnasium(tmp_path):
    code = """
import sys, pkb_gym
env_id = pkb_gym.register_problem(sys.argv[1])
assert "gymnasium" not in sys.modules
import gymnasium
print(gymnasium.spec(env_id).kwargs)
"""
    folder = make_problem(tmp_path / "mine", "RowShares")
    found = subprocess.check_output([sys.executable, "-c", code, folder], text=True)
    assert found == "{'problem': 'RowShares'}\n"


def test_names_from_a_wire_are_never_paths(tmp_path):
    """A service that took a client's path would run the client's code."""
    folder = make_problem(tmp_path / "mine", extra="\nraise SystemExit('was run')\n")
    with pytest.raises(ProblemNotFound):
        find_problem(str(folder))


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("nowhere", "no folder"),
        (".", "a folder without a problem.py"),
        ("odd/problem.py", "no line begins with PROBLEM"),
    ],
)
def test_what_is_no_problem_is_refused_at_once(tmp_path, monkeypatch, path, words):
    (tmp_path / "odd").mkdir()
    (tmp_path / "odd" / "problem.py").write_text("x = 1\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=words):
        pkb_gym.register_problem(path)


def test_a_name_that_is_taken_names_both_places(tmp_path):
    one = make_problem(tmp_path / "one", "RowShares")
    other = make_problem(tmp_path / "other", "RowShares")
    pkb_gym.register_problem(one)
    with pytest.raises(ConfigError, match=f"{other}.* RowShares is taken by {one}"):
        pkb_gym.register_problem(other)
    for name in ("AllReduce", "Suite", "Path"):
        with pytest.raises(ConfigError, match=f"the name {name} is taken by"):
            pkb_gym.register_problem(make_problem(tmp_path / name, name))


@pytest.mark.parametrize(
    ("extra", "words"),
    [
        ("\nraise SystemError('at import')\n", "SystemError: at import"),
        ("\nPROBLEM = None\n", "defines no PROBLEM"),
        ("\nimport dataclasses\nPROBLEM = dataclasses.replace(PROBLEM, name='Other')\n", "is called 'Other'"),
    ],
)
def test_a_broken_problem_raises_its_error_at_each_lookup(tmp_path, extra, words):
    """The half-imported module stayed in sys.modules: the second time it had no PROBLEM, for no reason given."""
    env_id = pkb_gym.register_problem(make_problem(tmp_path / "mine", "RowShares", extra))
    for _ in range(2):
        with pytest.raises(DeclarationError, match=words):
            find_problem("RowShares")
    with pytest.raises(DeclarationError, match=words):
        gym.make(env_id, device="cpu")
    assert len(all_problems()) == len(catalogue()) and find_problem("AllReduce").name == "AllReduce"


def test_a_problem_without_a_reference_is_broken(tmp_path):
    folder = make_problem(tmp_path / "mine", "RowShares")
    (folder / "reference.py").unlink()
    with pytest.raises(DeclarationError, match=r"there is no reference\.py"):
        choose_problem(folder)


def test_kernels_cannot_read_its_folder(tmp_path):
    """An expert kernel may lie beside the declaration."""
    folder = make_problem(tmp_path / "mine")
    assert str(folder) not in hidden_folders()
    pkb_gym.register_problem(folder)
    assert str(folder) in hidden_folders() and str(folder) in zygote_policy(1 << 20).hidden


def test_a_sandbox_knows_folders_that_it_shows(tmp_path):
    """One registered below site-packages after the sandbox has started would be seen."""
    zygote = Zygote.__new__(Zygote)
    zygote._policy = zygote_policy(1 << 20)
    assert zygote.shows(Path(json.__file__).parent)
    assert not zygote.shows(tmp_path) and not zygote.shows(Path(pkb_gym.__file__).parent)
    assert is_below(str(Path(pkb_gym.__file__).resolve().parent), zygote._policy.hidden)


def test_a_problem_that_a_started_sandbox_shows_is_not_judged(local_evaluator, monkeypatch):
    monkeypatch.setattr(Zygote, "shows", lambda self, folder: folder == TEMPLATE)
    config = EvalConfig(device="cpu", world_size=2, until="check")
    source = (TEMPLATE / "reference.py").read_text()
    with pytest.raises(ConfigError, match="register problems before the first evaluation"):
        local_evaluator.evaluate(choose_problem(TEMPLATE), source, config)


ENTRY_POINTS = """
import sys
import gymnasium as gym
import pkb_gym
from pkb_gym.cli import main
from pkb_gym.engine.gangs.visible_folders import hidden_folders
assert not any(name.startswith(("mine", "pkb_own")) for name in sys.modules), "found without being imported"
print(gym.make("PKB/RowShares-v0", device="cpu", world_size=2).unwrapped.problem.name)
print(any(folder.endswith("/mine") for folder in hidden_folders()))
sys.exit(main(["list"]))
"""


def install(folder: Path, name: str, package: str) -> None:
    """What pip writes of an installed distribution that has an entry point."""
    info = folder / f"{name}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[pkb_gym.problems]\n{name} = {package}\n")


def test_entry_points_and_those_that_are_broken(tmp_path):
    make_problem(tmp_path / "mine" / "row_shares", "RowShares")
    (tmp_path / "mine" / "__init__.py").write_text("raise RuntimeError('nobody needs to import it')\n")
    make_problem(tmp_path / "taken" / "all_reduce", "AllReduce")
    make_problem(tmp_path / "twice" / "a", "Twice")
    make_problem(tmp_path / "twice" / "b", "Twice")
    make_problem(tmp_path / "raises" / "a", "Raises", "\nraise RuntimeError('oh')\n")
    (tmp_path / "empty").mkdir()
    for name in ("mine", "taken", "twice", "raises", "empty", "gone"):
        install(tmp_path, name, name)
    path = f"{Path(pkb_gym.__file__).parents[1]}:{tmp_path}"
    ran = subprocess.run(
        [sys.executable, "-c", ENTRY_POINTS],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={"PYTHONPATH": path, "PATH": "/usr/bin:/bin"},
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.splitlines()[:2] == ["RowShares", "True"]
    broken = [line for line in ran.stdout.splitlines() if line.startswith("broken: ")]
    assert len(broken) == 6 and f"{len(catalogue()) + 1} problems." in ran.stdout
    for words in (
        "AllReduce: .*'taken' of taken 1.0.*the name AllReduce is taken by",
        "Twice: .*twice/a.*is taken by .*twice/b",
        "Twice: .*twice/b.*is taken by .*twice/a",
        "Raises: .*RuntimeError: oh",
        "empty.* is no package with a problem.py",
        "gone.* cannot be found: no module named 'gone'",
    ):
        assert any(re.search(words, line) for line in broken), (words, broken)


def test_the_command_line_takes_paths(tmp_path, capsys):
    from pkb_gym.cli import main

    folder = make_problem(tmp_path / "mine", "RowShares")
    assert main(["list", "--problem", str(folder), "--json"]) == 0
    assert "RowShares" in {record["name"] for record in json.loads(capsys.readouterr().out)}
    assert [own.name for own in own_folders()] == ["RowShares"]
    source = tmp_path / "empty.cpp"
    source.write_text("\n")
    problem_folders._REGISTERED.clear()
    for argv in (["eval", str(folder)], ["eval", "RowShares", "--problem", str(folder)]):
        assert main([*argv, str(source), "--device", "cpu", "--world-size", "2"]) == 1
        assert "RowShares 2 ranks" in capsys.readouterr().out


def test_a_declaration_that_ends_the_process_is_broken_like_any_other(tmp_path):
    """`pkb` ended with status 0."""
    folder = make_problem(tmp_path / "mine", "RowShares", "\nraise SystemExit(0)\n")
    with pytest.raises(DeclarationError, match=r"its problem\.py cannot be loaded: SystemExit: 0"):
        choose_problem(folder)


def test_a_reference_that_returns_something_else_than_declared_is_no_candidates_fault(tmp_path, local_evaluator):
    """Candidates that returned what was declared were wrong."""
    folder = make_problem(tmp_path / "mine", "WideShares")
    reference = folder / "reference.py"
    source = reference.read_text()
    reference.write_text(source.replace(".to(x.dtype)", "[:3]"))
    config = EvalConfig(device="cpu", world_size=2, until="check")
    feedback = local_evaluator.evaluate(choose_problem(folder), source, config)
    assert feedback.failure == "infrastructure", feedback.message
    assert "WideShares: reference.py returned out of shape (3, " in feedback.message
    assert "problem.py declares" in feedback.message
