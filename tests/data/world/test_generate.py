import json
from collections import Counter
from pathlib import Path

import pytest

from stopwise.data.corpus import CorpusDocument, Query, read_corpus, read_queries
from stopwise.data.errors import DataError, UsageError
from stopwise.data.files import sha256_file
from stopwise.data.splits import SHARES, split_of
from stopwise.data.world.generate import WorldConfig, write_world
from stopwise.data.world.questions import QuestionConfig
from stopwise.data.world.vocabulary import load_vocabulary

SMALL = WorldConfig(documents=900, questions=80, seed=3)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("world") / "w"
    write_world(folder, SMALL)
    return folder


@pytest.fixture(scope="module")
def documents(world: Path) -> dict[str, CorpusDocument]:
    return {document.id: document for document in read_corpus(world)}


@pytest.fixture(scope="module")
def queries(world: Path) -> list[Query]:
    return list(read_queries(world))


def hashes(folder: Path) -> dict[str, str]:
    return {str(path.relative_to(folder)): sha256_file(path) for path in sorted(folder.rglob("*")) if path.is_file()}


def test_same_seed_same_bytes(world: Path, tmp_path: Path) -> None:
    write_world(tmp_path / "again", SMALL)
    assert hashes(tmp_path / "again") == hashes(world)
    write_world(tmp_path / "other", WorldConfig(documents=900, questions=80, seed=4))
    assert hashes(tmp_path / "other") != hashes(world)


def test_sizes_are_exact(documents: dict[str, CorpusDocument], queries: list[Query]) -> None:
    assert len(documents) == SMALL.documents
    assert len(queries) == len({query.id for query in queries}) == SMALL.questions
    splits = Counter(split_of(query.id) for query in queries)
    assert all(abs(splits[split] - SHARES[split] * SMALL.questions) < 2 for split in SHARES)


def test_splits_share_no_answer_and_no_gold(queries: list[Query]) -> None:
    answers: dict[str, set[str]] = {}
    gold: dict[str, set[str]] = {}
    for query in queries:
        split = split_of(query.id)
        assert query.answer is not None
        assert query.gold_ids is not None
        answers.setdefault(split, set()).add(query.answer)
        gold.setdefault(split, set()).update(query.gold_ids)
    for parts in (answers, gold):
        assert sum(len(part) for part in parts.values()) == len(set().union(*parts.values()))


def test_every_gold_document_states_its_fact(documents: dict[str, CorpusDocument], queries: list[Query]) -> None:
    vocabulary = load_vocabulary()
    for query in queries:
        names = [variable["name"] for variable in query.metadata["variables"]]
        kinds = [vocabulary.types[variable["type"]] for variable in query.metadata["variables"]]
        assert query.criteria is not None
        for clue, criterion in zip(query.metadata["clues"], query.criteria, strict=True):
            assert criterion.gold_ids
            kind = kinds[clue["variable"]]
            for document_id in criterion.gold_ids:
                document = documents[document_id]
                assert document.metadata["about"] == names[clue["variable"]]
                assert names[clue["variable"]] in document.passage
                if clue["to"] is not None:
                    wordings = [
                        wording.format(object=names[clue["to"]]) for wording in kind.relations[clue["key"]].documents
                    ]
                elif clue["key"] in kind.years:
                    decade = range(clue["value"], clue["value"] + 10)
                    wordings = [
                        wording.format(year=year) for wording in kind.years[clue["key"]].documents for year in decade
                    ]
                else:
                    wordings = list(kind.topics[clue["key"]][clue["value"]].documents)
                assert any(wording in document.text for wording in wordings), (criterion, document)


def test_gold_is_every_document_that_states_the_fact(
    documents: dict[str, CorpusDocument], queries: list[Query]
) -> None:
    """Near duplicates and outdated documents are not gold; reprints are."""
    by_fact: dict[tuple[str, str], set[str]] = {}
    for document in documents.values():
        if document.metadata["kind"] == "fact":
            for key, *_ in document.metadata["states"]:
                by_fact.setdefault((document.metadata["about"], key), set()).add(document.id)
    twins = [name for name, count in Counter(_entities(documents)).items() if count > 1]
    for query in queries:
        for clue, criterion in zip(query.metadata["clues"], query.criteria or (), strict=True):
            name = query.metadata["variables"][clue["variable"]]["name"]
            if name not in twins:
                assert set(criterion.gold_ids or ()) == by_fact[name, clue["key"]]


def _entities(documents: dict[str, CorpusDocument]) -> list[str]:
    """Names, once for each year document of first wording: every entity has exactly one year fact."""
    years = {key for kind in load_vocabulary().types.values() for key in kind.years}
    seen = {
        (document.metadata["about"], *state)
        for document in documents.values()
        if document.metadata["kind"] == "fact"
        for state in (tuple(state) for state in document.metadata["states"])
        if state[0] in years
    }
    return [name for name, *_ in seen]


def test_questions_have_few_gold_documents_and_a_sharp_clue(queries: list[Query]) -> None:
    for query in queries:
        assert 3 <= len(query.gold_ids or ()) <= 12
        assert 3 <= len(query.metadata["variables"]) <= 5
        ambiguities = [clue["ambiguity"] for clue in query.metadata["clues"] if clue["ambiguity"] is not None]
        assert 1 <= min(ambiguities) <= 3
        assert max(ambiguities) <= 40
        assert query.answer is not None
        assert query.answer not in query.text


def test_ambiguity_is_the_number_of_entities_that_fit(tmp_path: Path) -> None:
    write_world(tmp_path / "w", SMALL)
    fits: dict[tuple[str, str, int, int | None], set[str]] = {}
    for document in read_corpus(tmp_path / "w"):
        if document.metadata["kind"] != "fact":
            continue
        for key, value, circumstance, object_name in document.metadata["states"]:
            if object_name is None:
                kind, about = document.metadata["type"], document.metadata["about"]
                if circumstance is None:
                    fits.setdefault((kind, key, value // 10 * 10, None), set()).add(about)
                else:
                    fits.setdefault((kind, key, value, None), set()).add(about)
                    fits.setdefault((kind, key, value, circumstance), set()).add(about)
    for query in read_queries(tmp_path / "w"):
        for clue in query.metadata["clues"]:
            if clue["to"] is None:
                kind = query.metadata["variables"][clue["variable"]]["type"]
                found = fits[kind, clue["key"], clue["value"], clue["circumstance"]]
                assert 0 <= clue["ambiguity"] - len(found) <= 2  # two people of one name count twice


def test_the_world_has_twelve_types_and_all_kinds_of_documents(documents: dict[str, CorpusDocument]) -> None:
    assert len({document.metadata["type"] for document in documents.values()}) == 12
    kinds = {document.metadata["kind"] for document in documents.values()}
    assert kinds == {"fact", "near duplicate", "outdated", "list"}
    forms = {document.metadata["form"] for document in documents.values()}
    assert {"encyclopedia page", "news item", "letter", "review", "list"} <= forms


def test_too_small_a_world_says_how_large_it_must_be(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="at least"):
        write_world(tmp_path / "w", WorldConfig(documents=50))
    assert not (tmp_path / "w").exists()


def test_too_many_questions_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="fewer questions"):
        write_world(tmp_path / "w", WorldConfig(documents=700, questions=2000, question=QuestionConfig(max_clues=3)))
    assert not (tmp_path / "w").exists()


def test_ids_and_metadata_are_not_indexed(world: Path, documents: dict[str, CorpusDocument]) -> None:
    first = json.loads((world / "corpus.jsonl").read_text(encoding="utf-8").splitlines()[0])
    assert set(first) == {"_id", "title", "text", "metadata"}
    assert "states" not in documents[first["_id"]].passage
