"""The sample logs that stopwise ships, and the word that stands for them in place of a path."""

from importlib.resources import files
from pathlib import Path

SAMPLES = "samples"


def sample_file(name: str) -> Path:
    """A file of the shipped samples."""
    return Path(str(files("stopwise.data") / "samples" / name))


def logs_path(name: str | Path) -> Path:
    """A path, or the shipped trajectories for the word ``samples``."""
    return sample_file("trajectories.parquet") if str(name) == SAMPLES else Path(name)


def signals_path(name: str | Path) -> Path:
    """A path, or the shipped signal table for the word ``samples``."""
    return sample_file("signals.parquet") if str(name) == SAMPLES else Path(name)
