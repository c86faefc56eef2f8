import json

import pytest

from stopwise.data.importers import browsecomp_plus
from stopwise.data.records import Document, Step, Trajectory

FOUND = [{"docid": "7", "score": 0.5, "snippet": "Lenn is a town."}, {"docid": "8", "snippet": "Ada."}]
ANSWER = "Explanation: see [7].\nExact Answer: Lenn\nConfidence: 85%"
CALL = {"type": "tool_call", "tool_name": "search", "arguments": '{"query": "Ada"}', "output": json.dumps(FOUND)}


def _run(*result, **fields):
    return {
        "metadata": {"model": "m"},
        "query_id": "17",
        "tool_call_counts": {"search": 1},
        "usage": {},
        "status": "completed",
        "retrieved_docids": ["8", "7"],
        "result": list(result),
        **fields,
    }


def test_a_trace_step_by_step(read_as):
    (run,) = read_as(
        "browsecomp_plus",
        _run(
            {"type": "reasoning", "output": ["I ", "search."]},
            CALL,
            {"type": "reasoning", "output": [{"type": "text", "text": "I open."}]},
            {
                "type": "tool_call",
                "tool_name": "get_document",
                "arguments": {"docid": "7"},
                "output": '{"docid": "7", "text": "Full."}',
            },
            {"type": "output_text", "output": ANSWER},
        ),
    )
    assert run.steps == (
        Step(
            "search",
            thought="I\nsearch.",
            queries=("Ada",),
            documents=(Document("7", "Lenn is a town.", score=0.5, rank=1), Document("8", "Ada.", rank=2)),
        ),
        Step("open", thought="I open.", queries=("7",), documents=(Document("7", "Full.", rank=1),)),
        Step("answer", queries=(ANSWER,)),
    )
    assert (run.question_id, run.question, run.agent, run.dataset) == ("17", "query 17", "m", "browsecomp_plus")
    assert (run.answer, run.ended_by, run.meta) == ("Lenn", "answer", {"status": "completed", "confidence": 85.0})


def test_a_run_without_a_trace_is_said_to_be_one(problems_as):
    assert problems_as("browsecomp_plus", _run({"type": "output_text", "output": ANSWER})) == [
        "line 1: its trace is missing: 1 tool calls were made, result holds none of them"
    ]


@pytest.mark.parametrize(
    ("fields", "ended_by", "answer"),
    [
        ({}, "unknown", None),  # completed, without a search and without an answer
        ({"status": "incomplete"}, "budget", None),
        ({"status": "max_output_tokens"}, "budget", None),
        ({"status": "error: 500"}, "error", None),
        ({"result": [{"type": "output_text", "output": "Lenn"}]}, "answer", "Lenn"),
    ],
)
def test_ends(read_as, fields, ended_by, answer):
    empty = _run({"type": "output_text", "output": ""}, tool_call_counts={"search": 0})
    (run,) = read_as("browsecomp_plus", empty | fields)
    assert (run.ended_by, run.answer) == (ended_by, answer)


@pytest.mark.parametrize(
    ("output", "error"), [(None, "no result in the log"), ("[]", "no results"), ("Error: x", "Error: x")]
)
def test_calls_without_results(read_as, output, error):
    (run,) = read_as("browsecomp_plus", _run(CALL | {"output": output}))
    assert (run.steps[0].error, run.steps[0].documents, run.ended_by) == (error, (), "unknown")


@pytest.mark.parametrize(
    ("name", "text"),
    [("queries.tsv", "17\tWhere was Ada born?\n"), ("queries.jsonl", '{"_id": "17", "text": "Where was Ada born?"}')],
)
def test_questions_lie_beside_the_runs_or_above(tmp_path, name, text):
    folder = tmp_path / "runs" / "model"
    folder.mkdir(parents=True)
    (tmp_path / name).write_text(text)
    path = folder / "run_17.json"
    path.write_text(json.dumps(_run(CALL), indent=1))
    (run,) = browsecomp_plus.read(path)
    assert isinstance(run, Trajectory)
    assert (run.id, run.question, run.question_id) == ("run_17", "Where was Ada born?", "17")


def test_what_is_no_run_is_a_problem(problems_as):
    assert problems_as("browsecomp_plus", _run(result=None), _run(CALL, query_id=None), "x") == [
        "line 1: result: found null; expected a list",
        "line 2: query_id: found null, and no query text",
        "line 3: found text; expected a run object",
    ]
