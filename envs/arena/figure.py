"""The population, drawn: recall and document types by search step and agent (the kinds of RAAC's Figures 3 and 4)."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from stopwise.data.errors import UsageError
from stopwise.data.files import atomic_path
from stopwise.data.records import Trajectory
from stopwise.envs.arena.population import curves

MIN_RUNS = 5  # still going at a step; beyond that document types are not drawn
TYPES = (
    ("relevant, new", "relevant_new", "#1b7837"),
    ("relevant, seen", "relevant_seen", "#a6dba0"),
    ("irrelevant, new", "irrelevant_new", "#762a83"),
    ("irrelevant, seen", "irrelevant_seen", "#e7d4e8"),
)


def draw_population(path: Path, by_agent: Mapping[str, Sequence[Trajectory]], title: str) -> None:
    """Draw recall by step in one panel, and document types by step in one panel an agent.

    Args:
        path: the file to write; its suffix says in which format (.svg, .png, .pdf).
        by_agent: trajectories with gold, by kind of agent.
        title: what was run.

    Raises:
        UsageError: matplotlib is not installed, or cannot write that format.
    """
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ImportError as error:
        raise UsageError("a figure needs matplotlib; install stopwise[report], or leave --figure out") from error
    columns = -(-(len(by_agent) + 1) // 2)
    figure = Figure(figsize=(3.6 * columns, 6.4), layout="constrained")
    panels = figure.subplots(2, columns, squeeze=False).flatten()
    for panel in panels[len(by_agent) + 1 :]:
        panel.set_axis_off()
    figure.suptitle(title)
    for panel, (agent, trajectories) in zip(panels[1:], by_agent.items(), strict=False):
        by_step = curves(trajectories)
        steps = np.arange(1, by_step.recall.shape[1] + 1)
        panels[0].plot(steps, by_step.recall.mean(axis=0), label=agent)
        going = (by_step.searches[:, None] >= steps).sum(axis=0) >= min(MIN_RUNS, len(trajectories))
        shares = [np.nanmean(getattr(by_step, name)[:, going], axis=0) for _, name, _ in TYPES]
        panel.stackplot(
            steps[going], shares, labels=[label for label, _, _ in TYPES], colors=[colour for *_, colour in TYPES]
        )
        panel.set(title=agent, xlabel="search step", ylim=(0, 1))
    panels[0].set(title="recall", xlabel="search step", ylabel="share of gold seen", ylim=(0, 1))
    panels[0].legend(fontsize="small")
    panels[1].set_ylabel("share of the step's documents")
    panels[1].legend(loc="upper right", fontsize="x-small")
    try:
        with atomic_path(path) as partial, matplotlib.rc_context({"svg.hashsalt": "stopwise"}):  # same runs, same bytes
            figure.savefig(partial, format=path.suffix.lstrip(".") or "svg", metadata=_undated(path))
    except ValueError as error:
        raise UsageError(f"{path}: {error}; name a .svg, .png or .pdf file") from error


def _undated(path: Path) -> dict[str, None]:
    return {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}.get(path.suffix, {})
