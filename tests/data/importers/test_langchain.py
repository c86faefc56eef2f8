import json

import pytest

RESULTS = json.dumps([{"title": "Lenn", "url": "http://lenn.org", "content": "A town."}])
CALL = {"name": "web_search", "args": {"query": "Ada"}, "id": "c1", "type": "tool_call"}
MESSAGES = [
    {"type": "human", "content": [{"type": "text", "text": "Where was Ada Brook born?"}]},
    {"type": "system", "content": "No files."},
    {
        "type": "ai",
        "content": "",
        "tool_calls": [CALL],
        "additional_kwargs": {"reasoning_content": "I search."},
        "usage_metadata": {"input_tokens": 7, "output_tokens": 8},
    },
    {"type": "tool", "name": "web_search", "content": RESULTS, "tool_call_id": "c1", "status": "success"},
    {
        "type": "ai",
        "content": "",
        "tool_calls": [{"name": "web_fetch", "args": {"url": "http://lenn.org"}, "id": "c2"}],
    },
    {"type": "tool", "content": "gone", "tool_call_id": "c2", "status": "error"},
    {"type": "ai", "content": [{"type": "text", "text": "Lenn"}]},
]
EXPECTED = [
    ("search", "I search.", ("Ada",), None, ["url:lenn.org"]),
    ("open", None, ("http://lenn.org",), "gone", []),
    ("answer", None, ("Lenn",), None, []),
]


def _steps(run):
    return [(s.kind, s.thought, s.queries, s.error, [d.id for d in s.documents]) for s in run.steps]


def _kwargs(item):
    names = {"human": "HumanMessage", "ai": "AIMessageChunk", "tool": "ToolMessage", "system": "SystemMessage"}
    return {"lc": 1, "type": "constructor", "id": ["langchain", names[item["type"]]], "kwargs": item}


@pytest.mark.parametrize(
    "content",
    [
        {"values": {"messages": MESSAGES}},
        {"messages": MESSAGES},
        MESSAGES,
        [{"values": {"messages": MESSAGES}}],
        {"messages": [{"type": item["type"], "data": item} for item in MESSAGES]},
        {"messages": [_kwargs(item) for item in MESSAGES]},
    ],
)
def test_messages_in_every_serialisation(read_as, content):
    (run,) = read_as("langchain", content)
    assert _steps(run) == EXPECTED
    assert (run.question, run.answer, run.ended_by) == ("Where was Ada Brook born?", "Lenn", "answer")
    assert (run.steps[0].tokens_in, run.steps[0].tokens_out) == (7, 8)


def _replay(*events):
    return "".join(f"event: {name}\ndata: {json.dumps(data)}\n\n" for name, data in events)


def _chunk(key, args, name=None, id=None, index=0):
    return (
        "tool_call_chunks",
        {"id": key, "tool_call_chunks": [{"name": name, "args": args, "id": id, "index": index}]},
    )


ASKED = ("message_chunk", {"id": "u", "role": "user", "content": "Where was Ada Brook born?"})
STREAM = (
    ASKED,
    ("message_chunk", {"id": "m1", "agent": "researcher", "role": "assistant", "reasoning_content": "I "}),
    ("message_chunk", {"id": "m1", "agent": "researcher", "role": "assistant", "reasoning_content": "search."}),
    (
        "tool_calls",
        {
            "id": "m1",
            "tool_calls": [{"name": "web_search", "args": {}, "id": "c1"}],
            "tool_call_chunks": [{"name": "web_search", "args": "", "id": "c1", "index": 0}],
        },
    ),
    _chunk("m1", '{"que'),
    _chunk("m1", 'ry": "Ada"}'),
    ("tool_call_result", {"id": "t1", "tool_call_id": "c1", "content": RESULTS}),
    ("message_chunk", {"id": "m2", "agent": "reporter", "role": "assistant", "content": "Le"}),
    ("message_chunk", {"id": "m2", "agent": "reporter", "role": "assistant", "content": "nn"}),
)


def test_a_replay_whose_arguments_arrive_in_pieces(read_as):
    (run,) = read_as("langchain", _replay(*STREAM))
    assert _steps(run) == [EXPECTED[0], EXPECTED[2]]
    assert (run.question, run.answer, run.meta) == (
        "Where was Ada Brook born?",
        "Lenn",
        {"agents": ["researcher", "reporter"]},
    )


def test_calls_without_ids_and_without_chunks(read_as):
    call = ("tool_calls", {"id": "m1", "tool_calls": [{"name": "web_search", "args": {"query": "Ada"}, "id": ""}]})
    (run,) = read_as(
        "langchain", _replay(ASKED, call, ("tool_call_result", {"id": "t", "tool_call_id": "", "content": RESULTS}))
    )
    assert _steps(run) == [("search", None, ("Ada",), None, ["url:lenn.org"])]


def test_a_replay_without_a_user_that_waits_for_one(read_as):
    handed = (
        "tool_calls",
        {"id": "m0", "tool_calls": [{"name": "handoff_to_planner", "args": {"task_title": "Find Ada"}}]},
    )
    plan = ("message_chunk", {"id": "m1", "content": "A plan.", "role": "assistant"})
    (run,) = read_as("langchain", _replay(handed, plan, ("interrupt", {"id": "i", "content": "Review the plan."})))
    assert (run.question, run.answer, run.ended_by) == ("Find Ada", None, "unknown")
    assert [step.kind for step in run.steps] == ["other", "other"]


def test_broken_events_are_problems_with_their_line(read_as, problems_as):
    text = "event: message_chunk\ndata: {broken\n\n" + _replay(*STREAM)
    found = read_as("langchain", text)
    assert "line 1: data: not JSON" in str(found[0])
    assert _steps(found[1]) == [EXPECTED[0], EXPECTED[2]]
    assert problems_as("langchain", "event: a\ndata: [1]\n\nevent: b\ndata: {}") == [
        "line 1: data: found a list; expected an object",
        ": found no question: no message of a user, no task handed on",
    ]


def test_what_is_no_thread_is_a_problem(problems_as):
    assert problems_as(
        "langchain", {"values": {"messages": None}}, {"messages": MESSAGES[2:]}, {"messages": MESSAGES[:2]}
    ) == [
        "line 1: messages: found null; expected a list",
        "line 2: found no human message",
        "line 3: found no message of the model",
    ]
