"""Where a result comes from: what anyone needs to make it again."""

import platform
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from stopwise.controllers.package import stopwise_version
from stopwise.data.files import sha256_file

PACKAGES = (
    "numpy",
    "scipy",
    "scikit-learn",
    "torch",
    "transformers",
    "sentence-transformers",
    "trl",
    "peft",
    "accelerate",
)


def provenance(command: Sequence[str], config: Any, data: Mapping[str, Path]) -> dict[str, Any]:
    """Command, resolved config, hashes of the data and versions, JSON-able.

    Args:
        command: words that make the result again.
        config: the resolved config, plain values.
        data: name to file; their hashes are stored.
    """
    return {
        "command": " ".join(command),
        "config": config,
        "data_sha256": {name: sha256_file(path) for name, path in data.items()},
        "versions": {"stopwise": stopwise_version(), "python": platform.python_version()} | _versions(),
    }


def _versions() -> dict[str, str]:
    found = {}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue  # an extra that is not installed took no part
    return found
