"""Artifacts travel from the node that compiled to those that run, intact or not at all."""

from __future__ import annotations

import pytest

from pkb_gym.cluster.artifacts import RecordingCache, adopt_all, compile_identity
from pkb_gym.engine.compile.cache import CompileCache
from pkb_gym.engine.records.artifact import Artifact
from pkb_gym.engine.records.config import EvalConfig
from pkb_gym.engine.records.service import EvaluationRequest

KEY = CompileCache.key(source="a kernel")
ARTIFACT = Artifact(ok=True, log="a warning", duration_s=2.0, binary=b"\x7fELF")


def test_what_a_compile_used_is_found_elsewhere(tmp_path):
    here, there = RecordingCache(tmp_path / "here"), CompileCache(tmp_path / "there")
    here.put(KEY, ARTIFACT)
    taken = here.take_used()
    assert list(taken) == [KEY] and here.take_used() == {}
    adopt_all(there, taken)
    found = there.get(KEY)
    assert found is not None and found.cached and (found.binary, found.log) == (ARTIFACT.binary, ARTIFACT.log)


def test_what_was_found_counts_as_used(tmp_path):
    cache = RecordingCache(tmp_path)
    cache.put(KEY, ARTIFACT)
    cache.take_used()
    assert cache.get(KEY) is not None and cache.get(CompileCache.key(source="another")) is None
    assert list(cache.take_used()) == [KEY]


def test_a_damaged_artifact_is_not_adopted(tmp_path, caplog):
    here, there = RecordingCache(tmp_path / "here"), CompileCache(tmp_path / "there")
    here.put(KEY, ARTIFACT)
    content = here.take_used()[KEY]
    assert not there.adopt(KEY, content[:-1] + b"?")
    assert there.get(KEY) is None and "damaged" in caplog.text
    assert there.adopt(KEY, content) and there.adopt(KEY, b"it is there already")
    assert there.get(KEY).binary == ARTIFACT.binary


def test_a_damaged_file_is_not_sent(tmp_path):
    cache = RecordingCache(tmp_path)
    cache.put(KEY, ARTIFACT)
    (path,) = tmp_path.glob("*/*")
    path.write_bytes(path.read_bytes()[:-1])
    assert cache.take_used() == {} and cache.export(CompileCache.key(source="nowhere")) is None


REQUEST = EvaluationRequest(problem="AllReduce", source="a kernel", config=EvalConfig(device="cpu", seed=1))


@pytest.mark.parametrize(
    ("changes", "shared"),
    [
        ({"seed": 2, "turn": 3, "until": "check", "world_size": 4}, True),
        ({"debug": True}, False),
        ({"device": "cuda"}, False),
        ({"language": "python"}, False),
    ],
)
def test_which_requests_share_a_compile(changes, shared):
    other = REQUEST.model_copy(update={"config": REQUEST.config.model_copy(update=changes)})
    assert (compile_identity(other) == compile_identity(REQUEST)) == shared


def test_other_sources_have_other_artifacts():
    other = REQUEST.model_copy(update={"source": "another kernel"})
    assert compile_identity(other) != compile_identity(REQUEST)
