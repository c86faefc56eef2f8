"""What a scripted agent can search for next, and in which words it says so."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from stopwise.envs.arena.belief import Belief

MoveKind = Literal["start", "clue", "pair", "check", "backward", "confirm", "drift", "repeat"]

CANDIDATES_PER_VARIABLE = 6  # the agent keeps no more names in mind when it looks for a next check
FUNCTION_WORDS = {"a", "an", "and", "as", "at", "by", "for", "from", "had", "has", "have", "in", "into", "is", "it"}
FUNCTION_WORDS |= {"its", "of", "on", "once", "one", "or", "that", "the", "to", "was", "were", "which", "who", "with"}

THOUGHTS: dict[MoveKind, tuple[str, ...]] = {
    "start": (
        "I start with the whole question to see what comes up.",
        "First I look at the question as it stands.",
        "Let me begin broadly, with everything that is asked.",
    ),
    "clue": (
        "I need a name to begin with. I look for the {noun} that {detail}.",
        "One clue stands by itself: the {noun} {detail}. That may give a candidate.",
        "Nothing is settled about the {noun}. I search for one that {detail}.",
    ),
    "pair": (
        "Two clues together may narrow down the {noun}: {detail}.",
        "I combine what is said about the {noun}: {detail}.",
        "The {noun} has to fit both hints, so I search for both: {detail}.",
    ),
    "check": (
        "{name} could be the {noun}. I check whether it {detail}.",
        "If {name} is right, there should be a source that says it {detail}.",
        "{name} is a candidate for the {noun}; next I look for '{detail}'.",
    ),
    "backward": (
        "I think that {name} is part of this. Which {noun} {detail} {name}?",
        "From {name} I go back to the {noun} that {detail} it.",
        "{name} may be the link, so I look for a {noun} that {detail} it.",
    ),
    "confirm": (
        "I want to be sure that {name} really {detail}.",
        "Before I answer I verify once more that {name} {detail}.",
        "A second source for {name} would help: {detail}.",
    ),
    "drift": (
        "{name} came up in the results. I wonder what else is known about it.",
        "I look into {name}, which was mentioned along the way.",
        "There may be something in {name}; let me see.",
    ),
    "repeat": (
        "I try that search again in other words.",
        "Perhaps the last search only needed a better wording.",
        "I go over the same ground once more, since nothing better comes to mind.",
    ),
}


@dataclass(frozen=True, slots=True)
class Move:
    """A search that the agent considers."""

    kind: MoveKind
    text: str  # the query in its fullest wording
    utility: float = 0.0  # how promising it looks within its kind
    noun: str = ""  # what it is about, for the thought
    name: str = ""
    detail: str = ""

    def thought(self, number: int) -> str:
        """A sentence or two that says what the agent is after; `number` picks one of the phrasings."""
        phrasings = THOUGHTS[self.kind]
        text = phrasings[number % len(phrasings)].format(noun=self.noun, name=self.name, detail=self.detail)
        return text[0].upper() + text[1:]


def rewordings(text: str) -> tuple[str, ...]:
    """Up to five different wordings of a query, the fullest first; deterministic."""
    words = text.split()
    content = [word for word in words if word.lower() not in FUNCTION_WORDS]
    variants = (
        text,
        " ".join(content),
        " ".join(content[1:]),
        " ".join([*content[len(content) // 2 :], *content[: len(content) // 2]]),
        " ".join(content[: max(2, len(content) * 2 // 3)]),
    )
    return tuple(dict.fromkeys(variant for variant in variants if variant))


def clue_moves(belief: Belief, asked: dict[str, int]) -> list[Move]:
    """Searches for a clue by itself or for two clues of one variable; settled clues look less promising."""
    puzzle = belief.puzzle
    moves: list[Move] = []
    for number, clue in enumerate(puzzle.clues):
        noun = puzzle.nouns[clue.variable]
        utility = (0.9 if clue.specific else 0.2) - (1.2 if belief.covers(number) else 0.0)
        if clue.to is not None:
            utility -= 0.8  # says nothing that could be looked up
        text = puzzle.standalone(number)
        detail = clue.phrase if clue.to is None else f"{clue.phrase} a {puzzle.nouns[clue.to]}"
        moves.append(Move("clue", text, utility - 0.6 * asked.get(text, 0), noun, detail=detail))
        for other in range(number + 1, len(puzzle.clues)):
            second = puzzle.clues[other]
            if clue.to is None and second.to is None and clue.variable == second.variable:
                both = f"{text} and {second.phrase}"
                pair = Move("pair", both, utility - 0.6 * asked.get(both, 0), noun, detail=f"{detail}, {second.phrase}")
                moves.append(pair)
    return moves


def chase_moves(belief: Belief, asked: dict[str, int]) -> list[Move]:
    """Searches that start from a candidate: does it fit another clue, and where does a relation lead from it?"""
    puzzle = belief.puzzle
    moves: list[Move] = []
    for number, clue in enumerate(puzzle.clues):
        noun = puzzle.nouns[clue.variable]
        for name, candidate in belief.ranked(clue.variable)[:CANDIDATES_PER_VARIABLE]:
            if number not in candidate.matched:
                told = clue.phrase if clue.to is None else f"{clue.phrase} a {puzzle.nouns[clue.to]}"
                text = f"{name} {clue.phrase}"
                utility = candidate.evidence - 1.5 * asked.get(text, 0)
                moves.append(Move("check", text, utility, noun, name, told))
        if clue.to is None or belief.covers(number):
            continue
        for name, candidate in belief.ranked(clue.to)[:CANDIDATES_PER_VARIABLE]:
            text = f"{noun} {'who' if noun == 'person' else 'that'} {clue.phrase} {name}"
            utility = candidate.evidence - 1.5 * asked.get(text, 0)
            moves.append(Move("backward", text, utility, noun, name, clue.phrase))
    return moves


def confirm_moves(belief: Belief) -> list[Move]:
    """Searches for what is believed already, best candidates only."""
    puzzle = belief.puzzle
    moves: list[Move] = []
    for number, clue in enumerate(puzzle.clues):
        name = belief.best(clue.variable)
        if name is not None and belief.covers(number):
            noun = puzzle.nouns[clue.variable]
            detail = clue.phrase if clue.to is None else f"{clue.phrase} a {puzzle.nouns[clue.to]}"
            moves.append(Move("confirm", f"{name} {clue.phrase}", 0.0, noun, name, detail))
    return moves


def drift_moves(names: Sequence[str], asked: dict[str, int]) -> list[Move]:
    """Searches for names that stood in the results, the latest first."""
    recent = list(dict.fromkeys(reversed(names)))[:12]
    return [Move("drift", name, -1.0 * asked.get(name, 0), name=name) for name in recent]


def repeat_moves(history: Sequence[str]) -> list[Move]:
    """Searches that were made a moment ago."""
    return [Move("repeat", text) for text in dict.fromkeys(reversed(history[-4:]))]
