"""Which rank failed first, and how, from all that a gang leaves behind."""

from __future__ import annotations

import signal

import pytest

from pkb_gym.engine.gangs.failure_attribution import cause_is_known, first_failure, missed_deadline
from pkb_gym.engine.records.feedback import Failure
from pkb_gym.engine.wire.orders import Failed

GONE = Failed("runtime_error", "gloo: Connection closed by peer")
OWN = Failed("runtime_error", "ValueError: own fault")


@pytest.mark.parametrize(
    ("ended", "errors", "failure", "rank", "words"),
    [
        ({1: -signal.SIGSEGV}, {0: GONE}, Failure.RUNTIME_ERROR, 1, "SIGSEGV: an address outside"),
        ({2: -signal.SIGKILL}, {}, Failure.RUNTIME_ERROR, 2, "was killed by SIGKILL: the machine has no record"),
        ({1: 3}, {}, Failure.RUNTIME_ERROR, 1, "exit status 3"),
        ({1: 0}, {0: GONE}, Failure.RUNTIME_ERROR, 1, "exit status 0"),
        ({1: 0}, {0: GONE, 1: OWN}, Failure.RUNTIME_ERROR, 1, "own fault"),
        ({}, {0: GONE, 2: OWN}, Failure.RUNTIME_ERROR, 2, "own fault"),
        ({}, {3: GONE}, Failure.RUNTIME_ERROR, 3, "closed by peer"),
        ({}, {0: Failed("integrity", "says so")}, Failure.RUNTIME_ERROR, 0, "says so"),
        ({}, {0: Failed("out_of_memory", "full")}, Failure.OUT_OF_MEMORY, 0, "full"),
        ({}, {}, Failure.RUNTIME_ERROR, None, "fell silent: nothing came"),
    ],
)
def test_the_rank_that_fell_first(ended, errors, failure, rank, words):
    failed = first_failure(ended, errors, "nothing came")
    assert (failed.failure, failed.rank) == (failure, rank)
    assert words in str(failed)
    assert failed.by_sigkill == (-signal.SIGKILL in ended.values())


@pytest.mark.parametrize(
    ("ended", "errors", "killed"),
    [
        ({0: -signal.SIGKILL}, {}, False),
        ({0: -signal.SIGKILL}, {1: OWN}, False),
        ({}, {}, True),  # as when the gang's leader is killed
        ({0: -signal.SIGSEGV}, {}, False),
        ({0: 0}, {}, False),
        ({}, {0: OWN}, False),
    ],
)
def test_what_need_not_be_the_doing_of_the_candidate(ended, errors, killed):
    assert first_failure(ended, errors, "nothing came").killed == killed


@pytest.mark.parametrize(
    ("ended", "errors", "failure"),
    [
        ({0: -signal.SIGKILL}, {}, Failure.OUT_OF_MEMORY),
        ({0: -signal.SIGSEGV}, {}, Failure.RUNTIME_ERROR),
        ({0: 0}, {}, Failure.RUNTIME_ERROR),
        ({}, {0: OWN}, Failure.RUNTIME_ERROR),
    ],
)
def test_the_kernels_record_of_short_memory_excuses_a_killed_rank_alone(ended, errors, failure):
    failed = first_failure(ended, errors, "nothing came", memory_was_short=True)
    assert (failed.failure, failed.killed) == (failure, failure is Failure.OUT_OF_MEMORY)


def test_complaints_about_others_are_no_cause():
    assert not cause_is_known({}, {0: GONE})
    assert cause_is_known({}, {0: GONE, 1: OWN})
    assert cause_is_known({1: 0}, {0: GONE}), "a rank that ended without a word"
    assert not cause_is_known({0: 1}, {0: GONE}), "it ended for what it complained of"


@pytest.mark.parametrize(
    ("places", "busy", "failure", "rank"),
    [
        ({0: "", 1: ""}, set(), Failure.DEADLOCK, 0),
        ({0: "call 2, waits for rank 1", 1: "call 1, waits for rank 0"}, {0, 1}, Failure.DEADLOCK, 0),
        ({0: "call 2, waits for rank 1", 1: "call 1"}, {0, 1}, Failure.TIMEOUT, 1),
        ({1: "", 3: ""}, {3}, Failure.TIMEOUT, 3),
    ],
)
def test_deadlocks_are_distinguished_from_endless_work(places, busy, failure, rank):
    failed = missed_deadline(places, busy, 1.5)
    assert (failed.failure, failed.rank) == (failure, rank)
    assert "no end after 1.5 s" in str(failed)
