"""Reasoning entropy by itself, in units of its spread: what is left of the fast monitor without SE ([DS-MCM] 4.3)."""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from stopwise.data.errors import DataError
from stopwise.data.splits import split_of
from stopwise.signals.calibration import Calibration
from stopwise.signals.definitions import REASON_CODES
from stopwise.signals.table import SignalTable


def add_re_z(table: SignalTable) -> SignalTable:
    """The table with the column RE_z, and with RE's mean and spread in its calibrations; one that has it is returned.

    They are taken from the steps that the line of each agent was fitted on: those of its successful training runs that
    have a residual. The table of a log whose runs are all here is the same as one computed with RE_z.

    Raises:
        DataError: the table has no RE and no residual, or RE of several sources, which the table does not tell apart.
    """
    if "RE_z" in table.names:
        return table
    for name in ("RE", "residual"):
        if name not in table.names:
            raise DataError(f"signals: RE_z needs {name}, which the table does not have; compute it with `signals`")
    if len(table.info.re_sources) > 1:
        sources = ", ".join(table.info.re_sources)
        raise DataError(f"signals: RE_z of {sources}: one source at a time; compute it with `signals --only RE_z`")
    reasoning, residual = table.column("RE"), table.column("residual")
    agents = np.array([episode.agent or "" for episode in table.episodes])[table.episode_of_row]
    trained = np.array([split_of(episode.question_id) == "train" for episode in table.episodes])
    successful = table.episode_values("correct") == 1
    fitted_on = (trained & successful)[table.episode_of_row] & ~np.isnan(reasoning) & ~np.isnan(residual)
    column = np.full(len(reasoning), np.nan)
    lines: list[tuple[str, str, Calibration]] = []
    for agent, source, line in table.info.calibrations:
        known = reasoning[fitted_on & (agents == agent)]
        if line.re_mean is None and len(known):
            line = replace(line, re_mean=float(known.mean()), re_sigma=float(known.std()))
        lines.append((agent, source, line))
        if line.re_mean is not None and line.re_sigma:
            rows = agents == agent
            column[rows] = (reasoning[rows] - line.re_mean) / line.re_sigma
    config = replace(table.info.config, signals=(*table.info.config.signals, "RE_z"))
    return replace(
        table,
        names=(*table.names, "RE_z"),
        values=np.column_stack([table.values, column]),
        reasons=np.column_stack([table.reasons, _reasons(table, column)]),
        info=replace(table.info, config=config, calibrations=tuple(lines)),
    )


def _reasons(table: SignalTable, column: NDArray[np.float64]) -> NDArray[np.uint8]:
    """Why RE_z is missing: as RE is, or for want of a calibration."""
    reasons = table.reasons[:, table.names.index("RE")].copy()
    reasons[(reasons == 0) & np.isnan(column)] = REASON_CODES["not calibrated"]
    return reasons
