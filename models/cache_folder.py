"""Where stopwise keeps what it need not compute or pay for twice."""

import os
from pathlib import Path


def cache_folder() -> Path:
    """``$STOPWISE_CACHE``, by default ``stopwise`` below ``$XDG_CACHE_HOME`` or ``~/.cache``; it need not exist yet."""
    root = os.environ.get("STOPWISE_CACHE")
    return Path(root) if root else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "stopwise"
