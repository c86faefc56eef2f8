"""What a scripted agent believes: candidates for every variable, and which clues each of them fits."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from stopwise.data.compose import ANSWER_SEPARATOR
from stopwise.envs.arena.puzzle import Finding, Puzzle

UNKNOWN = "unknown"  # the answer of an agent without a candidate

SPECIFIC_GAIN, BROAD_GAIN = 1.5, 0.5  # evidence that an attribute match adds to a candidate
LINK_GAIN = 0.3  # evidence that a relation adds by itself
LINK_TRANSFER = 0.5  # share of the object's evidence that a relation passes to its subject
LEAD_EVIDENCE = 0.4  # evidence of a name that stands beside something found
OBJECT_TRANSFER = 0.6  # share of the subject's evidence that the object has at least


@dataclass(slots=True)
class Candidate:
    """A name that may be what a variable stands for."""

    matched: set[int] = field(default_factory=set)  # numbers of the clues that it fits
    evidence: float = 0.0  # grows with every match


@dataclass(slots=True)
class Belief:
    """Candidates by variable and name. Copied by `copy`, so that an episode can be forked."""

    puzzle: Puzzle
    candidates: list[dict[str, Candidate]]

    @classmethod
    def empty(cls, puzzle: Puzzle) -> "Belief":
        """Nothing is known yet."""
        return cls(puzzle, [{} for _ in puzzle.nouns])

    def copy(self) -> "Belief":
        """An independent copy."""
        return Belief(
            self.puzzle,
            [
                {name: Candidate(set(candidate.matched), candidate.evidence) for name, candidate in names.items()}
                for names in self.candidates
            ],
        )

    def update(self, findings: Iterable[Finding]) -> bool:
        """Take findings in; returns whether any of them was news.

        A relation only counts when one of its ends is a candidate already: else every document about a person born in
        some town would be a lead.
        """
        news = False
        for finding in findings:
            clue = self.puzzle.clues[finding.clue]
            if finding.leads:
                self._lead(finding, clue.part)
            subjects = self.candidates[clue.variable]
            if finding.object is None:
                gain = SPECIFIC_GAIN if clue.specific else BROAD_GAIN
                news |= self._match(subjects, finding.subject, finding.clue, gain)
                continue
            assert clue.to is not None
            objects = self.candidates[clue.to]
            known = objects.get(finding.object)
            if finding.subject not in subjects and known is None:
                continue
            gain = LINK_GAIN + LINK_TRANSFER * (known.evidence if known is not None else 0.0)
            news |= self._match(subjects, finding.subject, finding.clue, gain)
            other = objects.setdefault(finding.object, Candidate())
            other.evidence = max(other.evidence, OBJECT_TRANSFER * subjects[finding.subject].evidence)
        return news

    def _lead(self, finding: Finding, part: int) -> None:
        """Names beside a finding become candidates for the other clues of its part."""
        for number in self.puzzle.parts[part].clues:
            if number != finding.clue:
                names = self.candidates[self.puzzle.clues[number].variable]
                for name in finding.leads:
                    names.setdefault(name, Candidate(evidence=LEAD_EVIDENCE))

    def _match(self, subjects: dict[str, Candidate], name: str, clue: int, gain: float) -> bool:
        candidate = subjects.setdefault(name, Candidate())
        if clue in candidate.matched:
            return False
        candidate.matched.add(clue)
        candidate.evidence += gain
        return True

    def ranked(self, variable: int) -> list[tuple[str, Candidate]]:
        """Candidates of a variable, most evidence first; ties in the order in which they were met."""
        return sorted(self.candidates[variable].items(), key=lambda item: -item[1].evidence)

    def best(self, variable: int) -> str | None:
        """The likeliest candidate; None when there is none."""
        ranked = self.ranked(variable)
        return ranked[0][0] if ranked else None

    def covers(self, clue: int) -> bool:
        """Whether the best candidate of the clue's variable fits it."""
        ranked = self.ranked(self.puzzle.clues[clue].variable)
        return bool(ranked) and clue in ranked[0][1].matched

    def answers(self) -> list[tuple[str, float]]:
        """Answers that the agent could give, with their evidence, best first; empty when it has none.

        To a question of parts there is one: what is known of each part, and "unknown" for the rest.
        """
        if not self.puzzle.parts:
            return [(name, candidate.evidence) for name, candidate in self.ranked(0)]
        known = [all(self.covers(number) for number in part.clues) for part in self.puzzle.parts]
        if not any(known):
            return []
        told = (
            part.answer if known_part else UNKNOWN for part, known_part in zip(self.puzzle.parts, known, strict=True)
        )
        return [(ANSWER_SEPARATOR.join(told), 1.0)]

    @property
    def coverage(self) -> float:
        """Believed share of the clues covered, in [0, 1]; not the true one."""
        clues = self.puzzle.clues
        return sum(self.covers(number) for number in range(len(clues))) / len(clues)
