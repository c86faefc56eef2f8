"""A step as an entry of memory: the session's text, the history before it, and what it teaches.

Memory is built from logs and asked by live agents with the same functions, so that both embed the same kind of text.
The texts are short: an encoder such as MiniLM reads 256 word pieces, and a critic reads several entries at once.
"""

from collections.abc import Sequence

from stopwise.controllers.memory.entries import Label
from stopwise.data.records import Step

EXTRACTIVE = "extractive@1"  # name of the abstraction without a model; a change of its rules changes the number

_THOUGHT = 400  # characters of the thought
_QUERIES = 250  # of all queries together
_SNIPPETS = 3  # results that are shown with text
_SNIPPET = 90  # characters of such a text
_QUESTION = 250


def session_text(question: str, step: Step) -> str:
    """The session s of [DS-MCM] 3.3.1: reasoning, action, feedback and the user's question, a line each.

    The question comes last: an encoder that cuts long texts then cuts what all steps of a run share.
    """
    lines = []
    if step.thought and step.thought.strip():
        lines.append(f"Thought: {_cut(step.thought, _THOUGHT)}")
    lines.append(f"Action: {step.kind} {_cut(' | '.join(step.queries), _QUERIES)}".rstrip())
    lines.append(f"Feedback: {_feedback(step)}")
    lines.append(f"Question: {_cut(question, _QUESTION)}")
    return "\n".join(lines)


def history_summary(steps: Sequence[Step]) -> str:
    """The summary h of the sessions before one ([DS-MCM] 3.3.1), extractive; empty at a first step.

    It says how many searches there were, what they brought, how often the agent repeated itself, and its last queries.
    """
    searches = [step for step in steps if step.kind == "search"]
    if not searches:
        return ""
    seen: set[str] = set()
    results = empty = repeated = 0
    asked: set[str] = set()
    for step in searches:
        results += len(step.documents)
        empty += not step.documents
        seen |= {document.id for document in step.documents}
        queries = {_key(query) for query in step.queries}
        repeated += bool(queries) and queries <= asked
        asked |= queries
    parts = [f"{len(searches)} {'search' if len(searches) == 1 else 'searches'} before, {results} results"]
    parts.append(f"{len(seen)} different documents")
    if empty:
        parts.append(f"{empty} found nothing")
    if repeated:
        parts.append(f"{repeated} repeated an earlier query")
    queries = [query for step in searches[-3:] for query in step.queries]
    lines = [", ".join(parts), f"Last queries: {_cut(' | '.join(queries), 300)}"]
    thought = searches[-1].thought
    if thought and thought.strip():
        lines.append(f"Last thought: {_cut(thought, 150)}")
    return "\n".join(lines)


def extract_abstraction(steps: Sequence[Step], label: Label) -> str:
    """The abstraction z of the last of `steps` without a language model: label-dependent, from what is countable.

    [DS-MCM] lets a model write z: effective behaviour for successes; for failures a diagnosis and an insight. This
    stand-in names what can be read off the step itself (a repeated query, nothing found, nothing new, a query that
    moved on, new documents) in both moods. It is named `EXTRACTIVE` wherever it is used.
    """
    step, earlier = steps[-1], steps[:-1]
    before = {document.id for other in earlier for document in other.documents}
    found = {document.id for document in step.documents}
    new = len(found - before)
    asked = {_key(query) for other in earlier if other.kind == "search" for query in other.queries}
    queries = {_key(query) for query in step.queries}
    repeated = bool(queries) and queries <= asked
    facts = []
    if repeated:
        facts.append("repeats an earlier query")
    if step.error:
        facts.append("meets an error of the tool")
    if not found:
        facts.append("finds nothing")
    elif new == 0:
        facts.append(f"finds {len(found)} documents, none of them new")
    else:
        facts.append(f"finds {len(found)} documents, {new} of them new")
    if len(step.queries) > 1:
        facts.append(f"asks {len(step.queries)} queries at once")
    if not (step.thought and step.thought.strip()):
        facts.append("gives no reason")
    behaviour = f"Behaviour: the agent {', '.join(facts)}."
    if label == "success":
        kept = "asks for what is still missing" if not repeated else "checks a lead again"
        insight = f"In a run that succeeded, this step {kept}."
        if new:
            insight += " Evidence keeps coming in."
        return f"{behaviour}\nWhat works: {insight}"
    if repeated:
        insight = "Insufficient acquisition of information: the same query cannot bring more. Ask for another clue."
    elif not found or step.error:
        insight = "The query has no match: use fewer or other words, or another part of the question."
    elif new == 0:
        insight = "Nothing new came in: the lead is exhausted. Take another part of the question."
    else:
        insight = "New documents came in and the run still failed: verify which clue they fit before following them."
    return f"{behaviour}\nWhat to improve: {insight}"


def _feedback(step: Step) -> str:
    if step.error:
        return f"error: {_cut(step.error, 150)}"
    if not step.documents:
        return "nothing was found"
    shown = [
        f"{_cut(document.title or document.id, 60)}: {_cut(document.text or '', _SNIPPET)}"
        for document in step.documents[:_SNIPPETS]
    ]
    return f"{len(step.documents)} results; {'; '.join(shown)}"


def _key(query: str) -> str:
    return " ".join(query.casefold().split())


def _cut(text: str, limit: int) -> str:
    plain = " ".join(text.split())
    return plain if len(plain) <= limit else f"{plain[: limit - 3].rstrip()}..."
