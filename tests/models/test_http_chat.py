import email.utils
import json
import math
import time

import pytest

from stopwise.data.errors import UsageError
from stopwise.models.chat import Abilities, ChatFailure, ChatRequest, Message, TokenLogprobs, Tool, ToolCall, Usage
from stopwise.models.endpoints import Endpoint, Patience
from stopwise.models.http_chat import HttpChat, retry_after

HELLO = ChatRequest((Message("system", "Be brief."), Message("user", "Hello?")))
QUICK = Patience(attempts=3, first_wait=1, timeout=5)


@pytest.fixture
def model_of(server):
    opened = []

    def make(**fields):
        waits = []
        opened.append(HttpChat(Endpoint(**{"url": server.url, "model": "m", "patience": QUICK} | fields), waits.append))
        opened[-1].waits = waits
        return opened[-1]

    yield make
    for model in opened:
        model.close()


def _failure(model, request=HELLO):
    with pytest.raises(ChatFailure) as caught:
        model.complete(request)
    return caught.value


def test_a_plain_call(server, model_of):
    server.script = [{"text": "Hi.", "model": "m-2026", "usage": {"prompt_tokens": 9, "completion_tokens": 2}}]
    reply = model_of().complete(HELLO)
    assert (reply.text, reply.finish, reply.model, reply.usage) == ("Hi.", "stop", "m-2026", Usage(9, 0, 2))
    assert reply.attempts == 1
    assert 0 < reply.seconds < 5
    assert server.requests == [
        {
            "model": "m",
            "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello?"}],
            "max_tokens": 512,
            "temperature": 0.0,
        }
    ]
    assert "authorization" not in server.headers[0]


def test_every_field_is_sent_where_the_server_knows_it(server, model_of):
    position = {"token": "Hi", "logprob": -0.1, "top_logprobs": [{"logprob": -2.5}, {"logprob": -0.1}]}
    server.script = [{"text": "Hi", "logprobs": [position]}]
    tool = Tool("search", "Searches.", {"type": "object"})
    request = ChatRequest(
        HELLO.messages, 7, 0.5, 0.9, ("\n",), seed=3, sample=2, top_logprobs=2, schema={"type": "object"}, tools=(tool,)
    )
    reply = model_of(server="vllm", token_limit_field="max_completion_tokens").complete(request)
    assert reply.logprobs == (TokenLogprobs("Hi", -0.1, (-0.1, -2.5)),)
    sent = server.requests[0]
    assert "max_tokens" not in sent
    assert {key: sent[key] for key in ("max_completion_tokens", "temperature", "top_p", "stop", "seed")} == {
        "max_completion_tokens": 7,
        "temperature": 0.5,
        "top_p": 0.9,
        "stop": ["\n"],
        "seed": 5,
    }
    assert (sent["logprobs"], sent["top_logprobs"]) == (True, 2)
    assert sent["response_format"]["json_schema"]["schema"] == {"type": "object"}
    assert sent["tools"][0]["function"]["name"] == "search"


def test_a_server_that_only_knows_json_objects_is_asked_for_one(server, model_of):
    model_of(abilities=Abilities(structured="object")).complete(ChatRequest(HELLO.messages, schema={"type": "object"}))
    assert server.requests[0]["response_format"] == {"type": "json_object"}


@pytest.mark.parametrize(
    ("request_", "lacking"),
    [
        (ChatRequest(HELLO.messages, top_logprobs=5), r"5 log-probabilities a position \(it returns 0\)"),
        (ChatRequest(HELLO.messages, schema={}), "replies held to a JSON schema"),
        (ChatRequest(HELLO.messages, tools=(Tool("t", "", {}),)), "tools"),
    ],
)
def test_what_the_server_cannot_do_is_refused_before_the_call(server, model_of, request_, lacking):
    with pytest.raises(UsageError, match=f"does not offer {lacking}; set the endpoint's `server` or `abilities`"):
        model_of(server="transformers").complete(request_)
    assert server.requests == []


def test_tool_calls_thinking_and_parts_are_read(server, model_of):
    call = {"function": {"name": "search", "arguments": '{"query": "x"}'}}
    server.script = [
        {"message": {"content": None, "tool_calls": [call], "reasoning_content": "I search."}, "finish": "tool_calls"},
        {"message": {"content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}},
        {"text": "c", "usage": {"prompt_tokens": 8, "prompt_tokens_details": {"cached_tokens": 6}}},
    ]
    model = model_of()
    first = model.complete(HELLO)
    assert first.tool_calls == (ToolCall("search", '{"query": "x"}'),)
    assert (first.text, first.reasoning, first.finish) == ("", "I search.", "tool_calls")
    assert model.complete(HELLO).text == "ab"
    assert model.complete(HELLO).usage == Usage(8, 6, 0)


def test_waits_double_and_are_drawn(server, model_of):
    server.script = [{"status": 500}, {"status": 503}, "at last"]
    model = model_of()
    reply = model.complete(HELLO)
    assert (reply.text, reply.attempts) == ("at last", 3)
    assert 1 <= model.waits[0] <= 2 <= model.waits[1] <= 4


def test_a_wait_is_never_longer_than_the_longest(server, model_of):
    server.script = [{"status": 500}]
    model = model_of(patience=Patience(first_wait=50, longest_wait=3))
    model.complete(HELLO)
    assert model.waits == [3]


def test_a_busy_server_is_waited_for_as_it_asks(server, model_of):
    server.script = [
        {"status": 429, "headers": {"Retry-After": "7"}},
        {"status": 429, "headers": {"Retry-After": email.utils.formatdate(time.time() + 20, usegmt=True)}},
        "free again",
    ]
    model = model_of()
    assert model.complete(HELLO).text == "free again"
    assert model.waits[0] == 7
    assert 15 < model.waits[1] <= 20


def test_a_busy_server_that_says_nothing_is_backed_off_from(server, model_of):
    server.script = [{"status": 429}, "free again"]
    model = model_of()
    assert model.complete(HELLO).text == "free again"
    assert 1 <= model.waits[0] <= 2


def test_a_server_that_asks_for_too_long_a_wait_is_not_waited_for(server, model_of):
    server.otherwise = {"status": 429, "headers": {"Retry-After": "3600"}}
    model = model_of()
    failure = _failure(model)
    assert failure.kind == "rate limited"
    assert "asks for a wait of 3600 s, more than patience.longest_wait = 60" in str(failure)
    assert (model.waits, failure.attempts) == ([], 1)


@pytest.mark.parametrize(
    ("header", "seconds"),
    [(None, None), ("0.5", 0.5), ("-3", 0), ("soon", None), ("Thu, 01 Jan 1970 00:01:40 GMT", 90), ("nan", None)],
)
def test_retry_after(header, seconds):
    assert retry_after(header, now=10.0) == seconds


PASSING = [
    ({"status": 429}, "rate limited", "HTTP status 429"),
    ({"status": 500, "raw": "<h1>Oops</h1>"}, "server error", r"HTTP status 500: '<h1>Oops</h1>'"),
    ({"hang": 30}, "timeout", r"no whole reply within 0.2 s"),
    ({"drip": 0.03}, "timeout", "no whole reply within 0.2 s"),
    ({"drop": True}, "connection", "the connection failed"),
    ({"cut": True}, "cut", "the connection failed"),
    ({"raw": "{not json"}, "bad JSON", "the reply is not JSON .* found '{not json'"),
    ({"raw": '{"error": "x"}'}, "bad JSON", "no chat completion"),
    ({"raw": "[1]"}, "bad JSON", "no chat completion"),
    ({"text": "a", "logprobs": [{"token": "a"}]}, "bad JSON", "malformed .KeyError: 'logprob'"),
    ({"text": ""}, "empty choice", "the message is empty"),
    ({"choices": []}, "empty choice", "holds no message"),
    ({"message": {"content": None}, "finish": "length"}, "empty choice", r"finish_reason length"),
]


@pytest.mark.parametrize(("entry", "kind", "message"), PASSING, ids=[str(row[0])[:40] for row in PASSING])
def test_passing_faults_are_tried_again_and_named_when_they_last(server, model_of, entry, kind, message):
    model = model_of(patience=Patience(attempts=2, timeout=0.2))
    server.script = [entry, "fine"]
    assert model.complete(HELLO).text == "fine"
    server.script = [entry, entry, "too late"]
    failure = _failure(model)
    assert failure.kind == kind
    assert failure.attempts == 2
    with pytest.raises(ChatFailure, match=message):
        raise failure
    assert str(failure).startswith("m@http://127.0.0.1:")


LASTING = [
    ({"status": 401}, {}, "refused", "HTTP status 401"),
    ({"status": 400, "raw": "no such field"}, {}, "refused", "no such field"),
    ({"status": 302, "headers": {"Location": "http://127.0.0.1:1/"}}, {}, "refused", "HTTP status 302"),
    ({"model": "other"}, {"served_model": "m"}, "changed model", "answered as 'other'; expected 'm'"),
]


@pytest.mark.parametrize(("entry", "fields", "kind", "message"), LASTING, ids=[row[2] + row[3] for row in LASTING])
def test_lasting_faults_are_not_tried_again(server, model_of, entry, fields, kind, message):
    server.script = [entry]
    model = model_of(**fields)
    failure = _failure(model)
    assert (failure.kind, failure.attempts, model.waits) == (kind, 1, [])
    assert message in str(failure)


def test_declared_logprobs_that_do_not_come_are_a_failure(server, model_of):
    assert _failure(model_of(server="vllm"), ChatRequest(HELLO.messages, top_logprobs=5)).kind == "no log-probabilities"


def test_nobody_there(model_of):
    assert _failure(model_of(url="http://127.0.0.1:9/v1")).kind == "connection"


def test_paid_tokens_of_useless_attempts_are_counted(server, model_of):
    paid = {"prompt_tokens": 10, "completion_tokens": 1}
    server.script = [{"text": "", "usage": paid}, {"text": "fine", "usage": paid}]
    assert model_of().complete(HELLO).usage == Usage(20, 0, 2)
    server.otherwise = {"text": "", "usage": paid}
    assert _failure(model_of()).usage == Usage(30, 0, 3)


def test_text_that_is_no_unicode_is_sent_all_the_same(server, model_of):
    model_of().complete(ChatRequest((Message("user", "a\ud800b"),)))
    assert server.requests[0]["messages"][0]["content"] == "a\ud800b"


def test_the_key_comes_from_the_environment_and_is_shown_nowhere(server, model_of, monkeypatch):
    monkeypatch.setenv("TEST_KEY", "sk-very-secret")
    server.script = [
        {"status": 401, "raw": "Incorrect key: sk-very-secret"},
        {"raw": "sk-very-secret"},
        {"text": "you said sk-very-secret"},
    ]
    model = model_of(key_variable="TEST_KEY")
    failure = _failure(model)
    assert server.headers[0]["authorization"] == "Bearer sk-very-secret"
    assert "[key]" in str(failure)
    reply = model.complete(HELLO)
    shown = "".join(map(repr, (failure, reply, model, model.endpoint, vars(model), model.id)))
    assert "sk-very" not in shown
    monkeypatch.delenv("TEST_KEY")
    with pytest.raises(UsageError, match="the environment variable TEST_KEY is not set; run `export TEST_KEY="):
        model.complete(HELLO)
    monkeypatch.setenv("TEST_KEY", "schlüssel")
    with pytest.raises(UsageError, match="the key in TEST_KEY holds characters that no header may") as caught:
        model.complete(HELLO)
    assert "schl" not in str(caught.value)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"url": "localhost:8000"}, r"expected http://host:port/v1"),
        ({"url": "http://user:pw@host/v1"}, "endpoint url of host: holds credentials or a query"),
        ({"url": "https://host/v1?api-key=x"}, "endpoint url of host: holds credentials or a query"),
        ({"server": "tgi"}, "endpoint server 'tgi': expected one of generic, openai"),
        ({"attempts": 0}, r"patience\.attempts: 0; expected at least 1"),
        ({"timeout": math.nan}, r"patience\.timeout: nan; expected seconds"),
    ],
)
def test_endpoints_that_cannot_be(fields, message):
    make = Patience if "attempts" in fields or "timeout" in fields else Endpoint
    required = {} if make is Patience else {"url": "http://host/v1", "model": "m"}
    with pytest.raises(UsageError, match=message) as caught:
        make(**required | fields)
    assert "pw" not in str(caught.value)
    assert "api-key" not in str(caught.value)


def test_the_bodies_are_json(server, model_of):
    model_of().complete(HELLO)
    assert server.headers[0]["content-type"] == "application/json"
    assert json.loads(json.dumps(server.requests[0])) == server.requests[0]
