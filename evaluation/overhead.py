"""What controllers cost beside the runs that they watch ([DS-MCM] 4.6 and Table 4; [RAAC] 4.3).

The whole of a run is what its agent, its searches, its controller and its rethinker took. Three figures follow, and
the papers use two of them:

- the *share* of controller and rethinker in the whole, in seconds, calls and tokens, each named apart;
- *added*: their seconds over those of agent and searches in the same runs, which is RAAC's 10%;
- *times alone*: the seconds of these runs over those of the agents by themselves, which is DS-MCM's x1.04. A controller
  that shortens runs can be below 1; one whose interventions lead to further turns pays for these here, and only here.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stopwise.envs.arena.run_cost import RunCost
from stopwise.evaluation.statistics import question_means

SCRIPTED = "a scripted agent thinks in microseconds and calls no model: a share of its run is not that of a real one"


def cost_of(
    costs: Sequence[RunCost], alone: Sequence[RunCost], questions: NDArray[np.int64], *, scripted: bool
) -> dict[str, Any]:
    """What an arm's runs cost, and its controller's part in it.

    Args:
        costs: of its runs.
        alone: of the same runs without a controller.
        questions: of each run, shape (E,); runs of one question are averaged first.
        scripted: some of the agents are: there is no time of theirs, and no share of it; nor of searches, whose
            embeddings all arms share, so that the first one pays for them.

    Returns:
        JSON-able, a run: ``cost`` with calls, tokens and seconds by who spent them, and ``overhead`` with the figures
        of this module's text, or null and the reason. ``controller`` holds its signals, in seconds also named apart.
    """

    def mean(value: Callable[[RunCost], float], runs: Sequence[RunCost] = costs) -> float:
        return float(question_means(np.array([value(run) for run in runs], dtype=np.float64), questions)[1].mean())

    cost: dict[str, dict[str, float | None]] = {
        "calls": {
            "agent": mean(lambda run: run.agent.calls),
            "controller": mean(lambda run: run.controller.calls),
            "rethinker": mean(lambda run: run.rethinker.calls),
        },
        "tokens": {
            "agent": mean(lambda run: run.agent.tokens),
            "controller": mean(lambda run: run.controller.tokens),
            "rethinker": mean(lambda run: run.rethinker.tokens),
        },
        "seconds": {
            "agent": None if scripted else mean(lambda run: run.agent.seconds),
            "search": None if scripted else mean(lambda run: run.search),
            "controller": mean(lambda run: run.controller.seconds),
            "signals": mean(lambda run: run.signals),
            "rethinker": mean(lambda run: run.rethinker.seconds),
        },
    }
    if scripted:
        nothing = dict.fromkeys(("calls", "tokens", "seconds", "added", "times_alone"))
        return {"cost": cost, "overhead": {**nothing, "reason": SCRIPTED}}
    wholes = {name: sum(value or 0.0 for who, value in part.items() if who != "signals") for name, part in cost.items()}
    shares: dict[str, Any] = {
        name: {who: _ratio(part[who], wholes[name]) for who in ("controller", "rethinker")}
        for name, part in cost.items()
    }
    own = mean(lambda run: run.agent.seconds + run.search)
    before = mean(lambda run: run.agent.seconds + run.search, alone)
    shares["added"] = _ratio(wholes["seconds"] - own, own)
    shares["times_alone"] = _ratio(wholes["seconds"], before)
    return {"cost": cost, "overhead": shares}


def _ratio(part: float | None, whole: float) -> float | None:
    return None if part is None or whole <= 0 else part / whole
