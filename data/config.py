"""Configs: one YAML file a run, read into frozen dataclasses; a wrong key is named with the nearest known one."""

import difflib
import types
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields, is_dataclass
from pathlib import Path
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from stopwise.data.errors import DataError, UsageError
from stopwise.data.files import atomic_path

Config = TypeVar("Config")


def load_config(kind: type[Config], path: Path, overrides: Sequence[str] = ()) -> Config:
    """Read a config.

    Args:
        kind: a frozen dataclass; nested dataclasses, and tuples of them, are read too.
        path: a YAML file with a mapping.
        overrides: ``key.path=value`` each, the value read as YAML; list items by number.

    Raises:
        DataError: the file is missing or is no YAML mapping.
        UsageError: a key is unknown or a value is not what it should be; the message names the key's path.
    """
    return read_config(kind, load_values(path, overrides), str(path))


def load_values(path: Path, overrides: Sequence[str] = ()) -> dict[str, Any]:
    """The values of a config file with its overrides, not checked against any dataclass; raises as `load_config`."""
    import yaml

    try:
        text = Path(path).read_text(encoding="utf-8")
        values = yaml.safe_load(text)
    except FileNotFoundError:
        raise DataError(f"{path}: no such file; expected a YAML config") from None
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: cannot be read ({error}); expected a YAML config") from error
    except (yaml.YAMLError, ValueError) as error:  # ValueError: a date that is none, as 2024-99-99
        mark = getattr(error, "problem_mark", None)
        place = f"line {mark.line + 1}: " if mark else ""
        reason = getattr(error, "problem", None) or str(error).splitlines()[0]
        raise DataError(f"{path}: {place}is not YAML ({reason})") from error
    if values is None:
        values = {}
    if not isinstance(values, dict):
        raise DataError(f"{path}: holds {type(values).__name__}; expected a mapping of keys to values")
    for override in overrides:
        _override(values, override)
    return values


def read_config(kind: type[Config], values: Mapping[str, Any], source: str) -> Config:
    """Check values already read from YAML or JSON; `source` begins every message. Raises as `load_config`."""
    from pydantic import TypeAdapter, ValidationError

    _check_keys(kind, values, source, "")
    try:
        return TypeAdapter(kind).validate_python(values)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"] if "[" not in str(part))  # as function-after[...]
        found = repr(first.get("input"))
        shown = found if len(found) <= 80 else f"{found[:77]}..."
        raise UsageError(f"{source}: key {place or 'the whole'}: {_worded(first['msg'])}; found {shown}") from None


def _worded(message: str) -> str:
    """What pydantic says, in YAML's words."""
    for theirs, ours in (
        ("Input should be", "should be"),
        ("valid tuple", "list"),
        ("valid dictionary", "mapping"),
        ("valid integer, unable to parse string as an integer", "integer"),
        ("valid number, unable to parse string as a number", "number"),
        ("valid ", ""),
        ("a integer", "an integer"),
    ):
        message = message.replace(theirs, ours)
    return message


def write_config(path: Path, config: Any, command: Sequence[str] = ()) -> None:
    """Write the resolved config as YAML beside a result, with the command in a comment."""
    import yaml

    with atomic_path(path) as partial:
        head = f"# {' '.join(' '.join(command).splitlines())}\n" if command else ""
        partial.write_text(head + yaml.safe_dump(plain(config), sort_keys=False, allow_unicode=True), encoding="utf-8")


def plain(config: Any) -> Any:
    """A config as JSON and YAML values."""
    if is_dataclass(config) and not isinstance(config, type):
        return plain(asdict(config))
    if isinstance(config, Mapping):
        return {str(key): plain(value) for key, value in config.items()}
    if isinstance(config, list | tuple):
        return [plain(value) for value in config]
    return str(config) if isinstance(config, Path) else config


def _override(values: dict[str, Any], override: str) -> None:
    import yaml

    place, sign, text = override.partition("=")
    if not sign or not place:
        raise UsageError(f"override {override!r}; expected key.path=value")
    try:
        value = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError):
        raise UsageError(f"override {override!r}: the value is not YAML") from None
    parts = place.split(".")
    target: Any = values
    for depth, part in enumerate(parts[:-1]):
        here = ".".join(parts[: depth + 1])
        if isinstance(target, list):
            if not part.isdecimal() or int(part) >= len(target):
                raise UsageError(f"override {override!r}: {here} is not one of {len(target)} list items, from 0")
            target = target[int(part)]
        elif isinstance(target, dict):
            target = target.setdefault(part, {})
        if not isinstance(target, dict | list):
            raise UsageError(f"override {override!r}: {here} is {target!r}; it has no keys")
    if isinstance(target, list):
        if not parts[-1].isdecimal() or int(parts[-1]) >= len(target):
            raise UsageError(f"override {override!r}: {place} is not one of {len(target)} list items, from 0")
        target[int(parts[-1])] = value
    else:
        target[parts[-1]] = value


def _check_keys(kind: Any, value: Any, source: str, place: str) -> None:
    """Refuse unknown keys at any depth, and values that a nested dataclass itself refuses, before types are checked.

    pydantic would not name the nearest key, nor where the dataclass stands that refuses.
    """
    from pydantic import TypeAdapter, ValidationError

    if isinstance(kind, type) and is_dataclass(kind) and isinstance(value, Mapping):
        hints = get_type_hints(kind)
        known = [field.name for field in fields(kind) if field.init]
        for key, inner in value.items():
            here = f"{place}.{key}" if place else str(key)
            if key not in known:
                near = difflib.get_close_matches(str(key), known, n=1)
                hint = f"did you mean {near[0]}?" if near else f"expected one of {', '.join(known)}"
                raise UsageError(f"{source}: unknown key {here}; {hint}")
            _check_keys(hints[key], inner, source, here)
        if place:
            try:
                TypeAdapter(kind).validate_python(value)
            except ValidationError:
                pass  # told of the whole config, with the key's path
            except UsageError as error:
                raise UsageError(f"{source}: {place}: {error}") from None
        return None
    origin, inner_kinds = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        shapes = (dict, Mapping) if isinstance(value, Mapping) else (tuple, list)
        fitting = [option for option in inner_kinds if is_dataclass(option) or get_origin(option) in shapes]
        refusals = []
        for option in fitting:
            try:
                return _check_keys(option, value, source, place)
            except UsageError as error:
                refusals.append(error)
        if refusals:  # no kind of value knows the key
            raise refusals[0]
    elif origin in (tuple, list) and isinstance(value, list | tuple):
        for number, item in enumerate(value):
            _check_keys(inner_kinds[0], item, source, f"{place}.{number}")
    elif origin in (dict, Mapping) and isinstance(value, Mapping):
        for key, item in value.items():
            _check_keys(inner_kinds[1], item, source, f"{place}.{key}")
    return None
