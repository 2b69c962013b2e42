"""docs/install.md, and the steps of Dockerfiles and continuous integration that it speaks of."""

from __future__ import annotations

import os
import re
import shutil
import stat
import subprocess
import sys
import sysconfig
import tomllib
from pathlib import Path

import pytest

from pkb_gym.adapters.harbor import task_folder
from tests.docs.pages import DOCS, ROOT

PAGE = (DOCS / "install.md").read_text(encoding="utf-8")
SCRIPT = ROOT / "docker/system_packages.sh"
DOCKERFILES = sorted((ROOT / "docker").glob("Dockerfile.*"))
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]


def test_the_table_of_extras_is_complete():
    (table,) = re.findall(r"^\| extra \| adds \|\n\|---\|---\|\n((?:\|.*\n)+)", PAGE, re.MULTILINE)
    listed = [name for row in table.splitlines() for name in re.findall(r"`(\w+)`", row.split("|")[1])]
    assert sorted(listed) == sorted(EXTRAS)


def test_trackers_have_the_names_of_report_to():
    """TRL's `--report_to wandb` fails at the end of the set-up where the package is missing."""
    for tracker in ("tensorboard", "trackio", "wandb"):
        assert [re.match(r"[\w-]+", requirement)[0] for requirement in EXTRAS[tracker]] == [tracker]


def test_commands_are_valid_and_name_what_exists(tmp_path):
    blocks = re.findall(r"^```bash\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    assert len(blocks) >= 6
    for block in blocks:
        done = subprocess.run(["bash", "-n"], input=block, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    text = "".join(blocks)
    for config in re.findall(r"\$CONFIGS/([\w/]+\.yaml)", text):
        assert (ROOT / "training/configs" / config).is_file(), config
    for file in re.findall(r"--file (\S+)", text):
        assert ROOT / file in DOCKERFILES


def test_the_folder_of_configurations_is_found():
    """The page's own command, as a wheel's user types it."""
    (command,) = re.findall(r"^CONFIGS=\$\((.+)\)/configs$", PAGE, re.MULTILINE)
    shown = subprocess.check_output(["bash", "-c", command], text=True, cwd=ROOT, env=_with_python())
    assert Path(shown.strip(), "configs").resolve() == (ROOT / "training/configs").resolve()


def _with_python() -> dict[str, str]:
    """The environment with this interpreter first, as in an activated virtual environment."""
    folder = str(Path(sys.executable).parent)
    return {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}


@pytest.mark.parametrize("file", DOCKERFILES, ids=lambda file: file.name)
def test_dockerfiles_run_the_steps_of_continuous_integration(file):
    text = file.read_text()
    runs = " ".join(re.findall(r"^RUN (.+)$", text, re.MULTILINE))
    assert "docker/system_packages.sh" in runs and "make install" in runs
    (extras,) = re.findall(r"^ARG EXTRAS=(.+)$", text, re.MULTILINE)
    assert set(extras.split(",")) <= set(EXTRAS)
    assert re.search(r"^docker/system_packages.sh$", (ROOT / ".ci/run").read_text(), re.MULTILINE)
    tested = subprocess.check_output(["make", "--dry-run", "--always-make", "lint"], text=True, cwd=ROOT)
    assert "install EXTRAS=dev" in tested


@pytest.fixture(scope="module")
def hadolint() -> str:
    """The linter, of this environment."""
    found = shutil.which("hadolint", path=f"{sysconfig.get_path('scripts')}:{os.environ['PATH']}")
    assert found, "hadolint is missing: make install EXTRAS=dev"
    return found


def lint(hadolint: str, *files: Path) -> str:
    """What it finds that is more than a remark."""
    command = [hadolint, "--no-color", "--failure-threshold", "warning", *map(str, files)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    return "" if done.returncode == 0 else done.stdout + done.stderr


def test_dockerfiles_are_valid(hadolint, tmp_path):
    """Those of the repository, and those of exported tasks."""
    harbor = {"agent": task_folder.AGENT_DOCKERFILE.format(tvm_ffi="0.1"), "verifier": task_folder.VERIFIER_DOCKERFILE}
    for name, text in harbor.items():
        (tmp_path / f"{name}.Dockerfile").write_text(text)
    tracked = subprocess.check_output(["git", "ls-files", "*Dockerfile*"], text=True, cwd=ROOT).split()
    assert len(tracked) == 3
    assert lint(hadolint, *(ROOT / name for name in tracked), *tmp_path.iterdir()) == ""


def test_a_mistake_in_a_dockerfile_is_found(hadolint, tmp_path):
    broken = tmp_path / "Dockerfile"
    broken.write_text((ROOT / "docker/Dockerfile.cpu").read_text().replace("WORKDIR /opt", "WORKDIR opt"))
    assert "DL3000" in lint(hadolint, broken)


def test_dockerfiles_copy_what_is_there():
    for name in ("docker/Dockerfile.cpu", "docker/Dockerfile.cuda", "adapters/openenv/server/Dockerfile"):
        sources = re.findall(r"^COPY (\S+) ", (ROOT / name).read_text(), re.MULTILINE)
        assert sources and all((ROOT / source).exists() for source in sources), name


def test_the_image_of_openenv_has_what_its_door_is_tested_with():
    """`make doors` installs the same packages, and no torch, and runs the server with them."""

    def names(path: str) -> set[str]:
        lines = (ROOT / path).read_text().splitlines()
        return {re.match(r"[\w-]+", line)[0] for line in lines if line and not line.startswith("#")}

    assert names("adapters/openenv/server/requirements.txt") | {"pytest", "setuptools"} == names(
        "tests/doors/openenv/requirements.txt"
    )
    (file,) = re.findall(r"--requirement /app/(\S+)", (ROOT / "adapters/openenv/server/Dockerfile").read_text())
    assert file == "openenv/server/requirements.txt"


@pytest.fixture
def bare(tmp_path):
    """A PATH with bash and an apt-get that notes what it is asked for; `have(...)` adds programs."""
    folder = tmp_path / "bin"
    folder.mkdir()

    def have(*names, **scripts):
        for name in names:
            (folder / name).symlink_to(shutil.which(name))
        for name, script in scripts.items():
            path = folder / name.replace("_", "-")
            path.write_text(f"#!/bin/sh\n{script}\n")
            path.chmod(path.stat().st_mode | stat.S_IXUSR)

    have("bash", "env", apt_get=f'echo "$*" >> {tmp_path}/asked')

    def run():
        done = subprocess.run([str(SCRIPT)], capture_output=True, text=True, env={"PATH": str(folder)})
        asked = tmp_path / "asked"
        return done, asked.read_text().splitlines() if asked.exists() else []

    return have, run


def test_missing_system_packages_are_installed(bare):
    have, run = bare
    have("make", id="echo 0")
    done, asked = run()
    assert done.returncode == 0, done.stderr
    assert asked[-1].endswith("--no-install-recommends bubblewrap g++ python3 python3-venv python3-dev")


def test_a_machine_that_has_all_is_left_alone(bare):
    have, run = bare
    have("make", bwrap="", python3="exit 0", **{"g++": ""})
    done, asked = run()
    assert done.returncode == 0 and asked == []


def test_without_root_the_packages_are_named(bare):
    have, run = bare
    have("make", bwrap="", python3="exit 1", id="echo 1000", **{"g++": ""})
    done, asked = run()
    assert done.returncode == 1 and asked == []
    assert "missing: python3-venv python3-dev; install them" in done.stderr
