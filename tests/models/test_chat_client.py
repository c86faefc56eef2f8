import json
import sqlite3
import threading
from dataclasses import asdict, dataclass, replace
from typing import Literal

import pytest

from stopwise.data.errors import DataError, UsageError
from stopwise.models.chat import Abilities, ChatFailure, ChatReply, ChatRequest, Message, TokenLogprobs, ToolCall, Usage
from stopwise.models.endpoints import Patience
from stopwise.models.ledger import Budget, BudgetSpent, Ledger, Prices
from stopwise.models.response_cache import ResponseCache, default_response_cache, request_key


def _request(text="Hello?", **fields):
    return ChatRequest((Message("user", text),), **fields)


@dataclass(frozen=True)
class Choice:
    action: Literal["continue", "stop"]


@dataclass(frozen=True)
class Said:
    text: str


def test_a_second_run_costs_nothing_and_is_identical(server, client_of, tmp_path):
    logprobs = [{"token": "a", "logprob": -0.5, "top_logprobs": [{"logprob": -0.5}, {"logprob": -1.25}]}]
    call = {"function": {"name": "f", "arguments": "{}"}}
    server.script = [{"message": {"content": "a\ud800", "tool_calls": [call]}, "logprobs": logprobs}, "b"]
    prices, request = Prices(prompt=1e6), _request(top_logprobs=2)
    first = client_of(cache=tmp_path / "c.sqlite", server="vllm", prices=prices)
    replies = [first.complete(request, "agent"), first.complete(_request("Other?"), "agent")]
    assert first.complete(request, "agent") == replies[0]
    second = client_of(cache=tmp_path / "c.sqlite", server="vllm", prices=prices, budget=Budget(calls=0))
    assert [second.complete(request, "agent"), second.complete(_request("Other?"), "agent")] == replies
    assert replies[0].logprobs == (TokenLogprobs("a", -0.5, (-0.5, -1.25)),)
    assert replies[0].tool_calls == (ToolCall("f", "{}"),)
    assert len(server.requests) == 2
    bill = second.ledger.report()["operation"]["agent"]
    assert (bill["calls"], bill["money"], bill["from_cache"], bill["saved_money"]) == (0, 0, 2, 20)


@pytest.mark.parametrize(
    "other",
    [
        _request("Hello!"),
        _request(max_tokens=9),
        _request(temperature=0.5),
        _request(top_p=0.5),
        _request(stop=("x",)),
        _request(seed=1),
        _request(sample=1),
        ChatRequest((Message("system", "Hello?"),)),
    ],
)
def test_a_request_that_differs_in_anything_is_another(server, client_of, other):
    server.script = ["one", "two"]
    client = client_of()
    assert client.complete(_request(), "agent").text == "one"
    assert client.complete(other, "agent").text == "two"


def test_models_do_not_share_replies():
    assert request_key("a@http://x", _request()) != request_key("b@http://x", _request())


def test_no_secret_is_stored(server, client_of, monkeypatch, tmp_path):
    monkeypatch.setenv("TEST_KEY", "sk-very-secret")
    client_of(cache=tmp_path / "c.sqlite", key_variable="TEST_KEY").complete(_request(), "agent")
    assert server.headers[0]["authorization"].endswith("sk-very-secret")
    stored = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    assert b"sk-very" not in stored
    monkeypatch.setenv("TEST_KEY", "another")  # the same cache entry
    client_of(cache=tmp_path / "c.sqlite", key_variable="TEST_KEY").complete(_request(), "agent")
    assert len(server.requests) == 1


def test_failures_are_counted_and_never_cached(server, client_of):
    server.script = [{"status": 400}, "fine"]
    client = client_of()
    with pytest.raises(ChatFailure):
        client.complete(_request(), "controller")
    assert client.complete(_request(), "controller").text == "fine"
    bill = client.ledger.report()["operation"]["controller"]
    assert (bill["calls"], bill["failures"], bill["attempts"]) == (1, 1, 2)


def test_a_model_that_changes_its_name_is_a_failure(server, client_of, tmp_path):
    server.script = [{"text": "a", "model": "m-1"}, {"text": "b", "model": "m-2"}, {"text": "c", "model": "m-1"}]
    client = client_of(cache=tmp_path / "c.sqlite")
    client.complete(_request("1"), "agent")
    with pytest.raises(ChatFailure, match="answered as 'm-2', before as 'm-1'; results of one run come from") as caught:
        client.complete(_request("2"), "agent")
    assert caught.value.kind == "changed model"
    assert client.complete(_request("2"), "agent").text == "c"
    assert client.served_model == "m-1"
    # a later run that begins with cached replies is held to the model that they came from
    server.script = [{"text": "d", "model": "m-2"}]
    later = client_of(cache=tmp_path / "c.sqlite")
    later.complete(_request("1"), "agent")
    with pytest.raises(ChatFailure, match="answered as 'm-2'"):
        later.complete(_request("3"), "agent")


def test_a_spent_budget_stops_the_run_and_keeps_what_it_has(server, client_of, tmp_path):
    client = client_of(cache=tmp_path / "c.sqlite", budget=Budget(calls=2))
    requests = [_request(str(number)) for number in range(4)]
    with pytest.raises(BudgetSpent):
        client.complete_all(requests, "agent")
    assert len(server.requests) == 2
    assert all(isinstance(r, ChatReply) for r in client_of(cache=tmp_path / "c.sqlite").complete_all(requests, "agent"))
    assert len(server.requests) == 4


def test_many_requests_keep_their_order_and_the_limit_of_parallel_calls(server, client_of):
    lock, now, most = threading.Lock(), [0], [0]

    def answer(body):
        text = body["messages"][0]["content"]
        with lock:
            now[0] += 1
            most[0] = max(most[0], now[0])
        server.waited.wait(0.02)
        with lock:
            now[0] -= 1
        return {"status": 400} if text == "3" else f"re: {text}"

    server.otherwise = answer
    replies = client_of(parallel=3).complete_all([_request(str(number)) for number in range(12)], "reader")
    assert [r.text for r in replies if isinstance(r, ChatReply)] == [f"re: {n}" for n in range(12) if n != 3]
    assert isinstance(replies[3], ChatFailure)
    assert most[0] <= 3


def test_equal_requests_at_one_time_are_paid_once(server, client_of):
    server.otherwise = {"text": "same", "hang": 0.05}
    replies = client_of().complete_all([_request()] * 6, "coverage")
    assert {r.text for r in replies if isinstance(r, ChatReply)} == {"same"}
    assert len(server.requests) == 1


def test_an_answer_is_held_to_its_schema_where_the_server_can(server, client_of):
    server.script = ['{"action": "stop"}']
    asked = client_of(server="vllm").ask(_request(), Choice, "controller")
    assert asked.answer == Choice("stop")
    assert len(asked.replies) == 1
    schema = server.requests[0]["response_format"]["json_schema"]["schema"]
    assert schema["properties"]["action"]["enum"] == ["continue", "stop"]


def test_only_who_needs_bounds_is_sent_them(server, client_of):
    """Some servers refuse schemas with bounds."""
    server.otherwise = '{"text": "a"}'
    client_of(server="vllm").ask(_request(), Said, "controller")
    client_of(abilities=Abilities(structured="schema", bounded=True)).ask(_request(), Said, "controller")
    texts = [r["response_format"]["json_schema"]["schema"]["properties"]["text"] for r in server.requests]
    assert texts == [{"type": "string"}, {"type": "string", "maxLength": 240}]


def test_an_unreadable_answer_is_asked_for_again_with_the_reason(server, client_of):
    server.script = ["I would say stop.", '{"action": "stop"}']
    client = client_of()
    asked = client.ask(_request(), Choice, "controller")
    assert asked.answer == Choice("stop")
    assert [reply.text for reply in asked.replies] == ["I would say stop.", '{"action": "stop"}']
    assert "response_format" not in server.requests[0]
    roles = [message["role"] for message in server.requests[1]["messages"]]
    assert roles == ["user", "assistant", "user"]
    assert "holds no JSON object" in server.requests[1]["messages"][2]["content"]
    assert client.ask(_request(), Choice, "controller") == asked  # both calls from the cache
    assert len(server.requests) == 2


@pytest.mark.parametrize(("text", "kind"), [("never", "no JSON in reply"), ('{"action": "wait"}', "wrong schema")])
def test_an_answer_that_stays_unreadable_is_a_named_failure(server, client_of, text, kind):
    server.otherwise = text
    with pytest.raises(ChatFailure, match="test-model@http") as caught:
        client_of(tries=3).ask(_request(), Choice, "controller")
    assert caught.value.kind == kind
    assert len(server.requests) == 3


def test_an_answer_of_the_right_shape_can_be_wrong(server, client_of):
    server.otherwise = '{"action": "stop"}'
    client = client_of()
    with pytest.raises(ChatFailure, match="it is too early to stop") as caught:
        client.ask(_request(), Choice, "controller", lambda answer: "it is too early to stop")
    assert caught.value.kind == "wrong answer"
    assert "too early" in server.requests[1]["messages"][-1]["content"]
    assert client.ask(_request(), Choice, "controller", lambda answer: None).answer == Choice("stop")


def test_purposes_share_a_ledger(server, client_of):
    ledger = Ledger()
    client_of(ledger=ledger).complete(_request(), "agent")
    client_of(ledger=ledger, model="judge").complete(_request(), "judge")
    assert ledger.report()["operation"]["total"]["calls"] == ledger.report()["evaluation"]["total"]["calls"] == 1


def test_a_hanging_server_costs_the_call_and_nothing_else(server, client_of):
    server.script = ["first", {"hang": 30}]
    client = client_of(patience=Patience(attempts=1, timeout=0.2))
    assert client.complete(_request("1"), "agent").text == "first"
    with pytest.raises(ChatFailure, match="no whole reply"):
        client.complete(_request("2"), "agent")
    assert client.complete(_request("1"), "agent").text == "first"


def test_the_first_reply_stays(tmp_path):
    one, two = ResponseCache(tmp_path / "c.sqlite"), ResponseCache(tmp_path / "c.sqlite")
    reply = ChatReply("a", "stop", "m", Usage(1, 0, 1))
    key = request_key("m", _request())
    assert one.get(key) is None
    assert one.put(key, "m", reply) == reply
    assert two.put(key, "m", replace(reply, text="b")) == reply
    assert json.dumps(asdict(reply))
    one.close()
    two.close()


def test_a_file_that_is_no_cache(tmp_path):
    (tmp_path / "text").write_text("no database" * 200)
    with pytest.raises(DataError, match="is not a cache of replies"):
        ResponseCache(tmp_path / "text")
    other = sqlite3.connect(tmp_path / "other")
    other.execute("CREATE TABLE replies (a, b)")
    other.close()
    with pytest.raises(DataError, match="its columns are a, b"):
        ResponseCache(tmp_path / "other")
    with pytest.raises(UsageError, match="cannot be opened as cache of replies"):
        ResponseCache(tmp_path)


def test_where_the_cache_is(monkeypatch, tmp_path):
    monkeypatch.setenv("STOPWISE_CACHE", str(tmp_path))
    assert default_response_cache() == tmp_path / "replies.sqlite"
