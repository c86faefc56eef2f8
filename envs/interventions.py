"""What an intervention would have brought: a plain log does not say, so every model of it has a name."""

from dataclasses import dataclass
from typing import ClassVar, Protocol

from stopwise.data.errors import UsageError


class InterventionModel(Protocol):
    """The outcome of intervening while a log is replayed; its name stands in every result row."""

    name: ClassVar[str]
    available: ClassVar[bool]  # whether the action may be chosen at all


@dataclass(frozen=True, slots=True)
class Forbidden:
    """Intervening is masked: the log says nothing about it. Continue and stop are then exact for retrieval."""

    name: ClassVar[str] = "forbidden"
    available: ClassVar[bool] = False


@dataclass(frozen=True, slots=True)
class Noop:
    """Intervening costs its price and changes nothing: the log's next step comes as if the run had continued."""

    name: ClassVar[str] = "noop"
    available: ClassVar[bool] = True


MODELS: dict[str, type[Forbidden] | type[Noop]] = {"forbidden": Forbidden, "noop": Noop}


def intervention_model(name: str) -> InterventionModel:
    """The model of that name.

    Raises:
        UsageError: there is none.
    """
    if name not in MODELS:
        raise UsageError(f"intervention {name!r} is not one of {', '.join(MODELS)}")
    return MODELS[name]()
