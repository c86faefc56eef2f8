"""What the commands share: progress on stderr, one JSON object on stdout, where the sample logs are."""

import json
import sys
import time
from pathlib import Path
from typing import Any

from stopwise.data.errors import UsageError
from stopwise.data.shipped import SAMPLES, logs_path, sample_file, signals_path

__all__ = [
    "SAMPLES",
    "Progress",
    "check_out",
    "logs_path",
    "print_json",
    "sample_file",
    "say",
    "signals_path",
]


def print_json(value: Any) -> None:
    """One JSON object on stdout, and nothing else; NaN is refused: a missing value is null, with its reason."""
    print(json.dumps(value, ensure_ascii=False, allow_nan=False))


def say(text: str) -> None:
    """A line for people, on stderr."""
    print(text, file=sys.stderr)


def check_out(out: Path, *inputs: Path | str | None) -> None:
    """Refuse to write over what is read.

    Raises:
        UsageError: `out` is one of the inputs, or a folder.
    """
    if out.is_dir():
        raise UsageError(f"--out {out}: is a folder; expected a file to write; name a file")
    for path in inputs:
        if path is not None and out.exists() and Path(path).exists() and out.samefile(path):
            raise UsageError(f"--out {out}: is also read by this command; name another file")


class Progress:
    """Progress lines on stderr: what, how much, how fast, how long still; at most one every two seconds."""

    def __init__(self) -> None:
        self._what = ""
        self._started = 0.0
        self._last = 0.0

    def __call__(self, what: str, done: int, total: int | None) -> None:
        """Tell how far `what` has come."""
        now = time.monotonic()
        if what != self._what:
            self._what, self._started, self._last = what, now, 0.0
        if now - self._last < 2 and done != total:
            return
        self._last = now
        rate = done / max(now - self._started, 1e-9)
        text = f"{what}: {done}" + (f" of {total}" if total is not None else "")
        if now - self._started > 1:
            text += f", {rate:.0f} a second"
            if total is not None and done < total:
                text += f", {(total - done) / rate:.0f} s left"
        say(text)
