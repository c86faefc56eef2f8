"""The critic of [DS-MCM]: is something wrong with the step that was just made, and what would be better (3.3.2)?

`llm_critic` asks it about every step and shows it the run alone; the Slow Experience-Driven Monitor of `ds_mcm` asks it
about flagged steps and shows it what a memory holds of similar ones. Both read texts that others wrote: agents,
documents, earlier runs. They go between tags that they cannot close, and the prompts say that they are not to be
obeyed.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from stopwise.controllers.base import RunSoFar
from stopwise.controllers.memory.entries import Entry, Recalled
from stopwise.controllers.memory.sessions import history_summary
from stopwise.data.records import Step
from stopwise.models.prompts import load_prompt, quote

EARLIER = 8  # searches before the present one whose queries and titles are shown
DOCUMENT_CHARS = 500  # of a document's text
THOUGHT_CHARS = 800  # of the step's thought, and of a remembered session
SUGGESTION_CHARS = 600  # of a suggestion: it becomes part of what the agent reads


@dataclass(frozen=True, slots=True)
class Critique:
    """What the critic replies: (err, delta) of [DS-MCM] eq. 17."""

    err: Literal[0, 1]
    suggestion: str = ""


@dataclass(frozen=True, slots=True)
class Verdict:
    """A critique as it counts: without an error there is no suggestion, whatever was written ([DS-MCM] 3.3.2)."""

    err: bool
    suggestion: str | None

    @classmethod
    def of(cls, critique: Critique) -> "Verdict":
        """Read a critique."""
        if critique.err == 0:
            return cls(False, None)
        return cls(True, _cut(critique.suggestion, SUGGESTION_CHARS))


def check_critique(critique: Critique) -> str | None:
    """What is wrong with a critique of the right shape, or None."""
    if critique.err == 1 and not critique.suggestion.strip():
        return "err is 1 and the suggestion is empty; say what the agent should do instead"
    return None


def critic_prompt(run: RunSoFar) -> str:
    """The prompt of a critic without signals and without memory ([DS-MCM] 4.1.2)."""
    return load_prompt("critic").fill(**_shown(run))


def slow_monitor_prompt(run: RunSoFar, recalled: Recalled) -> str:
    """The prompt of C(s_t, R+, R-) ([DS-MCM] eq. 17)."""
    return load_prompt("slow_monitor").fill(
        **_shown(run),
        went_well=quote("went_well", show_entries(recalled.successes)),
        went_badly=quote("went_badly", show_entries(recalled.failures)),
    )


def show_step(step: Step) -> str:
    """A step as the critic reads it: thought, queries, and the documents, each cut."""
    thought = _cut(step.thought or "", THOUGHT_CHARS) or "(none)"
    lines = [f"Thought: {thought}", f"Queries: {' | '.join(' '.join(query.split()) for query in step.queries)}"]
    if not step.documents:
        lines.append(f"The tool failed: {_cut(step.error, DOCUMENT_CHARS)}" if step.error else "Nothing was found.")
    for number, document in enumerate(step.documents, start=1):
        lines.append(f"[{number}] {_cut(document.title or document.id, DOCUMENT_CHARS)}")
        lines += [text] if (text := _cut(document.text or "", DOCUMENT_CHARS)) else []
    return "\n".join(lines)


def show_earlier(steps: Sequence[Step]) -> str:
    """What came before: the summary h of [DS-MCM] eq. 11, then the latest searches with the titles they brought."""
    searches = [step for step in steps if step.kind == "search"]
    if not searches:
        return "This is the first search."
    lines = [history_summary(steps)]
    first = max(0, len(searches) - EARLIER)
    for number, step in enumerate(searches[first:], start=first + 1):
        titles = "; ".join(_cut(document.title or document.id, 80) for document in step.documents) or "nothing"
        lines.append(f"{number}. Searched: {_cut(' | '.join(step.queries), 200)}. Found: {titles}")
    return "\n".join(lines)


def show_entries(entries: Sequence[Entry]) -> str:
    """Remembered sessions with what was learnt from them."""
    if not entries:
        return "Nothing similar is remembered."
    return "\n\n".join(
        f"{number}. {_cut(entry.session, THOUGHT_CHARS)}\nLearnt: {_cut(entry.abstraction, THOUGHT_CHARS)}"
        for number, entry in enumerate(entries, start=1)
    )


def _shown(run: RunSoFar) -> dict[str, str]:
    return {
        "question": quote("question", run.question),
        "earlier": quote("earlier", show_earlier(run.steps[:-1])),
        "step": quote("step", show_step(run.steps[-1])),
    }


def _cut(text: str, limit: int) -> str:
    plain = " ".join(text.split())
    return plain if len(plain) <= limit else f"{plain[:limit].rstrip()}..."
