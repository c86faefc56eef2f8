"""Opening an SQLite file that several processes may share: caches, and the experience memory."""

import sqlite3
from pathlib import Path
from typing import Any

from stopwise.data.errors import UsageError


def open_sqlite(path: str, purpose: str, **options: Any) -> sqlite3.Connection:
    """Open or make a file; its folder is made when missing.

    Args:
        path: of the file; ``":memory:"`` keeps it in memory.
        purpose: what it is to be opened as, for the message.
        options: of `sqlite3.connect`.

    Raises:
        UsageError: there cannot be a file at that path.
    """
    try:
        if path != ":memory:":
            Path(path).parent.mkdir(parents=True, exist_ok=True)
        return sqlite3.connect(path, timeout=60, **options)  # a writer of another process is waited for
    except (OSError, sqlite3.Error) as error:
        raise UsageError(
            f"{path}: cannot be opened as {purpose} ({error}); name a file in a writable folder"
        ) from error
