import json
from dataclasses import replace

import pytest

from stopwise.data.codec import trajectory_to_dict
from stopwise.data.errors import DataError, UsageError
from stopwise.data.importers import FORMATS, choose, importer, read_logs, stopwise_jsonl
from stopwise.data.importers.detect import sniff
from stopwise.data.importers.toolbox import ImportProblem
from stopwise.data.records import Document, Step, Trajectory

RUN = Trajectory(
    "t", "q", "Where?", steps=(Step("search", queries=("a",), documents=(Document("d", "text"),)),), answer="Lenn"
)


@pytest.fixture
def own_log(tmp_path):
    path = tmp_path / "own.jsonl"
    path.write_text("".join(json.dumps(trajectory_to_dict(replace(RUN, id=name))) + "\n" for name in "tuv"))
    return path


def test_the_format_is_recognised_by_content(reflexion_log, knowagent_log, r1_log, search_r1_log, own_log):
    found = [sniff(path).format for path in (reflexion_log, knowagent_log, r1_log, search_r1_log, own_log)]
    assert found == ["react", "react", "search_tags", "search_tags", "stopwise"]


def test_what_is_in_no_format_is_refused_with_the_known_ones(tmp_path):
    path = tmp_path / "log"
    path.write_text("Dear diary, nothing happened today.")
    with pytest.raises(DataError, match="is in no format that stopwise recognises; expected one of react, search_tags"):
        sniff(path)


def test_what_may_be_in_two_formats_is_refused_with_both(tmp_path):
    path = tmp_path / "log"
    path.write_text("Question: a?\nThought 1: b\nAction 1: c\n<search>q</search>")
    with pytest.raises(DataError, match="any of these formats: react, search_tags; name it by --format"):
        sniff(path)
    assert choose([path], "react").sources[0].format == "react"


def test_no_such_format(own_log):
    with pytest.raises(UsageError, match="--format tea: no such format; expected auto or one of react"):
        choose([own_log], "tea")
    with pytest.raises(UsageError, match=r"--format reakt: no such format; did you mean react\?"):
        choose([own_log], "reakt")


def test_every_format_has_its_parts():
    for name in FORMATS:
        module = importer(name)
        assert module.PICTURE
        assert "\n" not in module.PICTURE


def test_own_lines_read_back_and_bad_ones_are_named_by_key(tmp_path):
    path = tmp_path / "own.jsonl"
    path.write_text(json.dumps(trajectory_to_dict(RUN)) + '\n{"id": 7}\n')
    first, problem = stopwise_jsonl.read(path)
    assert first == RUN
    assert problem == ImportProblem(str(path), "line 2", "id: found 7; expected text")


def test_a_line_with_an_id_that_came_before_is_left_out_and_told(own_log):
    """An id names one run: what came twice must not count twice."""
    own_log.write_text(own_log.read_text() + json.dumps(trajectory_to_dict(replace(RUN, id="u", answer="Or"))) + "\n")
    *runs, problem = read_logs([own_log])
    assert [run.id for run in runs if isinstance(run, Trajectory)] == ["t", "u", "v"]
    assert problem == ImportProblem(
        str(own_log),
        "line 4",
        "id: found 'u', which a run before it has; expected an id of its own for every run; this one is left out, give "
        "it another id if it is another run",
    )


def test_a_line_that_is_not_read_takes_no_id(own_log):
    bad = trajectory_to_dict(RUN) | {"steps": [{"kind": "search", "seconds": -1}]}
    own_log.write_text(json.dumps(bad) + "\n" + own_log.read_text())
    problem, *runs = read_logs([own_log])
    assert isinstance(problem, ImportProblem)
    assert (problem.where, len(runs)) == ("line 1", 3)
    assert problem.reason.startswith("steps[0].seconds: found -1; expected")


@pytest.mark.parametrize("word", ["NaN", "Infinity", "-Infinity"])
def test_our_own_format_has_no_number_that_is_none(own_log, word):
    line = json.dumps(trajectory_to_dict(RUN)).replace('"text": "text"', f'"score": {word}')
    own_log.write_text(line + "\n")
    [problem] = read_logs([own_log])
    assert isinstance(problem, ImportProblem)
    assert "documents[0].score: found " in problem.reason


def test_ids_are_unique_over_lines_and_files(own_log, tmp_path):
    assert [run.id for run in read_logs([own_log]) if isinstance(run, Trajectory)] == ["t", "u", "v"]
    (tmp_path / "more").mkdir()
    second = tmp_path / "more" / "own.jsonl"
    second.write_text(own_log.read_text())
    ids = [run.id for run in read_logs([own_log, second]) if isinstance(run, Trajectory)]
    assert ids == ["own/t", "own/u", "own/v", "more/own/t", "more/own/u", "more/own/v"]


def test_runs_of_another_tool_that_share_an_id_are_numbered(tmp_path):
    """Such ids are often those of questions, and several runs have one."""
    row = {"id": "t", "messages": [{"role": "user", "content": "Where?"}, {"role": "assistant", "content": "Lenn"}]}
    path = tmp_path / "chat.jsonl"
    path.write_text(3 * (json.dumps(row) + "\n"))
    assert [run.id for run in read_logs([path], "chat") if isinstance(run, Trajectory)] == ["t", "t#2", "t#3"]
