import json

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
    path.write_text("".join(json.dumps(trajectory_to_dict(RUN)) + "\n" for _ in range(3)))
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


def test_ids_are_unique_over_lines_and_files(own_log, tmp_path):
    assert [run.id for run in read_logs([own_log]) if isinstance(run, Trajectory)] == ["t", "t#2", "t#3"]
    (tmp_path / "more").mkdir()
    second = tmp_path / "more" / "own.jsonl"
    second.write_text(own_log.read_text())
    ids = [run.id for run in read_logs([own_log, second]) if isinstance(run, Trajectory)]
    assert ids == ["own/t", "own/t#2", "own/t#3", "more/own/t", "more/own/t#2", "more/own/t#3"]
