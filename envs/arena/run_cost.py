"""What one run cost, by who spent it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from stopwise.envs.arena.loop import Run
from stopwise.envs.arena.oversight import ControllerOverseer
from stopwise.models.meter import Spent

NOTHING = Spent()


@dataclass(frozen=True, slots=True)
class RunCost:
    """Calls, tokens and seconds of one run; replies from a cache cost what they cost when they were made."""

    agent: Spent = NOTHING  # turns, notes, the answer at a stop, not the probes for the log; nothing if scripted
    search: float = 0.0  # seconds in the retriever
    controller: Spent = NOTHING  # decisions, and the signals that they rest on with their judge's calls
    signals: float = 0.0  # of the controller's seconds, those of its signals
    rethinker: Spent = NOTHING

    @classmethod
    def of(cls, run: Run, overseer: ControllerOverseer | None) -> "RunCost":
        """The cost of a finished run and of who watched it."""
        agent = run.meter.of("agent")
        if overseer is None:
            return cls(agent, run.search_seconds)
        counts = overseer.session.counts
        decided = Spent(counts.calls, counts.tokens, counts.seconds)
        return cls(agent, run.search_seconds, decided + overseer.signals, overseer.signals.seconds, overseer.rethinking)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> "RunCost":
        """Read what `dataclasses.asdict` made."""
        spent = {name: Spent(**values[name]) for name in ("agent", "controller", "rethinker")}
        return cls(**{**values, **spent})
