"""Kinds of scripted agents: populations that differ in how they search, each with a range for every parameter."""

from dataclasses import dataclass, fields

from stopwise.envs.arena.chance import Chance

Range = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Temper:
    """The parameters of one episode's agent."""

    chase: float  # weight of checking candidates, against 1 for all kinds of moves together
    clue: float  # weight of looking up clues
    drift: float  # weight of following names that merely came up
    repeat: float  # weight of repeating itself while exploring
    temperature: float  # of the softmax over moves of a kind
    enter_loop: float  # probability a turn of falling into a loop
    leave_loop: float  # probability a turn of leaving it
    enter_verify: float  # probability a turn of verifying although not all is found
    verify_turns: float  # turns that verifying lasts
    attention: float  # probability that it takes in what a document states
    patience: float  # turns without news before it answers
    satisfied: float  # believed coverage at which it verifies, then answers
    budget: float  # searches after which it is cut
    parallel: float  # probability of sending two queries at once
    obedience: float = 0.7  # probability that it follows an intervention


@dataclass(frozen=True, slots=True)
class AgentKind:
    """A population of agents: a range for each parameter, drawn uniformly for every episode."""

    name: str
    chase: Range
    clue: Range
    drift: Range
    repeat: Range
    temperature: Range
    enter_loop: Range
    leave_loop: Range
    enter_verify: Range
    verify_turns: Range
    attention: Range
    patience: Range
    satisfied: Range
    budget: Range
    parallel: Range = (0.0, 0.0)
    obedience: Range = (0.5, 0.9)
    memory: bool = False  # keeps notes of all it read, and works from their summary

    def draw(self, chance: Chance) -> Temper:
        """Draw the parameters of one episode."""
        ranges = {
            field.name: getattr(self, field.name) for field in fields(self) if field.name not in ("name", "memory")
        }
        return Temper(**{name: chance.between(*limits, "temper", name) for name, limits in ranges.items()})


KINDS: dict[str, AgentKind] = {
    kind.name: kind
    for kind in (
        AgentKind(
            "chaser",  # follows every lead, rarely repeats itself
            chase=(0.70, 0.90),
            clue=(0.10, 0.20),
            drift=(0.01, 0.05),
            repeat=(0.01, 0.05),
            temperature=(0.3, 0.6),
            enter_loop=(0.04, 0.08),
            leave_loop=(0.08, 0.15),
            enter_verify=(0.01, 0.03),
            verify_turns=(3, 7),
            attention=(0.85, 0.95),
            patience=(8, 13),
            satisfied=(0.9, 1.0),
            budget=(35, 50),
        ),
        AgentKind(
            "verifier",  # checks what it has again and again before it answers
            chase=(0.60, 0.75),
            clue=(0.15, 0.25),
            drift=(0.01, 0.05),
            repeat=(0.03, 0.08),
            temperature=(0.3, 0.6),
            enter_loop=(0.03, 0.06),
            leave_loop=(0.10, 0.16),
            enter_verify=(0.06, 0.12),
            verify_turns=(7, 15),
            attention=(0.85, 0.95),
            patience=(12, 18),
            satisfied=(0.7, 0.9),
            budget=(35, 50),
        ),
        AgentKind(
            "rephraser",  # turns the same clues over and over, two wordings at a time
            chase=(0.35, 0.55),
            clue=(0.25, 0.40),
            drift=(0.02, 0.06),
            repeat=(0.08, 0.16),
            temperature=(0.5, 0.9),
            enter_loop=(0.12, 0.20),
            leave_loop=(0.06, 0.12),
            enter_verify=(0.01, 0.04),
            verify_turns=(4, 9),
            attention=(0.70, 0.85),
            patience=(10, 16),
            satisfied=(0.85, 1.0),
            budget=(35, 50),
            parallel=(0.2, 0.5),
        ),
        AgentKind(
            "drifter",  # is led astray by whatever comes up
            chase=(0.35, 0.55),
            clue=(0.15, 0.25),
            drift=(0.20, 0.40),
            repeat=(0.02, 0.06),
            temperature=(0.5, 0.9),
            enter_loop=(0.05, 0.10),
            leave_loop=(0.10, 0.18),
            enter_verify=(0.01, 0.03),
            verify_turns=(3, 6),
            attention=(0.70, 0.85),
            patience=(10, 16),
            satisfied=(0.85, 1.0),
            budget=(35, 50),
        ),
        AgentKind(
            "quitter",  # answers as soon as it has something or has had enough
            chase=(0.55, 0.75),
            clue=(0.15, 0.30),
            drift=(0.02, 0.08),
            repeat=(0.03, 0.08),
            temperature=(0.4, 0.7),
            enter_loop=(0.06, 0.12),
            leave_loop=(0.10, 0.18),
            enter_verify=(0.01, 0.03),
            verify_turns=(1, 3),
            attention=(0.75, 0.90),
            patience=(4, 7),
            satisfied=(0.6, 0.8),
            budget=(15, 25),
        ),
        AgentKind(
            "archivist",  # keeps a memory bank: what it read before it knew why still counts
            chase=(0.60, 0.80),
            clue=(0.15, 0.30),
            drift=(0.01, 0.05),
            repeat=(0.01, 0.05),
            temperature=(0.3, 0.6),
            enter_loop=(0.06, 0.12),
            leave_loop=(0.06, 0.12),
            enter_verify=(0.02, 0.05),
            verify_turns=(4, 8),
            attention=(0.80, 0.90),
            patience=(9, 14),
            satisfied=(0.85, 1.0),
            budget=(30, 45),
            parallel=(0.1, 0.3),
            memory=True,
        ),
    )
}
