"""Scripted search agents: explicit policies with sticky modes, whose parameters are drawn for every episode.

An agent is in one of three modes and stays there for a while: it *explores* (new clues, new candidates), *loops*
(the same ground in other words) or *verifies* (what it believes already). Every choice is a draw from an explicit
distribution, and the log-probabilities of those distributions are what a log of it holds: its reasoning entropy is
the entropy of its own policy. What it notices in a document is luck of its own (not part of the policy, not logged).
"""

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from stopwise.data.records import Document, Logprobs, Step
from stopwise.envs.arena.belief import UNKNOWN, Belief
from stopwise.envs.arena.chance import Chance, Choice, choose, softmax_weights
from stopwise.envs.arena.kinds import AgentKind
from stopwise.envs.arena.moves import (
    Move,
    chase_moves,
    clue_moves,
    confirm_moves,
    drift_moves,
    repeat_moves,
    rewordings,
)
from stopwise.envs.arena.puzzle import Finding, Puzzle, Reader

SEARCH_CAP = 100  # searches that no agent exceeds
RESTART = 0.3  # probability that the second search is the whole question once more, reworded

Mode = Literal["explore", "loop", "verify"]


@dataclass(frozen=True, slots=True)
class Turn:
    """What an agent does next."""

    kind: Literal["search", "answer", "cut"]  # cut: out of budget, without an answer
    thought: str
    queries: tuple[str, ...] = ()  # of a search; more than one are sent in parallel
    answer: str | None = None  # of an answer
    logprobs: Logprobs | None = None  # one position for each random choice of this turn


class Agent(Protocol):
    """The small contract between an agent and the loop that runs it."""

    kind: str

    def turn(self) -> Turn:
        """Decide what to do next."""
        ...

    def observe(self, documents: Sequence[Document]) -> None:
        """Read what the last search brought."""
        ...

    def probe(self, history: Sequence[Step]) -> str | None:
        """The answer that it would give after `history`, or None; changes nothing, draws nothing."""
        ...

    def send_on(self) -> None:
        """Its attempt to answer was refused."""
        ...

    def intervene(self, queries: Sequence[str], documents: Sequence[Document], *, redirects: bool) -> None:
        """Read the results of an injected turn; if it `redirects` and the agent obeys, change course."""
        ...

    def fork(self, seed: str | None = None) -> "Agent":
        """An independent copy; without a seed it goes on in the same way, with one by that seed's random numbers."""
        ...


class ScriptedAgent:
    """An agent that follows explicit rules; see the module's text.

    Args:
        kind: its population.
        puzzle: the question.
        reader: what can be read out of documents.
        seed: of the episode; the same seed and the same results give the same run.
    """

    def __init__(self, kind: AgentKind, puzzle: Puzzle, reader: Reader, seed: str) -> None:
        self.kind = kind.name
        self.mode: Mode = "explore"
        self._chance = Chance(seed)
        self.temper = kind.draw(self._chance)
        self._puzzle = puzzle
        self._reader = reader
        self._belief = Belief.empty(puzzle)
        self._turn = 0  # searches made or injected
        self._history: list[str] = []  # full wordings of the searches
        self._asked: dict[str, int] = {}  # how often each full wording was searched
        self._names: list[str] = []  # names that stood in results, in order
        self._visits: dict[str, int] = {}  # how often each document came back
        self._dry = 0  # turns since the last news
        self._verified = 0  # turns spent in the current verification
        self._loop: list[str] = []  # searches that the loop goes around
        self._notes: list[Finding] | None = [] if kind.memory else None  # the memory bank

    @property
    def coverage(self) -> float:
        """Believed coverage, in [0, 1]."""
        return self._belief.coverage

    def turn(self) -> Turn:
        """Draw the next search; answer when satisfied or out of patience; end when out of budget."""
        if self._turn >= min(int(self.temper.budget), SEARCH_CAP):
            return Turn("cut", "My budget is used up.")
        if self._dry >= int(self.temper.patience):
            return self._answer("Nothing new has come up for a while.")
        if self.mode == "verify" and self._verified > self.temper.verify_turns:
            if self._belief.coverage >= self.temper.satisfied:
                return self._answer("Everything that I could check fits.")
            self.mode = "explore"
        drawn: list[Choice] = []
        self._change_mode(drawn)
        moves = [self._move(drawn, "first")]
        if self._turn > 0 and self.temper.parallel > 0:
            choice = choose((1 - self.temper.parallel, self.temper.parallel), self._number("parallel"))
            drawn.append(choice)
            if choice.index == 1:
                moves.append(self._move(drawn, "second"))
        queries = [self._wording(move, drawn, number) for number, move in enumerate(moves)]
        for move in moves:
            self._asked[move.text] = self._asked.get(move.text, 0) + 1
            self._history.append(move.text)
        thought = self._summary() + moves[0].thought(self._turn)
        return Turn("search", thought, tuple(dict.fromkeys(queries)), logprobs=_logprobs(drawn))

    def observe(self, documents: Sequence[Document]) -> None:
        """Read the results; each visit to a document is a new chance to take in what it states."""
        news = False
        for document in documents:
            self._names.extend(self._reader.names(document.id))
            visit = self._visits[document.id] = self._visits.get(document.id, 0) + 1
            if self._chance.uniform("read", document.id, visit) < self.temper.attention:
                findings = self._reader.findings(self._puzzle, document.id)
                if self._notes is not None:
                    self._notes.extend(finding for finding in findings if finding not in self._notes)
                news |= self._belief.update(findings)
        if self._notes is not None:
            while self._belief.update(self._notes):  # a note may make another one matter
                news = True
        self._turn += 1
        self._dry = 0 if news else self._dry + 1
        self._verified = self._verified + 1 if self.mode == "verify" else 0
        if self._belief.coverage >= self.temper.satisfied and self.mode != "verify":
            self.mode = "verify"

    def probe(self, history: Sequence[Step]) -> str | None:
        """The best candidate for what is asked, as the belief formed by `history` has it.

        Raises:
            ValueError: `history` is not the run that this agent has seen.
        """
        searches = sum(step.kind == "search" for step in history)
        if searches != self._turn:
            raise ValueError(f"the agent has seen {self._turn} searches, the history holds {searches}")
        answers = self._belief.answers()
        return answers[0][0] if answers else None

    def send_on(self) -> None:
        """Go on after a refused attempt: patience starts anew, and so does exploring."""
        self._dry = 0
        self._verified = 0
        self.mode = "explore"

    def intervene(self, queries: Sequence[str], documents: Sequence[Document], *, redirects: bool) -> None:
        """See `Agent.intervene`. A search that it did not make itself cannot use up its patience."""
        self._history.extend(queries)
        for query in queries:
            self._asked[query] = self._asked.get(query, 0) + 1
        turn, dry = self._turn, self._dry
        self.observe(documents)
        self._dry = min(self._dry, dry)
        if redirects and self._chance.uniform(turn, "obey") < self.temper.obedience:
            self._dry = 0
            self.mode = "explore"

    def fork(self, seed: str | None = None) -> "ScriptedAgent":
        """See `Agent.fork`; what the agent is like stays, whatever the seed."""
        other = copy.copy(self)
        if seed is not None:
            other._chance = Chance(seed)
        other._belief = self._belief.copy()
        other._history = list(self._history)
        other._asked = dict(self._asked)
        other._names = list(self._names)
        other._visits = dict(self._visits)
        other._loop = list(self._loop)
        other._notes = None if self._notes is None else list(self._notes)
        return other

    def _change_mode(self, drawn: list[Choice]) -> None:
        """Draw whether to stay in the mode."""
        if self._turn < 2:
            return
        temper = self.temper
        if self.mode == "explore":
            verify = temper.enter_verify if self._belief.coverage > 0 else 0.0
            choice = choose((1 - temper.enter_loop - verify, temper.enter_loop, verify), self._number("mode"))
            self.mode = ("explore", "loop", "verify")[choice.index]
            if self.mode == "loop":
                self._loop = self._history[-2:]
            drawn.append(choice)
        elif self.mode == "loop":
            choice = choose((1 - temper.leave_loop, temper.leave_loop), self._number("mode"))
            self.mode = ("loop", "explore")[choice.index]
            drawn.append(choice)

    def _move(self, drawn: list[Choice], place: str) -> Move:
        """Draw a kind of move, then a move of that kind."""
        if self._turn == 0:
            return Move("start", self._puzzle.text)
        if self._turn == 1:
            again = choose((RESTART, 1 - RESTART), self._number(place, "restart"))
            drawn.append(again)
            if again.index == 0:
                return Move("start", self._puzzle.text)
        if self.mode == "loop":
            return self._pick([Move("repeat", text) for text in self._loop], drawn, place)
        confirming = confirm_moves(self._belief) if self.mode == "verify" else []
        if confirming:
            return self._pick(confirming, drawn, place)
        temper = self.temper
        families = [
            (temper.chase, chase_moves(self._belief, self._asked)),
            (temper.clue, clue_moves(self._belief, self._asked)),
            (temper.drift, drift_moves(self._names, self._asked)),
            (temper.repeat, repeat_moves(self._history)),
        ]
        weights = [self._appeal(weight, moves) for weight, moves in families]
        choice = choose(weights, self._number(place, "family"))
        drawn.append(choice)
        return self._pick(families[choice.index][1], drawn, place)

    def _appeal(self, weight: float, moves: list[Move]) -> float:
        """Weight of a family of moves: its share, reduced as its best move gets worn out."""
        if not moves:
            return 0.0
        return weight * min(1.0, math.exp(max(move.utility for move in moves)))

    def _pick(self, moves: list[Move], drawn: list[Choice], place: str) -> Move:
        weights = softmax_weights([move.utility for move in moves], self.temper.temperature)
        choice = choose(weights, self._number(place, "move"))
        drawn.append(choice)
        return moves[choice.index]

    def _wording(self, move: Move, drawn: list[Choice], number: int) -> str:
        if move.kind == "start" and self._turn == 0:
            return move.text
        variants = rewordings(move.text)
        full = 0.35 if move.kind in ("repeat", "confirm") else 0.6
        rest = (1 - full) / max(1, len(variants) - 1)
        choice = choose([full, *[rest] * (len(variants) - 1)], self._number(str(number), "wording"))
        drawn.append(choice)
        return variants[choice.index]

    def _summary(self) -> str:
        """What the memory bank holds, in a sentence; empty for agents without one."""
        if self._notes is None or self._turn == 0:
            return ""
        if not self._notes:
            return "My notes are empty so far. "
        best = dict.fromkeys(name for name in map(self._belief.best, range(len(self._puzzle.nouns))) if name)
        covered = sum(self._belief.covers(number) for number in range(len(self._puzzle.clues)))
        names = f" Names to keep: {', '.join(best)}." if best else ""
        return f"My notes cover {covered} of {len(self._puzzle.clues)} points.{names} "

    def _answer(self, reason: str) -> Turn:
        """Draw an answer among the candidates for what is asked, by their evidence."""
        answers = self._belief.answers()
        if not answers:
            return Turn("answer", f"{reason} I have no name to offer.", answer=UNKNOWN)
        choice = choose(
            softmax_weights([evidence for _, evidence in answers], self.temper.temperature), self._number("answer")
        )
        answer = answers[choice.index][0]
        return Turn("answer", f"{reason} I think it is {answer}.", answer=answer, logprobs=_logprobs([choice]))

    def _number(self, *purpose: str) -> float:
        return self._chance.uniform(self._turn, *purpose)


def _logprobs(drawn: list[Choice]) -> Logprobs | None:
    return Logprobs(top=tuple(choice.top for choice in drawn)) if drawn else None
