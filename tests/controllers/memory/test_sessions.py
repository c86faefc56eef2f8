import pytest

from stopwise.controllers.memory.sessions import extract_abstraction, history_summary, session_text
from stopwise.data.records import Document, Step


def search(query: str, *ids: str, thought: str | None = "I try.", error: str | None = None) -> Step:
    documents = tuple(Document(id, text=f"text of {id}", title=f"Title {id}") for id in ids)
    return Step("search", thought=thought, queries=(query,), documents=documents, error=error)


def test_session_text_holds_reasoning_action_feedback_and_question() -> None:
    assert session_text("Who  wrote it?", search("author of it", "a", "b")) == (
        "Thought: I try.\n"
        "Action: search author of it\n"
        "Feedback: 2 results; Title a: text of a; Title b: text of b\n"
        "Question: Who wrote it?"
    )


def test_session_text_without_thought_and_with_error() -> None:
    assert session_text("Who?", search("it", thought=None, error="timeout")) == (
        "Action: search it\nFeedback: error: timeout\nQuestion: Who?"
    )
    assert "Feedback: nothing was found" in session_text("Who?", search("it"))


def test_session_text_is_bounded() -> None:
    long = "word " * 100_000
    step = Step("search", long, (long,) * 5, (Document("a", long, long),) * 50, error=None)
    assert len(session_text(long, step)) < 1600


def test_history_counts_and_shows_the_last_queries() -> None:
    # 2 + 2 + 0 + 1 results, a b c d different; the third repeats the first query, in other letters, and finds nothing
    steps = [search("one", "a", "b"), search("two", "b", "c"), search(" ONE "), search("three", "d", thought=None)]
    assert history_summary(steps) == (
        "4 searches before, 5 results, 4 different documents, 1 found nothing, 1 repeated an earlier query\n"
        "Last queries: two | ONE | three"
    )
    assert history_summary(steps[:1]) == (
        "1 search before, 2 results, 2 different documents\nLast queries: one\nLast thought: I try."
    )
    assert history_summary([]) == ""
    assert history_summary([Step("open", queries=("a page",))]) == ""


def test_abstraction_depends_on_the_label() -> None:
    steps = [search("one", "a"), search("two", "a", "b")]
    success = extract_abstraction(steps, "success")
    failure = extract_abstraction(steps, "failure")
    assert success.splitlines()[0] == "Behaviour: the agent finds 2 documents, 1 of them new."
    assert failure.splitlines()[0] == success.splitlines()[0]
    assert success.splitlines()[1].startswith("What works: ")
    assert failure.splitlines()[1].startswith("What to improve: ")


@pytest.mark.parametrize(
    ("step", "behaviour", "insight"),
    [
        (search("one", "a"), "repeats an earlier query, finds 1 documents, none of them new", "the same query"),
        (search("two", "a"), "finds 1 documents, none of them new", "Nothing new came in"),
        (search("two", error="no results"), "meets an error of the tool, finds nothing", "The query has no match"),
        (search("two", "b", thought=None), "finds 1 documents, 1 of them new, gives no reason", "verify which clue"),
    ],
)
def test_failures_are_told_apart(step: Step, behaviour: str, insight: str) -> None:
    found = extract_abstraction([search("one", "a"), step], "failure")
    assert f"the agent {behaviour}." in found
    assert insight in found
