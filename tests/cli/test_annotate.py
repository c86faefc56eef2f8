"""``stopwise annotate`` from sampling to CSV, as a user calls it; the pages in a process of their own."""

import csv
import json
import re
import signal
import subprocess
import sys
import urllib.request
from contextlib import contextmanager
from functools import partial
from urllib.parse import urlencode

import pytest

from stopwise.data.files import write_json
from stopwise.data.records import Action, Document, Step, Trajectory
from stopwise.data.store import write_trajectories

METHODS = ("llm_critic", "ds_mcm")


@pytest.fixture
def place(tmp_path, monkeypatch):
    """Two collections, one a controller, in the current folder."""
    monkeypatch.chdir(tmp_path)
    for method in METHODS:
        runs = []
        for number in range(4):
            told = f"=Look at part {number}{'!' if method == 'ds_mcm' else '.'}"
            step = Step("search", "I look", ("salt",), (Document("d", "Salt.", "Town"),))
            flagged = Step("search", "I look on", ("salt again",), (), logged_action=Action.INTERVENE, guidance=told)
            runs.append(Trajectory(f"r{number}", f"q{number}", f"which town, {number}?", (step, flagged)))
        write_json(tmp_path / "runs" / method / "collection.json", {"controller": {"kind": method}})
        write_trajectories(tmp_path / "runs" / method / "trajectories.parquet", runs)
    return tmp_path


@contextmanager
def rating(rater):
    """The address of a rater's server; it is killed at the end unless it has ended."""
    words = ["annotate", "rate", "study", "--rater", rater, "--port", "0", "--json"]
    command = [sys.executable, "-m", "stopwise.cli", *words]
    # a shell starts background jobs with SIGINT ignored, and a child inherits that
    attended = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, preexec_fn=attended)
    assert process.stdout is not None
    try:
        yield json.loads(process.stdout.readline()), process
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def judge(url, number, correct, reasonable):
    with urllib.request.urlopen(f"{url}item/{number}", timeout=60) as reply:
        page = reply.read().decode()
    token = re.search(r'name="token" value="([^"]+)"', page)
    assert token is not None
    fields = {"token": token[1], "correct": correct, "reasonable": reasonable, "actionable": 3, "comment": "+1"}
    with urllib.request.urlopen(f"{url}item/{number}", urlencode(fields).encode(), timeout=60) as reply:
        assert reply.status == 200  # after the redirect
    return page


def test_from_runs_to_figures(place, answer, command):
    words = ("annotate", "sample", "runs/llm_critic", "runs/ds_mcm", "--out", "study", "--per-method", 3)
    drawn = answer(*words)
    assert drawn["items"] == 6
    assert {method: row["sampled_questions"] for method, row in drawn["methods"].items()} == dict.fromkeys(METHODS, 3)
    key = json.loads((place / "study/key.json").read_text())
    kept = (place / "study/key.json").rename(place / "key.json")  # raters do not have it
    for method in METHODS:
        assert method not in (place / "study/study.json").read_text()
    pages = []
    with rating("ann") as (told, _):
        assert (told["items"], told["missing"]) == (6, 6)
        status, out, err = command("annotate", "rate", "study", "--rater", "ann")
        assert (status, out) == (2, "")
        assert "ann.json: another process is working on it; use its address or end it; another person needs" in err
        pages += [judge(told["url"], number, 1, 5) for number in (1, 2, 3)]
    # killed after three answers: they are there, and it goes on
    with rating("ann") as (told, process):
        assert told["missing"] == 3
        with urllib.request.urlopen(told["url"], timeout=60) as reply:
            assert "Suggestion 4 of 6" in reply.read().decode()
        pages += [judge(told["url"], number, 1, 4) for number in (4, 5, 6)]
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0
    assert not any(method in page for page in pages for method in METHODS)
    assert [path.name for path in (place / "study/answers").iterdir()] == ["ann.json"]
    status, out, err = command("annotate", "report", "study")
    assert (status, out) == (2, "")
    assert "raters ann; expected two" in err
    with rating("bob") as (told, _):
        for number, item in enumerate(key["items"], start=1):
            judge(told["url"], number, int(item["method"] == "ds_mcm"), 5 if number < 4 else 4)
    status, _, err = command("annotate", "report", "study")
    assert (status, "key.json: no such file" in err) == (1, True)
    kept.rename(place / "study/key.json")
    result = answer("annotate", "report", "study", "--out", "report.json", "--resamples", 50)
    assert result["methods"]["ds_mcm"]["correct_by_both"]["mean"] == 1
    assert result["methods"]["llm_critic"]["correct_by_both"]["mean"] == 0
    assert result["agreement"]["correct"]["agreement"]["value"] == 0.5
    assert result["agreement"]["correct"]["kappa"]["value"] == 0
    assert result["agreement"]["reasonable"]["kappa"]["value"] == 1
    assert json.loads((place / "report.json").read_text()) == {k: v for k, v in result.items() if k != "out"}
    status, out, _ = command("annotate", "report", "study", "--resamples", 50)
    assert status == 0
    assert "0.500" in out
    assert "both gave one and" in out  # of `actionable`
    answer("annotate", "export", "study", "--out", "answers.csv")
    with (place / "answers.csv").open(encoding="utf-8", newline="") as source:
        rows = list(csv.DictReader(source))
    assert len(rows) == 12
    assert {row["method"] for row in rows} == set(METHODS)
    assert {row["comment"] for row in rows} == {"'+1"}
    assert all(row["suggestion"].startswith("'=Look at part") for row in rows)
    # a study that was judged is not drawn anew over the answers
    status, _, err = command(*words)
    assert (status, "which this command does not write" in err) == (2, True)


@pytest.mark.parametrize(
    ("words", "status", "message"),
    [
        (("sample", "runs/llm_critic", "--out", "s"), 2, "suggestions of llm_critic alone; expected two"),
        (("sample", "none", "--out", "s"), 1, "none: no such file or folder"),
        (
            ("sample", "runs/llm_critic", "runs/ds_mcm", "--out", "s"),
            1,
            "4 interventions with a suggestion; expected 100",
        ),
        (("rate", "runs", "--rater", "ann"), 1, "runs: holds no study.json; make a study with"),
        (("report", "runs"), 1, "runs: holds no study.json"),
        (("export", "runs", "--out", "x.csv"), 1, "runs: holds no study.json"),
        (("report", "runs", "--seed", "-1"), 2, "--seed: -1; expected a whole number of 0 or more"),
        (("rate", "runs"), 2, "required: --rater"),
        ((), 2, "required: STEP"),
    ],
)
def test_bad_input(place, command, words, status, message):
    found, out, err = command("annotate", *words)
    assert (found, out) == (status, "")
    assert message in err
    assert "Traceback" not in err
    assert not (place / "s").exists()


def test_help_tells_the_steps(command):
    status, out, _ = command("annotate", "--help")
    assert status == 0
    assert all(step in out for step in ("sample", "rate", "report", "export"))
    for step in ("sample", "rate", "report", "export"):
        status, out, _ = command("annotate", step, "--help")
        assert (status, "example: stopwise annotate" in out) == (0, True)
