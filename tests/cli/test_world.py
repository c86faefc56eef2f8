import argparse
import json
from pathlib import Path
from typing import Any

import pytest

from stopwise.cli import world
from stopwise.data.corpus import read_queries, write_corpus
from stopwise.data.errors import StopwiseError


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Any:
    """Run ``stopwise world`` as the dispatcher does; gives exit status, stdout, stderr with the error."""

    def command(*words: object) -> tuple[int, str, str]:
        parser = argparse.ArgumentParser(prog="stopwise")
        world.add_parser(parser.add_subparsers(required=True))
        args = parser.parse_args(["world", *map(str, words)])
        try:
            status, failure = args.run(args), ""
        except StopwiseError as error:
            status, failure = error.exit_code, str(error)
        out, err = capsys.readouterr()
        return status, out, err + failure

    return command


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from stopwise.data.world.generate import WorldConfig, write_world

    folder = tmp_path_factory.mktemp("cli") / "world"
    write_world(folder, WorldConfig(documents=800, questions=40))
    return folder


def test_make(run: Any, tmp_path: Path) -> None:
    out = tmp_path / "w"
    status, stdout, _ = run("--documents", 800, "--questions", 40, "--seed", 5, "--out", out, "--json")
    assert status == 0
    assert json.loads(stdout) == {"documents": 800, "questions": 40, "seed": 5, "out": str(out)}
    assert len(list(read_queries(out))) == 40


def test_compose(run: Any, small: Path, tmp_path: Path) -> None:
    status, stdout, _ = run("--compose", 2, small, "--out", tmp_path / "deep", "--json")
    assert status == 0
    told = json.loads(stdout)
    assert told["parts"] == 2
    assert told["questions"] == len(list(read_queries(tmp_path / "deep"))) >= 16


def test_check(run: Any, small: Path, tmp_path: Path) -> None:
    pytest.importorskip("bm25s")
    pytest.importorskip("matplotlib")
    figure = tmp_path / "population.svg"
    words = ("--check", small, "--retriever", "bm25", "--sample", 6, "--agents", "chaser", "drifter")
    status, stdout, _ = run(*words, "--figure", figure, "--json")
    assert status == 0
    told = json.loads(stdout)
    assert told["asked"] == 6
    assert told["figures"]["runs"] == 12
    assert set(told["by_agent"]) == {"chaser", "drifter"}
    assert set(told["bands"]) <= set(told["figures"])
    assert figure.read_text(encoding="utf-8").lstrip().startswith("<?xml")
    status, stdout, _ = run(*words)
    assert status == 0
    assert "recall_final" in stdout


@pytest.mark.parametrize(
    ("words", "message", "code"),
    [
        ((), "--out", 2),
        (("--compose", 3, "--out", "x"), "name its folder", 2),
        (("corpus",), "--compose K or --check", 2),
        (("--documents", 10, "--out", "x"), "too few", 2),
        (("nowhere", "--check", "--retriever", "bm25"), "no such file", 1),
        (("--check", "--documents", 800, "--questions", 40, "--agents", "nobody"), "no such kind", 2),
        (("--figure", "x.svg", "--out", "x"), "say --check", 2),
    ],
)
def test_usage(
    run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[object, ...], message: str, code: int
) -> None:
    monkeypatch.chdir(tmp_path)
    status, stdout, stderr = run(*words)
    assert (status, stdout) == (code, "")
    assert message in stderr
    assert list(tmp_path.iterdir()) == []


def test_corpus_without_gold(run: Any, tmp_path: Path) -> None:
    pytest.importorskip("bm25s")
    from stopwise.data.corpus import CorpusDocument, Query

    write_corpus(tmp_path / "c", [CorpusDocument("d", "text")], [Query("q", "What?")])
    status, _, stderr = run("--check", tmp_path / "c", "--retriever", "bm25")
    assert status == 1
    assert "no gold documents" in stderr
