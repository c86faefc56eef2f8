"""Policy packages: a controller as a folder of plain data, checked byte for byte when it is loaded.

``manifest.json`` says what it is and how it was made, ``weights.safetensors`` holds arrays (learned controllers
only), ``README.md`` is the model card. Nothing in a package is executed or unpickled.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from stopwise.controllers.base import Controller
from stopwise.controllers.boosted import Boosted
from stopwise.controllers.guards import Guards
from stopwise.controllers.kinds import RULES, make_learned, make_rule
from stopwise.controllers.lm import SmallLM
from stopwise.controllers.logistic import Logistic
from stopwise.data.errors import DataError, StopwiseError
from stopwise.data.files import atomic_folder, read_json, sha256_file
from stopwise.signals.features import FeatureSpec
from stopwise.signals.table import SignalInfo, info_from_json

SCHEMA = 1
MANIFEST = "manifest.json"
WEIGHTS = "weights.safetensors"
CARD = "README.md"

_KEYS = ("schema", "stopwise", "name", "kind", "params", "features", "guards", "signals", "training", "files", "digest")


@dataclass(frozen=True)
class PolicyPackage:
    """A controller with all it needs to run somewhere else."""

    name: str  # what tables call it
    controller: Controller
    guards: Guards
    signals: SignalInfo  # how its signals are computed: encoder, thresholds, calibrations
    training: Mapping[str, Any] = field(default_factory=dict)  # config, data hash, metrics with intervals; JSON-able


def write_package(folder: Path, package: PolicyPackage) -> None:
    """Write a package, atomically: an interrupted call leaves the old folder or the new one.

    Raises:
        UsageError: `folder` is a file, holds something else than a package, or cannot be written.
    """
    controller = package.controller
    with atomic_folder(Path(folder), mark=MANIFEST) as partial:
        if isinstance(controller, Logistic | Boosted | SmallLM):
            from safetensors.numpy import save_file

            save_file(controller.weights, partial / WEIGHTS)
        (partial / CARD).write_text(model_card(package), encoding="utf-8")
        manifest = {
            "schema": SCHEMA,
            "stopwise": stopwise_version(),
            "name": package.name,
            "kind": controller.kind,
            "params": dict(controller.params),
            "features": asdict(controller.features) if controller.features is not None else None,
            "guards": asdict(package.guards),
            "signals": package.signals.to_json(),
            "training": dict(package.training),
            "files": {path.name: sha256_file(path) for path in sorted(partial.iterdir())},
        }
        manifest["digest"] = _digest(manifest)
        (partial / MANIFEST).write_text(_manifest_text(manifest), encoding="utf-8")


def read_package(folder: Path) -> PolicyPackage:
    """Read and check a package.

    Raises:
        DataError: something is missing, changed, of another schema, or inconsistent; the message says what.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise DataError(f"{folder}: no such folder; expected a policy package, or a run of `stopwise train`")
    path = folder / MANIFEST
    if not path.exists():
        raise DataError(f"{folder}: has no {MANIFEST}; expected a policy package, or a run of `stopwise train`")
    manifest = read_json(path)
    if not isinstance(manifest, dict):
        raise DataError(f"{path}: is not a JSON object; export the policy again")
    if manifest.get("schema") != SCHEMA:
        found = json.dumps(manifest.get("schema"))
        raise DataError(f"{path}: schema {found}; this stopwise reads schema {SCHEMA}; export the policy again")
    missing = [key for key in _KEYS if key not in manifest]
    if missing:
        raise DataError(f"{path}: key {missing[0]!r} is missing; export the policy again")
    unknown = [key for key in manifest if key not in _KEYS]
    if unknown:
        raise DataError(f"{path}: unknown key {unknown[0]!r}; expected {', '.join(_KEYS)}")
    try:
        same = path.read_bytes() == _manifest_text(manifest).encode("utf-8")  # spaces count too
        digest = manifest.pop("digest")
        if not same or digest != _digest(manifest):
            raise DataError(f"{path}: was changed after it was written (its digest differs); export the policy again")
        _check_files(folder, manifest)
        return _from_manifest(folder, manifest)
    except DataError:
        raise
    except (StopwiseError, AttributeError, KeyError, TypeError, ValueError) as error:
        reason = str(error) if isinstance(error, StopwiseError) else f"{type(error).__name__}: {error}"
        raise DataError(f"{path}: is inconsistent ({reason}); export the policy again") from error


def stopwise_version() -> str:
    """The installed version, or "source" when run from folders that were never installed."""
    try:
        return version("stopwise")
    except PackageNotFoundError:
        return "source"


def model_card(package: PolicyPackage) -> str:
    """A page for people: what the policy is, what it was trained on, how well it did, what it needs."""
    info = package.signals
    lines = [
        f"# stopwise policy: {package.name}",
        "",
        f"A `{package.controller.kind}` controller for deep-search agents: after each search step it says continue, "
        "intervene or stop.",
        "",
        f"- parameters: `{json.dumps(dict(package.controller.params))}`",
        f"- guards: `{json.dumps(asdict(package.guards))}`",
        f"- encoder: `{info.encoder}`",
        f"- signals of logs with sha256 `{info.logs_sha256}`",
    ]
    if package.controller.privileged:
        lines.append("- privileged: it is told what only a replayed log knows; a live agent refuses it")
    if package.controller.features is not None:
        lines.append(f"- features from: {', '.join(package.controller.features.signals) or 'the step index alone'}")
    lines += ["", "```python", "import stopwise.runtime", 'policy = stopwise.runtime.load("this folder")', "```", ""]
    if package.training:
        lines += ["## Training", "", "```json", json.dumps(dict(package.training), indent=2), "```", ""]
    return "\n".join(lines)


def _from_manifest(folder: Path, manifest: Mapping[str, Any]) -> PolicyPackage:
    kind, params = manifest["kind"], manifest["params"]
    if kind in RULES:
        controller = make_rule(kind, params)
    else:
        given = manifest["features"]  # null for what reads rows of its own
        features = None if given is None else FeatureSpec(tuple(given["signals"]), given["version"])
        controller = make_learned(kind, params, features, _read_weights(folder / WEIGHTS))
    return PolicyPackage(
        name=manifest["name"],
        controller=controller,
        guards=Guards(**manifest["guards"]),
        signals=info_from_json(manifest["signals"]),
        training=manifest["training"],
    )


def _read_weights(path: Path) -> dict[str, NDArray[Any]]:
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    try:
        return load_file(path)
    except SafetensorError as error:
        raise DataError(f"{path}: is no safetensors file ({error}); export the policy again") from error


def _check_files(folder: Path, manifest: Mapping[str, Any]) -> None:
    """Every file that is read must be listed, be there, and be the one that was written."""
    wanted = [CARD] if manifest["kind"] in RULES else [CARD, WEIGHTS]
    if sorted(manifest["files"]) != wanted:
        raise DataError(f"{folder}: the manifest lists {', '.join(manifest['files'])}; expected {', '.join(wanted)}")
    for name, expected in manifest["files"].items():
        file = folder / name
        found = sha256_file(file) if file.is_file() else "no file"
        if found != expected:
            raise DataError(f"{file}: sha256 {found}; the manifest says {expected}; export the policy again")


def _manifest_text(manifest: Mapping[str, Any]) -> str:
    return json.dumps(manifest, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def _digest(manifest: Mapping[str, Any]) -> str:
    canonical = json.dumps(manifest, sort_keys=True, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return hashlib.sha256(canonical.encode("ascii")).hexdigest()
