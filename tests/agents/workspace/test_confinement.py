"""What a program in a workspace sees: by bubblewrap, in a container, behind a prefix, and without any."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

import pkb_gym
from pkb_gym.agents.registry import open_agent
from pkb_gym.agents.workspace import confinement
from pkb_gym.agents.workspace.coding_clis import CODING_CLIS
from pkb_gym.agents.workspace.confinement import INSIDE, choose_confinement
from pkb_gym.engine.errors import ConfigError
from pkb_gym.engine.gangs.sandbox import bubblewrap_works
from pkb_gym.problems.splits import near_duplicates
from tests.agents.run.runs import recorded

needs_bubblewrap = pytest.mark.skipif(not bubblewrap_works(), reason="needs bubblewrap, which does not work here")

ROOT = Path(pkb_gym.__file__).resolve().parents[1]
FORBIDDEN = ("problems", "pkb_gym/kernels", "pkb_gym/starters", "pkb_gym/corpus", "tests", "docs", "envs")

PROBE = """
import importlib.util, json, os, socket, sys
forbidden = [path for path in sys.argv[1:] if os.path.exists(path)]
names = [os.path.join(top, name) for top in sys.path if os.path.isdir(top) for name in ("pkb_gym/problems",)]
try:
    socket.create_connection(("127.0.0.1", int(os.environ["PROBED_PORT"])), 5).close()
    network = True
except OSError:
    network = False
print(json.dumps({
    "forbidden": forbidden + [name for name in names if os.path.exists(name)],
    "package": importlib.util.find_spec("pkb_gym") is not None,
    "network": network,
    "folder": os.getcwd(),
    "files": sorted(os.listdir()),
    "secret": os.environ.get("PROBED_SECRET"),
    "given": os.environ.get("PROBED_GIVEN"),
    "home": os.environ["HOME"],
}))
"""


@pytest.fixture
def probe(programs, tmp_path, monkeypatch):
    """What a probe in a workspace finds."""
    import socket

    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setenv("PROBED_SECRET", "key")
        monkeypatch.setenv("PROBED_GIVEN", "given")
        monkeypatch.setenv("PROBED_PORT", str(server.getsockname()[1]))
        (tmp_path / "probe.py").write_text(PROBE)
        (tmp_path / "other").mkdir()
        (tmp_path / "answers").mkdir()
        (tmp_path / "answers" / "expert.cpp").write_text("")

        def run(**options):
            paths = " ".join(str(ROOT / name) for name in FORBIDDEN)
            script = (
                f"{sys.executable} {tmp_path / 'probe.py'} {paths} {tmp_path / 'other'} {tmp_path}/answers/expert.cpp"
            )
            chosen = {"variables": "PROBED_GIVEN,PROBED_PORT", "readable": tmp_path / "probe.py"} | options
            programs.run(script, options=chosen)
            return json.loads(recorded(programs.folder)[-1].reply)

        yield run


@needs_bubblewrap
def test_the_sandbox_hides_this_package_other_folders_and_the_network(probe):
    found = probe(sandbox="bubblewrap")
    assert (found["forbidden"], found["package"], found["network"]) == ([], False, False)
    assert (found["folder"], found["home"], found["secret"], found["given"]) == (INSIDE, "/tmp", None, "given")


@needs_bubblewrap
def test_the_network_and_further_folders_are_there_where_they_are_allowed(probe, tmp_path):
    found = probe(sandbox="auto", network="true", readable=tmp_path)
    seen = [str(tmp_path / "other"), str(tmp_path / "answers" / "expert.cpp")]
    assert found["network"] and found["forbidden"] == seen


@needs_bubblewrap
def test_no_readable_folder_shows_answers(probe, tmp_path, monkeypatch):
    """Known-good kernels lie below folders that are shown, such as site-packages."""
    monkeypatch.setattr(confinement, "hidden_folders", lambda: (str(tmp_path / "answers"),))
    assert probe(sandbox="bubblewrap", readable=tmp_path)["forbidden"] == [str(tmp_path / "other")]


@needs_bubblewrap
def test_nothing_that_is_hidden_is_shown_by_a_program_within_it(programs, tmp_path):
    """The program is read, and its neighbours are not."""
    script = f"{sys.executable} {ROOT / 'tests/agents/workspace/lists_its_folder.py'}"
    provider = open_agent(f"workspace:{script}", {"sandbox": "bubblewrap"})
    output = tmp_path / "output"
    workspace = tmp_path / "workspace"
    workspace.mkdir()
    process = provider.start(workspace, output, "solution.cpp", {})
    try:
        while process.exit_status is None:
            process.read_output()
        assert json.loads(process.take_transcript()) == ["lists_its_folder.py"]
    finally:
        provider.end(process)


@needs_bubblewrap
def test_a_program_in_the_sandbox_evaluates_and_submits(programs):
    programs.run(
        "echo speedup 2 > a.cpp; ./evaluate a.cpp && ./submit a.cpp",
        options={"sandbox": "bubblewrap", "readable": programs._script},
    )
    assert [attempt.verdict for attempt in recorded(programs.folder)] == ["passed", "passed"]


def test_a_workspace_holds_the_task_and_kernels_of_other_problems_alone(probe, programs):
    found = probe()
    names = {"API.md", "TASK.md", "evaluate", "examples", "include", "reference.py", "submit", ".evaluator"}
    assert set(found["files"]) == names and found["secret"] == "key"
    programs.run("ls examples", samples=2)
    examples = recorded(programs.folder)[-1].reply.split()
    assert {"AllGather.cpp", "AllGather.py", "AllToAll.cpp"} <= set(examples)
    assert not {name.partition(".")[0] for name in examples} & near_duplicates("AllReduce")


def test_a_container_gets_the_workspace_its_variables_and_no_network(tmp_path, monkeypatch):
    docker = tmp_path / "docker"
    docker.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/calls\n')
    docker.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("KEY", "secret")
    provider = open_agent("workspace:coder --fast", {"image": "coder:1", "variables": "KEY"})
    assert provider.warning is None and provider.settings["sandbox"] == "image"
    process = provider.start(tmp_path, tmp_path / "output", "solution.cpp", {"PKB_PROBLEM": "AllReduce"})
    process._process.wait()
    provider.end(process)
    ran, ended = (tmp_path / "calls").read_text().splitlines()
    assert "secret" not in ran and "--env PKB_PROBLEM" in ran and "--env KEY" in ran
    assert f"--volume {tmp_path}:{INSIDE} --workdir {INSIDE}" in ran and "--network none" in ran
    assert ran.endswith("coder:1 coder --fast") and ended == f"kill {process._name}"


def test_a_prefix_stands_before_the_program(programs, tmp_path):
    prefix = "env -C {folder} PREFIXED=yes"
    programs.run("echo $PREFIXED $PWD", options={"sandbox": "auto", "prefix": prefix})
    words = recorded(programs.folder)[-1].reply.split()
    assert words[0] == "yes" and words[1].endswith("/workspace")


def test_what_is_not_hidden_is_said_aloud(programs, monkeypatch):
    assert "NOTHING IS HIDDEN" in programs.provider("true").warning
    assert "not known here" in programs.provider("true", sandbox="auto", prefix="env").warning
    assert "NOTHING IS HIDDEN" in open_agent("command:true").warning
    monkeypatch.setattr(confinement, "bubblewrap_works", lambda: False)
    assert "NOTHING IS HIDDEN" in programs.provider("true", sandbox="auto").warning
    assert programs.provider("true", sandbox="auto").settings["sandbox"] == "none"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"sandbox": "bubblewrap"}, "bubblewrap is not installed"),
        ({"sandbox": "none", "image": "coder:1"}, "one of sandbox, image and prefix"),
        ({"image": "coder:1"}, "needs docker or podman"),
        ({"prefix": "pkb-no-such-program -x"}, "no such program on PATH"),
        ({"prefix": "'"}, "No closing quotation"),
        ({"minutes": "0"}, "greater than 0"),
        ({"tokens": "many"}, "valid integer"),
    ],
)
def test_what_a_machine_has_not_is_wrong_usage(programs, monkeypatch, options, words):
    monkeypatch.setattr(confinement, "bubblewrap_works", lambda: False)
    which = confinement.shutil.which
    monkeypatch.setattr(confinement.shutil, "which", lambda name: None if name in ("docker", "podman") else which(name))
    with pytest.raises(ConfigError, match=words):
        open_agent("workspace:true", options)


def test_paths_that_are_not_there_are_wrong_usage(monkeypatch):
    monkeypatch.setattr(confinement, "bubblewrap_works", lambda: True)
    with pytest.raises(ConfigError, match="readable=/no/such: there is no such path"):
        choose_confinement("auto", None, None, network=False, variables=(), readable=("/no/such",))
    with pytest.raises(ConfigError, match="no program 'pkb-no-such-program' on PATH"):
        open_agent("workspace:pkb-no-such-program")


@pytest.mark.parametrize("name", CODING_CLIS)
def test_a_coding_agent_is_a_name(name, tmp_path, monkeypatch):
    program = tmp_path / name
    program.write_text('#!/bin/sh\nfor word in "$@"; do echo "$word"; done\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    provider = open_agent(f"workspace:{name} --model m", {"sandbox": "none"})
    process = provider.start(tmp_path, tmp_path / "output", "solution.cu", {})
    process._process.wait()
    words = process.take_transcript().splitlines()
    provider.end(process)
    assert words[words.index("--model") + 1] == "m" and not any("{" in word for word in words)
    assert any("TASK.md" in word for word in words) and CODING_CLIS[name].variables
