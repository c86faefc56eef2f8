"""What an intervention would have brought: a plain log does not say, so every model of it has a name.

The name stands in every result row. `forbidden` and `noop` are here; `uplift` (fitted), `retrieve` (the rethinker's
query is really run) and `logged` (branches) are in modules of their own. What an intervention really brings is shown by
the arena alone; the last three are training aids, and their error against it is published.
"""

from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np

from stopwise.data.errors import UsageError
from stopwise.signals.table import SignalTable


@dataclass(frozen=True, slots=True)
class Place:
    """Where a replayed run stands when a controller intervenes."""

    table: SignalTable  # the run's table: the log's, or one that an earlier intervention has rewritten
    episode: int  # index of the run in it
    row: int  # row of the present search step in it
    features: np.ndarray  # (F,) of the environment's own FeatureSpec, NaN for null


@dataclass(frozen=True, slots=True)
class End:
    """An intervention after which the run's end is known, but not its way there."""

    recall_gain: float  # from here to the end
    searches: float  # from here to the end, the injected one included
    correct: float  # of the answer in the end, 1 or 0 or a mean; NaN where unknown


@dataclass(frozen=True, slots=True)
class Effect:
    """What an intervention does to a replayed run; it has cost a search and the price of an intervention."""

    row: int  # row at which the run goes on
    table: SignalTable | None = None  # a rewritten run (one episode) that `row` is in; None: the same table
    end: End | None = None  # the run is over


class InterventionModel(Protocol):
    """The outcome of intervening while a log is replayed."""

    name: ClassVar[str]
    available: ClassVar[bool]  # whether the action may be chosen at all

    def allows(self, place: Place) -> bool:
        """Whether intervening has an outcome at this place."""
        ...

    def intervene(self, place: Place, generator: np.random.Generator) -> Effect | None:
        """What intervening does; None: the log's next step comes, as if the run had continued."""
        ...


@dataclass(frozen=True, slots=True)
class Forbidden:
    """Intervening is masked: the log says nothing about it. Continue and stop are then exact for retrieval."""

    name: ClassVar[str] = "forbidden"
    available: ClassVar[bool] = False

    def allows(self, place: Place) -> bool:
        """Never."""
        return False

    def intervene(self, place: Place, generator: np.random.Generator) -> Effect | None:
        """Never happens."""
        raise UsageError("intervention forbidden: there is no outcome")


@dataclass(frozen=True, slots=True)
class Noop:
    """Intervening costs its price and changes nothing: the log's next step comes as if the run had continued."""

    name: ClassVar[str] = "noop"
    available: ClassVar[bool] = True

    def allows(self, place: Place) -> bool:
        """Always."""
        return True

    def intervene(self, place: Place, generator: np.random.Generator) -> Effect | None:
        """Nothing."""
        return None


MODELS: dict[str, type[Forbidden] | type[Noop]] = {"forbidden": Forbidden, "noop": Noop}


def intervention_model(name: str) -> InterventionModel:
    """The model of that name, of those that need nothing but the log.

    Raises:
        UsageError: there is none.
    """
    if name not in MODELS:
        raise UsageError(f"intervention {name!r} is not one of {', '.join(MODELS)}")
    return MODELS[name]()
