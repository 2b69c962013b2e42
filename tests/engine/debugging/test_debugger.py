"""Debug builds, sanitizers, runs that are kept and outputs that are dumped, on real candidates."""

from __future__ import annotations

import subprocess
from pathlib import Path

import numpy as np
import pytest

from pkb_gym.engine.debugging.debugger import DebugFolders
from pkb_gym.engine.errors import ConfigError
from pkb_gym.engine.evaluators.local import LocalEvaluator
from pkb_gym.engine.records.config import EvalConfig
from pkb_gym.engine.records.feedback import Feedback, Stage
from pkb_gym.envs.text.feedback import feedback_text
from pkb_gym.problems.catalogue import find_problem
from pkb_gym.rewards import find_reward
from tests.engine.candidates import FOLDER, Candidate, read

DEBUG = FOLDER / "debug"


def evaluate(evaluator: LocalEvaluator, candidate: Candidate, **choices: object) -> Feedback:
    config = candidate.config.model_copy(update={"until": "profile", **choices})
    return evaluator.evaluate(find_problem(candidate.problem), candidate.source, config)


def test_a_debug_build_checks_bounds_and_never_counts(local_evaluator: LocalEvaluator):
    candidate = read(DEBUG / "index_out_of_bounds.cpp")
    feedback = evaluate(local_evaluator, candidate, debug=True)
    candidate.assert_as_expected(feedback)
    assert feedback.config.debug and feedback.config.until == "check"
    assert find_reward("default")(feedback) is None
    assert "debug build: it is not timed, and no reward is given" in feedback_text(feedback)


@pytest.mark.slow
def test_the_address_sanitizer_names_the_line_that_writes_behind_an_output(local_evaluator: LocalEvaluator):
    candidate = read(FOLDER / "broken" / "writes_behind_an_output.cpp")
    feedback = evaluate(local_evaluator, candidate, sanitize=("address",))
    assert feedback.stage is Stage.COMPILE and feedback.failure == "runtime_error"
    (report,) = feedback.sanitizers
    line = next(i for i, text in enumerate(candidate.source.splitlines(), 1) if "theirs[out.numel()" in text)
    assert report.found and report.summary.startswith(
        f"outside of every tensor: use-after-poison kernel.cpp:{line} in solution"
    )
    assert report.summary in feedback.message
    assert Feedback.model_validate_json(feedback.model_dump_json()) == feedback


@pytest.mark.slow
def test_a_wrong_run_is_kept_and_dumped(
    local_evaluator: LocalEvaluator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    kept, dumped = tmp_path / "kept", tmp_path / "dumped"
    monkeypatch.setattr(local_evaluator, "_folders", DebugFolders(kept, dumped))
    candidate = read(DEBUG / "sums_all_but_the_last_row.cpp")
    feedback = evaluate(local_evaluator, candidate)
    candidate.assert_as_expected(feedback)

    assert feedback.check is not None
    worst = feedback.check.mismatches[0]
    text = feedback_text(feedback)  # it held every line twice: the message was all that the correctness report lists
    assert [text.count(str(mismatch)) for mismatch in feedback.check.mismatches[:4]] == [1, 1, 1, 1]
    for rank in range(2):
        name = dumped / f"trial{worst.trial}-rank{rank}-out"
        got, expected = (np.load(f"{name}-{which}.npy") for which in ("got", "expected"))
        assert got.shape == expected.shape == (32, 48) and got.dtype == np.float32
        assert np.abs(got - expected)[:31].max() < 0.1 < np.abs(got - expected)[31].max()
    picture = (dumped / f"trial{worst.trial}-out.svg").read_text()
    assert "rank 0: " in picture and "rank 1: " in picture

    ran = subprocess.run([kept / "run.sh"], capture_output=True, text=True, timeout=120)
    assert ran.returncode == 1, ran.stderr
    assert f"rank 1, trial {worst.trial}, out: " in ran.stdout and "of 1536 numbers differ" in ran.stdout
    assert "    [1488]: got " in ran.stdout, "the first element of the last row"
    assert not list(Path("/dev/shm").glob("pkb-heap-*"))
    helped = subprocess.run([kept / "run.sh", "--help"], capture_output=True, text=True, timeout=120)
    assert helped.returncode == 0 and helped.stdout.startswith("Runs the kept calls without evaluator or sandbox")
    assert "    ./run.sh BUILD --gdb RANK " in helped.stdout and "cd " not in helped.stdout


@pytest.mark.parametrize(
    ("choices", "words"),
    [
        ({"language": "python", "debug": True}, "debug builds are of C\\+\\+ and CUDA sources"),
        ({"language": "python", "sanitize": ("thread",)}, "sanitizers are for C\\+\\+ and CUDA sources"),
    ],
)
def test_python_sources_have_no_debug_build(local_evaluator: LocalEvaluator, choices: dict, words: str):
    config = EvalConfig(device="cpu", **choices)
    with pytest.raises(ConfigError, match=words):
        local_evaluator.resolve(find_problem("AllReduce"), "def solution(tensor):\n    return tensor\n", config)
