import math
from dataclasses import replace

import numpy as np
import pytest

from stopwise.data.records import Criterion, Document, Logprobs, Step, Trajectory
from stopwise.data.splits import split_of
from stopwise.models.embedding_cache import CachedEncoder
from stopwise.signals.calibration import MIN_STEPS, Calibration
from stopwise.signals.compute import blocks, compute_table, run_signals, texts_of
from stopwise.signals.definitions import SIGNALS
from stopwise.signals.re_only import add_re_z
from stopwise.signals.tracker import DEFAULT_COVERAGE, DEFAULT_CUT, SignalConfig

RESIDUAL = SignalConfig(signals=("residual",))
COVERAGE = SignalConfig(signals=("Cov",))


def _train(runs):
    return [run for run in runs if split_of(run.question_id) == "train"]


def _lines(runs, encoder, config=RESIDUAL):
    table = compute_table(lambda: runs, config, encoder, fit_se_cut=False)
    return {(agent, source): line for agent, source, line in table.info.calibrations}


# --- calibrations ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pairing", ["read_docs", "same_step"])
def test_a_line_is_fitted_on_the_steps_of_successful_training_runs(uncertain_runs, encoder, pairing):
    runs = [uncertain_runs(number) for number in range(40)]
    runs += [uncertain_runs(number, correct=correct, slope=9) for number in range(40) for correct in (False, None)]
    pairs = []
    for run in _train(runs[:40]):
        number = int(run.id.split()[1])
        for t in range(4):
            kinds = 1 + (number + t - (pairing == "read_docs")) % 4  # unrelated documents: SE is log of their number
            if t > 0 or pairing == "same_step":
                pairs.append((math.log(kinds), run.steps[t].logprobs.entropies[0]))
    searching, reasoning = np.array(pairs).T
    lines = _lines(runs, encoder, replace(RESIDUAL, pairing=pairing))
    assert set(lines) == {("blue", "logged")}
    line = lines["blue", "logged"]
    slope, intercept = np.polyfit(searching, reasoning, 1)
    slope, intercept = (slope, intercept) if slope > 0 else (0.0, reasoning.mean())
    assert line.steps == len(pairs)
    assert line.slope == pytest.approx(slope)
    assert line.intercept == pytest.approx(intercept)
    assert line.sigma == pytest.approx(np.std(reasoning - slope * searching - intercept))


def test_agents_and_sources_have_lines_of_their_own(uncertain_runs, encoder):
    kinds = [("blue", "logged", 0.2), ("blue", "scored:tiny", 0.9), ("red", "logged", 0.5), (None, "logged", 0.7)]
    runs = [uncertain_runs(n, agent=a, source=s, slope=slope) for a, s, slope in kinds for n in range(40)]
    lines = _lines(runs, encoder)
    assert set(lines) == {(agent or "", source) for agent, source, _ in kinds}
    for agent, source, slope in kinds:
        assert lines[agent or "", source].slope == pytest.approx(slope, abs=0.02)
    # each is the line that its runs alone would give
    assert _lines(runs[40:80], encoder) == {("blue", "scored:tiny"): lines["blue", "scored:tiny"]}


def test_few_steps_give_no_line_and_a_null_with_its_reason(uncertain_runs, encoder):
    runs = _train([uncertain_runs(number) for number in range(40)])[: (MIN_STEPS - 1) // 3]
    table = compute_table(lambda: runs, RESIDUAL, encoder)
    assert table.info.calibrations == ()
    assert table.info.fitted == ()
    assert table.null_counts("residual") == {"first step": len(runs), "not calibrated": 3 * len(runs)}


def test_given_lines_are_used_and_not_fitted_again(uncertain_runs, encoder):
    runs = [uncertain_runs(number) for number in range(40)]
    given = {("blue", "logged"): Calibration(0.0, 0.5, 1.0, 99)}
    table = compute_table(lambda: runs, SignalConfig(signals=("RE", "residual")), encoder, calibrations=given)
    assert table.info.calibrations == (("blue", "logged", given["blue", "logged"]),)
    assert "calibrations" not in table.info.fitted
    there = ~np.isnan(table.column("residual"))
    np.testing.assert_allclose(table.column("residual")[there], table.column("RE")[there] - 0.5)
    assert compute_table(lambda: runs, RESIDUAL, encoder, calibrations={}).null_counts("residual") == {
        "first step": 40, "not calibrated": 120,
    }  # fmt: skip


def test_the_sources_of_re_are_named(uncertain_runs):
    runs = [uncertain_runs(0, source="scored:tiny"), uncertain_runs(1), uncertain_runs(2)]
    table = compute_table(lambda: runs, SignalConfig(signals=("RE",)), None)
    assert table.info.re_sources == ("logged", "scored:tiny")


# --- thresholds -----------------------------------------------------------------------------------------------------


def _clustered(number):
    """A run with lists of five documents that share a word, which no other question has."""
    steps = []
    for t in range(3):
        texts = [f"topic{number} topic{number} topic{number} part{number}x{t}x{k}" for k in range(5)]
        documents = tuple(Document(f"{number}-{t}-{k}", text) for k, text in enumerate(texts))
        steps.append(Step("search", queries=(f"topic{number}",), documents=documents))
    return Trajectory(f"run {number}", f"question {number}", f"topic{number}", tuple(steps))


def test_the_cut_parts_lists_of_one_question_from_other_questions(encoder):
    runs = [_clustered(number) for number in range(40)]
    table = compute_table(lambda: runs, SignalConfig(signals=("SE",)), encoder)
    assert table.info.fitted == ("se_cut",)
    # three of four words alike: the cosine is 9/10, or more where two words fall on one count
    assert 0.0 <= table.info.config.se_cut <= 0.5
    assert np.median(table.column("SE")) == 0.0


def test_a_cut_of_zero_is_a_cut(encoder):
    runs = []
    for number in range(40):
        documents = tuple(Document(f"{number}-{k}", f"topic{number}" + " " * k) for k in range(6))  # one embedding
        step = Step("search", documents=documents)
        runs.append(Trajectory(f"run {number}", f"question {number}", "topic", (step,)))
    table = compute_table(lambda: runs, SignalConfig(signals=("SE",)), encoder)
    assert table.info.fitted == ("se_cut",)
    assert table.info.config.se_cut < 1e-6
    assert table.column("SE").tolist() == [0.0] * 40


def _judged(number, criteria=True):
    """A run whose first step brings a near miss for its criterion and whose second brings the gold document."""
    wanted = Criterion(f"topic{number} wanted", gold_ids=(f"{number}-gold",))
    texts = [(f"{number}-miss", f"topic{number} some other words here"), (f"{number}-gold", f"topic{number} wanted")]
    steps = tuple(Step("search", documents=(Document(*text),)) for text in texts)
    return Trajectory(f"run {number}", f"question {number}", "topic", steps, criteria=(wanted,) if criteria else None)


def test_coverage_thresholds_are_fitted_against_gold(encoder):
    runs = [_judged(number) for number in range(260)]
    assert len(_train(runs)) > 100
    table = compute_table(lambda: runs, COVERAGE, encoder)
    assert table.info.fitted == ("coverage",)
    by_turn = [table.column("Cov")[table.turns == turn] for turn in (1, 2)]
    assert (by_turn[0] < 0.5).mean() > 0.9
    assert (by_turn[1] == 1.0).all()


def test_on_little_data_or_without_gold_the_defaults_stay(encoder):
    few = [_clustered(number) for number in range(3)]
    info = compute_table(lambda: few, SignalConfig(), encoder).info
    assert info.fitted == ()
    assert (info.config.se_cut, info.config.coverage) == (DEFAULT_CUT, DEFAULT_COVERAGE)
    runs = [_judged(number) for number in range(260)]
    unjudged = [replace(run, criteria=tuple(replace(c, gold_ids=None) for c in run.criteria or ())) for run in runs]
    info = compute_table(lambda: unjudged, COVERAGE, encoder).info
    assert info.fitted == ()
    assert info.config.coverage == DEFAULT_COVERAGE


def test_one_question_shows_nothing_across_questions(encoder):
    (question,) = {run.question_id for run in _train([_clustered(n) for n in range(20)])[:1]}
    runs = [replace(_clustered(number), question_id=question) for number in range(40)]
    assert compute_table(lambda: runs, SignalConfig(signals=("SE",)), encoder).info.fitted == ()


def test_a_fit_can_be_left_out(encoder):
    runs = [_clustered(number) for number in range(40)]
    config = SignalConfig(signals=("SE",), se_cut=0.123)
    info = compute_table(lambda: runs, config, encoder, fit_se_cut=False).info
    assert (info.fitted, info.config.se_cut) == ((), 0.123)
    info = compute_table(lambda: runs, replace(config, se="hdbscan"), encoder).info
    assert (info.fitted, info.config.se_cut) == ((), 0.123)
    runs = [_judged(number) for number in range(260)]
    assert compute_table(lambda: runs, COVERAGE, encoder, fit_coverage=False).info.fitted == ()


def test_what_is_fitted_comes_from_training_questions_only(uncertain_runs, encoder):
    def everything(number):
        parts = (uncertain_runs(number), _clustered(number), _judged(number))
        steps = tuple(step for part in parts for step in part.steps)
        return replace(parts[0], steps=steps, criteria=parts[2].criteria)

    runs = [everything(number) for number in range(70)]
    changed = []
    for run in runs:
        if split_of(run.question_id) != "train":
            documents = (Document("x", "odd"), Document("y", "odder"), Document("z", "odd"))
            step = Step("search", documents=documents, logprobs=Logprobs(entropies=(7.0,)))
            run = replace(run, steps=(step,) * 5, criteria=(Criterion("odd", ("x",)),))
        changed.append(run)
    one, other = (compute_table(lambda rows=rows: rows, SignalConfig(), encoder).info for rows in (runs, changed))
    assert one.fitted == ("se_cut", "coverage", "calibrations")
    assert one == other
    without = compute_table(lambda: _train(runs), SignalConfig(), encoder).info
    assert without == one


# --- what is computed -------------------------------------------------------------------------------------------------


def test_prerequisites_are_computed_and_only_what_was_asked_for_is_returned(uncertain_runs, encoder):
    runs = [uncertain_runs(number) for number in range(40)]
    table = compute_table(lambda: runs, SignalConfig(signals=("residual_z", "Nov")), encoder)
    assert table.names == ("residual_z", "Nov")
    assert "calibrations" in table.info.fitted
    everything = compute_table(lambda: runs, SignalConfig(), encoder)
    for name in table.names:
        np.testing.assert_array_equal(table.column(name), everything.column(name))


def test_without_an_encoder_the_rest_is_there(uncertain_runs):
    runs = [uncertain_runs(number) for number in range(3)]
    table = compute_table(lambda: runs, SignalConfig(), None)
    assert table.names == SIGNALS
    assert table.info.encoder is None
    assert table.null_counts("SE") == {"no encoder": 12}
    assert table.null_counts("RE") == table.null_counts("Nov") == {}


def test_the_logs_are_opened_anew_each_time(uncertain_runs, encoder):
    opened = []

    def logs():
        opened.append(True)
        return iter([uncertain_runs(number) for number in range(3)])

    assert len(compute_table(logs, SignalConfig(), encoder)) == 3
    assert len(opened) == 3  # for the thresholds, the calibrations and the signals


def test_texts_are_embedded_together_and_progress_is_told(uncertain_runs, encoder, tmp_path):
    runs = [uncertain_runs(number) for number in range(5)]
    cached = CachedEncoder(encoder.encoder, tmp_path / "cache.sqlite")
    told = []
    table = compute_table(
        lambda: runs, SignalConfig(), cached, fit_se_cut=False, fit_coverage=False, calibrations={},
        progress=lambda *what: told.append(what),
    )  # fmt: skip
    cached.close()
    texts = {text for run in runs for text in texts_of(run, SignalConfig())}
    assert told == [("embedding texts", len(texts), len(texts)), ("computing signals", 5, None)]
    assert table.info.encoder == encoder.id
    assert table.row(0) == run_signals(runs[0], SignalConfig(), encoder)[0]


def test_texts_of_a_run_are_those_that_its_signals_need():
    step = Step("search", queries=("query",), documents=(Document("a", "One. Two."), Document("a", None)))
    page = Step("open", queries=("address",), documents=(Document("b", "Three."),))
    run = Trajectory("r", "q", "question", (step, page), criteria=(Criterion("criterion"),))

    def texts(*names, **options):
        return list(texts_of(run, SignalConfig(signals=names, **options)))

    assert texts("Nov", "RE") == []
    assert texts("Sim") == ["question", "query"]
    assert texts("SE") == texts("residual") == ["One. Two."]  # the first of the two with one id
    assert texts("Cov") == ["criterion", "One.", "Two.", "Three."]
    assert texts("Cov", coverage_judge="gold") == []


def test_blocks():
    runs = [Trajectory(name, "q", "?") for name in "abcde"]
    assert list(blocks(iter(runs), 2)) == [runs[:2], runs[2:4], runs[4:]]
    assert list(blocks([], 2)) == []


def test_re_z_of_the_tracker_is_that_of_the_finished_table(uncertain_runs, encoder):
    runs = [uncertain_runs(number) for number in range(40)]
    config = SignalConfig(signals=("RE", "residual"))
    table = compute_table(lambda: iter(runs), config, encoder, fit_se_cut=False, fit_coverage=False)
    anew = compute_table(
        lambda: iter(runs), SignalConfig(signals=("RE", "residual", "RE_z")), encoder,
        fit_se_cut=False, fit_coverage=False,
    )  # fmt: skip
    added = add_re_z(table)
    assert (~np.isnan(anew.column("RE_z"))).any()
    np.testing.assert_allclose(added.column("RE_z"), anew.column("RE_z"))
    np.testing.assert_array_equal(added.reasons[:, -1], anew.reasons[:, -1])
