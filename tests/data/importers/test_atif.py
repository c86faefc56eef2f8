import math

from stopwise.data.records import Logprobs

STEPS = [
    {"step_id": 1, "source": "system", "message": "Search."},
    {"step_id": 2, "source": "user", "message": "Where was Ada Brook born?"},
    {
        "step_id": 3,
        "source": "agent",
        "message": "",
        "reasoning_content": "I search.",
        "tool_calls": [
            {"tool_call_id": "c1", "function_name": "search", "arguments": {"query": "Ada"}},
            {"tool_call_id": "c2", "function_name": "search", "arguments": {"query": "Brook"}},
        ],
        "observation": {"results": [{"source_call_id": "c1", "content": '[{"id": "7", "text": "A town."}]'}]},
        "metrics": {"prompt_tokens": 7, "completion_tokens": 8, "logprobs": [-0.5, -math.inf]},
    },
    {"step_id": 4, "source": "agent", "message": "Lenn"},
]
RUN = {"schema_version": "ATIF-v1.4", "session_id": "s1", "agent": {"name": "a", "model_name": "m"}, "steps": STEPS}


def test_a_run_step_by_step(read_as):
    (run,) = read_as("atif", RUN)
    assert [(s.kind, s.thought, s.queries, s.error, [d.id for d in s.documents]) for s in run.steps] == [
        ("search", "I search.", ("Ada",), None, ["7"]),
        ("other", None, ("Brook",), "no result in the log", []),  # logged, but not executed
        ("answer", None, ("Lenn",), None, []),
    ]
    assert run.steps[0].logprobs == Logprobs(top=((-0.5,), (-math.inf,)))
    assert (run.steps[0].tokens_in, run.steps[0].tokens_out) == (7, 8)
    assert (run.id, run.agent, run.question, run.answer) == ("s1", "m", "Where was Ada Brook born?", "Lenn")


def test_what_is_no_run_is_a_problem(problems_as):
    assert problems_as("atif", {"steps": None}, RUN | {"steps": STEPS[2:]}, RUN | {"steps": STEPS[:2]}, 7) == [
        "line 1: steps: found null; expected a list",
        "line 2: found no question: no step of a user",
        "line 3: found no step of an agent",
        "line 4: steps: found a number; expected a list",
    ]
