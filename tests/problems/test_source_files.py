"""Which problem a file is for."""

import os
from pathlib import Path

import pytest

from pkb_gym.problems.catalogue import catalogue
from pkb_gym.problems.source_files import DIALECTS, aliases, find_sources, read_source_file, stem


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("72_hyena_forward_cp_cuda.py", "HyenaCP"),
        ("72_hyena_forward_cp.cpp", "HyenaCP"),
        ("hyena_cp.cpp", "HyenaCP"),
        ("HyenaCP.cu", "HyenaCP"),
        ("hyena_cp.second_try.cpp", "HyenaCP"),
        ("all_gather.cpp", "AllGather"),
        ("all_gather_gemm_triton.py", "AllGatherGemm"),
        ("1_allreduce_python.py", "AllReduce"),
    ],
)
def test_names_that_name_a_problem(tmp_path, name, problem):
    (tmp_path / name).touch()
    found = find_sources(tmp_path, catalogue())
    assert [(path.name, p.name) for path, p in found.candidates] == [(name, problem)]
    assert found.others == ()


@pytest.mark.parametrize("name", ["all_gather_qkv.cpp", "72_something.cpp", "utils.py", "_cuda.py"])
def test_names_that_name_none_are_never_guessed(tmp_path, name):
    """A misread name must not become some problem or other."""
    (tmp_path / name).touch()
    found = find_sources(tmp_path, catalogue())
    assert found.candidates == ()
    assert [(path.name, why) for path, why in found.others] == [(name, "its name names no problem")]


def test_every_alias_leads_back_to_its_problem():
    for problem in catalogue():
        for alias in aliases(problem):
            for dialect in ("", *(f"_{word}" for word in DIALECTS)):
                assert stem(f"{alias}{dialect}.py") == alias


def test_folders_and_hidden_files_are_passed_over_and_other_suffixes_listed(tmp_path):
    (tmp_path / "hyena_cp.cpp").mkdir()
    (tmp_path / ".hyena_cp.cpp").touch()
    (tmp_path / "hyena_cp.txt").touch()
    (tmp_path / "results.jsonl").touch()
    found = find_sources(tmp_path, catalogue(), ignore=tmp_path / "results.jsonl")
    assert found.candidates == ()
    assert [(path.name, why) for path, why in found.others] == [
        ("hyena_cp.txt", "suffix '.txt' is none of .cpp .cc .cxx .cu .py")
    ]


def test_candidates_come_by_problem_then_by_name(tmp_path):
    for name in ("hyena_cp.b.cpp", "hyena_cp.a.cpp", "1_allreduce.cpp"):
        (tmp_path / name).touch()
    names = [path.name for path, _ in find_sources(tmp_path, catalogue()).candidates]
    assert names == ["1_allreduce.cpp", "hyena_cp.a.cpp", "hyena_cp.b.cpp"]


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig"])
def test_a_byte_order_mark_is_no_part_of_a_text(tmp_path, encoding):
    """Python took such a file, and its evaluation was a SyntaxError."""
    path = tmp_path / "all_reduce.py"
    path.write_text("def solution(tensor):\n    return tensor\n", encoding=encoding)
    assert read_source_file(path).startswith("def solution")


def test_pipes_and_devices_are_passed_over(tmp_path: Path) -> None:
    """Whoever hands a folder over could have its reader wait for ever."""
    os.mkfifo(tmp_path / "hyena_cp.cpp")
    (tmp_path / "AllReduce.py").symlink_to("/dev/zero")
    (tmp_path / "broadcast.cpp").write_text("", encoding="utf-8")
    found = find_sources(tmp_path, catalogue())
    assert [path.name for path, _ in found.candidates] == ["broadcast.cpp"]
    assert {why for _, why in found.others} == {"it is no regular file"}


def test_links_that_lead_out_of_the_folder_are_passed_over(tmp_path: Path) -> None:
    """A stranger's folder had a link to a file of the user's: its text came into the record, as the source."""
    secret, folder = tmp_path / "secret", tmp_path / "submissions"
    secret.write_text("a key")
    folder.mkdir()
    (folder / "AllReduce.py").symlink_to(secret)
    (folder / "gather.py").symlink_to("../secret")
    (folder / "reduce.py").symlink_to("versions.py")
    (folder / "versions.py").touch()
    found = find_sources(folder, catalogue())
    assert [path.name for path, _ in found.candidates] == ["reduce.py"]
    left = {path.name: why for path, why in found.others}
    assert {left[name] for name in ("AllReduce.py", "gather.py")} == {"it is a link that leads out of the folder"}
    (tmp_path / "by_link").symlink_to(folder)
    assert [path.name for path, _ in find_sources(tmp_path / "by_link", catalogue()).candidates] == ["reduce.py"]
