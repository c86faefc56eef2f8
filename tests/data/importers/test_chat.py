import json

import pytest

from stopwise.data.importers.tools import TOOLS
from stopwise.data.records import Logprobs

RESULTS = json.dumps([{"id": "d1", "title": "Ada Brook", "text": "Born in Lenn.", "score": 0.5}])
MESSAGES = [
    {"role": "system", "content": "Search."},
    {"role": "user", "content": [{"type": "text", "text": "Where was Ada Brook born?"}]},
    {
        "role": "assistant",
        "content": None,
        "reasoning_content": "I search.",
        "tool_calls": [
            {"id": "c1", "type": "function", "function": {"name": "search", "arguments": '{"query": "Ada"}'}}
        ],
        "logprobs": {"content": [{"token": "x", "logprob": -0.5, "top_logprobs": []}]},
    },
    {"role": "tool", "tool_call_id": "c1", "content": RESULTS},
    {"role": "assistant", "content": "Explanation: [d1]\nExact Answer: Lenn\nConfidence: 90%"},
]


@pytest.mark.parametrize(
    "content",
    [
        {"messages": MESSAGES},
        MESSAGES,
        [{"messages": MESSAGES}],
        {"messages": MESSAGES[:-1], "choices": [{"message": MESSAGES[-1]}]},
    ],
)
def test_openai_messages_wherever_they_lie(read_as, content):
    (run,) = read_as("chat", content)
    assert run.question == "Where was Ada Brook born?"
    search, answer = run.steps
    assert (search.kind, search.thought, search.queries) == ("search", "I search.", ("Ada",))
    assert search.logprobs == Logprobs(top=((-0.5,),))
    assert [(d.id, d.text, d.score, d.rank) for d in search.documents] == [("d1", "Born in Lenn.", 0.5, 1)]
    assert (answer.kind, run.answer, run.meta, run.ended_by) == ("answer", "Lenn", {"confidence": 90.0}, "answer")


def test_what_a_row_says_beside_its_messages(read_as):
    (run,) = read_as(
        "chat",
        {
            "id": 7,
            "query_id": "q7",
            "messages": MESSAGES,
            "model": "m",
            "answer": [["Lenn"], "Lenn town"],
            "correct": "unknown",
            "metadata": {"dataset": "mine"},
        },
    )
    assert (run.id, run.question_id, run.agent, run.dataset, run.correct) == ("7", "q7", "m", "mine", None)
    assert run.meta["reference_answers"] == ["Lenn", "Lenn town"]


def test_a_tool_may_be_named_a_search(read_as):
    messages = json.loads(json.dumps(MESSAGES).replace('"name": "search"', '"name": "oracle"'))
    (run,) = read_as("chat", {"messages": messages})
    assert run.steps[0].kind == "other"
    (run,) = read_as("chat", {"messages": messages}, tools=TOOLS.with_search(["oracle"]))
    assert run.steps[0].kind == "search"


def test_a_crashed_run_with_null_messages(read_as, problems_as):
    (run,) = read_as("chat", {"messages": None, "question": "Where?"}, detect=False)
    assert (run.outcome, run.steps) == ("halted", ())
    assert problems_as("chat", {"history": None}) == [
        "line 1: its messages are null (a crashed run), and no question is given"
    ]


OWL = [
    {
        "user": "Find news of Lenn.",
        "assistant": "It has news.",
        "tool_calls": [
            {"tool_name": "search_bing", "args": {"query": "Lenn"}, "result": {"warning": "No results found."}},
            {
                "tool_name": "search_baidu",
                "args": {"query": "Lenn"},
                "result": {"results": [{"result_id": 1, "title": "Lenn", "description": "", "url": "http://l.org"}]},
                "tool_call_id": "c",
            },
        ],
    },
    {
        "user": "Write it down.",
        "assistant": "Done.",
        "tool_calls": [{"tool_name": "write_to_file", "args": {}, "result": "ok"}],
    },
    {"user": "End.", "assistant": "The news is good.", "tool_calls": None},
]


@pytest.mark.parametrize("content", [OWL, {"history": OWL}])
def test_owl_rounds_with_inline_results(read_as, content):
    (run,) = read_as("chat", content)
    assert [(step.kind, step.queries, step.error) for step in run.steps] == [
        ("search", ("Lenn",), "No results found."),
        ("search", ("Lenn",), None),
        ("other", (), None),
        ("other", (), None),
        ("other", (), None),
        ("answer", ("The news is good.",), None),
    ]
    assert [document.id for document in run.steps[1].documents] == ["url:l.org"]
    assert run.question == "Find news of Lenn."


def _fireact(traj, **fields):
    return {
        "17": {
            "reward": False,
            "em": False,
            "f1": 0.5,
            "gt": "lenn",
            "pred": "oss",
            "prompt": [],
            "traj": traj,
            **fields,
        }
    }


FIREACT = [
    {"role": "user", "content": "Where was Ada Brook born?"},
    {"role": "assistant", "content": "Thought: Hm.\nAction: search[Ada]\nThought: Again.\nAction: search[Brook]"},
    {"role": "user", "content": "Observation: Born in Lenn, they say."},
    {"role": "assistant", "content": "Thought: More.\nAction: search[Lenn]"},
    {"role": "user", "content": "Observation: None"},
    {"role": "assistant", "content": "Thought: Enough.\nAction: finish[Oss]"},
    {"role": "user", "content": "Observation: Episode finished, reward = False"},
]


def test_fireact_turns(read_as):
    (run,) = read_as("chat", _fireact(FIREACT))
    assert (run.id, run.question, run.answer, run.correct) == ("17", "Where was Ada Brook born?", "oss", False)
    assert [(step.kind, step.thought, step.queries, step.error) for step in run.steps] == [
        ("search", "Hm.", ("Ada",), None),
        ("other", "Again.\nsearch[Brook]", (), "written in the same turn, but not executed"),
        ("search", "More.", ("Lenn",), "no results"),
        ("answer", "Enough.", ("Oss",), None),
    ]
    (document,) = run.steps[0].documents
    assert (document.text, document.title, document.id[:5]) == ("Born in Lenn, they say.", None, "text:")
    assert run.meta == {"reference_answer": "lenn", "f1": 0.5}


def test_fireact_as_one_text(read_as):
    text = "Where was Ada Brook born?\nThought: Hm.\nAction: search[Ada]\nObservation: Born in Lenn.\n"
    (run,) = read_as("chat", _fireact(text, pred=None))
    assert (run.question, run.answer, run.ended_by) == ("Where was Ada Brook born?", None, "unknown")
    assert len(run.steps) == 1


def test_what_is_no_conversation_is_a_problem(problems_as):
    rows = (7, {"messages": []}, {"messages": [{"role": "user", "content": "?"}]}, {"traj": 7}, {"traj": []})
    assert problems_as("chat", *rows) == [
        "line 1: found a number; expected an object with messages",
        "line 2: found no list of messages",
        "line 3: found no message of an assistant",
        "line 4: traj: found a number; expected turns or text",
        "line 5: traj: found no question with Thought or Action",
    ]
    assert problems_as("chat", {"messages": MESSAGES[2:]}) == ["line 1: found no question: no message of a user"]
