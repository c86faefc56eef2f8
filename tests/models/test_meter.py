import pytest

from stopwise.models.chat import ChatFailure, ChatRequest, Message
from stopwise.models.meter import Meter, Spent, metering
from stopwise.models.parallel import SideBySide


def _request(text="Hello?"):
    return ChatRequest((Message("user", text),))


def test_a_reply_from_the_cache_counts_as_when_it_was_made(client_of, server):
    server.otherwise = "Hello."
    client = client_of()
    with metering(Meter()) as first:
        reply = client.complete(_request(), "agent")
    with metering(Meter()) as second:
        client.complete(_request(), "controller")
    assert len(server.requests) == 1
    made = Spent(1, reply.usage.prompt + reply.usage.completion, reply.seconds)
    assert made.tokens > 0
    assert made.seconds > 0
    assert (first.of("agent"), first.of("controller")) == (made, Spent())
    assert (second.of("agent"), second.of("controller")) == (Spent(), made)
    assert first.of("agent", "controller") == made


def test_an_inner_meter_counts_alone(client_of, server):
    server.otherwise = "Hello."
    client = client_of()
    with metering(Meter()) as outer:
        client.complete(_request("1"), "agent")
        with metering(Meter()) as inner:
            client.complete(_request("2"), "agent")
        client.complete(_request("3"), "reader")
    client.complete(_request("4"), "agent")
    assert (outer.of("agent").calls, outer.of("reader").calls, inner.of("agent").calls) == (1, 1, 1)


def test_calls_in_vain_count(client_of, server):
    server.otherwise = {"status": 500}
    client = client_of()
    with metering(Meter()) as meter, pytest.raises(ChatFailure) as raised:
        client.complete(_request(), "agent")
    assert meter.of("agent").calls == raised.value.attempts > 0
    assert meter.of("agent").seconds > 0


def test_threads_count_apart(client_of, server):
    server.otherwise = "Hello."
    client = client_of()

    def count(number):
        with metering(Meter()) as meter:
            for call in range(number):
                client.complete(_request(f"{number}/{call}"), "agent")
            return meter.of("agent").calls

    with SideBySide(4) as side:
        assert side.map(count, range(5)) == [0, 1, 2, 3, 4]
