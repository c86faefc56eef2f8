import pytest

from stopwise.data.importers import react
from stopwise.data.importers.toolbox import ImportProblem
from stopwise.data.records import Document, Step, Trajectory


@pytest.fixture
def read_text(tmp_path):
    def read(text: str) -> list:
        path = tmp_path / "log.txt"
        path.write_text(text, encoding="utf-8")
        return list(react.read(path))

    return read


def test_a_run_is_read_step_by_step(reflexion_log):
    run = next(react.read(reflexion_log))
    assert isinstance(run, Trajectory)
    page = (
        "The Mill Bridge is a stone bridge.\nIt was built in 1610 and crosses the Tarn.\nQuestion of its age: disputed."
    )
    assert run == Trajectory(
        id="trial-1-1",
        question_id=run.question_id,
        question="Which river does the Old Mill Bridge of Arden cross?",
        steps=(
            Step(
                "search",
                thought="I need to search Old Mill Bridge.",
                queries=("Old Mill Bridge",),
                error="Could not find [Old Mill Bridge]. Similar: ['Old Mill', 'Mill Bridge (Arden)', 'Bridge']",
            ),
            Step(
                "search",
                thought="The similar page is what I want.",
                queries=("Mill Bridge (Arden)",),
                documents=(Document("title:mill bridge (arden)", page, "Mill Bridge (Arden)", rank=1),),
            ),
            Step("answer", thought="It crosses the Tarn.", queries=("the Tarn",)),
        ),
        answer="the Tarn",
        correct=True,
        ended_by="answer",
        meta={"reference_answer": "Tarn", "trial": 1},
    )


def test_lookup_reads_on_in_the_page_found_last(reflexion_log):
    run = [found for found in react.read(reflexion_log) if isinstance(found, Trajectory)][1]
    assert [step.kind for step in run.steps] == ["search", "open", "open", "answer"]
    assert run.steps[1].documents == (
        Document("title:arden hall", "The painter Jo Fenn lived nearby.", "Arden Hall", rank=1),
    )
    assert (run.steps[2].error, run.steps[2].documents) == ("No Results", ())
    assert (run.outcome, run.answer) == ("incorrect", "Jo Fenn")


def test_a_halted_run_that_is_also_listed_as_incorrect_is_one_run(reflexion_log):
    runs = [found for found in react.read(reflexion_log) if isinstance(found, Trajectory)]
    assert [(run.id, run.outcome) for run in runs] == [
        ("trial-1-1", "correct"),
        ("trial-1-2", "incorrect"),
        ("trial-1-3", "halted"),
        ("trial-2-4", "halted"),  # the same text in another trial is another run
    ]
    assert runs[2].meta["labels"] == ["incorrect", "halted"]
    assert runs[2].question_id == runs[3].question_id
    assert runs[3].correct is None  # halted only: nobody judged it


def test_few_shot_examples_are_no_episodes(knowagent_log):
    first, second = react.read(knowagent_log)
    assert isinstance(first, Trajectory)
    assert first.question == "Where was Ada Brook born?"
    assert [(step.kind, step.queries, step.error is None) for step in first.steps] == [
        ("search", ("Ada Brook",), True),
        ("search", ("Lenn",), True),  # Retrieve asks for a page that was not at hand
        ("other", ("1+1",), False),
        ("other", (), False),
        ("answer", ("Lenn",), True),
    ]
    assert first.meta == {"reward": 1.0, "reference_answer": "Lenn town"}
    assert (first.answer, first.correct, first.outcome) == ("Lenn", True, "correct")
    assert isinstance(second, Trajectory)
    assert second.outcome == "halted"
    assert second.steps == (Step("search", "Search.", ("Ada",), error="no observation in the log"),)


def test_classic_transcripts_without_numbers(read_text):
    (run,) = read_text(
        "Question: Where?\nThought: Hm.\nAction: search[Lenn]\nObservation: A town.\nAction: finish[Lenn]\n"
    )
    assert [(step.kind, step.thought) for step in run.steps] == [("search", "Hm."), ("answer", None)]
    assert (run.id, run.correct, run.ended_by) == ("episode-1", None, "answer")


def test_unnumbered_words_inside_numbered_transcripts_are_text(read_text):
    (run,) = read_text("Question: Q?\nThought 1: a\nAction 1: Search[X]\nObservation 1: Page.\nAction: a film.\n")
    assert run.steps[0].documents[0].text == "Page.\nAction: a film."


def test_a_failed_search_leaves_no_page_to_look_up_in(read_text):
    (run,) = read_text(
        "Question: Q?\nThought 1: a\nAction 1: Search[X]\nObservation 1: Page.\n"
        "Thought 2: b\nAction 2: Search[Y]\nObservation 2: Could not find [Y].\n"
        "Thought 3: c\nAction 3: Lookup[z]\nObservation 3: (Result 1/1) A sentence.\n"
    )
    assert [document.id.split(":")[0] for document in run.steps[2].documents] == ["text"]
    assert run.ended_by == "unknown"


def test_right_to_left_text_emoji_nul_and_crlf(read_text):
    (run,) = read_text("Question: מי?\r\nThought 1: 🤔\0\r\nAction 1: Search[שלום]\r\nObservation 1: 😀 דף\r\n")
    assert (run.question, run.steps[0].thought, run.steps[0].queries) == ("מי?", "🤔\ufffd", ("שלום",))


@pytest.mark.parametrize(
    ("text", "where", "reason"),
    [
        ("Question: Alone?\n\nQuestion: Q?\nThought 1: a\nAction 1: Finish[b]\n", "line 1", "found no steps"),
        ('{"prompt": 7}\n', "line 1", "prompt: found a number; expected the transcript as text"),
        ('{"prompt": "nothing"}\n', "line 1", "found no line that begins with Question:"),
        ('{"prompt": "Question: a?\\n"}\n', "line 1", "found no Thought or Action"),
        ('[{"prompt": "Question: a?\\nThought: b"}, 7]', "record 2", "found a number; expected an object"),
    ],
)
def test_what_is_no_episode_is_a_problem_with_its_place(read_text, text, where, reason):
    problems = [found for found in read_text(text) if isinstance(found, ImportProblem)]
    assert [problem.where for problem in problems] == [where]
    assert reason in problems[0].reason
