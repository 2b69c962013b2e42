"""Accepted evaluations on disk: what a killed process leaves, who may use the file, and how far it grows."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from contextlib import closing

import pytest

from pkb_gym.engine.errors import ConfigError, InfrastructureError
from pkb_gym.engine.evaluators.queue.store import EvaluationStore
from pkb_gym.engine.records.config import EvalConfig
from pkb_gym.engine.records.service import EvaluationRequest
from pkb_gym.rewards.examples import timed

REQUEST = EvaluationRequest(problem="AllReduce", source="speedup 3", config=EvalConfig(device="cpu"))


@pytest.fixture
def path(tmp_path):
    return tmp_path / "journal.sqlite"


def ids(path):
    with EvaluationStore(path, 8) as store:
        return [stored.id for stored in store.stored()]


def test_what_was_written_is_found_again(path):
    feedback = timed(speedup=2.0)
    with EvaluationStore(path, 8) as store:
        store.accepted("open", "a", REQUEST).result()
        store.accepted("done", "a", REQUEST.model_copy(update={"source": "\ud800"}))
        store.joined("open", "b")
        store.joined("open", "b")
        store.gave_up("open", "a")
        store.begun("open")
        store.answered("done", feedback)
        store.kept("done")
        store.accepted("refused", "a", REQUEST)
        store.removed("refused")
    with EvaluationStore(path, 8) as store:
        done, waiting = store.stored()
    assert (waiting.id, waiting.request, waiting.interest, waiting.begun) == ("open", REQUEST, {"a": 0, "b": 2}, 1)
    assert waiting.feedback is None and not waiting.kept
    assert (done.id, done.request.source, done.feedback, done.kept) == ("done", "\ud800", feedback, True)


def test_a_closed_store_has_what_was_written_and_takes_no_more(path, caplog):
    store = EvaluationStore(path, 8)
    stored = store.accepted("one", "a", REQUEST)
    store.close()
    store.close()
    assert stored.result() is None and ids(path) == ["one"]
    with pytest.raises(InfrastructureError, match="is closed, as the service has ended"):
        store.accepted("two", "a", REQUEST)
    store.begun("one")
    assert "the journal lacks an entry" in caplog.text
    assert os.listdir(path.parent) == [path.name], "no log is left beside it"


KILLED = """
import os, sys
from pathlib import Path
from pkb_gym.engine.evaluators.queue.store import EvaluationStore
from pkb_gym.engine.records.service import EvaluationRequest
store = EvaluationStore(Path(sys.argv[1]), 8)
for name in ("one", "two"):
    store.accepted(name, "a", EvaluationRequest.model_validate_json(sys.argv[2])).result()
os._exit(9)
"""


def test_a_killed_process_leaves_what_it_has_promised(path):
    command = [sys.executable, "-c", KILLED, str(path), REQUEST.model_dump_json()]
    assert subprocess.run(command).returncode == 9
    log = path.with_name(f"{path.name}-wal")
    whole = log.read_bytes()
    assert ids(path) == ["one", "two"]
    subprocess.run([*command[:3], str(path.with_name("torn")), command[4]])
    torn = path.with_name("torn-wal")
    torn.write_bytes(torn.read_bytes()[: len(whole) - 20])
    assert ids(path.with_name("torn")) == ["one"], "the last write is there as a whole, or not at all"


@pytest.mark.parametrize("content", [b"{}\n", b"no database\n" * 1000])
def test_something_else_is_no_store_and_is_left_as_it_is(path, content):
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=r"is no journal of this version.*--journal names another file"):
        EvaluationStore(path, 8)
    assert path.read_bytes() == content


def test_another_database_is_no_store(path):
    with closing(sqlite3.connect(path)) as other, other:
        other.execute("CREATE TABLE evaluations (id)")
    with pytest.raises(ConfigError, match="is no journal of this version"):
        EvaluationStore(path, 8)


def test_a_record_of_another_version_is_refused(path):
    with EvaluationStore(path, 8) as store:
        store.accepted("one", "a", REQUEST)
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("""UPDATE evaluations SET request = '{"kernel": 1}'""")
    with EvaluationStore(path, 8) as store, pytest.raises(ConfigError, match=r"evaluation one: .* validation errors"):
        store.stored()


def test_one_process_uses_a_store(path):
    with EvaluationStore(path, 8):
        assert path.stat().st_mode & 0o777 == 0o600, "it holds the sources of all clients"
        with pytest.raises(ConfigError, match="is being written by another `pkb serve`"):
            EvaluationStore(path, 8)
    with EvaluationStore(path, 8):
        pass


def test_a_store_keeps_the_latest_answers_and_grows_no_further(path):
    feedback = timed(speedup=2.0)
    with EvaluationStore(path, max_answers=2) as store:
        store.accepted("open", "a", REQUEST)
        for number in range(400):
            store.accepted(str(number), "a", REQUEST)
            store.answered(str(number), feedback)
        assert [stored.id for stored in store.stored()] == ["398", "399", "open"]
    assert path.stat().st_size < 100_000


def test_a_write_that_fails_costs_the_others_nothing(path):
    with EvaluationStore(path, 8) as store:
        good = [store.accepted(name, "a", REQUEST) for name in ("one", "two")]
        bad = [store.joined("nobody", "a"), store.accepted("one", "a", REQUEST)]
        good.append(store.joined("two", "b"))
        assert [each.result() for each in good] == [None, None, None]
        for each in bad:
            with pytest.raises(InfrastructureError, match=r"cannot be written: .* constraint failed"):
                each.result()
        assert [stored.interest for stored in store.stored()] == [{"a": 1}, {"a": 1, "b": 1}]
