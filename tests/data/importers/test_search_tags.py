import json

import pytest

from stopwise.data.importers import search_tags
from stopwise.data.importers.search_tags import tagged_steps
from stopwise.data.importers.toolbox import ImportProblem
from stopwise.data.records import Document, Step, Trajectory


def _trajectories(path) -> list[Trajectory]:
    found = list(search_tags.read(path))
    assert all(isinstance(item, Trajectory) for item in found)
    return found  # pyright: ignore[reportReturnType]


def test_a_row_is_read_step_by_step(r1_log):
    run = _trajectories(r1_log)[0]
    assert run.steps == (
        Step(
            "search",
            thought='I search for "',
            queries=("Ada Brook",),
            documents=(
                Document("title:ada brook", "Ada Brook (1810) was an engineer.", "Ada Brook", rank=1),
                Document("title:lenn (town)", 'Lenn, called "the Hill", is a town.', "Lenn (town)", rank=2),
                Document("title:brook", "A brook is a small river (2) of water.", "Brook", rank=3),
            ),
        ),
        Step("search", thought="Now the town.", queries=("Lenn",), error="No results found."),
        Step("answer", queries=("Lenn",)),
    )
    assert (run.id, run.answer, run.correct, run.ended_by) == ("row-1", "Lenn", True, "answer")
    assert run.meta == {"reference_answer": "Lenn", "stop_reason": "finished"}


def test_no_search_at_all_and_nested_references(r1_log):
    run = _trajectories(r1_log)[1]
    assert run.steps == (Step("answer", thought="I know it.", queries=("Oss",)),)
    assert (run.correct, run.meta["reference_answers"]) == (False, ["Lenn", "Lenn town"])


def test_a_third_verdict_is_no_failure_and_a_cut_query_is_a_step_with_an_error(r1_log):
    run = _trajectories(r1_log)[2]
    assert run.correct is None
    assert (run.ended_by, run.outcome, run.answer) == ("budget", "halted", None)
    assert run.steps == (Step("search", thought="Hm.", queries=("Ada Brook",), error="no documents in the log"),)


def test_runs_of_one_question_share_its_id(r1_log):
    assert len({run.question_id for run in _trajectories(r1_log)}) == 1


def test_search_r1_text_leaves_the_instructions_out(search_r1_log):
    (run,) = _trajectories(search_r1_log)
    assert (run.question, run.answer, run.correct) == ("where was ada brook born?", "Lenn", None)
    assert [(step.kind, step.queries, step.thought) for step in run.steps] == [
        ("search", ("Ada Brook born",), "I need her birth place."),
        ("search", ("Lenn county",), "So it is Lenn."),
        ("answer", ("Lenn",), None),
    ]
    assert [(d.id, d.rank, d.text) for d in run.steps[0].documents] == [
        ("title:ada brook", 1, "Ada Brook was born in Lenn."),
        ("title:lenn", 2, "Lenn is a town."),
        ("title:lenn", 3, "The market of Lenn."),
    ]
    assert run.steps[1].error == "no documents came back"


def test_a_bare_generation_under_its_question(tmp_path):
    path = tmp_path / "log.txt"
    path.write_text("Question: Where is Lenn?\n<search>Lenn</search><information>A town.</information>")
    (run,) = _trajectories(path)
    assert (run.question, run.ended_by, len(run.steps)) == ("Where is Lenn?", "unknown", 1)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("<search>a</search><search>b</search><information>D</information>", [("a", 0), ("b", 1)]),
        ("<|begin_search_query|>a<|end_search_query|><|begin_search_result|>D<|end_search_result|>", [("a", 1)]),
        ("<search>a</search><result>D <search> e", [("a", 1), ("e", 0)]),
        ("<search>a<information>D</information>", [("a", 1)]),
    ],
)
def test_dialects_and_tags_that_are_not_closed(text, expected):
    steps = [step for step in tagged_steps(text) if step.kind == "search"]
    assert [(step.queries[0], len(step.documents)) for step in steps] == expected


def test_tools_named_in_the_tag():
    text = (
        '<think>I search.</think><call_tool name="google_search" num="5">Ada</call_tool><tool_output><snippet id=a-0>\n'
        "Title: Lenn\nURL: http://lenn.org\nSnippet: A town.\n</snippet>\n<snippet id=a-1>\nTitle: Ada\nSnippet: Who?\n"
        '</snippet></tool_output>I browse.<call_tool name="browse_webpage">http://lenn.org</call_tool>'
        "<tool_output>Ada was born here.</tool_output><answer>Lenn</answer>"
    )
    steps = list(tagged_steps(text))
    assert [(s.kind, s.thought, s.queries, [(d.id, d.text) for d in s.documents]) for s in steps] == [
        ("search", "I search.", ("Ada",), [("url:lenn.org", "A town."), ("title:ada", "Who?")]),
        ("open", "I browse.", ("http://lenn.org",), [("url:lenn.org", "Ada was born here.")]),
        ("answer", None, ("Lenn",), []),
    ]


def test_prose_without_an_answer_is_kept():
    assert list(tagged_steps("<think>I stop here")) == [Step("other", thought="I stop here")]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("7", "found a number; expected an object"),
        ('{"question": "Q?"}', "found no generated text"),
        ('{"gen_text_store": "<answer>a</answer>"}', "question: found null; expected text"),
        ('{"question": "Q?"', "not JSON"),
    ],
)
def test_a_bad_row_is_a_problem_and_the_rest_goes_on(tmp_path, r1_rows, line, reason):
    path = tmp_path / "log.jsonl"
    path.write_text(f"{json.dumps(r1_rows[0])}\n{line}\n{json.dumps(r1_rows[1])}\n")
    first, problem, last = search_tags.read(path)
    assert isinstance(problem, ImportProblem)
    assert (problem.where, reason in problem.reason) == ("line 2", True)
    assert isinstance(first, Trajectory)
    assert isinstance(last, Trajectory)
