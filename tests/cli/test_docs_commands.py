"""The commands of "Bring your own logs" are run in their order, as a reader would."""

import json
import re
import shlex
from pathlib import Path

import pytest

PAGE = (Path(__file__).parents[2] / "docs" / "bring_your_own_logs.md").read_text(encoding="utf-8")
QUESTION = "Where was Ada Brook born?"
LOG = f"""Question: {QUESTION}
Thought 1: I search.
Action 1: Search[Ada Brook]
Observation 1: Ada Brook was born in Lenn.
Action 2: Finish[Lenn]
Observation 2: Answer is CORRECT
"""


@pytest.mark.filterwarnings("ignore:.*:UserWarning:minari.*")
def test_every_command_of_the_page_works(command, tmp_path, monkeypatch):
    pytest.importorskip("minari")
    pytest.importorskip("datasets")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").mkdir()
    gold = [{"question": QUESTION, "answer": "Lenn", "supporting_facts": [["Ada Brook", 0]]}]
    (tmp_path / "hotpot_dev_distractor.json").write_text(json.dumps(gold))
    for path in ("log.txt", "runs/log.txt"):
        (tmp_path / path).write_text(LOG)
    blocks = re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)
    lines = [line for block in blocks for line in block.splitlines() if line.startswith("stopwise ")]
    assert len(lines) >= 8
    for line in lines:
        words = shlex.split(line, comments=True)[1:]
        if words[0] == "signals":
            words += ["--only", "Nov"]  # needs no encoder
        status, _, stderr = command(*words)
        assert status == 0, f"{line}: {stderr}"
        assert "Traceback" not in stderr
