"""`pkb new`."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from pkb_gym.cli import new
from pkb_gym.cli.program import make_parser
from pkb_gym.engine.support import problem_folders
from pkb_gym.problems.catalogue import find_problem
from pkb_gym.starters import make_starter
from tests.docs.pages import DOCS

OWN = DOCS / "own_problem" / "my_pkb_problems" / "sharded_softmax"


@pytest.fixture(autouse=True)
def in_a_folder_without_gpus(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(new, "choose_device", lambda requested: "cpu")
    monkeypatch.setattr(problem_folders, "_REGISTERED", {})


def test_writes_a_starter_and_says_how_to_judge_it(pkb):
    ran = pkb("new", "AllReduce")
    assert (ran.status, ran.err) == (0, "")
    expected = "all_reduce.cpp: C++ starter for AllReduce\nnext: pkb eval AllReduce all_reduce.cpp --device cpu\n"
    assert ran.out == expected
    assert Path("all_reduce.cpp").read_text() == make_starter(find_problem("AllReduce"), "cpp").source


@pytest.mark.parametrize(
    ("argv", "file", "next_words"),
    [
        (["AllReduce", "k.cu"], "k.cu", "pkb eval AllReduce k.cu --device emulated"),
        (["AllReduce", "--language", "triton", "k.py"], "k.py", "pkb eval AllReduce k.py --device cuda"),
        (["AllReduce", "k.py"], "k.py", "pkb eval AllReduce k.py"),
        (["--language", "python", "AllReduce", "k"], "k", "pkb eval AllReduce k"),
        (["DDP", "--language", "cpp"], "ddp.py", "pkb eval DDP ddp.py --device cpu"),
        (["DDP", "new folder/k.cu"], "new folder/k.py", "pkb eval DDP 'new folder/k.py' --device cuda"),
        ([str(OWN), "--language", "python"], "sharded_softmax.py", f"pkb eval {OWN} sharded_softmax.py"),
        (
            ["ShardedSoftmax", "--problem", str(OWN), "k.py"],
            "k.py",
            f"pkb eval ShardedSoftmax k.py --problem {OWN}",
        ),
    ],
)
def test_language_file_and_next_command_fit_each_other(pkb, argv, file, next_words):
    """Options may stand between NAME and FILE, which argparse does not allow for a FILE that may be left out."""
    ran = pkb("new", *argv)
    assert ran.status == ("DDP" in argv), ran.err
    assert ran.out.splitlines()[1] == f"next: {next_words}"
    assert ("So this is Python." in ran.err) == ("DDP" in argv)
    assert "solution" in Path(file).read_text()
    assert make_parser().parse_args(shlex.split(next_words)[1:]).file == file


def test_the_next_command_takes_a_file_that_begins_like_an_option(pkb):
    ran = pkb("new", "AllReduce", "--", "-k.cpp")
    command = ran.out.splitlines()[1].removeprefix("next: ")
    assert make_parser().parse_args(shlex.split(command)[1:]).file == "./-k.cpp" and Path("-k.cpp").exists()


def test_a_file_is_overwritten_by_force_alone(pkb):
    Path("k.py").write_text("mine")
    ran = pkb("new", "DDP", "k.cpp")  # a Python starter, which would go to k.py
    assert (ran.status, ran.out) == (2, "")
    assert "k.py exists; give another FILE, or --force to overwrite it" in ran.err
    assert Path("k.py").read_text() == "mine" and not Path("k.cpp").exists()
    assert pkb("new", "DDP", "k.cpp", "--force").status == 1
    assert Path("k.py").read_text() == make_starter(find_problem("DDP"), "cpp").source


def test_standard_output_holds_the_source_alone(pkb):
    ran = pkb("new", "DDP", "-", "--language", "cpp")
    assert ran.out == make_starter(find_problem("DDP"), "cpp").source
    assert ran.err.startswith("No naive C++ kernel can be made for DDP: ")
    assert list(Path.cwd().iterdir()) == []


@pytest.mark.parametrize(
    ("argv", "status"),
    [(("x.cpp",), 1), (("--language", "cuda"), 1), (("x.cu", "--force"), 1), ((), 0), (("x.py",), 0)],
)
def test_python_in_place_of_the_language_that_was_asked_for_sets_the_exit_status(pkb, argv, status):
    """A script went on with x.cpp, which was not there."""
    ran = pkb("new", "MoEDispatch", *argv)
    assert ran.status == status and "Python starter for MoEDispatch" in ran.out


def test_where_there_are_gpus_a_starter_is_cuda(pkb, monkeypatch):
    monkeypatch.setattr(new, "choose_device", lambda requested: "cuda")
    made = pkb("new", "AllReduce").out
    assert "all_reduce.cu: CUDA C++ starter" in made and made.endswith("all_reduce.cu --device cuda\n")
    assert "load_inline" in pkb("new", "AllReduce", "-", "--language", "python").out, "hints of the device"


def test_an_own_problem_begins_with_the_naive_kernel_in_its_folder(pkb, tmp_path):
    own = tmp_path / "mine"
    own.mkdir()
    for name in ("problem.py", "reference.py"):
        (own / name).write_text((OWN / name).read_text().replace('name="ShardedSoftmax"', 'name="OwnSoftmax"'))
    (own / "naive.cpp").write_text((OWN / "expert.cpp").read_text())
    ran = pkb("new", own, "k.cpp")
    assert (ran.status, ran.err) == (0, "")
    text = Path("k.cpp").read_text()
    assert text.startswith("// OwnSoftmax: ") and "// Where to go next:" in text
    assert "TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);" in text


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["AllReduc"], "Did you mean 'AllReduce'?"),
        (["AllReduce", "k.cu", "--language", "cpp"], "k.cu: files in language cpp end in .cpp"),
        (["AllReduce", "k.py", "--language", "cuda"], "k.py: files in language cuda end in .cu"),
        (["AllReduce", "--language", "rust"], "invalid choice: 'rust'"),
        (["AllReduce", "/proc/no/k.cpp"], "cannot write /proc/no/k.cpp"),
        ([], "required: NAME"),
    ],
)
def test_questions_without_sense_are_wrong_usage(pkb, argv, words):
    ran = pkb("new", *argv)
    assert (ran.status, ran.out) == (2, "")
    assert words in ran.err
