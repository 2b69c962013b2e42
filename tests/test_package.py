"""The package as a whole: what importing it loads, what a wheel holds, what the linters forbid."""

import ast
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

import pytest
from packaging.requirements import Requirement

import pkb_gym

ROOT = Path(__file__).resolve().parents[1]
LINKS = ("envs", "problems", "rewards", "training")
MADE_BY_TOOLS = shutil.ignore_patterns("__pycache__", "*.pyc", "*.egg-info", ".*", "build", "dist", "venv")


def modules_loaded_by(statement: str) -> set[str]:
    """Names that a fresh interpreter adds to sys.modules when it runs the statement."""
    code = f"import sys; before = set(sys.modules); {statement}; print('\\n'.join(set(sys.modules) - before))"
    return set(subprocess.check_output([sys.executable, "-c", code], text=True, cwd="/").split())


def test_import_loads_no_library_and_little_of_the_package():
    names = modules_loaded_by("import pkb_gym")
    others = {name.partition(".")[0] for name in names} - set(sys.stdlib_module_names)
    assert {name for name in others if not name.startswith("__editable__")} == {"pkb_gym"}
    ours = sorted(name for name in names if name.startswith("pkb_gym."))
    assert len(ours) < 40, f"import pkb_gym loads {len(ours)} of its modules; load them on first use: {ours}"


@pytest.mark.parametrize("order", ["pkb_gym, gymnasium", "gymnasium, pkb_gym"])
def test_environments_are_registered_whichever_is_imported_first(order):
    """`import pkb_gym` imported Gymnasium to register them, which took longer than all that `pkb --version` does."""
    code = f"import {order}; import sys; print(gymnasium.spec('PKB/AllReduce-v0').entry_point, len(sys.meta_path))"
    found = subprocess.check_output([sys.executable, "-c", code], text=True, cwd="/").split()
    bare = subprocess.check_output([sys.executable, "-c", "import sys; print(len(sys.meta_path))"], text=True, cwd="/")
    assert found == ["pkb_gym.envs.env:PKBEnv", bare.strip()]


@pytest.mark.parametrize("imports", ["gymnasium", "pkb_gym, gymnasium"])
def test_an_id_may_name_the_module_that_registers_it(imports):
    code = f"import {imports}; print(gymnasium.make('pkb_gym:PKB/AllReduce-v0', device='cpu').spec.id)"
    assert subprocess.check_output([sys.executable, "-c", code], text=True, cwd="/").split() == ["PKB/AllReduce-v0"]


def test_a_failed_import_of_gymnasium_registers_with_the_next(tmp_path):
    (tmp_path / "gymnasium.py").write_text("raise ImportError('half installed')")
    code = f"""
import sys, pkb_gym
sys.path.insert(0, {str(tmp_path)!r})
try:
    import gymnasium
except ImportError as error:
    print(error)
sys.path.pop(0)
import gymnasium
print(gymnasium.spec("PKB/Suite-v0").id)
"""
    found = subprocess.check_output([sys.executable, "-c", code], text=True, cwd="/").splitlines()
    assert found == ["half installed", "PKB/Suite-v0"]


def test_links_lead_to_the_folders_at_the_root():
    for name in LINKS:
        link = ROOT / "pkb_gym" / name
        assert str(link.readlink()) == f"../{name}", f"{link} must be the relative link ../{name}"
        assert link.resolve() == ROOT / name
        assert (link / "__init__.py").is_file(), f"{name}/ is no package, so no wheel would hold it"


@pytest.fixture(scope="module")
def distributions(tmp_path_factory) -> Path:
    """Folder of a source distribution and of the wheel built from it, made of a copy of the tree, which stays clean."""
    folder = tmp_path_factory.mktemp("distributions")
    source = folder / "source"
    shutil.copytree(ROOT, source, symlinks=True, ignore=MADE_BY_TOOLS)
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, source]
    built = subprocess.run(command, capture_output=True, text=True)
    assert built.returncode == 0, built.stdout + built.stderr
    return folder


@pytest.fixture(scope="module")
def wheel(distributions) -> Iterator[zipfile.ZipFile]:
    (path,) = distributions.glob("*.whl")
    with zipfile.ZipFile(path) as archive:
        yield archive


def test_source_distribution_holds_the_files_of_the_wheel_and_no_tests(distributions, wheel):
    """Its tests could not run: their helpers are no package that setuptools finds."""
    (path,) = distributions.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert not [name for name in names if name.startswith("tests")]
    package = {name for name in wheel.namelist() if name.startswith("pkb_gym/")}
    assert package == {name for name in names if name.startswith("pkb_gym/")} - folders_of(package)
    emulator = {f"emulator/{name}" for name in wheel.namelist() if name.startswith("rank_emulator/")}
    assert emulator == {name for name in names if name.startswith("emulator/")} - folders_of(emulator)
    assert {"LICENSE", "README.md", "pyproject.toml"} <= names


def folders_of(names: set[str]) -> set[str]:
    return {str(parent) for name in names for parent in PurePosixPath(name).parents}


def test_wheel_holds_every_file_of_the_package(wheel):
    """Problem folders are not packages: setuptools leaves out what no pattern of `package-data` names."""
    expected = set()
    for folder, subfolders, files in os.walk(ROOT / "pkb_gym", followlinks=True):
        skipped = MADE_BY_TOOLS(folder, subfolders + files)
        subfolders[:] = sorted(set(subfolders) - skipped)
        expected |= {str((Path(folder) / name).relative_to(ROOT)) for name in set(files) - skipped}
    expected |= emulator_files()
    assert any(name.endswith("/reference.py") for name in expected)
    assert "pkb_gym/engine/include/pkb/symm.h" in expected
    missing = sorted(expected - set(wheel.namelist()))
    assert not missing, f"add a pattern to [tool.setuptools.package-data] for {missing}"


def emulator_files() -> set[str]:
    """The files of the package of the emulator, as a wheel names them."""
    folder = ROOT / "emulator"
    paths = (path for path in (folder / "rank_emulator").rglob("*") if path.is_file() and path.suffix != ".pyc")
    return {str(path.relative_to(folder)) for path in paths}


def test_wheel_installs_its_packages_and_the_command(wheel):
    tops = {name.partition("/")[0] for name in wheel.namelist()}
    metadata = f"pkb_gym-{pkb_gym.__version__}.dist-info"
    assert tops == {"pkb_gym", "rank_emulator", metadata}
    assert not [name for name in wheel.namelist() if "tests/" in name or "benchmarks/" in name]
    assert "pkb = pkb_gym.cli:main" in wheel.read(f"{metadata}/entry_points.txt").decode()


def test_the_emulator_is_a_distribution_of_its_own(tmp_path):
    """Its wheel holds its package alone, which works without pkb_gym."""
    source = tmp_path / "emulator"
    shutil.copytree(ROOT / "emulator", source, ignore=MADE_BY_TOOLS)
    command = [sys.executable, "-m", "build", "--no-isolation", "--wheel", "--outdir", tmp_path, source]
    built = subprocess.run(command, capture_output=True, text=True)
    assert built.returncode == 0, built.stdout + built.stderr
    (path,) = tmp_path.glob("rank_emulator-*.whl")
    with zipfile.ZipFile(path) as archive:
        metadata = f"rank_emulator-{pkb_gym.__version__}.dist-info"
        names = {name for name in archive.namelist() if not name.startswith(f"{metadata}/")}
        requirements = re.findall(r"^Requires-Dist: (\S+)", archive.read(f"{metadata}/METADATA").decode(), re.MULTILINE)
    assert names == emulator_files()
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert sorted(map(Requirement, requirements), key=str) == sorted(map(Requirement, extras["emulator"]), key=str)
    code = f"import sys; sys.path.insert(0, {str(path)!r}); sys.modules['pkb_gym'] = None; import rank_emulator as it"
    printed = subprocess.check_output([sys.executable, "-c", f"{code}; print(it.__file__)"], text=True, cwd="/")
    assert printed.startswith(str(path))


def ruff(source: str, filename: str) -> list[str]:
    """Rules that ruff, with the project's configuration, finds broken: one entry per finding."""
    command = [sys.executable, "-m", "ruff", "check", "--no-cache", "--output-format=concise"]
    done = subprocess.run(
        [*command, f"--stdin-filename={filename}", "-"], input=source, capture_output=True, text=True, cwd=ROOT
    )
    assert done.returncode in (0, 1), done.stderr
    return [line.split()[1] for line in done.stdout.splitlines() if line.startswith(filename)]


@pytest.mark.parametrize("name", LINKS)
def test_ruff_refuses_the_bare_name_of_a_root_folder(name):
    """Under `python -m pytest` a bare `import envs` succeeds, and its classes are not those of pkb_gym.envs."""
    head = '"""Imports."""\n\n'
    assert "TID251" in ruff(f"{head}import {name}\n", "tests/probe.py")
    assert "TID251" in ruff(f"{head}from {name} import something\n", "tests/probe.py")
    assert "TID251" not in ruff(f"{head}from pkb_gym import {name}\n", "tests/probe.py")


def test_ruff_refuses_imports_into_the_emulator():
    """It is a distribution of its own, whose tests neither import those of pkb-gym nor its benchmarks."""
    for name in ("pkb_gym", "tests", "benchmarks"):
        for filename in ("emulator/rank_emulator/probe.py", "emulator/tests/probe.py"):
            assert "TID251" in ruff(f'"""Imports."""\n\nimport {name}\n', filename), (name, filename)
    for filename in ("tests/probe.py", "benchmarks/probe.py", "pkb_gym/engine/probe.py"):
        assert "TID251" in ruff('"""Imports."""\n\nimport emulator.tests.worlds\n', filename), filename


def test_ruff_refuses_print_in_the_library_but_not_in_the_command_line():
    source = '"""Prints."""\n\nprint("x")\n'
    assert "T201" in ruff(source, "pkb_gym/engine/probe.py")
    assert "T201" not in ruff(source, "pkb_gym/cli/probe.py")


def test_ruff_refuses_torch_at_module_level():
    source = '"""Imports."""\n\nimport torch\n\n__all__ = ["torch"]\n'
    assert "TID253" in ruff(source, "pkb_gym/engine/probe.py")
    assert "TID253" in ruff(source, "problems/other/probe/problem.py")
    assert "TID253" not in ruff(source, "problems/other/probe/reference.py")


def imports_of(path: Path) -> set[str]:
    """Full names of the modules that a file imports anywhere."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add("." * node.level + (node.module or ""))
    return found


def test_problem_folders_keep_the_layers():
    """They are not packages, so `lint-imports` does not see them."""
    declarations = sorted(ROOT.glob("problems/*/*/problem.py"))
    assert declarations
    for path in declarations:
        ours = {name for name in imports_of(path) if name.startswith((".", "pkb_gym"))}
        # Near relatives may share: within a category, or a module that lies beside the categories.
        strangers = tuple(
            f"pkb_gym.problems.{other.parent.parent.name}."
            for other in declarations
            if other.parent.parent != path.parent.parent
        )
        wrong = {
            name
            for name in ours
            if not name.startswith(("pkb_gym.engine.", "pkb_gym.problems.")) or name.startswith(strangers)
        }
        assert not wrong, f"{path.relative_to(ROOT)} imports {wrong}"


def test_references_stand_alone():
    references = sorted(ROOT.glob("problems/*/*/reference.py"))
    assert references
    for path in references:
        tops = {name.partition(".")[0] for name in imports_of(path)}
        wrong = tops - {"torch", "triton"} - set(sys.stdlib_module_names)
        assert not wrong, f"{path.relative_to(ROOT)} imports {wrong}; a reference needs torch (and its triton) alone"


def test_import_linter_sees_every_folder_of_tests():
    """All but the candidates, one of which has a syntax error that it cannot read."""
    roots = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["root_packages"]
    folders = {
        f"tests.{path.parts[0]}" for path in (p.relative_to(ROOT / "tests") for p in (ROOT / "tests").glob("*/**/*.py"))
    }
    assert folders - {"tests.candidates"} == {name for name in roots if name.startswith("tests.")}
