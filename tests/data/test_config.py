from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pytest

from stopwise.data.config import load_config, plain, read_config, write_config
from stopwise.data.errors import DataError, StopwiseError, UsageError


@dataclass(frozen=True)
class Price:
    search: float = 0.01
    calls: int = 3

    def __post_init__(self) -> None:
        if self.search < 0:
            raise UsageError(f"search: found {self.search}; expected 0 or more")


@dataclass(frozen=True)
class Arm:
    kind: str
    price: Price | None = None


@dataclass(frozen=True)
class Fixed:
    steps: int


@dataclass(frozen=True)
class Run:
    name: str
    arms: tuple[Arm, ...] = ()
    price: Price = Price()
    rate: float = 0.1
    mode: Literal["fast", "slow"] = "fast"
    limit: int | None = None
    more: tuple[Arm, ...] | None = None
    named: Mapping[str, Arm] = field(default_factory=dict)
    rule: Arm | Fixed | None = None
    params: Mapping[str, Any] = field(default_factory=dict)
    out: Path | None = None


@pytest.fixture
def load(tmp_path):
    """Load a config from its text."""

    def load(text, *overrides):
        path = tmp_path / "run.yaml"
        path.write_text(text, encoding="utf-8")
        return load_config(Run, path, overrides)

    return load


def _refused(load, text, *overrides, kind: type[StopwiseError] = UsageError):
    with pytest.raises(kind) as caught:
        load(text, *overrides)
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_a_config_becomes_dataclasses(load):
    found = load("name: a\narms:\n- kind: x\n  price: {search: 1}\n- {kind: y}\nlimit: 5\nparams: {a: 1}\nout: a/b")
    assert found == Run(
        "a", (Arm("x", Price(1.0)), Arm("y")), limit=5, params={"a": 1}, out=Path("a/b")
    )  # fmt: skip


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("nmae: a", "unknown key nmae; did you mean name?"),
        ("name: a\nprice: {serach: 1}", "unknown key price.serach; did you mean search?"),
        ("name: a\narms: [{kind: x}, {kind: y, price: {call: 1}}]", "arms.1.price.call; did you mean calls?"),
        ("name: a\nmore: [{kin: y}]", "more.0.kin; did you mean kind?"),
        ("name: a\nnamed: {b: {kind: y, prize: {}}}", "named.b.prize; did you mean price?"),
        ("name: a\nrule: {kind: y, steps: 3}", "unknown key rule."),
        ("name: a\n7: 8", "unknown key 7; expected one of name, arms, price"),
        ("name: a\nzzz: 1", "unknown key zzz; expected one of name, arms, price"),
    ],
)
def test_an_unknown_key_is_named_with_the_nearest_one_at_any_depth(load, text, place):
    assert place in _refused(load, text)


def test_either_of_two_kinds_is_read(load):
    assert load("name: a\nrule: {kind: x}").rule == Arm("x")
    assert load("name: a\nrule: {steps: 3}").rule == Fixed(3)


def test_free_mappings_are_free(load):
    assert load("name: a\nparams: {anything: {goes: 1}}").params == {"anything": {"goes": 1}}


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("name: a\nrate: fast", ("key rate:", "number", "found 'fast'")),
        ("name: [a]", ("key name:", "string", "found ['a']")),
        ("name: a\nlimit: 1.5", ("key limit:", "integer", "found 1.5")),
        ("name: a\nmode: quick", ("key mode:", "'fast' or 'slow'", "found 'quick'")),
        ("name: a\narms: [{kind: x}, {kind: 3}]", ("key arms.1.kind:", "string", "found 3")),
        ("name: a\narms: {kind: x}", ("key arms: should be a list; found {'kind': 'x'}",)),
        ("name: a\nparams: 3", ("key params: should be a mapping; found 3",)),
        ("name: a\nlimit: x", ("key limit: should be an integer; found 'x'",)),
        ("name: a\nprice: 3", ("key price:", "found 3")),
        ("name: a\nmore: [{kind: x, price: {calls: x}}]", ("key more.0.price.calls:", "integer")),
        ("rate: 1", ("key name:", "required")),
        ("name: a\narms: [{}]", ("key arms.0.kind:", "required")),
    ],
)
def test_a_wrong_value_is_named_with_its_key_and_what_was_found(load, text, parts):
    message = _refused(load, text)
    assert "run.yaml: " in message
    for part in parts:
        assert part in message


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("name: a\nprice: {search: -1}", "run.yaml: price: search: found -1.0"),
        ("name: a\nmore: [{kind: x}, {kind: y, price: {search: -1}}]", "run.yaml: more.1.price: search: found -1.0"),
        ("name: a\nnamed: {b: {kind: x, price: {search: -1}}}", "run.yaml: named.b.price: search: found -1.0"),
    ],
)
def test_what_a_nested_dataclass_refuses_is_named_with_its_place(load, text, place):
    assert place in _refused(load, text)


def test_a_long_value_is_cut_in_the_message(load):
    assert len(_refused(load, f"name: a\nrate: {'x' * 1000}")) < 400


def test_a_key_that_looks_like_a_type_is_named_too():
    @dataclass(frozen=True)
    class Odd:
        dictionary: int = 0
        tuple_size: Price = Price()

    with pytest.raises(UsageError, match="key dictionary:"):
        read_config(Odd, {"dictionary": "x"}, "here")
    with pytest.raises(UsageError, match=r"key tuple_size\.calls:"):
        read_config(Odd, {"tuple_size": {"calls": "x"}}, "here")


@pytest.mark.parametrize("text", ["1e-4", "1.0e-4", "1E-4", "0.0001", ".0001"])
def test_a_small_number_is_a_number(load, text):
    # YAML 1.1 reads 1e-4 as a text
    assert load(f"name: a\nrate: {text}").rate == 1e-4
    assert load("name: a", f"rate={text}").rate == 1e-4
    assert load(f"name: a\nprice: {{search: {text}}}").price.search == 1e-4


# --- overrides ------------------------------------------------------------------------------------------------------


def test_overrides_set_keys_at_any_depth_in_order(load):
    text = "name: a\narms: [{kind: x}, {kind: y}]\n"
    found = load(text, "name=b", "arms.1.kind=z", "arms.0.price.calls=7", "price.search=2", "limit=4", "limit=5")
    assert found == Run("b", (Arm("x", Price(calls=7)), Arm("z")), price=Price(2.0), limit=5)


def test_override_values_are_yaml(load):
    found = load("name: a", "arms=[{kind: x}]", "params={a: 1}", "name=b=c", "limit=null", "named.n.kind=k")
    assert found == Run("b=c", (Arm("x"),), params={"a": 1}, named={"n": Arm("k")})
    assert load("name: a\narms: [{kind: x}, {kind: y}]", "arms.0={kind: z}").arms == (Arm("z"), Arm("y"))


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("name", "override 'name'; expected key.path=value"),
        ("=3", "override '=3'; expected key.path=value"),
        ("name=[", "the value is not YAML"),
        ("name=2024-99-99", "the value is not YAML"),
        ("name.first=x", "name is 'a'; it has no keys"),
        ("arms.2.kind=x", "arms.2 is not one of 2 list items, from 0"),
        ("arms.one.kind=x", "arms.one is not one of 2 list items, from 0"),
        ("arms.2={kind: x}", "arms.2 is not one of 2 list items, from 0"),
        ("arms.0.kin=x", "unknown key arms.0.kin; did you mean kind?"),
        ("nmae=x", "unknown key nmae; did you mean name?"),
        ("rate=fast", "key rate:"),
    ],
)
def test_a_wrong_override_is_named(load, override, message):
    assert message in _refused(load, "name: a\narms: [{kind: x}, {kind: y}]", override)


# --- files ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name: [a", "line 1: is not YAML"),
        ("name: a\nrate: 1\n\tlimit: 2", "line 3: is not YAML"),
        ("- a\n- b", "holds list; expected a mapping"),
        ("just text", "holds str; expected a mapping"),
        ("name: \x00", "is not YAML"),
        ("name: 2024-99-99", "is not YAML"),
    ],
)
def test_a_file_that_is_no_mapping_is_named(load, text, message):
    assert message in _refused(load, text, kind=DataError)


def test_a_file_that_cannot_be_read_is_named(tmp_path):
    with pytest.raises(DataError, match=r"missing\.yaml: no such file; expected a YAML config"):
        load_config(Run, tmp_path / "missing.yaml")
    with pytest.raises(DataError, match="cannot be read"):
        load_config(Run, tmp_path)
    (tmp_path / "binary.yaml").write_bytes(b"name: \xff\xfe")
    with pytest.raises(DataError, match=r"binary\.yaml: cannot be read"):
        load_config(Run, tmp_path / "binary.yaml")


def test_an_empty_file_is_an_empty_mapping(tmp_path):
    (tmp_path / "empty.yaml").write_text("# nothing\n")
    assert load_config(Price, tmp_path / "empty.yaml") == Price()
    assert load_config(Price, tmp_path / "empty.yaml", ["calls=1"]) == Price(calls=1)


def test_the_resolved_config_reads_back(load, tmp_path):
    config = load("name: 川\narms: [{kind: x, price: {}}]\nout: a/b\nparams: {grid: [1, 2]}\nrate: 1e-4\nlimit: 3")
    path = tmp_path / "resolved.yaml"
    write_config(path, config, ["stopwise", "train", "run.yaml", "name=a\nb"])
    assert load_config(Run, path) == config
    assert path.read_text(encoding="utf-8").startswith("# stopwise train run.yaml")
    assert "川" in path.read_text(encoding="utf-8")


def test_plain_values():
    assert plain(Run("a", (Arm("x"),), out=Path("b/c")))["arms"] == [{"kind": "x", "price": None}]
    assert plain({1: (Path("a"), Price())}) == {"1": ["a", {"search": 0.01, "calls": 3}]}
