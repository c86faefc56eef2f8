"""Every signal by an example worked out by hand; the papers' definitions are named by their sections."""

from dataclasses import replace

import numpy as np
import pytest

from stopwise.data.records import Criterion, Document, Logprobs, Step
from stopwise.signals.calibration import Calibration
from stopwise.signals.coverage import CoverageThresholds
from stopwise.signals.definitions import DEFINITIONS, REASONS, SIGNALS, with_prerequisites
from stopwise.signals.tracker import SignalConfig, SignalTracker

LINE = Calibration(slope=0.5, intercept=0.1, sigma=0.2, steps=30)
HALF = Logprobs(top=((-1.0, -1.0),))  # RE log 2


def _observe(*steps, config=None, question="0", **rest):
    """The rows of a run's search steps."""
    tracker = SignalTracker(config or SignalConfig(), question, **rest)
    return [row for step in steps if (row := tracker.observe(step)) is not None]


def _search(*documents, queries=(), **rest):
    """A search step; a document is an id, or an id and its text."""
    made = [Document(d) if isinstance(d, str) else Document(d[0], text=d[1]) for d in documents]
    return Step("search", queries=tuple(queries), documents=tuple(made), **rest)


def _opened(*documents):
    return Step("open", documents=_search(*documents).documents)


def _column(rows, name):
    """Values, and the reasons of nulls."""
    return [row.values.get(name, row.nulls.get(name)) for row in rows]


# --- Nov, RAAC 4.1: |D_t \ D_1:t-1| / |D_t| -----------------------------------------------------------------------


def test_nov_is_the_share_of_documents_not_seen_before():
    rows = _observe(_search("a", "b"), _search("b", "c", "d"), _search(), _search("a", "d"))
    assert _column(rows, "Nov") == [1.0, pytest.approx(2 / 3), "no documents", 0.0]
    assert [row.t for row in rows] == [1, 2, 3, 4]


def test_a_document_that_comes_twice_in_a_step_counts_once():
    rows = _observe(_search("a", "a", "b"), _search("a", "c", "c"))
    assert _column(rows, "Nov") == [1.0, 0.5]


def test_steps_since_new_counts_empty_steps_too():
    rows = _observe(_search(), _search("a"), _search("a"), _search(), _search("a", "b"))
    assert _column(rows, "steps_since_new") == [1.0, 0.0, 1.0, 2.0, 0.0]


def test_an_opened_page_is_seen_from_the_next_search_step_on():
    rows = _observe(_search("a"), _opened("b", "c"), _search("b", "d"), _search("c"))
    assert _column(rows, "Nov") == [1.0, 0.5, 0.0]


def test_only_search_steps_have_rows():
    tracker = SignalTracker(SignalConfig(), "question")
    assert tracker.observe(_opened("a")) is None
    assert tracker.observe(Step("answer")) is None
    assert tracker.observe(Step("other")) is None
    row = tracker.observe(_search("a"))
    assert row is not None
    assert row.t == 1


# --- Div and Sim, RAAC 4.1: 1 - cos(e_t, e_t-1) and cos(e_t, e_x) -------------------------------------------------


def test_div_and_sim_are_cosines_of_angles(compass):
    rows = _observe(*(_search(queries=[angle]) for angle in ("60", "90", "-30")), encoder=compass)
    assert _column(rows, "Sim") == pytest.approx([0.5, 0.0, np.sqrt(3) / 2], abs=1e-6)
    assert _column(rows, "Div")[0] == "first step"
    assert _column(rows, "Div")[1:] == pytest.approx([1 - np.sqrt(3) / 2, 1.5], abs=1e-6)


def test_several_queries_are_their_normalised_mean(compass):
    # 30 and 90 degrees have their mean at 60, of length cos 30, which is scaled to 1
    rows = _observe(_search(queries=["30", "90"]), _search(queries=["0", "0", "0"]), encoder=compass)
    assert _column(rows, "Sim") == pytest.approx([0.5, 1.0], abs=1e-6)
    assert _column(rows, "Div")[1] == pytest.approx(0.5, abs=1e-6)


def test_opposite_queries_point_nowhere(compass):
    rows = _observe(_search(queries=["0", "180"]), _search(queries=["0"]), encoder=compass)
    assert _column(rows, "Sim")[0] == pytest.approx(0.0, abs=1e-6)
    assert _column(rows, "Div")[1] == pytest.approx(1.0, abs=1e-6)


def test_a_step_without_a_query_is_null_and_the_last_query_is_kept(compass):
    rows = _observe(_search(queries=["60"]), _search("a"), _search(queries=["0"]), encoder=compass)
    assert _column(rows, "Div")[1:] == ["no query", pytest.approx(0.5, abs=1e-6)]
    assert _column(rows, "Sim")[1] == "no query"
    assert _column(rows, "query_repetition")[1] == "no query"


def test_query_repetition_is_the_nearest_earlier_query(compass):
    rows = _observe(*(_search(queries=[angle]) for angle in ("0", "90", "30", "0")), encoder=compass)
    expected = [0.0, np.sqrt(3) / 2, 1.0]
    assert _column(rows, "query_repetition")[0] == "first step"
    assert _column(rows, "query_repetition")[1:] == pytest.approx(expected, abs=1e-6)


# --- SE, DS-MCM eq. 2 to 5 ----------------------------------------------------------------------------------------


def test_se_of_identical_and_of_unrelated_documents(encoder):
    same = _search(*((f"s{n}", "tarn") for n in range(5)))
    apart = _search(*((f"u{n}", text) for n, text in enumerate(["tarn", "mill", "bridge", "arden", "lenn"])))
    rows = _observe(same, apart, _search(("x", "tarn")), _search(), encoder=encoder)
    assert _column(rows, "SE") == [0.0, pytest.approx(np.log(5)), 0.0, "no documents"]
    assert _column(rows, "SE_norm") == [0.0, pytest.approx(1.0), "single document", "no documents"]


def test_se_of_two_meanings(compass):
    # angles 0, 10, 90: {0, 10} at distance 1 - cos 10 = 0.015, and 90 apart from both
    rows = _observe(_search(("a", "0"), ("b", "10"), ("c", "90")), encoder=compass)
    expected = -(2 / 3 * np.log(2 / 3) + 1 / 3 * np.log(1 / 3))
    assert _column(rows, "SE") == [pytest.approx(expected)]
    assert _column(rows, "SE_norm") == [pytest.approx(expected / np.log(3))]


def test_the_cut_decides_what_is_one_meaning(compass):
    step = _search(("a", "0"), ("b", "60"))  # distance 0.5
    assert _column(_observe(step, encoder=compass, config=SignalConfig(se_cut=0.51)), "SE") == [0.0]
    assert _column(_observe(step, encoder=compass, config=SignalConfig(se_cut=0.49)), "SE") == [np.log(2)]


def test_se_with_scores_weighs_by_softmax(compass):
    documents = (Document("a", "0", score=float(np.log(3))), Document("b", "90", score=0.0))
    config = SignalConfig(se_weights="scores")
    rows = _observe(Step("search", documents=documents), encoder=compass, config=config)
    assert _column(rows, "SE") == [pytest.approx(-(0.75 * np.log(0.75) + 0.25 * np.log(0.25)))]


@pytest.mark.parametrize("missing", [None, float("inf"), float("nan")])
def test_se_with_scores_is_null_where_one_is_missing(compass, missing):
    documents = (Document("a", "0", score=1.0), Document("b", "90", score=missing))
    config = SignalConfig(se_weights="scores")
    (row,) = _observe(Step("search", documents=documents), encoder=compass, config=config)
    assert row.nulls["SE"] == row.nulls["SE_norm"] == "no scores"
    assert row.values["redundancy"] == pytest.approx(0.0, abs=1e-6)  # needs no scores


def test_se_by_hdbscan(compass):
    texts = [(str(angle), str(angle)) for angle in (0, 1, 2, 3, 90, 91, 92, 93)]
    config = SignalConfig(se="hdbscan")
    assert _column(_observe(_search(*texts), encoder=compass, config=config), "SE") == [pytest.approx(np.log(2))]


def test_a_document_that_comes_twice_in_a_step_weighs_once(compass):
    once = _observe(_search(("a", "0"), ("b", "90")), encoder=compass)
    twice = _observe(_search(("a", "0"), ("b", "90"), ("a", "0")), encoder=compass)
    assert twice == once


def test_title_and_text_make_the_meaning(compass):
    rows = _observe(
        Step("search", documents=(Document("a", title="0"), Document("b", "0", title="90"))), encoder=compass
    )
    assert _column(rows, "SE") == [0.0]  # the titled one reads "90. 0"


# --- RE and residual, DS-MCM 3.2.2 and eq. 6 to 8 -----------------------------------------------------------------


def test_re_and_its_residual_against_the_documents_that_were_read(encoder):
    two = _search(("a", "tarn"), ("b", "mill"), logprobs=HALF)
    four = _search(*((word, word) for word in ("lenn", "fenn", "arden", "hall")), logprobs=HALF)
    lines = {("", "logged"): LINE}
    rows = _observe(two, four, two, encoder=encoder, calibrations=lines)
    assert _column(rows, "RE") == pytest.approx([np.log(2)] * 3)
    # the second thought had read two meanings, the third four
    expected = [np.log(2) - (0.5 * np.log(2) + 0.1), np.log(2) - (0.5 * np.log(4) + 0.1)]
    assert _column(rows, "residual") == ["first step", *map(pytest.approx, expected)]
    assert _column(rows, "residual_z") == ["first step", *(pytest.approx(value / 0.2) for value in expected)]


def test_same_step_pairs_a_thought_with_what_it_found(encoder):
    four = _search(*((word, word) for word in ("lenn", "fenn", "arden", "hall")), logprobs=HALF)
    config = SignalConfig(pairing="same_step")
    rows = _observe(four, _search(logprobs=HALF), encoder=encoder, calibrations={("", "logged"): LINE}, config=config)
    assert _column(rows, "residual") == [pytest.approx(np.log(2) - (0.5 * np.log(4) + 0.1)), "no documents"]


def test_after_an_empty_step_there_is_nothing_to_compare_with(encoder):
    steps = [_search(("a", "tarn"), logprobs=HALF), _search(logprobs=HALF), _search(("b", "mill"), logprobs=HALF)]
    rows = _observe(*steps, encoder=encoder, calibrations={("", "logged"): LINE})
    assert _column(rows, "residual")[1] == pytest.approx(np.log(2) - 0.1)
    assert _column(rows, "residual")[2] == "no documents"


def test_agents_and_sources_of_re_never_mix(encoder):
    lines = {("blue", "logged"): LINE, ("blue", "scored:tiny"): replace(LINE, intercept=0.4)}
    scored = Logprobs(top=((-1.0, -1.0),), source="scored:tiny")
    steps = [_search(("a", "tarn"), logprobs=HALF), _search(logprobs=HALF)]
    other = [steps[0], replace(steps[1], logprobs=scored)]
    unknown = [steps[0], replace(steps[1], logprobs=replace(scored, source="scored:large"))]

    def residual(run, agent):
        return _observe(*run, encoder=encoder, calibrations=lines, agent=agent)[1]

    assert residual(steps, "blue").values["residual"] == pytest.approx(np.log(2) - 0.1)
    assert residual(other, "blue").values["residual"] == pytest.approx(np.log(2) - 0.4)
    assert residual(unknown, "blue").nulls["residual"] == "not calibrated"
    assert residual(steps, "red").nulls["residual"] == "not calibrated"
    assert residual(steps, None).nulls["residual"] == "not calibrated"


def test_a_line_without_spread_gives_no_z(encoder):
    steps = [_search(("a", "tarn")), _search(logprobs=HALF)]
    rows = _observe(*steps, encoder=encoder, calibrations={("", "logged"): replace(LINE, sigma=0.0)})
    assert "residual" in rows[1].values
    assert rows[1].nulls["residual_z"] == "not calibrated"


# --- Cov, RAAC 4.1: mean of 0, 0.5 and 1 --------------------------------------------------------------------------

CRITERIA = (Criterion("0", gold_ids=("a", "b")), Criterion("180", gold_ids=("c",)))


def test_cov_by_the_encoder_is_the_best_sentence_so_far(compass):
    config = SignalConfig(coverage=CoverageThresholds(partial=0.5, full=0.9))
    steps = [
        _search(("a", "it is 80. Then 70!"), ("b", "90")),  # best cosines cos 70 = 0.34 and cos 90 = 0
        _search(("c", "the 45 mark\n90")),  # cos 45 = 0.71: half of the first
        _search(("d", "170")),  # cos 10 = 0.98: all of the second
        _search(("e", "90")),  # nothing better: coverage never falls
        _search(("f", "0"), ("g", "180")),
    ]
    rows = _observe(*steps, encoder=compass, criteria=CRITERIA, config=config)
    assert _column(rows, "Cov") == [0.0, 0.25, 0.75, 0.75, 1.0]
    assert _column(rows, "coverage_gain") == [0.0, 0.25, 0.5, 0.0, 0.25]


def test_cov_by_gold():
    rows = _observe(
        _search("a", "x"), _search("c"), _search(), _search("b"),
        criteria=CRITERIA, config=SignalConfig(coverage_judge="gold"),
    )  # fmt: skip
    assert _column(rows, "Cov") == [0.25, 0.75, 0.75, 1.0]
    assert _column(rows, "coverage_gain") == [0.25, 0.5, 0.0, 0.25]


def test_an_opened_page_covers_at_the_next_search_step():
    steps = [_search("x"), _opened("c"), _search("a")]
    rows = _observe(*steps, criteria=CRITERIA, config=SignalConfig(coverage_judge="gold"))
    assert _column(rows, "Cov") == [0.0, 0.75]


def test_a_title_stands_for_a_missing_text(compass):
    steps = [Step("search", documents=(Document("a", title="0"),)), Step("search", documents=(Document("b"),))]
    rows = _observe(*steps, encoder=compass, criteria=CRITERIA)
    assert _column(rows, "Cov") == [0.5, 0.5]


# --- further signals, stopwise's own ------------------------------------------------------------------------------


def test_content_novelty_is_the_distance_of_new_documents_from_all_seen(compass):
    steps = [
        _search(("a", "0"), ("b", "90")),
        _search(("a", "0"), ("c", "60"), ("d", "180")),  # c is 30 degrees from b, d 90 from b
        _search(("c", "60")),  # nothing new
        _search(("e", "180")),  # new, and like d
    ]
    rows = _observe(*steps, encoder=compass)
    expected = [1 - (np.sqrt(3) / 2 + 0) / 2, 0.0, 0.0]
    assert _column(rows, "content_novelty")[0] == "first step"
    assert _column(rows, "content_novelty")[1:] == pytest.approx(expected, abs=1e-6)


def test_redundancy_is_the_mean_cosine_of_two_documents(compass):
    # pairs of 0, 60, 90 degrees: cos 60, cos 90, cos 30
    rows = _observe(_search(("a", "0"), ("b", "60"), ("c", "90")), _search(("a", "0")), encoder=compass)
    expected = (0.5 + 0 + np.sqrt(3) / 2) / 3
    assert _column(rows, "redundancy") == [pytest.approx(expected, abs=1e-6), "single document"]


def test_score_level_and_gap():
    documents = (Document("a", score=2.0), Document("b", score=-1.5), Document("c", score=0.0))
    rows = _observe(Step("search", documents=documents), Step("search", documents=documents[:1]), _search())
    assert _column(rows, "score_top") == [2.0, 2.0, "no documents"]
    assert _column(rows, "score_gap") == [3.5, 0.0, "no documents"]


@pytest.mark.parametrize("missing", [None, float("inf"), float("nan")])
def test_scores_are_null_where_one_is_missing(missing):
    (row,) = _observe(Step("search", documents=(Document("a", score=1.0), Document("b", score=missing))))
    assert row.nulls["score_top"] == row.nulls["score_gap"] == "no scores"


# --- nulls --------------------------------------------------------------------------------------------------------


def test_every_signal_is_there_or_has_its_reason(encoder):
    full = replace(_search(("a", "tarn"), ("b", "mill"), queries=["tarn"], logprobs=HALF))
    full = replace(full, documents=tuple(replace(document, score=1.0) for document in full.documents))
    rows = _observe(
        full, full, encoder=encoder, criteria=[Criterion("tarn")], calibrations={("", "logged"): LINE}, question="tarn"
    )
    assert set(rows[1].values) == set(SIGNALS)
    assert rows[1].nulls == {}
    assert list(rows[1].values) == list(SIGNALS)


def test_without_an_encoder_what_needs_one_is_null():
    (row,) = _observe(_search(("a", "tarn"), queries=["tarn"], logprobs=HALF), criteria=[Criterion("tarn")])
    names = ("SE", "SE_norm", "Cov", "coverage_gain", "Div", "Sim", "query_repetition", "content_novelty", "redundancy")
    assert {row.nulls[name] for name in names} == {"no encoder"}
    assert set(row.values) == {"RE", "Nov", "steps_since_new"}


def test_reasons(compass):
    reached = set()

    def nulls(*steps, **rest):
        rows = _observe(*steps, **rest)
        reached.update(*(row.nulls.values() for row in rows))
        return rows[-1].nulls

    found = nulls(_search("a", queries=["0"]), encoder=compass)
    assert found["SE"] == found["content_novelty"] == found["redundancy"] == "no texts"
    assert found["RE"] == found["residual"] == found["residual_z"] == "no logprobs"
    assert found["Cov"] == found["coverage_gain"] == "no criteria"
    assert found["Div"] == found["query_repetition"] == "first step"
    assert found["score_top"] == "no scores"
    assert nulls(_search(("a", "0")), criteria=(), encoder=compass)["Cov"] == "no criteria"
    assert nulls(_search(("a", "0")), criteria=[Criterion("0")])["Cov"] == "no encoder"
    gold = SignalConfig(coverage_judge="gold")
    mixed = [Criterion("0", gold_ids=("a",)), Criterion("1")]
    assert nulls(_search("a"), criteria=mixed, config=gold)["Cov"] == "no gold criteria"
    assert nulls(_search(("a", "0"), queries=[]), encoder=compass)["Sim"] == "no query"
    assert nulls(_search(("a", "0")), encoder=compass)["SE_norm"] == "single document"
    assert nulls(_search(), encoder=compass)["SE"] == "no documents"
    chosen = _search(("a", "0"), logprobs=Logprobs(top=((-0.1,),)))
    assert nulls(chosen, encoder=compass)["residual"] == "chosen token only"
    steps = [_search(("a", "0"), logprobs=HALF)] * 2
    assert nulls(*steps, encoder=compass)["residual"] == "not calibrated"
    # the last reason fills a table's column that nobody asked for; position 0 is no reason
    assert reached == set(REASONS) - {"present", "not asked for"}


# --- what is computed ---------------------------------------------------------------------------------------------


def test_only_what_is_asked_for_is_returned(encoder):
    steps = [_search(("a", "tarn"), ("b", "mill"), logprobs=HALF), _search(logprobs=HALF)]
    config = SignalConfig(signals=("residual_z",))
    rows = _observe(*steps, encoder=encoder, config=config, calibrations={("", "logged"): LINE})
    everything = _observe(*steps, encoder=encoder, calibrations={("", "logged"): LINE})
    assert rows[0].nulls == {"residual_z": "first step"}
    assert rows[1].values == {"residual_z": everything[1].values["residual_z"]}


@pytest.mark.parametrize("name", SIGNALS)
def test_a_signal_alone_is_what_it_is_among_all(name, compass):
    scored = [Document("a", "0", score=1.0), Document("b", "50", score=2.0), Document("c", "120", score=4.0)]
    steps = [
        Step("search", queries=("0", "20"), documents=tuple(scored[:2]), logprobs=HALF),
        Step("open", documents=(Document("d", "10"),)),
        Step("search", queries=("70",), documents=tuple(scored[1:]), logprobs=HALF),
        Step("search", queries=("10",), documents=tuple(scored), logprobs=HALF),
    ]
    rest = {"encoder": compass, "criteria": CRITERIA, "calibrations": {("", "logged"): LINE}}
    everything = _observe(*steps, **rest)
    alone = _observe(*steps, **rest, config=SignalConfig(signals=(name,)))
    assert _column(alone, name) == _column(everything, name)


def test_nothing_is_embedded_for_signals_that_need_no_embedding():
    class Forbidden:
        id = "forbidden"

        def encode(self, texts):
            raise AssertionError(texts)

    free = tuple(d.name for d in DEFINITIONS if d.name in {"RE", "Nov", "steps_since_new", "score_top", "score_gap"})
    step = _search(("a", "tarn"), queries=["tarn"], logprobs=HALF)
    (row,) = _observe(step, encoder=Forbidden(), config=SignalConfig(signals=free), criteria=CRITERIA)
    assert row.values["Nov"] == 1.0


def test_prerequisites_are_followed_to_the_end():
    assert with_prerequisites(("residual_z",)) == {"residual_z", "residual", "SE", "RE"}
    assert with_prerequisites(("coverage_gain", "Nov")) == {"coverage_gain", "Cov", "Nov"}
    assert with_prerequisites(()) == frozenset()


def test_every_definition_says_what_it_needs_and_where_it_comes_from():
    assert len({d.name for d in DEFINITIONS}) == len(DEFINITIONS)
    for definition in DEFINITIONS:
        assert definition.meaning
        assert definition.source
        assert definition.needs or definition.after
        assert set(definition.after) <= set(SIGNALS)
