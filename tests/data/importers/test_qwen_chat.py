import json

import pytest

from stopwise.data.importers.conversation import UNANSWERED

SYSTEM = {"role": "system", "content": "You are a seeker."}
ASKED = {
    "role": "user",
    "content": "Write <tool_call>{...}</tool_call> and wait for <tool_response>..</tool_response>.\n"
    "User: Where was Ada Brook born?",
}
LIST = """A Google search for '{}' found 1 results:

## Web Results
1. [Lenn](http://lenn.org)

A town.
"""


def _call(name, **arguments):
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def _said(text):
    return {"role": "assistant", "content": text}


def _response(*texts):
    return {"role": "user", "content": "\n".join(f"<tool_response>\n{text}\n</tool_response>" for text in texts)}


def test_a_run_step_by_step(read_as):
    (run,) = read_as(
        "qwen_chat",
        {
            "messages": [
                SYSTEM,
                ASKED,
                _said("<think>\nI search.\n</think>\n" + _call("search", query=["Ada", "Brook"])),
                _response(LIST.format("Ada") + "=======\n" + LIST.format("Brook")),
                _said("<think>I visit.</think>" + _call("visit", url="http://lenn.org", goal="born")),
                _response("Ada was born here."),
                _said("<think>Done.</think>\n<answer>\nLenn\n</answer>"),
            ],
            "answer": [["Lenn"]],
            "tag": "mine",
        },
    )
    assert run.question == "Where was Ada Brook born?"
    assert [(step.kind, step.thought, step.queries) for step in run.steps] == [
        ("search", "I search.", ("Ada", "Brook")),
        ("open", "I visit.", ("http://lenn.org",)),
        ("answer", "Done.", ("Lenn",)),
    ]
    assert [(d.id, d.rank, d.text) for d in run.steps[0].documents] == [("url:lenn.org", 1, "A town.")] * 2
    assert [d.id for d in run.steps[1].documents] == ["url:lenn.org"]
    assert (run.answer, run.ended_by, run.dataset, run.meta) == ("Lenn", "answer", "mine", {"reference_answer": "Lenn"})


def test_a_forced_end_is_no_decision(read_as):
    forced = (
        "You have now reached the maximum context length you can handle. You should stop making tool calls and, based "
        "on all the information above, think again and provide what you consider the most likely answer."
    )
    (run,) = read_as(
        "qwen_chat",
        {
            "question": "Where?",
            "messages": [
                ASKED,
                _said("<think>a</think>" + _call("search", query=["Ada"])),
                {"role": "user", "content": forced},
                _said("<think>b</think><answer>Oss</answer>"),
            ],
            "prediction": "Oss",
            "termination": "generate an answer as token limit reached",
        },
    )
    assert (run.ended_by, run.answer, run.outcome) == ("budget", "Oss", "halted")
    assert (run.steps[0].error, run.steps[0].documents) == (UNANSWERED, ())
    assert run.meta["termination"] == "generate an answer as token limit reached"


@pytest.mark.parametrize(
    ("termination", "ended_by"),
    [("answer", "answer"), ("exceed available llm calls", "budget"), ("format error: x", "error"), (None, "answer")],
)
def test_terminations(read_as, termination, ended_by):
    (run,) = read_as("qwen_chat", {"messages": [ASKED, _said("<answer>Lenn</answer>")], "termination": termination})
    assert run.ended_by == ended_by


def test_calls_that_are_no_json_or_only_thought_of(read_as):
    (run,) = read_as(
        "qwen_chat",
        {
            "messages": [
                ASKED,
                _said(
                    "<think>Maybe <tool_call>{..}</tool_call></think>"
                    "<tool_call>{'name': 'search', 'arguments': {'query': 'a'}}"
                ),
                _response("No results found for 'a'. Try another query."),
                _said('<tool_call>{"name": "search", "arguments": {"query": ["b"}</tool_call>'),
                _response("Error: invalid JSON"),
                _said("<tool_call>\n<code>\nprint(web_search('c'))\n</code>\n</tool_call>"),
                _response("A town."),
            ]
        },
    )
    assert [(step.kind, step.queries, step.error) for step in run.steps] == [
        ("search", ("a",), "No results found for 'a'. Try another query."),
        ("search", ('{"name": "search", "arguments": {"query": ["b"}',), "Error: invalid JSON"),
        ("search", ("c",), None),
    ]
    assert run.ended_by == "unknown"


def test_what_is_no_chat_is_a_problem(problems_as):
    assert problems_as("qwen_chat", {"messages": 7}, {"messages": [ASKED]}, {"messages": [_said("a")]}, [7]) == [
        "line 1: messages: found a number; expected a list",
        "line 2: found no message of an assistant",
        "line 3: found no question: no message of a user",
        "line 4, record 1: found a number; expected an object with messages",
    ]
