"""What a sandbox shows of this machine: whatever Python and compilers need, and no copy of the known-good kernels."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from pkb_gym.engine.gangs import visible_folders
from pkb_gym.engine.gangs.sandbox import Policy, bubblewrap_arguments, bubblewrap_works
from pkb_gym.engine.gangs.visible_folders import compiler_paths, hidden_folders, is_below, python_paths, system_paths

needs_bubblewrap = pytest.mark.skipif(not bubblewrap_works(), reason="needs bubblewrap, which does not work here")
ROOT = Path(__file__).resolve().parents[3]


def install(package: Path) -> Path:
    """A package that looks like this one."""
    (package / "engine" / "rankside").mkdir(parents=True)
    return package


def source_tree(root: Path) -> Path:
    """A cloned source tree: the package holds a link to the problems beside it."""
    install(root / "pkb_gym")
    (root / "pyproject.toml").touch()
    (root / "problems").mkdir()
    (root / "pkb_gym" / "problems").symlink_to("../problems")
    return root


def test_this_source_tree_is_hidden_with_its_problems_and_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PKB_CACHE_DIR", str(tmp_path))
    hidden = hidden_folders()
    assert {str(ROOT), str(ROOT / "problems"), str(tmp_path.resolve())} <= set(hidden)
    assert not any(is_below(path, [str(tmp_path)]) for path, _ in python_paths())


def test_any_tree_is_hidden_with_what_its_links_lead_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = tmp_path / "elsewhere"
    kept.mkdir()
    tree = source_tree(tmp_path / "tree")
    (tree / "pkb_gym" / "more").symlink_to(kept)
    monkeypatch.setattr(visible_folders, "PACKAGE", tree / "pkb_gym")
    assert {str(tree), str(tree / "problems"), str(kept)} <= set(hidden_folders())


def test_an_installation_in_site_packages_is_hidden_and_its_neighbours_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = tmp_path / "lib" / "site-packages"
    monkeypatch.setattr(visible_folders, "PACKAGE", install(site / "pkb_gym"))
    hidden = hidden_folders()
    assert str(site / "pkb_gym") in hidden and str(site) not in hidden


def test_other_copies_on_the_import_path_are_hidden_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = source_tree(tmp_path / "other")
    recorded = source_tree(tmp_path / "recorded")
    info = tmp_path / "site-packages" / "pkb_gym-1.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: pkb-gym\nVersion: 1\n")
    (info / "direct_url.json").write_text(json.dumps({"url": recorded.as_uri(), "dir_info": {"editable": True}}))
    monkeypatch.setattr(sys, "path", [*sys.path, str(other), str(info.parent)])
    assert {str(other), str(recorded)} <= set(hidden_folders())


def test_of_a_virtual_environment_at_the_root_of_the_tree_its_own_parts_are_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Shown as a whole it showed the problems."""
    tree = source_tree(tmp_path)
    (tree / "lib").mkdir()
    (tree / "pyvenv.cfg").touch()
    monkeypatch.setattr(visible_folders, "PACKAGE", tree / "pkb_gym")
    monkeypatch.setattr(sys, "prefix", str(tree))
    shown = [path for path, _ in python_paths()]
    assert str(tree) not in shown
    assert {str(tree / "lib"), str(tree / "pyvenv.cfg")} <= set(shown)


def test_what_is_merely_kept_on_the_machine_is_not_shown() -> None:
    for shown in (system_paths(), compiler_paths(), [path for path, _ in python_paths()]):
        assert not {"/", "/usr", "/usr/local", "/usr/src", "/usr/local/src", "/opt", "/etc", "/etc/passwd"} & set(shown)


def test_the_loaders_own_folders_are_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(visible_folders, "hidden_folders", lambda: ("/usr/lib",))
    monkeypatch.setenv("LD_LIBRARY_PATH", f"/usr/include:{tmp_path}:relative::/usr/lib/debug")
    folders = visible_folders._library_folders()
    assert "/usr/include" in folders
    assert not {str(tmp_path), "relative", "", "/usr/lib/debug"} & set(folders)


@needs_bubblewrap
def test_what_is_hidden_is_covered_by_every_name_but_for_what_is_asked_for(tmp_path: Path) -> None:
    """Covered by an empty folder that cannot be written to: all gangs of a sandbox would share what lies there."""
    tree = source_tree(tmp_path / "shown" / "tree")
    (tree / "problems" / "expert.cpp").touch()
    (tree / ".venv" / "lib" / "pkb_gym").mkdir(parents=True)
    (tree / ".venv" / "lib" / "pkb_gym" / "expert.cpp").touch()
    (tree / ".venv" / "lib" / "torch").mkdir()
    (tmp_path / "alias").symlink_to("shown")
    paths = [str(tmp_path / name) for name in ("shown", "alias", "shown/tree/.venv")]
    policy = Policy(
        read_only=tuple((path, path) for path in [*(path for path, _ in python_paths()), *paths]),
        hidden=tuple(map(str, (tree, tree / "problems", tree / ".venv" / "lib" / "pkb_gym"))),
    )
    script = "find shown alias -name expert.cpp; ls -A shown/tree shown/tree/.venv/lib; touch shown/tree/x alias/tree/x"
    command = bubblewrap_arguments(policy, ["sh", "-c", f"cd {tmp_path} && {script}"])
    found = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert found.stdout.split() == [
        *("shown/tree:", ".venv", "problems"),
        *("shown/tree/.venv/lib:", "pkb_gym", "torch"),
    ], found
    assert found.stderr.count("Read-only file system") == 2


LOOK = """
import subprocess
from pkb_gym.engine.compile.sandboxed_compiler import CompilerLimits, run_sandboxed
from pkb_gym.engine.compile.toolchain import INCLUDE
from pkb_gym.engine.gangs.sandbox import bubblewrap_arguments, zygote_policy
root = INCLUDE.parents[2]
look = ["sh", "-c", f"cat {root}/problems/*/*/expert.c* {root}/pkb_gym/problems/*/*/* {root}/README.md; ls {INCLUDE}"]
print(root, run_sandboxed(look, files={}, limits=CompilerLimits(60), readable=(INCLUDE,)).output)
print(subprocess.run(bubblewrap_arguments(zygote_policy(1 << 20), look), capture_output=True, text=True).stdout)
"""


@needs_bubblewrap
@pytest.mark.parametrize("place", ["/opt", "/usr/local/share", "/usr/src", "/usr/share", "/usr/lib"])
def test_a_tree_among_system_folders_shows_no_expert(place: str) -> None:
    """The whole tree, mounted there: its experts could be included, and opened in the ranks."""
    if not Path(place).is_dir():
        pytest.skip(f"there is no {place}")
    if any(Path(path).is_relative_to(place) for path in (sys.executable, sys.base_prefix)):
        pytest.skip(f"this interpreter lies in {place}, which the mount would cover")
    # Of /usr/lib, only what is empty may be covered.
    empty = place if place != "/usr/lib" else next((str(p) for p in Path(place).iterdir() if not _entries(p)), None)
    if empty is None:
        pytest.skip("no empty folder to mount it on")
    tree = f"{empty}/pkb" if place != "/usr/lib" else empty
    mounts = ["--tmpfs", empty] if place != "/usr/lib" else []
    command = ["bwrap", "--dev-bind", "/", "/", *mounts, "--ro-bind", str(ROOT), tree, "--chdir", "/"]
    environment = {**os.environ, "PYTHONPATH": tree, "PYTHONDONTWRITEBYTECODE": "1"}
    seen = subprocess.run(
        [*command, sys.executable, "-c", LOOK], capture_output=True, text=True, timeout=60, env=environment, check=False
    )
    assert seen.returncode == 0 and seen.stdout.startswith(tree), seen.stderr
    assert "pkb" in seen.stdout.splitlines(), "it shows its headers to compilers"
    assert not any(word in seen.stdout for word in ("solution", "Gymnasium")), seen.stdout[:500]


def _entries(path: Path) -> list[Path] | None:
    """None for what is no folder, or may not be read."""
    try:
        return list(path.iterdir()) if path.is_dir() and not path.is_symlink() else [path]
    except OSError:
        return [path]
