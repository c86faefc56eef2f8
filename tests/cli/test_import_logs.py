import gzip
import io
import json

import pyarrow as pa
import pytest

from stopwise.data.store import read_trajectories

EPISODE = """Question: Where was Ada Brook born?
Thought {n}: I search.
Action {n}: Search[Ada Brook]
Observation {n}: Ada Brook was born in Lenn.
Thought 2: Lenn.
Action 2: Finish[Lenn]
Observation 2: Answer is CORRECT

"""
GOLD = {"question": "Where was Ada Brook born?", "answer": "Lenn", "supporting_facts": [["Ada Brook", 0]]}


@pytest.fixture
def log(tmp_path):
    path = tmp_path / "log.txt"
    path.write_text(EPISODE.format(n=1) + "Question: Alone?\n\n" + EPISODE.format(n=1))
    return path


def test_json_is_one_object_with_the_counts(stopwise, log, tmp_path):
    gold = tmp_path / "gold.json"
    gold.write_text(json.dumps([GOLD]))
    out = tmp_path / "logs.parquet"
    status, stdout, stderr = stopwise("import", log, "--gold", gold, "--out", out, "--json")
    assert status == 0
    assert json.loads(stdout) == {
        "format": "react",
        "files": 1,
        "trajectories": 2,
        "questions": 1,
        "question_ids": {"numbered": 0, "merged": 0, "parted": 0, "reworded": 0, "reworded_examples": {}},
        "search_steps": 2,
        "documents": 2,
        "document_ids": {"log": 0, "url": 0, "title": 2, "text": 0},
        "outcomes": {"correct": 2, "incorrect": 0, "halted": 0, "unknown": 0},
        "with_gold": 2,
        "problem_count": 1,
        "problems": [{"file": str(log), "where": "line 9", "reason": "found no steps after the question"}],
        "out": str(out),
        "gold": {
            "file": str(gold),
            "questions": 1,
            "questions_matched": 1,
            "trajectories_without": 0,
            "documents_matched_by": "title",
        },
        "problems_file": f"{out}.problems.jsonl",
    }
    assert f"reading {log} as react" in stderr
    runs = list(read_trajectories(out))
    assert [run.gold_ids for run in runs] == [("title:ada brook",)] * 2


def test_without_json_stdout_is_silent_and_a_person_is_told(stopwise, log, tmp_path):
    status, stdout, stderr = stopwise("import", log, "--out", tmp_path / "logs.parquet")
    assert (status, stdout) == (0, "")
    assert "2 trajectories of 1 questions (2 correct), 2 search steps, 2 documents" in stderr
    assert "1 records could not be read:" in stderr


def test_importing_twice_gives_the_same_bytes(stopwise, log, tmp_path):
    for name in ("a", "b"):
        stopwise("import", log, "--out", tmp_path / name)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_several_files_and_a_named_format(stopwise, log, tmp_path):
    other = tmp_path / "other.txt"
    other.write_text(EPISODE.format(n=1))
    status, stdout, _ = stopwise("import", log, other, "--format", "react", "--out", tmp_path / "o", "--json")
    assert (status, json.loads(stdout)["trajectories"]) == (0, 3)
    assert [run.id for run in read_trajectories(tmp_path / "o")] == [
        "log/episode-1",
        "log/episode-3",
        "other/episode-1",
    ]


@pytest.mark.parametrize(
    ("content", "options", "status", "message"),
    [
        (b"", (), 1, "is empty"),
        (bytes(range(256)) * 4, (), 1, "is a binary file"),
        (b'[{"question": "Wh', (), 1, "is in no format that stopwise recognises"),
        (
            b'[{"question": "Wh',
            ("--format", "stopwise"),
            1,
            "no trajectory could be read as stopwise; the first problem",
        ),
        (EPISODE.encode(), ("--format", "search_tags"), 1, "no trajectory could be read as search_tags"),
        (EPISODE.encode(), ("--format", "tea"), 2, "--format tea: no such format"),
        (
            b"Question: Alone?\n\n" + EPISODE.encode(),
            ("--strict",),
            1,
            "line 1: found no steps after the question; --st",
        ),
        (EPISODE.encode(), ("--gold", "GOLD"), 1, "matches no question of the logs"),
    ],
)
def test_bad_input_is_one_clear_line_and_nothing_is_written(stopwise, tmp_path, content, options, status, message):
    log, out = tmp_path / "log", tmp_path / "logs.parquet"
    log.write_bytes(content)
    gold = tmp_path / "gold.json"
    gold.write_text(json.dumps([GOLD | {"question": "Another?"}]))
    out.write_text("the old file")
    options = [gold if option == "GOLD" else option for option in options]
    found, stdout, stderr = stopwise("import", log, *options, "--out", out, "--json")
    assert (found, stdout) == (status, "")
    assert message in stderr.splitlines()[-1]
    assert out.read_text() == "the old file"
    assert {path.name for path in tmp_path.iterdir()} == {"log", "gold.json", "logs.parquet"}


def test_missing_file_and_folder_as_output(stopwise, log, tmp_path):
    assert stopwise("import", tmp_path / "none", "--out", tmp_path / "o")[::2] == (
        1,
        f"{tmp_path / 'none'}: no such file",
    )
    status, _, stderr = stopwise("import", log, "--out", tmp_path)
    assert status == 2
    assert "is a folder; expected a file to write" in stderr


def test_an_output_in_the_folder_of_the_logs_is_not_read_again(stopwise, log):
    out = log.parent / "logs.parquet"
    for words in ((), (), ("--format", "react")):
        summary = json.loads(stopwise("import", log.parent, *words, "--out", out, "--json")[1])
        assert (summary["files"], summary["trajectories"], summary["problem_count"]) == (1, 2, 1)


def test_problems_are_listed_beside_the_output_and_an_old_list_goes(stopwise, log, tmp_path):
    out = tmp_path / "logs.parquet"
    stopwise("import", log, "--out", out)
    listed = tmp_path / "logs.parquet.problems.jsonl"
    assert [json.loads(line)["where"] for line in listed.read_text().splitlines()] == ["line 9"]
    log.write_text(EPISODE.format(n=1))
    assert json.loads(stopwise("import", log, "--out", out, "--json")[1])["problems_file"] is None
    assert not listed.exists()


def test_folders_patterns_and_files_that_are_no_logs(stopwise, tmp_path):
    folder = tmp_path / "runs"
    (folder / "deep").mkdir(parents=True)
    (folder / "a.txt").write_text(EPISODE.format(n=1))
    (folder / "deep" / "b.txt").write_text(EPISODE.format(n=1))
    (folder / "notes.md").write_text("Dear diary.")
    (folder / ".hidden").write_text("x")
    for paths, count, problems in (([folder], 2, 1), ([folder / "*.txt"], 1, 0), ([folder / "**" / "*.txt"], 2, 0)):
        status, stdout, _ = stopwise("import", *paths, "--out", tmp_path / "o", "--json")
        summary = json.loads(stdout)
        assert (status, summary["trajectories"], summary["problem_count"]) == (0, count, problems)
    assert stopwise("import", folder / "*.csv", "--out", tmp_path / "o")[2].endswith("*.csv: matches no file")
    (folder / "more.md").write_text("Dear diary, again.")
    assert "none of its 2 files is a log" in stopwise("import", folder / "*.md", "--out", tmp_path / "o")[2]


def _gz(data):
    return gzip.compress(data)


def _zst(data):
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "zstd") as stream:
        stream.write(data)
    return sink.getvalue().to_pybytes()


@pytest.mark.parametrize("pack", [_gz, _zst])
def test_compressed_files_are_recognised_by_content(stopwise, tmp_path, pack):
    path = tmp_path / "log"
    path.write_bytes(pack(EPISODE.format(n=1).encode() * 300))
    status, stdout, _ = stopwise("import", path, "--out", tmp_path / "o", "--json")
    assert (status, json.loads(stdout)["trajectories"]) == (0, 300)
    path.write_bytes(path.read_bytes()[:-30])
    status, _, stderr = stopwise("import", path, "--out", tmp_path / "o")
    assert (status, "compressed data is damaged or cut off" in stderr) == (1, True)


def test_standard_input(stopwise, tmp_path, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(EPISODE.format(n=1).encode())))
    status, stdout, _ = stopwise("import", "-", "--out", tmp_path / "o", "--json")
    assert (status, json.loads(stdout)["trajectories"]) == (0, 1)


def test_a_tool_may_be_named_a_search(stopwise, tmp_path):
    path = tmp_path / "log"
    path.write_text(EPISODE.format(n=1).replace("Search[", "Oracle["))
    options = ("--out", tmp_path / "o", "--json")
    assert json.loads(stopwise("import", path, *options)[1])["search_steps"] == 0
    assert json.loads(stopwise("import", path, *options, "--search-tool", "Oracle")[1])["search_steps"] == 1


def test_names_that_the_log_lacks_are_filled_in(stopwise, log, tmp_path):
    own = tmp_path / "own.jsonl"
    own.write_text('{"id": "t", "question_id": "q", "question": "?", "agent": "mine"}')
    stopwise("import", log, own, "--agent", "a", "--dataset", "d", "--out", tmp_path / "o")
    assert {(run.agent, run.dataset) for run in read_trajectories(tmp_path / "o")} == {("a", "d"), ("mine", "d")}


def test_numbered_questions_of_two_datasets_stay_apart(stopwise, tmp_path):
    for name, text in (("hotpotqa", "Who?"), ("musique", "Where?")):
        row = {"id": "t", "question_id": "1", "question": text, "dataset": name}
        (tmp_path / f"{name}.jsonl").write_text(json.dumps(row))
    paths = (tmp_path / "hotpotqa.jsonl", tmp_path / "musique.jsonl")
    status, stdout, stderr = stopwise("import", *paths, "--out", tmp_path / "o", "--json")
    assert (status, json.loads(stdout)["questions"]) == (0, 2)
    assert "2 trajectories had a bare number as question id" in stderr
    assert [run.question_id for run in read_trajectories(tmp_path / "o")] == ["hotpotqa:1", "musique:1"]


def test_formats_are_listed_with_a_picture(stopwise):
    status, stdout, _ = stopwise("import", "--list-formats")
    assert (status, stdout.splitlines()[0][:12]) == (0, "react       ")
    assert set(json.loads(stopwise("import", "--list-formats", "--json")[1])["formats"]) >= {
        "react",
        "otel",
        "stopwise",
    }


def test_missing_arguments(stopwise, log):
    assert stopwise("import")[::2] == (2, "import: no PATH given; name log files, folders, or - for standard input")
    assert stopwise("import", log)[::2] == (2, "import: --out FILE is missing; name the Parquet file to write")
