"""Agents whose replies are known before: the baseline, the expert, and what was submitted before."""

from __future__ import annotations

import json
from functools import partial

import pytest

from pkb_gym.agents.protocol import Message, NotCovered
from pkb_gym.agents.registry import open_agent
from pkb_gym.corpus.conversations import submission
from pkb_gym.engine.errors import ConfigError
from pkb_gym.engine.records.attempt import Attempt
from pkb_gym.engine.records.config import EvalConfig
from pkb_gym.problems.catalogue import catalogue, expert_source, find_problem, reference_source
from tests.agents.conversations import CONVERSATION, answered, task


def replies(provider, of, turns=3):
    """What its agent says, one turn after the other."""
    agent, messages, found = provider.begin(of), list(CONVERSATION), []
    for number in range(turns):
        reply = agent.act(messages)
        if reply is None:
            break
        found.append(reply)
        messages += answered(reply.submission or "", 0.0, number + 1)
    return found


def test_the_reference_is_submitted_once():
    found = replies(open_agent("reference"), task("HyenaCP"))
    assert [reply.submission for reply in found] == [reference_source(find_problem("HyenaCP"))]


def test_the_expert_is_that_of_the_device():
    problem = find_problem("AllReduce")
    for device, suffix in (("cpu", "cpp"), ("cuda", "cu")):
        found = replies(open_agent("expert"), task("AllReduce", device=device))
        assert [reply.submission for reply in found] == [expert_source(problem, suffix)]


def test_a_problem_without_an_expert_is_not_covered():
    without = next(problem for problem in catalogue() if expert_source(problem) is None)
    with pytest.raises(NotCovered, match=f"{without.name} has no expert.cpp"):
        open_agent("expert").begin(task(without.name))


def test_a_folder_is_replayed_one_file_a_sample(tmp_path):
    for name in ("all_reduce.b.cpp", "all_reduce.a.cpp", "HyenaCP.cu"):
        (tmp_path / name).write_text(name)
    provider = open_agent(f"replay:{tmp_path}")
    assert [replies(provider, task(sample=n))[0].submission for n in (0, 1)] == ["all_reduce.a.cpp", "all_reduce.b.cpp"]
    with pytest.raises(NotCovered, match="no sample 2 of AllReduce"):
        provider.begin(task(sample=2))
    with pytest.raises(NotCovered, match="nothing for Scatter"):
        provider.begin(task("Scatter"))


def corpus_row(problem, source, **fields):
    usual = {"language": "cpp", "size": "tiny", "dtype": "float32", "failure": None, "reward": 1.0}
    return usual | {"problem": problem, "messages": [submission("broken"), submission(source)]} | fields


def test_the_kernel_of_the_nearest_problem_is_submitted(tmp_path):
    rows = [
        corpus_row("AllToAll", "exchange"),
        corpus_row("AllReduce", "slow", reward=0.9),
        corpus_row("AllReduce", "fast", reward=1.5),
        corpus_row("AllReduce", "of another size", size="published", reward=2.0),
        corpus_row("AllReduce", "wrong", failure="race", reward=3.0),
        corpus_row("AllReduce", "on GPUs", language="cuda", reward=3.0),
    ]
    (tmp_path / "corpus.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    provider = open_agent(f"nearest:{tmp_path}")
    of = partial(task, "AllReduce", dtype="float32")
    found = [replies(provider, of(sample=sample))[0].submission for sample in range(4)]
    assert found == ["fast", "slow", "of another size", "exchange"]
    assert replies(provider, task("MoEAllToAll"))[0].submission == "exchange"
    assert replies(provider, of(device="cuda"))[0].submission == "on GPUs"
    with pytest.raises(NotCovered, match="holds 4 cpp kernels, and none for sample 4"):
        provider.begin(of(sample=4))


def test_a_corpus_without_a_right_kernel_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"corpus\.jsonl does not exist"):
        open_agent(f"nearest:{tmp_path}")
    (tmp_path / "corpus.jsonl").write_text(json.dumps(corpus_row("AllReduce", "wrong", failure="race")) + "\n")
    with pytest.raises(ConfigError, match="holds no right kernel"):
        open_agent(f"nearest:{tmp_path}")


def attempt(problem="AllReduce", **fields):
    return Attempt(problem=problem, requested=EvalConfig(), **fields).to_line() + "\n"


def test_results_are_replayed_by_sample_and_turn(tmp_path):
    path = tmp_path / "results.jsonl"
    path.write_text(
        attempt(sample=1, turn=1, source="second", reply="b")
        + attempt(sample=1, turn=0, source=None, reply="no code")
        + attempt(sample=1, turn=1, source="second, again", reply="c")
    )
    for named in (path, tmp_path):  # the folder of a run too, which holds no sources
        found = replies(open_agent(f"replay:{named}"), task(sample=1))
        assert [(reply.content, reply.submission) for reply in found] == [("no code", None), ("c", "second, again")]


def test_files_of_eval_dir_are_samples(tmp_path):
    path = tmp_path / "results.jsonl"
    path.write_text(attempt(file="a.cpp", source="a") + attempt(file="b.cpp", source="b"))
    provider = open_agent(f"replay:{path}")
    assert [replies(provider, task(sample=n))[0].submission for n in (0, 1)] == ["a", "b"]


def test_settings_distinguish_sources(tmp_path):
    """A run that was begun with the sources of a folder must not go on with others."""
    (tmp_path / "all_reduce.cpp").write_text("a")
    before = open_agent(f"replay:{tmp_path}").settings
    (tmp_path / "all_reduce.cpp").write_text("b")
    assert open_agent(f"replay:{tmp_path}").settings != before


@pytest.mark.parametrize("make", [lambda path: path.mkdir(), lambda path: None])
def test_nothing_to_replay_is_an_error(tmp_path, make):
    make(tmp_path / "there")
    with pytest.raises(ConfigError, match="there"):
        open_agent(f"replay:{tmp_path / 'there'}")


def test_messages_before_the_first_reply_do_not_count():
    agent = open_agent("reference").begin(task())
    assert agent.act([*CONVERSATION, Message("user", "more")]) is not None
