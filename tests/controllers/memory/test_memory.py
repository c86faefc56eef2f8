import math
import sqlite3
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stopwise.controllers.memory.entries import LABELS, Entry, online_label
from stopwise.controllers.memory.memory import FILE, ExperienceMemory, keep_first, unit
from stopwise.data.errors import DataError, UsageError
from stopwise.models.encoders import Encoder

Make = Callable[..., Entry]


def test_embedding_is_the_sum_of_session_and_history(encoder: Encoder, tmp_path: Path, make_entry: Make) -> None:
    # [DS-MCM] eq. 14: (1, 0) + (0, 1), scaled to unit length
    memory = ExperienceMemory(tmp_path / "memory", encoder)
    np.testing.assert_allclose(
        memory.embed([make_entry("1 0", "0 1"), make_entry("3 4")]), [[0.5**0.5, 0.5**0.5], [0.6, 0.8]], atol=1e-6
    )


def test_nearest_by_cosine_in_each_pool(encoder: Encoder, tmp_path: Path, make_entry: Make) -> None:
    # [DS-MCM] eq. 13, 15, 16: the query (0.6, 0.8) against (1, 1) / sqrt 2, (1, 0), (0, 1) and, failed, (-1, 0)
    memory = ExperienceMemory(tmp_path / "memory", encoder)
    entries = [make_entry("1 0", "0 1"), make_entry("1 0"), make_entry("0 1"), make_entry("-1 0", label="failure")]
    assert memory.add_all(entries) == 4
    found = memory.nearest("3 4", "5 -3", k=2)
    assert list(found.successes) == [entries[0], entries[2]]
    assert found.success_similarities == pytest.approx([1.4 / math.sqrt(2), 0.8], abs=1e-5)
    assert list(found.failures) == [entries[3]]
    assert found.failure_similarities == pytest.approx([-0.6], abs=1e-6)


def test_query_may_be_embedded_like_an_entry(encoder: Encoder, tmp_path: Path, make_entry: Make) -> None:
    memory = ExperienceMemory(tmp_path / "memory", encoder, query="session_and_history")
    memory.add(make_entry("1 0", "0 1"))
    assert memory.nearest("1 0", "0 1", k=1).success_similarities == pytest.approx([1.0], abs=1e-6)
    assert memory.nearest("1 0", "", k=1).success_similarities == pytest.approx([0.5**0.5], abs=1e-6)


def test_duplicates_are_discarded_in_their_own_pool(encoder: Encoder, tmp_path: Path, make_entry: Make) -> None:
    # [DS-MCM] eq. 21, 22 with tau_dup = 0.79: (4, 3) has cosine 0.8 to (1, 0), (3, 4) has 0.6 to (1, 0)
    memory = ExperienceMemory(tmp_path / "memory", encoder, tau_dup=0.79)
    assert memory.add(make_entry("1 0"))
    assert not memory.add(make_entry("4 3"))
    assert memory.add(make_entry("3 4"))
    assert memory.add(make_entry("4 3", label="failure"))
    assert memory.counts() == {"success": 2, "failure": 1}


def test_equal_entries_are_duplicates_at_a_threshold_of_one(encoder: Encoder, tmp_path: Path, make_entry: Make) -> None:
    memory = ExperienceMemory(tmp_path / "memory", encoder, tau_dup=1.0)
    entry = make_entry("1 2 3", "3 1 2")
    assert memory.add_all([entry, entry]) == 1
    assert not memory.add(entry)


def test_empty_memory_recalls_nothing(encoder: Encoder, tmp_path: Path) -> None:
    found = ExperienceMemory(tmp_path / "memory", encoder).nearest("1 0")
    assert (found.successes, found.failures) == ((), ())


def test_reopened_memory_is_the_same(encoder: Encoder, tmp_path: Path, make_entry: Make) -> None:
    entry = make_entry(
        "1 0", "0 1", question="Which?", agent="chaser", dataset="world", source="online", abstraction_by="m p@1"
    )
    first = ExperienceMemory(tmp_path / "memory", encoder)
    first.add(entry)
    first.close()
    again = ExperienceMemory(tmp_path / "memory", encoder)
    assert again.nearest("1 0", k=1).successes == (entry,)
    assert not again.add(entry)


def test_two_open_memories_see_each_other(encoder: Encoder, tmp_path: Path, make_entry: Make) -> None:
    one, other = (ExperienceMemory(tmp_path / "memory", encoder) for _ in range(2))
    assert one.add(make_entry("1 0"))
    assert not other.add(make_entry("1 0"))
    assert other.add(make_entry("0 1"))
    assert [entry.session for entry in one.nearest("0 1", k=2).successes] == ["0 1", "1 0"]
    assert one.consolidate(tau_dup=-1.0) == 1
    assert [entry.session for entry in other.nearest("0 1", k=2).successes] == ["1 0"]


def test_consolidation_keeps_the_oldest(encoder: Encoder, tmp_path: Path, make_entry: Make) -> None:
    memory = ExperienceMemory(tmp_path / "memory", encoder)
    memory.add_all([make_entry("1 0"), make_entry("4 3"), make_entry("3 4"), make_entry("4 3", label="failure")])
    assert memory.consolidate() == 0
    assert memory.consolidate(tau_dup=0.79) == 1
    assert [entry.session for entry in memory.nearest("4 3", k=3).successes] == ["3 4", "1 0"]
    assert memory.counts() == {"success": 2, "failure": 1}


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.tuples(*[st.integers(-4, 4)] * 3).filter(any), max_size=25),
    st.sampled_from([0.3, 0.7, 0.95, 0.999]),
)
def test_deduplication_spreads_and_covers(rows: list[tuple[int, ...]], limit: float) -> None:
    """What stays lies apart, what went lies near to something that stayed, and nothing else is taken out."""
    vectors = unit(np.array(rows, dtype=np.float64).reshape(-1, 3))
    kept = keep_first(vectors, limit)
    stayed = vectors[kept]
    among = stayed @ stayed.T - 2 * np.eye(len(stayed))
    assert (among < limit).all()
    if (~kept).any():
        assert ((vectors[~kept] @ stayed.T).max(axis=1) >= limit - 1e-6).all()
    np.testing.assert_array_equal(keep_first(stayed, limit), np.ones(len(stayed), dtype=bool))


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=st.lists(st.tuples(*[st.integers(-4, 4)] * 3).filter(any), min_size=1, max_size=25))
def test_blocks_deduplicate_like_single_entries(
    encoder: Encoder, tmp_path_factory: pytest.TempPathFactory, make_entry: Make, rows: list[tuple[int, ...]]
) -> None:
    entries = [make_entry(" ".join(map(str, row)), label=LABELS[sum(row) % 2]) for row in rows]
    single = ExperienceMemory(tmp_path_factory.mktemp("single"), encoder, tau_dup=0.7)
    together = ExperienceMemory(tmp_path_factory.mktemp("together"), encoder, tau_dup=0.7)
    assert sum(single.add(entry) for entry in entries) == together.add_all(entries)
    found = [memory.nearest(entries[0].session, k=len(entries)) for memory in (single, together)]
    assert found[0] == found[1]


def test_no_question_of_an_evaluation(encoder: Encoder, tmp_path: Path, make_entry: Make) -> None:
    memory = ExperienceMemory(tmp_path / "memory", encoder)
    memory.add(make_entry("1 0", question_id="q1", question="Who wrote  it?"))
    memory.check_disjoint({"q2"}, ["Who read it?"])
    with pytest.raises(DataError, match="holds 1 questions of the evaluation, as 'q1'"):
        memory.check_disjoint({"q1", "q2"})
    with pytest.raises(DataError, match="as 'who wrote it\\?'"):
        memory.check_disjoint({"q2"}, ["who wrote it?"])


def test_another_encoder_is_refused(encoder: Encoder, tmp_path: Path) -> None:
    ExperienceMemory(tmp_path / "memory", encoder).close()

    class Other:
        id = "other"
        encode = encoder.encode

    with pytest.raises(DataError, match="has encoder known; this memory needs encoder other"):
        ExperienceMemory(tmp_path / "memory", Other())


def test_damaged_or_foreign_file_is_refused(encoder: Encoder, tmp_path: Path) -> None:
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / FILE).write_bytes(b"no database at all" * 100)
    with pytest.raises(DataError, match="is not a memory"):
        ExperienceMemory(tmp_path / "damaged", encoder)
    (tmp_path / "foreign").mkdir()
    database = sqlite3.connect(tmp_path / "foreign" / FILE)
    database.execute("CREATE TABLE entries (id INTEGER PRIMARY KEY, label TEXT, question_id TEXT, question_sha256)")
    database.close()
    with pytest.raises(DataError, match="is not a memory"):
        ExperienceMemory(tmp_path / "foreign", encoder)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tau_dup": 1.5}, "tau_dup: 1.5; expected a number"),
        ({"query": "history"}, "query 'history'; expected one of session"),
    ],
)
def test_wrong_options(options: dict[str, object], message: str, encoder: Encoder, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=message):
        ExperienceMemory(tmp_path / "memory", encoder, **options)  # pyright: ignore[reportArgumentType]


def test_wrong_entries(make_entry: Make) -> None:
    with pytest.raises(UsageError, match="label 'maybe'"):
        make_entry("1 0", label="maybe")
    with pytest.raises(UsageError, match="the session is empty"):
        make_entry(" ")


@pytest.mark.parametrize(
    ("flagged", "error_found", "label"),
    [
        (False, None, "success"),
        (True, False, "success"),
        (True, True, "failure"),
        (True, None, None),
    ],
)
def test_online_labels(flagged: bool, error_found: bool | None, label: str | None) -> None:
    assert online_label(flagged, error_found) == label


def test_text_that_sqlite_cannot_hold(encoder: Encoder, tmp_path: Path, make_entry: Make) -> None:
    memory = ExperienceMemory(tmp_path / "memory", encoder)
    memory.add(make_entry("1 0", agent="half a \ud800 surrogate and a \x00"))
    assert memory.nearest("1 0").successes[0].agent == "half a ? surrogate and a \x00"
