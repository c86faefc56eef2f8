"""The texts of logged runs, for controllers that read them."""

from collections.abc import Mapping, Sequence
from typing import Any

from stopwise.cli.output import logs_path
from stopwise.data.errors import UsageError


def texts_of(name: str | None, arms: Sequence[Any], table: Any) -> Mapping[str, Any] | None:
    """The runs of a signal table by trajectory id, for arms that read texts; None where none does or none are named.

    Raises:
        UsageError: the logs are not those that the table was computed from.
    """
    from stopwise.data.files import sha256_file
    from stopwise.data.store import read_trajectories

    if name is None or not any(arm.controller.reads_text for arm in arms):
        return None
    path = logs_path(name)
    expected, found = table.info.logs_sha256, sha256_file(path) if path.is_file() else None
    if expected is not None and found is not None and found != expected:
        raise UsageError(f"logs: {path} has sha256 {found[:12]}; the signals were computed from {expected[:12]}")
    wanted = {episode.id for episode in table.episodes}
    return {run.id: run for run in read_trajectories(path) if run.id in wanted}
