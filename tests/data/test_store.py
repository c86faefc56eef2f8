import hashlib
from dataclasses import replace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stopwise.data.errors import DataError, UsageError
from stopwise.data.records import Document, Step, Trajectory
from stopwise.data.store import SCHEMA, count_trajectories, read_trajectories, write_trajectories


def _searcher(number: int, documents: tuple[Document, ...]) -> Trajectory:
    return Trajectory(f"t{number}", f"q{number}", "?", steps=(Step("search", queries=("a",), documents=documents),))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(data=st.data())
def test_write_then_read_is_the_identity(any_trajectory, tmp_path, data):
    trajectories = data.draw(st.lists(any_trajectory, max_size=4))
    path = tmp_path / "logs.parquet"
    assert write_trajectories(path, trajectories) == len(trajectories)
    assert list(read_trajectories(path)) == trajectories
    assert count_trajectories(path) == len(trajectories)


def test_a_document_is_kept_once_a_trajectory_and_its_score_with_the_result(tmp_path):
    first, again = Document("d", "text", score=0.5, rank=1), Document("d", "text", score=0.1, rank=7)
    path = tmp_path / "logs.parquet"
    write_trajectories(path, [_searcher(1, (first, again))])
    row = pq.read_table(path).to_pylist()[0]
    assert row["documents"] == [{"id": "d", "text": "text", "title": None, "url": None}]
    assert row["steps"][0]["results"] == [
        {"document": 0, "score": 0.5, "rank": 1},
        {"document": 0, "score": 0.1, "rank": 7},
    ]


def test_a_text_that_many_trajectories_retrieved_is_stored_once_a_row_group(tmp_path):
    noise = "".join(hashlib.sha256(str(i).encode()).hexdigest() for i in range(4000))  # 256 kB, hard to compress
    path = tmp_path / "logs.parquet"
    write_trajectories(path, (_searcher(i, (Document("d", noise),)) for i in range(40)))
    assert path.stat().st_size < 2 * len(noise)


def test_row_groups_are_bounded_by_their_text(tmp_path):
    path = tmp_path / "logs.parquet"
    write_trajectories(path, (_searcher(i, (Document(str(i), chr(97 + i) * 5_000_000),)) for i in range(7)))
    assert pq.ParquetFile(path).num_row_groups == 3
    assert len(list(read_trajectories(path))) == 7


def test_the_same_trajectories_give_the_same_bytes(tmp_path):
    trajectories = [_searcher(i, (Document(f"d{i}", "text"),)) for i in range(5)]
    write_trajectories(tmp_path / "a.parquet", trajectories)
    write_trajectories(tmp_path / "b.parquet", trajectories)
    assert (tmp_path / "a.parquet").read_bytes() == (tmp_path / "b.parquet").read_bytes()


def test_an_interrupted_write_leaves_the_old_file(tmp_path):
    path = tmp_path / "logs.parquet"
    write_trajectories(path, [_searcher(1, ())])
    before = path.read_bytes()

    def failing():
        yield _searcher(2, ())
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_trajectories(path, failing())
    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["logs.parquet"]


@pytest.mark.parametrize(
    ("trajectory", "message"),
    [
        (Trajectory("t", "q", "half a pair \ud800"), "trajectory 't': .*surrogates not allowed"),
        (Trajectory("t", "q", "?", meta={"x": float("nan")}), "trajectory 't': meta is not JSON"),
        (Trajectory("t", "q", "?", steps=(Step("search", tokens_in=2**70),)), "trajectory 't': "),
    ],
)
def test_what_a_file_cannot_hold_is_named(tmp_path, trajectory, message):
    with pytest.raises(DataError, match=message):
        write_trajectories(tmp_path / "logs.parquet", [_searcher(1, ()), trajectory])
    assert not list(tmp_path.iterdir())


def test_a_folder_is_no_file_to_write(tmp_path):
    with pytest.raises(UsageError, match="is a folder"):
        write_trajectories(tmp_path, [])


def _no_file(path):
    pass


def _truncated(path):
    write_trajectories(path, [_searcher(1, ())])
    path.write_bytes(path.read_bytes()[:-20])


def _damaged(path):
    write_trajectories(path, [_searcher(1, (Document("d", "text" * 100),))])
    content = bytearray(path.read_bytes())
    content[4:400] = bytes(396)
    path.write_bytes(content)


def _other_version(path):
    table = pa.Table.from_pylist([], SCHEMA)
    pq.write_table(table.replace_schema_metadata({"stopwise.kind": "trajectories", "stopwise.schema": "99"}), path)


def test_a_file_of_before_guidance_was_kept_is_read(tmp_path):
    path = tmp_path / "logs.parquet"
    old = replace(_searcher(1, ()), steps=(Step("search", queries=("a",), guidance="Try the mine."),))
    write_trajectories(path, [old])
    assert next(read_trajectories(path)).steps[0].guidance == "Try the mine."
    rows = pq.read_table(path).to_pylist()
    for step in rows[0]["steps"]:
        del step["guidance"]
    fields = [field for field in SCHEMA.field("steps").type.value_type if field.name != "guidance"]
    schema = SCHEMA.set(SCHEMA.get_field_index("steps"), pa.field("steps", pa.list_(pa.struct(fields))))
    pq.write_table(pa.Table.from_pylist(rows, schema), path)
    assert next(read_trajectories(path)).steps[0].guidance is None


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (_no_file, "no such file"),
        (lambda path: path.mkdir(), "is a folder"),
        (lambda path: path.write_bytes(b""), "is empty"),
        (lambda path: path.write_bytes(bytes(range(256)) * 8), "is not a Parquet file, or is cut off"),
        (_truncated, "is not a Parquet file, or is cut off"),
        (_damaged, "is damaged"),
        (lambda path: pq.write_table(pa.table({"a": [1]}), path), "holds no stopwise data; expected trajectories"),
        (_other_version, "has schema version 99; this stopwise reads version 1"),
    ],
)
def test_what_is_no_file_of_trajectories_is_refused(tmp_path, make, message):
    path = tmp_path / "logs.parquet"
    make(path)
    with pytest.raises(DataError, match=message):
        list(read_trajectories(path))


@pytest.mark.slow
def test_hugging_face_datasets_reads_it_as_it_is(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HOME", str(tmp_path / "cache"))
    datasets = pytest.importorskip("datasets")
    path = tmp_path / "logs.parquet"
    write_trajectories(path, [_searcher(i, (Document(f"d{i}", "text", score=0.5),)) for i in range(3)])
    loaded = datasets.load_dataset(
        "parquet", data_files=str(path), split="train", cache_dir=str(tmp_path / "cache"), streaming=False
    )
    assert loaded.num_rows == 3
    assert loaded[1]["steps"][0]["results"] == [{"document": 0, "score": 0.5, "rank": None}]
    assert loaded[1]["documents"][0]["id"] == "d1"
