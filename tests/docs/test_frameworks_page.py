"""docs/frameworks.md: names that exist, and a program for each door; the tests of the doors run them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from pkb_gym.adapters.settings import EpisodeSettings
from tests.docs.pages import DOCS, ROOT, code_blocks
from tests.doors import commands, debian_python, installation, uv
from tests.doors.__main__ import LONGEST_FIRST

PAGE = DOCS / "frameworks.md"
DOORS = sorted(path.parent.name for path in (ROOT / "tests/doors").glob("*/test_door.py"))


BY_COMMAND = {"harbor", "inspect_ai", "vllm"}
"""Doors that take no program: exported tasks (docs/harbor.md), and a server for the recipes (docs/training.md)."""


def test_every_door_has_a_program_that_its_tests_run():
    programs = sorted(code_blocks(PAGE, "door"))
    assert programs == sorted(set(DOORS) - BY_COMMAND)
    for door in programs:
        assert f'example("{door}"' in (ROOT / "tests/doors" / door / "test_door.py").read_text(encoding="utf-8")


def test_every_setting_is_named():
    (section,) = re.findall(r"^## Settings\n(.*?)^## ", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    assert set(EpisodeSettings.model_fields) <= set(re.findall(r"`(\w+)`", section))


def test_doors_are_installed_from_pins():
    """A package of a requirement without a pin would change under the tests."""
    for door in DOORS:
        folder = ROOT / "tests/doors" / door
        pins = (folder / "constraints.txt").read_text(encoding="utf-8").split()
        assert pins and all(re.fullmatch(r"[\w.-]+==[\w.+]+", pin) for pin in pins), door


def test_a_door_that_this_python_cannot_have_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(installation.OLDEST_PYTHON, "harbor", (4, 0))
    monkeypatch.setitem(installation.NEWEST_PYTHON, "verl", (3, 9))
    reasons = installation.install_all(installation.doors(tmp_path, ["harbor", "verl"]), tmp_path)
    assert all(type(reason) is installation.NotForThisPython for reason in reasons.values())
    assert str(reasons["harbor"]).startswith("it needs Python 4.0 or newer, and this is 3.")
    assert str(reasons["verl"]).startswith("it needs Python 3.9 or older, and this is 3.")
    assert list(tmp_path.iterdir()) == [], "and nothing is installed for it"


class Commands:
    """In place of `run`: keeps in words what an installation runs, of which some commands fail."""

    def __init__(self, folder: Path, *failing: str) -> None:
        self.run: list[str] = []
        self._folder, self._failing = folder, failing

    def __call__(self, command: list[str], _: float, **changes: str) -> subprocess.CompletedProcess[str]:
        assert {"UV_HTTP_TIMEOUT", "PIP_DEFAULT_TIMEOUT", "PIP_RETRIES"} <= set(changes), "an index may not answer"
        words = [Path(command[0]).name, *(word for word in command if word in ("venv", "pip", "install"))]
        self.run.append(" ".join(words))
        self._folder.mkdir(exist_ok=True)
        return subprocess.CompletedProcess(command, self.run[-1] in self._failing, "no such index")


@pytest.fixture
def uv_is_there(tmp_path) -> None:
    """It is there."""
    place = tmp_path / "uv" / "bin" / "uv"
    place.parent.mkdir(parents=True)
    place.touch()


PIP = f"{Path(sys.executable).name} pip install"


@pytest.mark.usefixtures("uv_is_there")
def test_pip_takes_the_place_of_uv_where_that_reaches_no_index(tmp_path, monkeypatch):
    commands_run = Commands(tmp_path / "openenv", "uv pip install")
    monkeypatch.setattr(installation, "run", commands_run)
    door = installation.doors(tmp_path, ["openenv"])
    assert installation.install_all(door, tmp_path) == {}
    assert commands_run.run == ["uv venv", "uv pip install", f"{Path(sys.executable).name} venv", PIP, "cp", PIP]
    assert installation.install_all(door, tmp_path) == {} and len(commands_run.run) == 6, "and it is installed once"


@pytest.mark.usefixtures("uv_is_there")
def test_a_door_without_an_index_is_no_skip(tmp_path, monkeypatch):
    monkeypatch.setattr(installation, "run", Commands(tmp_path / "openenv", "uv pip install", PIP))
    reasons = installation.install_all(installation.doors(tmp_path, ["openenv"]), tmp_path)
    assert type(reasons["openenv"]) is installation.NotInstalled and "no such index" in str(reasons["openenv"])


def test_uv_looks_where_pip_looks():
    """Else it would take packages of another index: torch for GPUs where pip takes that for processors."""
    listed = """\
:env:.find-links='/wheels /more'
global.cert='/etc/certificates'
global.extra-index-url='\\nfile:///one\\nfile:///two'
global.find-links='/other'
user.no-index='true'
global.timeout='20'
"""
    found = uv.settings_of(listed)
    assert found.pop("UV_FIND_LINKS") == "/wheels,/more", "a variable's before a file's"
    assert found.pop("UV_INDEX") == "file:///one file:///two" and found.pop("SSL_CERT_FILE") == "/etc/certificates"
    assert found == {"UV_INDEX_STRATEGY": "unsafe-best-match", "UV_NO_INDEX": "true"}


def test_without_uv_pip_installs(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(uv, "VENVS", tmp_path)
    monkeypatch.setattr(uv, "run", Commands(tmp_path / "uv"))
    uv.main()
    assert capsys.readouterr().out == ""
    (tmp_path / "uv" / "bin").mkdir()
    (tmp_path / "uv" / "bin" / "uv").touch()
    uv.main()
    assert f"{tmp_path}/uv/bin/uv pip install --quiet --python .venv/bin/python" in capsys.readouterr().out


COMMANDS = ["apt-get", "apt-get", "dpkg-deb", "python3.13"]


def test_an_interpreter_of_debian_is_whole_or_not_there(tmp_path, monkeypatch):
    """The release's packages are fetched into a folder; what does not run is fetched anew the next time."""
    began: list[str] = []

    def run(command: list[str], _: float, **changes: str) -> subprocess.CompletedProcess[str]:
        began.append(Path(command[0]).name)
        if command[:2] == ["apt-get", "install"]:
            archives = Path(re.findall('Cache "(.*)"', Path(changes["APT_CONFIG"]).read_text())[0]) / "archives"
            (archives / "python.deb").touch()
        if command[0] == "dpkg-deb":
            assert Path(command[-1]).is_dir()
            for name in ("usr/bin/python3.13", "usr/lib/x/ld-linux-x86-64.so.2"):
                (path := Path(command[-1]) / name).parent.mkdir(parents=True, exist_ok=True)
                path.touch()
        return subprocess.CompletedProcess(command, began == COMMANDS, "it does not run")

    monkeypatch.setattr(debian_python, "run", run)
    place = tmp_path / "python"
    with pytest.raises(debian_python.NoInterpreter, match="it does not run"):
        debian_python.provide(place)
    began.clear()
    began.append("a second time")
    python = debian_python.provide(place)
    assert began[1:] == COMMANDS and f"{python}.program" in python.read_text()
    assert debian_python.provide(place) == python and len(began) == 5, "and it is fetched once"


def test_a_program_that_outlasts_its_deadline_ends_with_all_that_it_started():
    """Its output is read to the end, which a child of it would have kept open."""
    done = commands.run(["bash", "-c", "sleep 600 & sleep 600"], 0.2)
    assert done.returncode == 124 and "took more than 0.2 s" in done.stdout


def test_no_distribution_of_a_door_needs_torch():
    for path in sorted((ROOT / "adapters").glob("*/pyproject.toml")):
        needed = tomllib.loads(path.read_text(encoding="utf-8"))["project"]["dependencies"]
        assert not any(name.startswith(("torch", "pkb-gym")) for name in needed), path


def test_all_doors_have_their_turn():
    recipe = subprocess.check_output(["make", "--dry-run", "doors"], text=True, cwd=ROOT)
    assert re.search(r"-m tests\.doors\s*$", recipe, re.MULTILINE)
    assert set(LONGEST_FIRST) == set(DOORS)


MAKE = """\
#!/bin/bash
if [[ $1 == test ]]; then
    until grep -qx doors "$CALLS"; do sleep 0.01; done
fi
echo "made $*"
echo "$1" >>"$CALLS"
[[ -z ${PYTHONDONTWRITEBYTECODE-} ]] || exit 1
[[ ! -d ${PKB_TEST_COMPILED-} ]] || echo "$1 $PKB_TEST_COMPILED" >>"$COMPILED"
[[ $1 != "${FAILS%%:*}" ]] || (($(grep -cx "$1" "$CALLS") > ${FAILS##*:}))
"""
"""In place of make, for `.ci/run`: it fails at a target as often as FAILS says. Tests end after doors have begun."""


INSTALL = ".venv/.installed-dev"
BY_UV = f"{INSTALL} PIP=uv pip install"
DOORS_MADE = "doors"
LIMITS = "limits"
TEST = f"test WORKERS={int(subprocess.check_output(['nproc'], text=True))}"


@pytest.mark.parametrize(
    ("fails", "status", "calls"),
    [
        ("nothing:0", 0, [BY_UV, TEST, LIMITS, DOORS_MADE]),
        (f"{INSTALL}:1", 0, [BY_UV, INSTALL, TEST, LIMITS, DOORS_MADE]),
        (f"{INSTALL}:2", 1, [BY_UV, INSTALL]),
        ("doors:1", 0, [BY_UV, TEST, LIMITS, DOORS_MADE, DOORS_MADE]),
        ("doors:2", 1, [BY_UV, TEST, LIMITS, DOORS_MADE, DOORS_MADE]),
        ("test:1", 1, [BY_UV, TEST]),
    ],
)
def test_continuous_integration_sets_them_up_beside_the_tests_and_fails_with_either(tmp_path, fails, status, calls):
    """The environment is set up by uv, and by pip where that fails; doors are tested beside the others."""
    programs = {"make": MAKE, "python": '#!/bin/sh\n[ "$2" != tests.doors.uv ] || echo uv pip install\n'}
    for name in ("make", "chromium", "bwrap", "g++", "python"):  # so that no package is missing
        (tmp_path / name).write_text(programs.get(name, "#!/bin/sh\n"))
        (tmp_path / name).chmod(0o755)
    changes = {
        "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}",
        "PYTHON": "python",
        "CALLS": str(tmp_path / "calls"),
        "COMPILED": str(tmp_path / "compiled"),
        "FAILS": fails,
        "TMPDIR": str(tmp_path),
        "PYTHONDONTWRITEBYTECODE": "1",
        "PKB_TEST_COMPILED": "",
    }
    done = commands.run([str(ROOT / ".ci/run")], 60, **changes)
    assert bool(done.returncode) == bool(status), done.stdout
    made = [line.removeprefix("made ") for line in done.stdout.splitlines() if line.startswith("made ")]
    assert made == calls
    if TEST in calls:
        kept = dict(line.split() for line in (tmp_path / "compiled").read_text().splitlines())
        assert kept.keys() >= {call.split()[0] for call in calls if call in (TEST, LIMITS, DOORS_MADE)}
        assert len(set(kept.values())) == 1, "doors find it compiled"
    assert not list(tmp_path.glob("tmp.*")), "nothing is left"
