import json

import pytest

from stopwise.data.records import Logprobs

ASKED = {"role": "user", "content": [{"type": "input_text", "text": "Where was Ada Brook born?"}]}
RESULTS = json.dumps([{"id": "7", "text": "Lenn is a town."}])
ITEMS = [
    {"type": "reasoning", "summary": [{"type": "summary_text", "text": "I search."}]},
    {"type": "function_call", "call_id": "c1", "name": "search", "arguments": '{"query": "Ada"}'},
    {"type": "function_call", "call_id": "c2", "name": "search", "arguments": '{"query": "Brook"}'},
    {"type": "function_call_output", "call_id": "c2", "output": "Error: quota"},
    {"type": "function_call_output", "call_id": "c1", "output": RESULTS},
    {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "Enough."}]},
    {
        "type": "message",
        "role": "assistant",
        "content": [
            {"type": "output_text", "text": "Lenn", "logprobs": [{"token": "L", "logprob": -0.5, "top_logprobs": []}]}
        ],
    },
]


@pytest.mark.parametrize(
    "content",
    [
        {"id": "r1", "input": [ASKED], "output": ITEMS, "status": "completed"},
        {"input": "Where was Ada Brook born?", "output": ITEMS},
        [ASKED, *ITEMS],
        [{"items": [ASKED, *ITEMS]}],
        {"question": "Where was Ada Brook born?", "response": {"output": ITEMS}},
    ],
)
def test_items_wherever_they_lie(read_as, content):
    (run,) = read_as("responses", content)
    assert run.question == "Where was Ada Brook born?"
    assert [(s.kind, s.thought, s.queries, [d.id for d in s.documents]) for s in run.steps] == [
        ("search", "I search.", ("Ada", "Brook"), ["7"]),
        ("answer", "Enough.", ("Lenn",), []),
    ]
    assert run.steps[1].logprobs == Logprobs(top=((-0.5,),))
    assert (run.answer, run.ended_by) == ("Lenn", "answer")


def test_built_in_searches_hold_queries_but_no_documents(read_as):
    items = [
        {"type": "web_search_call", "id": "w", "action": {"type": "search", "query": "Ada"}},
        {"type": "web_search_call", "id": "w", "action": {"type": "open_page", "url": "http://lenn.org"}},
        {
            "type": "file_search_call",
            "id": "f",
            "queries": ["Ada", "Lenn"],
            "results": [{"file_id": "x", "text": "t", "score": 0.5}],
        },
    ]
    (run,) = read_as("responses", [ASKED, *items])
    assert [(s.kind, s.queries, len(s.documents)) for s in run.steps] == [
        ("search", ("Ada", "Ada", "Lenn"), 1),
        ("open", ("http://lenn.org",), 0),
    ]
    (run,) = read_as("responses", [ASKED, *items[:1]])
    assert run.steps[0].error == "results not in the log"


@pytest.mark.parametrize(
    ("status", "ended_by"), [("incomplete", "budget"), ("failed", "error"), ("completed", "unknown")]
)
def test_ends(read_as, status, ended_by):
    (run,) = read_as(
        "responses", {"input": [ASKED], "output": ITEMS[:5], "status": status, "usage": {"input_tokens": 7}}
    )
    assert run.ended_by == ended_by


def test_what_is_no_response_is_a_problem(problems_as):
    assert problems_as(
        "responses", {"a": 1}, {"output": ITEMS}, {"input": [ASKED], "output": [{"type": "x_call_output"}]}
    ) == [
        "line 1: found an object; expected an object with output items",
        "line 2: found no question: no message of a user",
        "line 3: found no item of the model",
    ]
