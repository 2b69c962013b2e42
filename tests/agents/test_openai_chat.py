"""The agent `openai` against a server that answers as servers do, and as they fail."""

from __future__ import annotations

import json

import pytest

from pkb_gym.agents import openai_chat
from pkb_gym.agents.chat_format import EMPTY, chat_messages
from pkb_gym.agents.openai_chat import TOOL
from pkb_gym.agents.protocol import AgentError, Message, RequestRefused
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
    """Between tries the client, and the agent, wait for half a second and more."""
    from openai import _base_client

    monkeypatch.setattr(_base_client, "INITIAL_RETRY_DELAY", 0.01)
    monkeypatch.setattr(_base_client, "MAX_RETRY_DELAY", 0.02)
    monkeypatch.setattr(openai_chat, "MAX_PAUSE_S", 0.02)


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
    with pytest.raises(AgentError, match=r"the endpoint http://.* failed: HTTP 503: busy"):
        ask(failure(503, "busy"), retries=2)
    with pytest.raises(AgentError, match=r"each reply .* failed, the last one so: the reply broke off"):
        ask(chunks({"content": "x"}, ends=False), retries=1)


def test_nobody_listens(monkeypatch):
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:9/v1")
    provider = open_agent("openai:tiny")  # with ten further tries, which would take a minute
    with pytest.raises(AgentError, match=r"the endpoint http://127.0.0.1:9/v1 was not reached: .*[Rr]efused"):
        provider.begin(task()).act(CONVERSATION)
    provider.close()


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (failure(401, "wrong key"), "refuses model 'tiny': .*wrong key"),
        (failure(404, "no such model"), "refuses model 'tiny': .*no such model"),
        (Answer("<p>no such page", 405), "HTTP 405: <p>no such page"),
    ],
)
def test_what_no_episode_can_succeed_with_is_wrong_usage(ask, answer, message):
    with pytest.raises(ConfigError, match=message):
        ask(answer)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (failure(400, "too long", "context_length_exceeded"), "too long"),
        (failure(400, "The input (9 tokens) is longer than the model's context length (8 tokens)."), "The input"),
        (failure(400, "the request exceeds the available context size"), "available context size"),
        (failure(400, "prompt is too long: 9 tokens > 8 maximum"), "prompt is too long"),
        (failure(400, "The response was filtered", "content_filter"), "was filtered"),
        (failure(400, "temperature is not supported"), "HTTP 400: temperature is not supported"),
        (failure(403, "your input was flagged"), "was flagged"),
        (failure(413, "too large"), "too large"),
        (Answer({"detail": [{"loc": ["body", "top_p"], "msg": "too high"}]}, 422), "HTTP 422: body.top_p: too high"),
        (Answer([{"error": {"message": "no \x1b[2Jfield"}}], 400), r"HTTP 400: no \\x1b\[2Jfield"),
        (Answer({"object": "error", "message": "bad field"}, 400), "HTTP 400: bad field"),
        (Answer("plain words", 400), "HTTP 400: plain words"),
        (
            Answer({"error": {"message": "Provider returned error", "metadata": {"raw": "too many tools"}}}, 400),
            r"Provider returned error \(too many tools\)",
        ),
    ],
)
def test_a_request_that_is_refused_tells_why_in_the_words_of_the_server(ask, answer, words):
    with pytest.raises(RequestRefused, match=f"the endpoint refuses the request: .*{words}"):
        ask(answer)


@pytest.mark.parametrize("body", [{"id": "1", "choices": []}, {"detail": "hm"}, "no json"])
def test_malformed_answers_are_the_agents_failure(ask, body):
    with pytest.raises(AgentError, match="endpoint"):
        ask(Answer(body), stream="false", retries=0)


def test_an_error_within_a_stream_is_tried_again_and_then_the_agents_failure(ask):
    events = ['data: {"error": {"message": "out of \\u001b[31mmemory"}}\n\n']
    with pytest.raises(AgentError, match=r"out of \\x1b\[31mmemory"):
        ask(Answer(events), retries=0)
    reply, endpoint = ask(Answer(events), chunks({"content": CODE}))
    assert reply.content == CODE and len(endpoint.requested) == 2


BUSY = {"error": {"message": "upstream is busy", "code": 502}}


@pytest.mark.parametrize("stream", ["true", "false"])
@pytest.mark.parametrize(
    "broken",
    [
        Answer(BUSY),
        Answer({"object": "error", "message": "upstream is busy"}),
        whole({"content": "```"}, finish="error"),
        Answer({"choices": [BUSY | {"index": 0, "message": {"content": "x"}, "finish_reason": "stop"}]}),
    ],
)
def test_an_error_in_place_of_a_reply_is_tried_again(ask, broken, stream):
    """Scored, it would be a wrong answer of the model."""
    reply, endpoint = ask(broken, whole({"content": CODE}), stream=stream)
    assert reply.content == CODE and len(endpoint.requested) == 2
    with pytest.raises(AgentError, match=r"the last one so: (upstream is busy|the reply ended with 'error')|busy"):
        ask(broken, stream=stream, retries=1)


def test_a_stream_that_ends_in_an_error_is_tried_again(ask):
    reply, endpoint = ask(chunks({"content": "```"}, finish="error"), chunks({"content": CODE}))
    assert reply.content == CODE and len(endpoint.requested) == 2


@pytest.mark.parametrize("reason", ["stop", "length", "content_filter", "tool_calls"])
def test_the_reply_tells_why_it_ended(ask, reason):
    assert ask(chunks({"content": CODE}, finish=reason))[0].finish_reason == reason
    assert ask(whole({"content": CODE}, finish=reason), stream="false")[0].finish_reason == reason


def test_a_stream_may_end_without_a_reason(ask):
    reply, endpoint = ask(chunks({"content": CODE}, finish=None))
    assert (reply.content, reply.finish_reason, len(endpoint.requested)) == (CODE, None, 1)


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


@pytest.mark.parametrize(
    ("url", "key", "words"),
    [
        ("localhost:8000", None, "OPENAI_BASE_URL is 'localhost:8000'; expected a URL such as http://"),
        ("", "", "both are empty"),
        (None, "a\rb", "OPENAI_API_KEY holds a character that no key has"),
    ],
)
def test_an_address_or_a_key_of_no_use_is_wrong_usage(monkeypatch, url, key, words):
    for name, value in (("OPENAI_BASE_URL", url), ("OPENAI_API_KEY", key)):
        monkeypatch.delenv(name, raising=False)
        if value is not None:
            monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match=words):
        open_agent("openai:tiny")


def test_a_key_from_a_file_may_end_in_a_line_break(ask, monkeypatch):
    setenv = monkeypatch.setenv
    monkeypatch.setattr(
        monkeypatch, "setenv", lambda name, value: setenv(name, value + "\r\n" if "OPENAI" in name else value)
    )
    assert ask(chunks({"content": CODE}))[1].keys == ["Bearer secret"]


def test_an_empty_base_url_means_openais_own(monkeypatch):
    monkeypatch.setenv("OPENAI_BASE_URL", "")
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    provider = open_agent("openai:tiny")
    assert provider.settings["endpoint"] == "api.openai.com/v1"
    provider.close()


def test_a_url_without_its_path_gets_a_hint(monkeypatch):
    endpoint = Endpoint([Answer({"detail": "Not Found"}, 404)])
    monkeypatch.setenv("OPENAI_BASE_URL", endpoint.url.removesuffix("/v1"))
    provider = open_agent("openai:tiny")
    with pytest.raises(
        ConfigError, match=r"HTTP 404: Not Found; OPENAI_BASE_URL names no path, most servers have .*/v1"
    ):
        provider.begin(task()).act(CONVERSATION)
    provider.close()
    endpoint.close()


def test_an_empty_message_of_the_model_is_replayed_as_a_placeholder():
    """Endpoints refuse messages without content; one refusal would end the episode."""
    for content in ("", " \n"):
        messages = [*CONVERSATION, Message("assistant", content), Message("user", "No submission")]
        assert chat_messages(messages, with_tools=True)[2] == {"role": "assistant", "content": EMPTY}


def test_identities_of_calls_have_nine_letters_and_digits():
    made = chat_messages([*CONVERSATION, *answered("a", 0.0)], with_tools=True)[2]["tool_calls"][0]["id"]
    assert len(made) == 9 and made.isalnum() and made.isascii()


def stream_call(**fields):
    return {"tool_calls": [{"index": 0, **fields}]}


SOURCE = '{"source": "int b;"}'
PROTOCOLS = {
    "content in parts": (
        [{"content": [{"type": "text", "text": "```\nint b;\n"}, {"type": "text", "text": "```"}]}],
        None,
    ),
    "arguments as an object": (
        [stream_call(id="a", function={"name": "submit", "arguments": {"source": "int b;"}})],
        None,
    ),
    "two calls at one index": (
        [
            stream_call(id=call_id, function={"name": "submit", "arguments": text})
            for call_id, text in (("a", "{"), ("b", SOURCE))
        ],
        '<tool_call>{"name": "submit", "arguments": {}</tool_call>',
    ),
    "names in each chunk": (
        [stream_call(id="a", function={"name": "submit", "arguments": text}) for text in (SOURCE[:9], SOURCE[9:])],
        None,
    ),
    "a custom tool": ([stream_call(id="a", type="custom", custom={"name": "submit", "input": "int b;"})], None),
    "a function of old": ([{"function_call": {"name": "submit", "arguments": SOURCE}}], None),
    "a name with its namespace": ([stream_call(function={"name": "functions.submit", "arguments": SOURCE})], None),
    "a call beside a fence": (
        [{"content": "```\nint b;\n```"}, stream_call(id="a", function={"name": "submit", "arguments": "{}"})],
        '{"name": "submit", "arguments": {}}',
    ),
    "a part of another kind": (
        [{"content": [{"type": "image", "id": 7}, {"type": "text", "text": "```\nint b;\n```"}]}],
        '{"type": "image", "id": 7}',
    ),
}


@pytest.mark.parametrize(("pieces", "kept"), PROTOCOLS.values(), ids=list(PROTOCOLS))
def test_protocols_as_they_are_spoken(ask, pieces, kept):
    """What is not understood stays in the text, which is recorded."""
    reply, _ = ask(chunks(*pieces), tools="true")
    assert read_submission(reply).source.strip() == "int b;"
    assert kept is None or kept in reply.content


def test_reasoning_may_be_parts_of_the_content(ask):
    thought = {"type": "thinking", "thinking": [{"type": "text", "text": "a "}, {"type": "text", "text": "sum"}]}
    reply, _ = ask(whole({"content": [thought, {"type": "text", "text": CODE}]}), stream="false")
    assert (reply.reasoning, reply.content) == ("a sum", CODE)


def test_usage_may_have_fractions(ask):
    usage = {"prompt_tokens": 99.5, "completion_tokens": 20.0, "completion_tokens_details": None, "cost": 1}
    reply, _ = ask(chunks({"content": CODE}, usage=usage))
    assert (reply.tokens, reply.cost_usd) == (TokenCounts(prompt=100, completion=20), 1.0)


def test_line_breaks_of_unicode_do_not_cut_a_chunk(ask):
    text = "```\nint a; // \u2028 \x85\n```"
    answer = chunks({"content": text})
    raw = [json.dumps(json.loads(event[6:]), ensure_ascii=False) for event in answer.body[:-1]]
    assert ask(Answer([*(f"data: {event}\r\n\r\n" for event in raw), "data: [DONE]"]))[0].content == text
