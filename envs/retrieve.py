"""Intervention model `retrieve`: the rethinker's query is really run on the corpus, then the log resumes.

The injected documents join what the run has seen, and every later signal and label is computed anew. It ignores that
the agent's later queries would react: a training aid, whose error against the arena is published.
"""

from collections.abc import Iterable
from dataclasses import replace
from typing import ClassVar

import numpy as np

from stopwise.data.corpus import Query
from stopwise.data.errors import DataError
from stopwise.data.records import Step, Trajectory
from stopwise.envs.arena.rethinkers import Rethinker
from stopwise.envs.arena.retrievers import Retriever
from stopwise.envs.interventions import Effect, Place
from stopwise.models.encoders import Encoder
from stopwise.signals.compute import run_labels, run_signals
from stopwise.signals.table import build_table


class Retrieve:
    """See the module's docstring."""

    name: ClassVar[str] = "retrieve"
    available: ClassVar[bool] = True

    def __init__(
        self,
        trajectories: Iterable[Trajectory],
        retriever: Retriever,
        rethinker: Rethinker,
        encoder: Encoder | None,
        k: int = 5,
    ) -> None:
        """Take the logs that the environment's table was computed from.

        Args:
            trajectories: with their steps; they are kept in memory.
            retriever: over the corpus that the logs were made on.
            rethinker: writes the query.
            encoder: of the table's signals; None if they need none.
            k: documents a query.
        """
        self._logs = {trajectory.id: trajectory for trajectory in trajectories}
        self._retriever = retriever
        self._rethinker = rethinker
        self._encoder = encoder
        self._k = k
        self._rewritten: tuple[object, Trajectory] | None = None  # the last rewritten table, and the run that it is of

    def allows(self, place: Place) -> bool:
        """Always."""
        return True

    def intervene(self, place: Place, generator: np.random.Generator) -> Effect | None:
        """Run the rethinker's query and rewrite the rest of the run.

        Raises:
            DataError: the logs lack the run.
        """
        name = place.table.episodes[place.episode].id
        run = self._logs.get(name)
        if self._rewritten is not None and self._rewritten[0] is place.table:
            run = self._rewritten[1]
        if run is None:
            raise DataError(f"intervention retrieve: the logs have no run {name!r}; give the logs of this table")
        t = int(place.table.turns[place.row])
        position = [index for index, step in enumerate(run.steps) if step.kind == "search"][t - 1] + 1
        query = Query(run.question_id, run.question, criteria=run.criteria, gold_ids=run.gold_ids)
        injection = self._rethinker.propose(query, run.steps[:position], run.id)
        if injection is None:  # the rethinker failed, as a language model may: the log goes on
            return None
        turn = injection.turn
        found = [document for result in self._retriever.search(turn.queries, self._k) for document in result]
        documents = tuple({document.id: document for document in reversed(found)}.values())[::-1]
        injected = Step("search", turn.thought, turn.queries, documents)
        run = replace(run, steps=(*run.steps[:position], injected, *run.steps[position:]))
        info = place.table.info
        calibrations = {(agent, source): line for agent, source, line in info.calibrations}
        episode, labels = run_labels(run)
        rows = run_signals(run, replace(info.config, signals=place.table.names), self._encoder, calibrations)
        table = build_table(place.table.names, [(episode, rows, labels)], info)
        self._rewritten = (table, run)
        return Effect(t, table)  # rows count from 0: row t is the step after the t-th
