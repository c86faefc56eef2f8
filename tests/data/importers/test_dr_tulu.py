import pytest

from stopwise.data.records import Document, Step

DOCUMENT = {"id": "uuid", "title": "Lenn", "url": "http://lenn.org", "snippet": "A town.", "text": None, "score": None}


def _call(name="google_search", **fields):
    return {
        "tool_name": name, "query": "Ada", "output": "", "called": True, "timeout": False, "runtime": 1.5, "error": "",
        "call_id": "c", "documents": [], **fields,
    }  # fmt: skip


def _row(*calls, text="", **fields):
    return {
        "example_id": 17,
        "problem": "Where was Ada Brook born?",
        "final_response": "Lenn",
        "full_traces": {"generated_text": text, "tool_calls": list(calls), "stopped_reason": "natural"},
        "original_data": {"answer": "Lenn town", "dataset_name": "mine"},
        **fields,
    }


def test_a_run_step_by_step(read_as):
    text = (
        '<think>I search.</think><call_tool name="google_search">Ada</call_tool><tool_output><snippet id=a-0>x'
        '</snippet></tool_output><think>I browse.</think><call_tool name="browse_webpage">http://lenn.org</call_tool>'
        "<tool_output>y</tool_output><think>Done.</think><answer>Lenn</answer>"
    )
    (run,) = read_as(
        "dr_tulu",
        _row(
            _call(documents=[DOCUMENT, DOCUMENT | {"id": "other", "url": "", "text": "Full."}, {"error": "404"}]),
            _call("browse_webpage", query=None, output="Ada was born here."),
            text=text,
        ),
    )
    assert run.steps == (
        Step(
            "search",
            thought="I search.",
            queries=("Ada",),
            documents=(
                Document("url:lenn.org", "A town.", "Lenn", "http://lenn.org", rank=1),
                Document("title:lenn", "Full.", "Lenn", rank=2),
            ),
            seconds=1.5,
        ),
        Step(
            "open",
            thought="I browse.",
            queries=("http://lenn.org",),
            documents=(Document("url:lenn.org", "Ada was born here.", url="http://lenn.org", rank=1),),
            seconds=1.5,
        ),
        Step("answer", thought="Done.", queries=("Lenn",)),
    )
    assert (run.id, run.question_id, run.dataset, run.answer, run.correct) == ("17", "17", "mine", "Lenn", None)
    assert run.meta == {"reference_answer": "Lenn town", "stop_reason": "natural"}


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"error": "No results found for the query."}, "No results found for the query."),
        ({"timeout": True}, "timed out"),
        ({"called": False}, "was not executed"),
        ({"output": ""}, "no results"),
        ({"output": "**Error:** Forbidden"}, "**Error:** Forbidden"),
    ],
)
def test_tool_errors_are_steps_without_documents(read_as, fields, error):
    (run,) = read_as("dr_tulu", _row(_call(**fields)))
    assert (run.steps[0].error, run.steps[0].documents) == (error, ())


def test_output_text_where_the_documents_are_missing(read_as):
    (run,) = read_as(
        "dr_tulu", _row(_call(output="Title: Lenn\nURL: http://lenn.org\nSnippet: A town.", documents=None))
    )
    assert [(d.id, d.text) for d in run.steps[0].documents] == [("url:lenn.org", "A town.")]


def test_ends_and_crashes(read_as, problems_as):
    row = _row(_call(), final_response=None)
    row["full_traces"]["stopped_reason"] = "max_tool_calls"
    (run,) = read_as("dr_tulu", row)
    assert (run.ended_by, run.answer) == ("budget", None)
    assert problems_as("dr_tulu", {"full_traces": None}, _row(final_response=None), {"full_traces": {}}, [3]) == [
        "line 1: found null; expected an object with full_traces",
        "line 2: full_traces: found neither a tool call nor a final response",
        "line 3: problem: found no question",
        "line 4, record 1: found a number; expected an object with full_traces",
    ]
