"""The guard that fails a test for what it leaves behind does find it."""

import os
import subprocess
import sys

import pytest

from tests import leaks
from tests.leaks import Descendants, Lasting, leftovers, snapshot

SLEEP = [sys.executable, "-c", "import time; time.sleep(60)"]


@pytest.fixture
def sleeper():
    started = []

    def start(command=SLEEP):
        started.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate()


def test_a_living_child_is_found_and_an_ended_one_is_not(sleeper):
    before = snapshot()
    process = sleeper()
    (line,) = leftovers(before, Lasting(), grace_s=0)
    assert line.startswith(f"process {process.pid}: ")
    process.kill()
    assert leftovers(before, Lasting()) == [], "nor one that nobody has waited for"
    process.wait()
    assert leftovers(before, Lasting()) == []


def test_what_was_there_before_is_not_counted(sleeper):
    sleeper()
    assert leftovers(snapshot(), Lasting(), grace_s=0) == []


def test_processes_are_listed_where_a_number_was_given(sleeper, monkeypatch):
    monkeypatch.setattr(leaks, "_last_number", lambda: b"7")
    names = leaks.ProcessNames()
    earlier = names()
    process = sleeper()
    assert names() is earlier and str(process.pid) not in earlier
    monkeypatch.setattr(leaks, "_last_number", lambda: b"8")
    assert str(process.pid) in names()


def test_a_process_whose_parent_has_ended_is_found():
    before = snapshot()
    orphan = subprocess.check_output(["sh", "-c", "sleep 60 >/dev/null 2>&1 & echo $!"], text=True).strip()
    try:
        (line,) = leftovers(before, Lasting(), grace_s=0)
        assert line == f"process {orphan}: sleep 60"
    finally:
        os.kill(int(orphan), 9)
        os.waitpid(int(orphan), 0)


def test_only_what_came_since_is_looked_at(sleeper, monkeypatch):
    earlier = sleeper()
    before = snapshot()
    process = sleeper()
    read = set()
    stat = leaks._stat
    monkeypatch.setattr(leaks, "_stat", lambda pid: read.add(pid) or stat(pid))
    monkeypatch.setattr(Lasting, "pids", lambda _: set())
    assert len(leftovers(before, Lasting(), grace_s=0)) == 1
    assert process.pid in read and not read & {earlier.pid, os.getpid()}


def test_of_a_process_of_somebody_else_only_the_first_look_is_taken(sleeper, monkeypatch):
    find = Descendants()
    find()
    read = []
    stat = leaks._stat
    monkeypatch.setattr(leaks, "_stat", lambda pid: read.append(pid) or stat(pid))
    process = sleeper()
    assert process.pid in {child.pid for child in find()}
    assert process.pid in read and os.getpid() in read and 1 not in read


def test_what_lost_its_parent_while_it_was_looked_at_is_looked_at_again(monkeypatch):
    """Its parent is gone from the list, and it may have become a child of this process."""
    find = Descendants()
    stats = {os.getpid(): leaks._Stat("R", 1, 1), 70_000_001: leaks._Stat("S", 70_000_000, 2)}
    monkeypatch.setattr(leaks.os, "listdir", lambda _: [str(pid) for pid in stats])
    monkeypatch.setattr(leaks, "_stat", stats.get)
    assert find() == frozenset()
    stats[70_000_001] = leaks._Stat("S", os.getpid(), 2)
    assert find() == {(70_000_001, 2)}
    stats[70_000_001] = leaks._Stat("Z", os.getpid(), 2)
    assert find() == frozenset()


def test_what_loses_its_parent_while_it_is_looked_up_is_found(monkeypatch):
    """The parent was there when its number was read, and is gone when its own parent is."""
    orphaned = iter([leaks._Stat("S", 70_000_000, 2), leaks._Stat("S", os.getpid(), 2)])
    monkeypatch.setattr(leaks, "_stat", lambda pid: next(orphaned) if pid == 70_000_001 else None)
    assert leaks._is_ours(70_000_001)


def test_a_lasting_process_may_stay_with_its_descendants(sleeper):
    before = snapshot()
    lasting = Lasting()
    parent = sleeper(["sh", "-c", "sleep 60 >/dev/null & echo $!; wait"])
    child = int(parent.stdout.readline())
    try:
        assert len(leftovers(before, lasting, grace_s=0)) == 2
        lasting.keep_process(lambda: [parent.pid])
        assert leftovers(before, lasting, grace_s=0) == []
    finally:
        os.kill(child, 9)


@pytest.fixture
def shm(tmp_path, monkeypatch):
    """A folder in place of /dev/shm, where tests of other processes would find the file."""
    monkeypatch.setattr(leaks, "SHM", tmp_path)
    return tmp_path


def test_a_file_in_shm_is_found_unless_it_lasts(shm):
    before = snapshot()
    path = shm / "left"
    path.touch()
    assert leftovers(before, Lasting(), grace_s=0) == [f"file {path}"]
    lasting = Lasting()
    lasting.keep_file(path.name)
    assert leftovers(before, lasting, grace_s=0) == []


def test_a_file_in_shm_of_somebody_else_is_not_counted(shm, sleeper, monkeypatch):
    """Two test runs on one machine once failed each other's tests."""
    before = snapshot()
    path = shm / "open"
    code = f"import time; f = open({str(path)!r}, 'w'); print('open', flush=True); time.sleep(60)"
    other = sleeper([sys.executable, "-c", code])
    assert other.stdout.readline() == "open\n"
    assert f"file {path}" in leftovers(before, Lasting(), grace_s=0), "a child's file is ours"
    monkeypatch.setattr("tests.leaks.descendants", frozenset)
    monkeypatch.setattr("tests.leaks._is_ours", lambda _: False)
    assert leftovers(before, Lasting(), grace_s=0) == []


def test_a_semaphore_of_somebody_else_is_not_counted(sleeper, monkeypatch):
    """Its maker maps it under a temporary name."""
    code = (
        "import multiprocessing, time; lock = multiprocessing.get_context('spawn').Lock()\n"
        "print(lock._semlock.name, flush=True); time.sleep(60)"
    )
    name = sleeper([sys.executable, "-c", code]).stdout.readline().strip().removeprefix("/")
    assert not leaks.used_by_others(f"sem.{name}"), "a child's is ours"
    monkeypatch.setattr("tests.leaks.descendants", frozenset)
    assert leaks.used_by_others(f"sem.{name}")
