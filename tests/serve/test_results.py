"""What a service has judged lies in the file that all results lie in."""

from __future__ import annotations

from pkb_gym.engine.records.attempt_file import AttemptFile, read_attempts
from pkb_gym.serve.recorder import Recorder
from tests.serve.fake_owner import answer, ask, make_service


def test_every_evaluation_is_kept_once(owners, tmp_path):
    path = tmp_path / "results.jsonl"
    with (
        AttemptFile(path, writer="pkb serve", option="--results") as file,
        make_service(owners, recorder=Recorder(results=file)) as service,
    ):
        found = [answer(service, ask(service, source)) for source in ("speedup 3", "speedup 3", "deadlock")]
    kept = read_attempts(path)
    assert [(one.problem, one.source, one.feedback) for one in kept] == [
        ("AllReduce", "speedup 3", found[0]),
        ("AllReduce", "deadlock", found[2]),
    ]
    assert all(one.request_key and one.reward is None and one.duration_s >= 0 for one in kept)


def test_a_full_disk_is_logged_and_clients_get_their_answer(owners, tmp_path, caplog):
    with AttemptFile(tmp_path / "results.jsonl", writer="pkb serve", option="--results") as file:
        file.close()
        with make_service(owners, recorder=Recorder(results=file)) as service:
            assert answer(service, ask(service, "speedup 3")).passed
    assert "this evaluation is not kept" in caplog.text
