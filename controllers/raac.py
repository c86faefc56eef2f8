"""The Retrieval-Aware Agent Controller: a language model that reads signals and chooses an action ([RAAC] 4.2).

It sees the signals of the steps so far and what was done after each, and no text of question, thought or document: so
nothing that a document says can steer it. The prompt is in our own words and names no thresholds, as the paper asks.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np

from stopwise.controllers.base import Distribution, Legal, Observation, certain, check_number
from stopwise.controllers.prompted import MAX_TOKENS, Prompted, PromptVersions
from stopwise.data.errors import UsageError
from stopwise.data.records import Action
from stopwise.models.prompts import load_prompt
from stopwise.signals.tracker import SignalRow

CHOOSABLE = ("Nov", "Cov", "Div")  # in the order of their weight
GUARDRAIL = "Sim"  # always shown
NAMES = {action: action.name.lower() for action in Action}


@dataclass(frozen=True, slots=True)
class Choice:
    """What the model replies."""

    reasoning: str
    action: Literal["continue", "intervene", "stop"]


class Raac(Prompted):
    """Ask the model after every search step; a failed call is continue, and counted."""

    kind: ClassVar[str] = "raac"
    prompts: ClassVar[tuple[str, ...]] = ("raac", "raac_signals")

    def __init__(
        self,
        signals: Sequence[str] = CHOOSABLE,
        history: int = 30,
        max_tokens: int = MAX_TOKENS,
        prompts: PromptVersions | None = None,
    ) -> None:
        """Choose a variant.

        Args:
            signals: those shown beside Sim: some of Nov, Cov, Div ([RAAC] table 2 calls them N, C, D).
            history: the latest steps that are shown, at most.
            max_tokens: of a reply.
            prompts: versions that the prompts must have; None takes them as they are.

        Raises:
            UsageError: a value is not allowed.
        """
        wrong = [name for name in signals if name not in CHOOSABLE]
        if isinstance(signals, str) or wrong or not signals or len(set(signals)) < len(signals):
            raise UsageError(f"raac: signals {signals!r}; expected a list of some of {', '.join(CHOOSABLE)}, each once")
        check_number("raac: history", history, low=1, whole=True)
        self.signals = tuple(name for name in CHOOSABLE if name in signals)
        self.history = history
        self.needs = (*self.signals, GUARDRAIL)
        self._prepare(max_tokens, prompts)
        self.reset()

    def reset(self, seed: int = 0) -> None:
        """See `Controller.reset`."""
        super().reset(seed)
        self._rows: list[SignalRow] = []

    def distribution(self, observation: Observation) -> tuple[Distribution, str | None]:
        """See `Controller.distribution`; where one action alone is open, nothing is asked."""
        self._rows.append(observation.row)
        if observation.legal.sum() == 1:
            return certain(Action(int(observation.legal.argmax()))), "nothing else is open"
        choice = self.ask(self.prompt(observation.actions, observation.legal), Choice)
        if choice is None:
            return certain(Action.CONTINUE), self.no_reply()
        return certain(Action[choice.action.upper()]), choice.reasoning.strip() or None

    def prompt(self, actions: Sequence[Action], legal: Legal) -> str:
        """What the model is asked after the rows observed so far.

        Args:
            actions: carried out after all rows but the last.
            legal: what is open now, shape (3,).
        """
        blocks = {block.split(",")[0]: block for block in load_prompt("raac_signals").text.split("\n\n")}
        return load_prompt("raac").fill(
            signals="\n\n".join(blocks[name] for name in self.needs),
            history=show_history(self._rows, actions, self.needs, self.history),
            open=", ".join(NAMES[action] for action in Action if legal[action]),
        )

    @property
    def params(self) -> Mapping[str, Any]:
        """The variant, and the prompts' versions."""
        bounds = {"history": self.history, "max_tokens": self.max_tokens}
        return {"signals": list(self.signals), **bounds, "prompts": self._versions}


def show_history(rows: Sequence[SignalRow], actions: Sequence[Action], names: Sequence[str], limit: int) -> str:
    """The table that the model reads: a line a step, the last one undecided; at most `limit` lines, the latest.

    Args:
        rows: of the steps so far.
        actions: carried out after all of them but the last; what is unknown is shown as a dash.
        names: of the signals, one a column.
        limit: of lines; how many were left out is said.
    """
    lines = [" | ".join(("step", *names, "done"))]
    left_out = max(0, len(rows) - limit)
    if left_out:
        lines.append(f"({left_out} earlier steps are not shown)")
    done = [NAMES[action] for action in actions][: len(rows) - 1]
    done = [*done, *["-"] * (len(rows) - 1 - len(done)), "?"]
    for row, what in list(zip(rows, done, strict=True))[left_out:]:
        cells = [_cell(row.values.get(name)) for name in names]
        lines.append(" | ".join((str(row.t), *cells, what)))
    return "\n".join(lines)


def _cell(value: float | None) -> str:
    return "-" if value is None or not np.isfinite(value) else f"{value:.2f}"
