import json

import pytest

from stopwise.models.chat import ChatFailure, ChatReply, Usage
from stopwise.models.ledger import Ledger, Prices, add_to_bill, bill_beside, read_bill

PRICES = Prices(prompt=2.0, cached=1.0, completion=10.0)


def _report():
    ledger = Ledger()
    reply = ChatReply("x", "stop", "m", Usage(prompt=1_000_000, cached=400_000, completion=100_000), seconds=1.5)
    ledger.paid("agent", reply, PRICES)
    ledger.reused("agent", reply, PRICES)
    ledger.paid("reader", reply, PRICES)
    ledger.failed("coverage", ChatFailure("timeout", "late", attempts=2), PRICES)
    return {"model": "m@http://h/v1", **ledger.report()}


def test_a_run_folder(tmp_path, command, answer):
    run = tmp_path / "run"
    run.mkdir()
    add_to_bill(run / "llm_cost.json", _report())
    bill = answer("cost", run)["bills"][str(run)]
    # 0.6 million fresh at 2, 0.4 million cached at 1, 0.1 million generated at 10
    assert bill["operation"]["agent"]["money"] == pytest.approx(1.2 + 0.4 + 1.0)
    assert bill["operation"]["agent"]["saved_money"] == pytest.approx(2.6)
    assert bill["operation"]["total"]["calls"] == 1
    assert bill["evaluation"]["total"]["calls"] == 1
    status, out, _ = command("cost", run, run / "llm_cost.json")
    assert status == 0
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in out.splitlines() if line.startswith("│")]
    assert rows[0] == [
        "operation",
        "agent",
        "1",
        "0",
        "1",
        "1,000,000",
        "400,000",
        "100,000",
        "2.6000",
        "1.5",
        "2.6000",
    ]
    assert [row[:4] for row in rows[1:3]] == [["operation", "coverage", "0", "1"], ["operation", "total", "1", "1"]]
    assert [row[1] for row in rows[3:5]] == ["reader", "total"]
    assert out.count("m@http://h/v1") == 2


def test_resumed_calls_stand_in_one_bill(tmp_path):
    out = tmp_path / "signals.parquet"
    for _ in range(2):
        add_to_bill(bill_beside(out), _report())
    assert bill_beside(out).name == "signals.llm_cost.json"
    assert read_bill(bill_beside(out))["operation"]["agent"]["prompt_tokens"] == 2_000_000


def test_a_benchmark_holds_its_bill_itself(tmp_path, answer):
    for name in ("benchmark.json", "result.json"):
        (tmp_path / name).write_text(json.dumps({"rows": [], "llm": _report()}))
        for path in (tmp_path, tmp_path / name):
            assert answer("cost", path)["bills"][str(path)]["operation"]["agent"]["calls"] == 1


def test_a_benchmark_of_driven_agents_holds_two(tmp_path, command, answer):
    place = tmp_path / "result.json"
    place.write_text(json.dumps({"rows": [], "llm": _report(), "agents_llm": _report()}))
    assert list(answer("cost", tmp_path)["bills"]) == [f"{tmp_path} (agents)", str(tmp_path)]
    place.write_text(json.dumps({"rows": [], "llm": None, "agents_llm": _report()}))
    assert list(answer("cost", tmp_path)["bills"]) == [f"{tmp_path} (agents)"]
    place.write_text(json.dumps({"rows": [], "llm": None, "agents_llm": {"operation": 1}}))
    status, _, err = command("cost", tmp_path)
    assert status == 1
    assert "agents_llm is no bill" in err


def test_what_has_no_bill(tmp_path, command):
    (tmp_path / "run").mkdir()
    (tmp_path / "bad.llm_cost.json").write_text(json.dumps({"operation": {"agent": {"calls": 1}}, "evaluation": {}}))
    (tmp_path / "odd.llm_cost.json").write_text(json.dumps({"operation": {"agent": None}, "evaluation": {}}))
    for path, message in (
        ("odd.llm_cost.json", "holds no bill of a language model"),
        ("run", "has no bill"),
        ("none", "no such file or folder"),
        ("bad.llm_cost.json", "holds no bill of a language model"),
    ):
        status, out, err = command("cost", tmp_path / path)
        assert (status, out) == (1, "")
        assert message in err
