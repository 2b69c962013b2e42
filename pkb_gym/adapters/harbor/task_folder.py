"""One task folder of Harbor for one problem.

    task.toml           names, deadlines, and the variables that the verifier gets
    instruction.md      the task text, and where the kernel is to be written
    environment/        the container of the agent: a compiler and the headers, no token
    solution/           the expert kernel, where there is one
    tests/              the container of the verifier: test.sh posts the artefact to `pkb serve`

The verifier runs in a container of its own: it has the token, and neither the agent's processes nor a kernel ever run
beside it. Kernels run in the sandbox of the service alone.
"""

from __future__ import annotations

import importlib.metadata
import json
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pkb_gym
from pkb_gym.adapters.harbor import judge
from pkb_gym.engine.errors import ConfigError
from pkb_gym.engine.problem import Problem
from pkb_gym.engine.records.config import EvalConfig, Language
from pkb_gym.engine.records.machine import Machine
from pkb_gym.engine.support.atomic_write import write_atomically
from pkb_gym.envs.text.task import task_text
from pkb_gym.envs.text.turn import DEFAULT_STYLE, Style
from pkb_gym.problems.catalogue import expert_source

INCLUDE = Path(pkb_gym.__file__).resolve().parent / "engine" / "include"
SUFFIXES: dict[Language, str] = {"cpp": "cpp", "cuda": "cu"}
AGENT_S, DEADLINE_S = 3600, 1800
VERIFIER_GRACE_S = 120
"""The verifier's time beyond the deadline of the verdict."""

MARK = 'source = "pkb export harbor"'
"""The mark of a task.toml; a folder without it is not an exported one."""

TASK = """\
schema_version = "1.4"
artifacts = [{artefact}]

[task]
name = {name}
description = {description}
keywords = {keywords}

[metadata]
{mark}
version = {version}
problem = {problem}
category = {category}
language = {language}
config = {config}
reward = {reward}

[agent]
user = "agent"
timeout_sec = {agent_s}.0

[environment]
build_timeout_sec = 1200.0

[verifier]
timeout_sec = {verifier_s}.0
environment_mode = "separate"
env = {{ PKB_SERVICE_URL = "${{PKB_SERVICE_URL}}", PKB_TOKEN = "${{PKB_TOKEN}}" }}
"""

AGENT_DOCKERFILE = """\
FROM python:3.12-slim-bookworm
# hadolint ignore=DL3008
RUN apt-get update && apt-get install --yes --no-install-recommends g++ && rm -rf /var/lib/apt/lists/*
RUN pip install --no-cache-dir apache-tvm-ffi=={tvm_ffi}
COPY include /opt/pkb/include
RUN useradd --create-home agent && mkdir /app && chown agent /app
WORKDIR /app
"""

VERIFIER_DOCKERFILE = """\
FROM python:3.12-slim-bookworm
COPY . /tests
WORKDIR /tests
"""

TEST = """\
#!/bin/sh
exec python3 /tests/judge.py /tests/request.json {artefact} /logs/verifier
"""

SOLVE = """\
#!/bin/sh
set -eu
mkdir -p {folder}
cp "$(dirname "$0")/{expert}" {artefact}
"""

SUBMISSION = """
## Submission

Write the kernel to `{artefact}`: one source file. When you have finished, it is compiled, checked and timed on another
machine, which decides the reward. Its headers are in `/opt/pkb/include`, if you want to compile it yourself.
"""


@dataclass(frozen=True)
class HarborTask:
    """The contents of a folder.

    Attributes:
        problem: Problem to solve.
        config: Configuration of evaluations.
        language: Language of the kernel, "cpp" or "cuda".
        reward: Name of a preset.
        style: Style of the instruction.
    """

    problem: Problem
    config: EvalConfig
    language: Language
    reward: str = "default"
    style: Style = DEFAULT_STYLE

    @property
    def folder(self) -> str:
        """Name of the folder."""
        return Path(self.problem.declared_in).parent.name

    @property
    def artefact(self) -> str:
        """The path that the agent writes the kernel to."""
        return f"/app/solution.{SUFFIXES[self.language]}"

    @property
    def expert(self) -> str | None:
        """The known-good kernel; None where there is none."""
        return expert_source(self.problem, SUFFIXES[self.language])


def write_task(out: Path, task: HarborTask, machine: Machine) -> Path:
    """Writes the folder of a task, in place of one that an earlier export wrote; it is whole or not there.

    Args:
        out: Folder of all tasks, made where it is missing.
        task: Task to write.
        machine: Machine of the service that will judge.

    Raises:
        ConfigError, SizeError: The configuration cannot be met there, or the folder holds something else.
    """
    place = out / task.folder
    if place.exists() and MARK not in _text_of(place / "task.toml"):
        raise ConfigError(f"{place} is no task of `pkb export harbor`; --out names another folder")
    files = _files(task, machine)
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out, prefix=f".{task.folder}.") as beside:
        new = Path(beside, "new")
        for name, text in files.items():
            write_atomically(new / name, text)
            if name.endswith(".sh"):
                (new / name).chmod(0o755)
        shutil.copytree(INCLUDE, new / "environment" / "include")
        if place.exists():
            place.rename(Path(beside, "old"))
        new.rename(place)
    return place


def _files(task: HarborTask, machine: Machine) -> Mapping[str, str]:
    """Text by path in the folder."""
    problem, artefact = task.problem, task.artefact
    text = task_text(problem, machine.resolve(task.config, problem), (task.language,), machine, task.style)
    config = task.config.model_dump(mode="json", exclude_defaults=True)
    request = {"problem": problem.name, "config": config, "reward": task.reward, "deadline_s": DEADLINE_S}
    files = {
        "task.toml": _toml(task, config),
        "instruction.md": f"{text.rstrip()}\n{SUBMISSION.format(artefact=artefact)}",
        "environment/Dockerfile": AGENT_DOCKERFILE.format(tvm_ffi=importlib.metadata.version("apache-tvm-ffi")),
        "tests/Dockerfile": VERIFIER_DOCKERFILE,
        "tests/test.sh": TEST.format(artefact=artefact),
        "tests/judge.py": Path(judge.__file__).read_text(encoding="utf-8"),
        "tests/request.json": json.dumps(request, indent=1) + "\n",
    }
    if task.expert is not None:
        expert = f"expert.{SUFFIXES[task.language]}"
        files[f"solution/{expert}"] = task.expert
        files["solution/solve.sh"] = SOLVE.format(folder=Path(artefact).parent, expert=expert, artefact=artefact)
    return files


def _toml(task: HarborTask, config: Mapping[str, object]) -> str:
    problem = task.problem
    # A JSON string is a string of TOML too.
    return TASK.format(
        artefact=json.dumps(task.artefact),
        name=json.dumps(f"pkb-gym/{task.folder}"),
        description=json.dumps(problem.summary, ensure_ascii=False),
        keywords=json.dumps([problem.category, *sorted(problem.tags)]),
        mark=MARK,
        version=json.dumps(pkb_gym.__version__),
        problem=json.dumps(problem.name),
        category=json.dumps(problem.category),
        language=json.dumps(task.language),
        config=json.dumps(json.dumps(config)),
        reward=json.dumps(task.reward),
        agent_s=AGENT_S,
        verifier_s=DEADLINE_S + VERIFIER_GRACE_S,
    )


def _text_of(path: Path) -> str:
    return path.read_text(encoding="utf-8") if path.exists() else ""
