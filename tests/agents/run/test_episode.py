"""One episode: turns, feedback, records, plateaus, and how it goes on after it was broken off."""

from __future__ import annotations

import pytest

from pkb_gym.agents.protocol import Reply, RequestRefused
from pkb_gym.engine.errors import ConfigError, InfrastructureError
from pkb_gym.engine.records.attempt import TokenCounts
from pkb_gym.metrics.outcomes import outcome_of
from pkb_gym.problems.catalogue import find_problem, reference_source
from tests.agents.conversations import Scripted, turn_of
from tests.agents.run.runs import Run, places, recorded
from tests.envs.fake_evaluator import FakeEvaluator


def says(*replies):
    """An agent that says these, one a turn, and then nothing more."""
    each = [Reply(f"```\n{text}\n```") if isinstance(text, str) else text for text in replies]
    return Scripted(lambda _, messages: each[turn_of(messages)] if turn_of(messages) < len(each) else None)


def test_every_turn_is_recorded_with_all_that_it_was_made_of(tmp_path):
    tokens = TokenCounts(prompt=10, completion=3)
    agent = says(
        Reply("```\nwrong\n```", reasoning="why", tokens=tokens, cost_usd=0.5), Reply("", submission="speedup 2")
    )
    Run(tmp_path, agent, FakeEvaluator(), turns=2)
    first, second = recorded(tmp_path)
    assert (first.agent, first.problem, first.sample, first.turn) == ("scripted", "AllReduce", 0, 0)
    assert (first.source, first.reply, first.reasoning) == ("wrong\n", "```\nwrong\n```", "why")
    assert (first.tokens, first.cost_usd, first.verdict) == (tokens, 0.5, "compile_error")
    assert first.reply_s >= 0 and first.duration_s >= 0 and first.request_key
    assert (second.source, second.verdict, second.turn) == ("speedup 2", "passed", 1)
    assert second.reward > first.reward and second.reward_name == "default"
    assert (second.requested.turn, second.requested.seed) == (1, first.requested.seed)
    assert (second.requested.device, second.requested.world_size, second.requested.until) == ("cpu", 2, "check")


def test_messages_are_recorded_once_in_the_turn_that_reads_them_first(tmp_path):
    agent = says("wrong", "speedup 2")
    Run(tmp_path, agent, FakeEvaluator(), turns=2)
    first, second = recorded(tmp_path)
    assert [message.role for message in first.messages] == ["system", "user"]
    assert "AllReduce" in first.messages[1].content
    (feedback,) = second.messages
    assert feedback.role == "user" and "expected unqualified-id" in feedback.content
    assert [message.role for message in agent.read[1]] == ["system", "user", "assistant", "user"]
    assert agent.read[1][3].turn.value == first.reward


def test_the_full_style_shows_the_task_of_the_environment(tmp_path):
    agent = says("speedup 2")
    Run(tmp_path, agent, FakeEvaluator(), style="full")
    assert agent.read[0][1].content.startswith("# AllReduce\n")


def test_a_reply_without_a_submission_costs_a_turn_and_is_answered(tmp_path):
    evaluator = FakeEvaluator()
    agent = says(Reply("I do not know."), "speedup 2")
    run = Run(tmp_path, agent, evaluator, turns=2)
    first, second = recorded(tmp_path)
    assert (first.verdict, first.source, first.reward, first.feedback) == ("no_submission", None, 0.0, None)
    assert "No submission could be read, nothing: no fenced block" in agent.read[1][-1].content
    assert second.verdict == "passed" and len(evaluator.requested) == 1 and run.outcome.complete == 1


def test_an_agent_without_a_word_has_an_attempt_all_the_same(tmp_path):
    """Left out, the problem would be missing where shares of problems are counted."""
    run = Run(tmp_path, Scripted(lambda *_: None), FakeEvaluator(), turns=5)
    (attempt,) = recorded(tmp_path)
    assert attempt.verdict == "no_submission" and run.outcome.complete == 1


def test_an_agent_that_has_nothing_more_to_say_ends_the_episode(tmp_path):
    run = Run(tmp_path, says("speedup 2"), FakeEvaluator(), turns=5)
    assert len(recorded(tmp_path)) == 1 and run.outcome.complete == 1


def test_a_plateau_ends_the_episode(tmp_path):
    texts = ["wrong", "speedup 2", "speedup 1.5", "speedup 3", "speedup 2.5", "speedup 1", "speedup 9"]
    Run(tmp_path, says(*texts), FakeEvaluator(), turns=7, plateau=2)
    assert [attempt.source.strip() for attempt in recorded(tmp_path)] == texts[:-1]


def test_an_equal_source_is_judged_once_in_an_episode(tmp_path):
    evaluator = FakeEvaluator()
    Run(tmp_path, says("speedup 2", "speedup 2"), evaluator, turns=2)
    first, second = recorded(tmp_path)
    assert len(evaluator.requested) == 1 and second.feedback == first.feedback and second.duration_s is None


def test_seeds_differ_between_samples_and_problems_and_repeat_with_the_run(tmp_path):
    def seeds(folder):
        Run(folder, says("speedup 2"), FakeEvaluator(), problems=("AllReduce", "Scatter"), samples=2)
        return [attempt.requested.seed for attempt in recorded(folder)]

    found = seeds(tmp_path / "a")
    assert len(set(found)) == 4 and seeds(tmp_path / "b") == found


class Breaking(FakeEvaluator):
    """Fails from some evaluation on, by an exception or in its feedback."""

    after: int = 0
    words: str | None = None

    def evaluate(self, problem, source, config, progress=None):
        if len(self.requested) >= self.after:
            if self.words is not None:
                raise InfrastructureError(self.words)
            source = "infrastructure"
        return super().evaluate(problem, source, config, progress)


@pytest.mark.parametrize("words", [None, "the machine is on fire"])
def test_a_failure_of_the_evaluator_is_recorded_and_its_submission_judged_again(tmp_path, words):
    """The reply is not asked for again: it was paid for."""
    broken = Breaking()
    broken.after, broken.words = 1, words
    agent = says("wrong", Reply("", submission="speedup 2"), "speedup 3")
    run = Run(tmp_path, agent, broken, turns=3)
    assert [attempt.verdict for attempt in recorded(tmp_path)] == ["compile_error", "infrastructure"]
    assert recorded(tmp_path)[1].reward is None
    assert run.outcome.complete == 0 and run.outcome.failed[0][:2] == ("AllReduce", 0)
    sound = FakeEvaluator()
    run = Run(tmp_path, agent, sound, turns=3)
    assert [source.strip() for _, source, _ in sound.requested] == ["speedup 2", "speedup 3"]
    assert [config.turn for _, _, config in sound.requested] == [1, 2]
    assert places(tmp_path) == [("AllReduce", 0, turn) for turn in (0, 1, 1, 2)]
    assert len(agent.read) == 3 and run.outcome.complete == 1
    assert [message.role for message in agent.read[2]] == ["system", "user", "assistant", "user", "assistant", "tool"]
    assert run.runner.budget.evaluations == 3


def test_an_episode_that_was_broken_off_goes_on_as_if_it_had_not_been(tmp_path):
    texts = ["wrong", Reply("no code"), Reply("so", submission="speedup 2"), "speedup 3"]
    whole, broken = says(*texts), says(*texts)
    Run(tmp_path / "whole", whole, FakeEvaluator(), turns=4)
    lines = (tmp_path / "whole/results.jsonl").read_bytes().splitlines(keepends=True)
    for kept in range(4):
        folder, evaluator = tmp_path / str(kept), FakeEvaluator()
        Run(folder, says(), FakeEvaluator(), problems=("Scatter",), turns=4)  # another problem's episode, and run.json
        (folder / "results.jsonl").write_bytes(b"".join(lines[:kept]) + lines[kept][:100])
        broken.read.clear()
        Run(folder, broken, evaluator, turns=4)
        assert broken.read == [each for each in whole.read if turn_of(each) >= kept], kept
        again, before = recorded(folder), recorded(tmp_path / "whole")
        timeless = {"reply_s": None, "duration_s": None}
        assert [a.model_copy(update=timeless) for a in again] == [a.model_copy(update=timeless) for a in before]


def refusing(refused, reply=None):
    """An agent that is refused in the turns given, and submits in the others."""

    def script(_, messages):
        if turn_of(messages) in refused:
            if reply is not None:
                return reply
            raise RequestRefused("the endpoint refuses the request: HTTP 400: prompt is too long")
        return Reply(f"```\nspeedup 1.{turn_of(messages)}\n```")

    return Scripted(script)


def test_a_refusal_ends_its_episode_with_its_words_in_the_record(tmp_path):
    agent = refusing({2})
    for _ in range(2):  # resumed, the endpoint is not asked again
        run = Run(tmp_path, agent, FakeEvaluator(), turns=5)
        *_, last = recorded(tmp_path)
        assert (last.turn, last.verdict, last.source, last.reply, last.reward) == (2, "refused", None, None, 0.0)
        assert "prompt is too long" in last.refusal and run.outcome.complete == 1
    assert len(agent.read) == 3 and places(tmp_path) == [("AllReduce", 0, turn) for turn in (0, 1, 2)]


@pytest.mark.parametrize(
    ("reply", "words"),
    [(None, "prompt is too long"), (Reply("I", finish_reason="content_filter"), "the endpoint's content filter")],
)
def test_an_episode_whose_first_request_is_refused_is_no_wrong_answer(tmp_path, reply, words):
    """The model did not write it; the next call asks again."""
    scatter = refusing({0}, reply)
    agent = Scripted(
        lambda task, messages: (scatter if task.problem.name == "Scatter" else says("speedup 2")).script(task, messages)
    )
    run = Run(tmp_path, agent, FakeEvaluator(), problems=("AllReduce", "Scatter"))
    ((problem, _, why),) = run.outcome.failed
    assert (problem, run.outcome.complete, run.runner.tally.problems()) == ("Scatter", 1, (1, 1, 1))
    assert why.startswith("refused: ") and words in why
    refused = recorded(tmp_path)[1]
    assert (refused.verdict, refused.reward) == ("refused", None) and not outcome_of(refused).is_judged
    run = Run(tmp_path, says("speedup 2"), FakeEvaluator(), problems=("AllReduce", "Scatter"))
    assert run.outcome.complete == 2 and places(tmp_path)[1:] == [("Scatter", 0, 0)] * 2


def test_a_refusal_of_every_first_request_is_wrong_usage(tmp_path):
    with pytest.raises(ConfigError, match=r"refuses every first request, the last one so: .*prompt is too long"):
        Run(tmp_path, refusing({0}), FakeEvaluator(), problems=("AllReduce", "Scatter"), samples=2)


def test_a_reply_that_was_cut_off_is_a_failure_of_its_own(tmp_path):
    cut = Reply("```cpp\nint", reasoning="all of it", finish_reason="length")
    agent = says(cut, Reply("```\nspeedup 2", finish_reason="stop"))
    Run(tmp_path, agent, FakeEvaluator(), turns=2)
    first, second = recorded(tmp_path)
    assert (first.verdict, first.finish_reason, first.reward) == ("truncated", "length", 0.0)
    assert outcome_of(first).is_judged and "cut off at its limit of tokens" in agent.read[1][-1].content
    assert (second.verdict, second.finish_reason, second.source) == ("passed", "stop", "speedup 2")


def test_the_quoted_reference_is_not_submitted(tmp_path):
    reference = reference_source(find_problem("AllReduce"))
    kernel = "def solution(): ...  # speedup 2\n"
    Run(tmp_path, says(Reply(f"```\n{kernel}```\nAs against\n```\n{reference}```")), FakeEvaluator())
    assert recorded(tmp_path)[0].source == kernel
