"""What `docs/tables.md` and the README say of tables and names is what there is."""

import re
from pathlib import Path

import pytest

import stopwise.runtime
from stopwise.cli.benchmark import print_costs, print_table
from stopwise.controllers import connections
from stopwise.models.chat_client import ChatClient

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "tables.md").read_text(encoding="utf-8")
README = (ROOT / "README.md").read_text(encoding="utf-8")
NO_ROW = {"controller": "x", "intervention_model": "arena", "models": {}, "not_applicable": "nothing to run"}


def headings(out):
    """The words of a printed table's first line, which is between thick bars."""
    line = next(line for line in out.splitlines() if line.startswith("┃"))
    return [cell.strip() for cell in line.strip("┃").split("┃")]


def test_every_column_of_a_benchmark_is_explained(capsys):
    print_table({"rows": [NO_ROW], "config": {"signals": "s"}, "questions": 1, "split": "test", "runs": 1})
    print_costs([NO_ROW], "all agents")
    first, second = capsys.readouterr().out.split("what a run cost")
    found = [*headings(first), *headings(second)]
    assert {"difference [95%]", "precision", "x alone"} <= set(found)
    for name in found:
        assert f"| `{name}` |" in PAGE, name


def test_the_readme_leads_there():
    assert "](docs/tables.md)" in README


def test_how_the_readme_opens_a_language_model_for_a_live_agent(monkeypatch):
    (block,) = (block for block in re.findall(r"```python\n(.*?)```", README, re.DOTALL) if "open_chat" in block)
    given = {}
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(connections, "open_memory", lambda folder, encoder: f"memory of {folder}")
    monkeypatch.setattr(stopwise.runtime, "load", lambda folder, **words: given.update(words, folder=folder))
    pytest.importorskip("llguidance")
    exec(compile(block, "README.md", "exec"), {})
    assert isinstance(given["llm"], ChatClient)
    assert (given["memory"], given["folder"]) == ("memory of runs/memory", "policy/")
