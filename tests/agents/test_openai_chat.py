"""The agent `openai` against a server that answers as servers do, and as they fail."""

from __future__ import annotations

import json

import pytest

from pkb_gym.agents.chat_format import chat_messages
from pkb_gym.agents.openai_chat import TOOL
from pkb_gym.agents.protocol import AgentError, Message
from pkb_gym.agents.registry import open_agent
from pkb_gym.agents.run.budget import RunLimits
from pkb_gym.agents.submissions import read_submission
from pkb_gym.engine.errors import ConfigError
from pkb_gym.engine.records.attempt import TokenCounts
from pkb_gym.envs.trl import KernelTool
from tests.agents.conversations import CONVERSATION, answered, task
from tests.agents.fake_endpoint import USAGE, Answer, Endpoint, chunks, failure, whole
from tests.agents.run.runs import Run, recorded
from tests.envs.fake_evaluator import FakeEvaluator
from tests.packages import needs

pytestmark = needs("openai", extra="agents")

CODE = "```cpp\nvoid solution() {}\n```"


@pytest.fixture
def ask(monkeypatch):
    """`ask(answers, **options)` asks once and returns the reply and the endpoint."""
    opened = []

    def run(*answers, messages=CONVERSATION, **options):
        endpoint = Endpoint(answers)
        opened.append(endpoint)
        monkeypatch.setenv("OPENAI_BASE_URL", endpoint.url)
        monkeypatch.setenv("OPENAI_API_KEY", "secret")
        provider = open_agent("openai:tiny", {name: str(value) for name, value in options.items()})
        opened.append(provider)
        return provider.begin(task(seed=7)).act(messages), endpoint

    yield run
    for each in reversed(opened):
        each.close()


@pytest.fixture(autouse=True)
def short_waits(monkeypatch):
    """Between tries the client waits for half a second and more."""
    from openai import _base_client

    monkeypatch.setattr(_base_client, "INITIAL_RETRY_DELAY", 0.01)
    monkeypatch.setattr(_base_client, "MAX_RETRY_DELAY", 0.02)


def test_streams_are_put_together_with_reasoning_apart_and_tokens_counted(ask):
    usage = USAGE | {"completion_tokens_details": {"reasoning_tokens": 5}}
    pieces = [{"role": "assistant", "reasoning_content": "a "}, {"reasoning_content": "sum"}]
    pieces += [{"content": "```cpp\nvoid sol"}, {"content": "ution() {}\n```"}]
    reply, endpoint = ask(
        chunks(*pieces, usage=usage), prompt_price=2, completion_price=10, temperature=0.5, max_tokens=9
    )
    assert (reply.content, reply.reasoning, reply.submission) == (CODE, "a sum", None)
    assert reply.tokens == TokenCounts(prompt=100, completion=20, reasoning=5)
    assert reply.cost_usd == pytest.approx((100 * 2 + 20 * 10) / 1e6)
    (body,) = endpoint.requested
    assert (body["model"], body["temperature"], body["max_tokens"], body["stream"]) == ("tiny", 0.5, 9, True)
    assert body["stream_options"] == {"include_usage": True} and "tools" not in body and "seed" not in body
    assert body["messages"] == [
        {"role": "system", "content": "Write kernels."},
        {"role": "user", "content": "# AllReduce"},
    ]
    assert endpoint.keys == ["Bearer secret"]


def test_replies_may_come_whole(ask):
    reply, endpoint = ask(whole({"content": CODE, "reasoning": "a sum"}, USAGE | {"cost": 0.5}), stream="false")
    assert (reply.content, reply.reasoning, reply.cost_usd) == (CODE, "a sum", 0.5)
    assert "stream" not in endpoint.requested[0] or not endpoint.requested[0]["stream"]


def test_thoughts_between_tags_are_kept_apart(ask):
    reply, _ = ask(chunks({"content": f"<think>```\nno\n```</think>{CODE}"}))
    assert (reply.content, reply.reasoning) == (CODE, "```\nno\n```")
    assert reply.tokens is None and reply.cost_usd is None


def call(index, *pieces, name="submit"):
    """Pieces of a streamed call."""
    first = {"index": index, "id": f"c{index}", "type": "function", "function": {"name": name, "arguments": ""}}
    rest = [{"index": index, "function": {"arguments": piece}} for piece in pieces]
    return [{"tool_calls": [each]} for each in (first, *rest)]


def test_calls_of_the_tool_are_put_together_and_the_last_counts(ask):
    """Models correct themselves."""
    reply, endpoint = ask(chunks(*call(0, '{"source": "int a;"}'), *call(1, '{"sour', 'ce": "int b;"}')), tools="true")
    assert (reply.submission, reply.content) == ("int b;", "")
    assert endpoint.requested[0]["tools"][0]["function"]["name"] == "submit"


def test_a_whole_reply_may_call_the_tool(ask):
    function = {"name": "submit", "arguments": '{"source": "int a;"}'}
    message = {"tool_calls": [{"id": "c", "type": "function", "function": function}]}
    assert ask(whole(message), tools="true", stream="false")[0].submission == "int a;"


@pytest.mark.parametrize(
    "pieces", [call(0, '{"source": "cut o'), call(0, "{}"), call(0, '{"source": "x"}', name="run")]
)
def test_a_call_that_is_not_understood_submits_nothing_and_stays_in_the_record(ask, pieces):
    reply, _ = ask(chunks(*pieces), tools="true")
    found = read_submission(reply)
    assert reply.submission is None and found.source is None and found.taken.startswith("nothing")
    assert pieces[1]["tool_calls"][0]["function"]["arguments"] in reply.content


def test_later_turns_show_calls_and_their_answers():
    messages = [*CONVERSATION, *answered("int a;", 0.1)]
    *_, message, answer = chat_messages(messages, with_tools=True)
    (made,) = message["tool_calls"]
    assert json.loads(made["function"]["arguments"]) == {"source": "int a;"}
    assert answer == {"role": "tool", "tool_call_id": made["id"], "content": "Turn 1"}
    *_, message, answer = chat_messages(messages, with_tools=False)
    assert message == {"role": "assistant", "content": "```\nint a;\n```"}
    assert answer == {"role": "user", "content": "Turn 1"}
    plain = [*CONVERSATION, Message("assistant", CODE), Message("user", "No submission")]
    assert chat_messages(plain, with_tools=True)[2:] == [
        {"role": "assistant", "content": CODE},
        {"role": "user", "content": "No submission"},
    ]


def test_rate_limits_and_errors_of_the_server_are_tried_again(ask):
    reply, endpoint = ask(
        failure(429, "slow down", Retry_After="0.01"),
        failure(503, "busy"),
        failure(500, "oh"),
        chunks({"content": CODE}),
    )
    assert reply.content == CODE and len(endpoint.requested) == 4


def test_a_stream_that_breaks_off_is_asked_for_again(ask):
    """A half reply would be judged as a wrong answer."""
    begun = chunks({"content": "```cpp\nvoid"}, ends=False)
    cut = Answer(begun.body, breaks_off=True)
    reply, endpoint = ask(begun, cut, chunks({"content": CODE}))
    assert reply.content == CODE and len(endpoint.requested) == 3


def test_an_endpoint_that_stays_down_is_the_agents_failure(ask):
    with pytest.raises(AgentError, match=r"the endpoint failed: .*busy"):
        ask(failure(503, "busy"), retries=2)
    with pytest.raises(AgentError, match="broke off each of its replies"):
        ask(chunks({"content": "x"}, ends=False), retries=1)


def test_nobody_listens(monkeypatch):
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:9/v1")
    provider = open_agent("openai:tiny", {"retries": "1"})
    with pytest.raises(AgentError, match="the endpoint failed: Connection error"):
        provider.begin(task()).act(CONVERSATION)
    provider.close()


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (failure(401, "wrong key"), "refuses model 'tiny': .*wrong key"),
        (failure(404, "no such model"), "refuses model 'tiny': .*no such model"),
        (failure(400, "temperature is not supported"), "refuses the request: .*temperature is not supported"),
    ],
)
def test_what_no_episode_can_succeed_with_is_wrong_usage(ask, answer, message):
    with pytest.raises(ConfigError, match=message):
        ask(answer)


def test_a_conversation_that_is_too_long_ends_the_episode(ask):
    assert ask(failure(400, "too long", "context_length_exceeded"))[0] is None
    assert ask(failure(400, "This model's maximum context length is 8192 tokens"))[0] is None


@pytest.mark.parametrize("body", [{"id": "1", "choices": []}, {"detail": "hm"}, "no json"])
def test_malformed_answers_are_the_agents_failure(ask, body):
    with pytest.raises(AgentError, match="endpoint"):
        ask(Answer(body), stream="false", retries=0)


def test_an_error_within_a_stream_is_the_agents_failure(ask):
    events = ['data: {"error": {"message": "out of \\u001b[31mmemory"}}\n\n']
    with pytest.raises(AgentError, match=r"out of \\x1b\[31mmemory"):
        ask(Answer(events), retries=0)


def test_seeds_differ_between_turns(ask):
    first = ask(chunks({"content": CODE}), seeded="true")[1].requested[0]["seed"]
    later = ask(chunks({"content": CODE}), seeded="true", messages=[*CONVERSATION, *answered("a", 0.0)])[1].requested[
        0
    ]["seed"]
    assert first != later


def test_settings_hold_no_secrets(monkeypatch):
    monkeypatch.setenv("OPENAI_BASE_URL", "https://user:password@example.org:8443/v1?key=abc")
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    provider = open_agent("openai:tiny")
    text = json.dumps(provider.settings)
    provider.close()
    assert "example.org:8443/v1" in text
    assert not any(word in text for word in ("secret", "password", "abc", "user"))


def test_neither_endpoint_nor_key_is_wrong_usage(monkeypatch):
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with pytest.raises(ConfigError, match="set OPENAI_API_KEY, or OPENAI_BASE_URL"):
        open_agent("openai:tiny")


def test_the_tool_is_the_one_that_policies_are_trained_with():
    utils = pytest.importorskip("transformers.utils", reason="needs the extra `train`")
    schema = utils.get_json_schema(KernelTool.submit)
    del schema["function"]["return"]
    assert schema == TOOL


def test_a_run_shows_the_model_its_calls_and_their_answers_also_when_resumed(monkeypatch, tmp_path):
    """The conversation is put together from the record, without what the endpoint itself remembers."""
    endpoint = Endpoint([chunks(*call(0, f'{{"source": "speedup {n}"}}'), usage=USAGE) for n in (1, 2)])
    monkeypatch.setenv("OPENAI_BASE_URL", endpoint.url)
    for limits in (RunLimits(evaluations=1), RunLimits()):
        provider = open_agent("openai:tiny", {"tools": "true"})
        run = Run(tmp_path, provider, FakeEvaluator(), turns=2, limits=limits, settings=dict(provider.settings))
        provider.close()
    endpoint.close()
    assert run.outcome.complete == 1 and run.runner.budget.tokens == 2 * 120
    first, second = (body["messages"] for body in endpoint.requested)
    assert [message["role"] for message in second] == ["system", "user", "assistant", "tool"] and second[:2] == first
    (made,) = second[2]["tool_calls"]
    assert json.loads(made["function"]["arguments"]) == {"source": "speedup 1"}
    assert second[3]["tool_call_id"] == made["id"] and "speedup 1.00" in second[3]["content"]
    assert [attempt.source for attempt in recorded(tmp_path)] == ["speedup 1", "speedup 2"]
