"""What holds for every run: prefixes, streaming, and that nothing at t depends on what came later."""

from dataclasses import replace

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stopwise.models.embedding_cache import CachedEncoder
from stopwise.signals.calibration import Calibration
from stopwise.signals.compute import compute_table, run_labels, run_signals, texts_of
from stopwise.signals.definitions import REASONS, SIGNALS
from stopwise.signals.tracker import SignalConfig, SignalTracker

# whole runs take a while to make, and machines are busy
SETTINGS = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
LINE = Calibration(0.5, 0.1, 0.2, 30)
LINES = {(agent, source): LINE for agent in ("", "blue", "red") for source in ("logged", "scored:tiny")}
CONFIGS = st.builds(
    SignalConfig,
    signals=st.just(SIGNALS) | st.lists(st.sampled_from(SIGNALS), unique=True, max_size=4).map(tuple),
    se_cut=st.sampled_from([0.2, 0.55]),
    se_weights=st.sampled_from(["uniform", "scores"]),
    pairing=st.sampled_from(["read_docs", "same_step"]),
    coverage_judge=st.sampled_from(["encoder", "gold"]),
)


def _searches(steps):
    return sum(step.kind == "search" for step in steps)


@SETTINGS
@given(st.data())
def test_signals_of_a_prefix_are_those_of_the_truncated_run_bit_for_bit(trajectories, encoder, data):
    run, config = data.draw(trajectories), data.draw(CONFIGS)
    kept = data.draw(st.integers(0, len(run.steps)))
    whole = run_signals(run, config, encoder, LINES)
    part = run_signals(replace(run, steps=run.steps[:kept]), config, encoder, LINES)
    assert part == whole[: len(part)]
    assert len(part) == _searches(run.steps[:kept])


@SETTINGS
@given(st.data())
def test_the_future_changes_nothing_before_it(trajectories, steps, encoder, data):
    run, config = data.draw(trajectories), data.draw(CONFIGS)
    kept = data.draw(st.integers(0, len(run.steps)))
    future = data.draw(st.lists(steps, max_size=3))
    other = replace(run, steps=(*run.steps[:kept], *future), correct=None, answer="other", ended_by="unknown")
    count = _searches(run.steps[:kept])
    assert (
        run_signals(run, config, encoder, LINES)[:count]
        == run_signals(other, config, encoder, LINES)[:count]
    )  # fmt: skip
    np.testing.assert_array_equal(run_labels(run)[1][:count], run_labels(other)[1][:count])


@SETTINGS
@given(st.data())
def test_a_page_opened_after_the_decision_at_t_changes_nothing_at_t(trajectories, steps, encoder, data):
    run = data.draw(trajectories.filter(lambda run: _searches(run.steps)))
    t = data.draw(st.integers(1, _searches(run.steps)))
    place = [index for index, step in enumerate(run.steps) if step.kind == "search"][t - 1] + 1
    page = replace(data.draw(steps), kind="open")
    opened = replace(run, steps=(*run.steps[:place], page, *run.steps[place:]))
    before, after = (run_signals(r, SignalConfig(), encoder, LINES) for r in (run, opened))
    assert after[:t] == before[:t]
    np.testing.assert_array_equal(run_labels(opened)[1][:t], run_labels(run)[1][:t])
    # later, the page can only have made documents old
    assert [row.values.get("Nov", 0) for row in after] <= [row.values.get("Nov", 0) for row in before]


@SETTINGS
@given(st.data())
def test_the_table_is_the_tracker_in_a_loop(trajectories, encoder, data):
    runs, config = data.draw(st.lists(trajectories, max_size=4)), data.draw(CONFIGS)
    table = compute_table(
        lambda: runs, config, encoder, fit_se_cut=False, fit_coverage=False, calibrations=LINES
    )  # fmt: skip
    assert table.names == config.signals
    assert table.info.config == config
    index = 0
    for run, episode, length in zip(runs, table.episodes, table.lengths, strict=True):
        tracker = SignalTracker(
            config, run.question, criteria=run.criteria, agent=run.agent, encoder=encoder, calibrations=LINES
        )
        rows = [row for step in run.steps if (row := tracker.observe(step)) is not None]
        assert [table.row(index + offset) for offset in range(length)] == rows
        found, labels = run_labels(run)
        np.testing.assert_equal(repr(episode), repr(found))
        np.testing.assert_array_equal(table.labels[index : index + length], labels)
        index += length
    assert index == len(table.values) == len(table.labels)


@SETTINGS
@given(st.data())
def test_values_are_within_their_bounds_and_nulls_have_a_reason(trajectories, encoder, data):
    run, config = data.draw(trajectories), data.draw(CONFIGS)
    for row in run_signals(run, config, encoder, LINES):
        assert set(row.values) | set(row.nulls) == set(config.signals)
        assert not set(row.values) & set(row.nulls)
        assert set(row.nulls.values()) <= set(REASONS) - {"present", "not asked for"}
        assert np.isfinite(list(row.values.values())).all()
        for name, low, high in (("SE", 0, np.log(5)), ("SE_norm", 0, 1), ("Nov", 0, 1), ("Cov", 0, 1)):
            assert low <= row.values.get(name, 0) <= high + 1e-9
        for name, low, high in (("Div", 0, 2), ("Sim", -1, 1), ("content_novelty", 0, 2), ("redundancy", -1, 1)):
            assert low - 1e-6 <= row.values.get(name, 0) <= high + 1e-6
        assert 0 <= row.values.get("steps_since_new", 0) <= row.t


@SETTINGS
@given(st.data())
def test_recall_is_the_sum_of_new_item_recall_and_of_opened_pages(trajectories, data):
    run = data.draw(trajectories.filter(lambda run: run.gold_ids))
    searches = replace(run, steps=run.search_steps)
    episode, labels = run_labels(searches)
    recall, nir = labels[:, 0], labels[:, 1]
    np.testing.assert_allclose(recall, np.cumsum(nir), atol=1e-9)
    assert episode.final_recall == (recall[-1] if len(recall) else 0.0)
    with_pages, without = run_labels(run)[1][:, 0], recall
    assert (with_pages >= without - 1e-9).all()


@SETTINGS
@given(st.data())
def test_every_text_that_the_tracker_embeds_is_named_beforehand(trajectories, encoder, data):
    run, config = data.draw(trajectories), data.draw(CONFIGS)
    named = set(texts_of(run, config))

    class Watching:
        id = "watching"

        def encode(self, texts):
            assert named.issuperset(texts)
            return encoder.encode(texts)

    run_signals(run, config, Watching(), LINES)


def test_a_run_is_the_same_from_a_cache_on_disk_and_in_memory(uncertain_runs, encoder, tmp_path):
    run = uncertain_runs(3)
    expected = run_signals(run, SignalConfig(), encoder)
    for _ in range(2):  # empty at first, then filled
        cached = CachedEncoder(encoder.encoder, tmp_path / "cache.sqlite")
        assert run_signals(run, SignalConfig(), cached) == expected
        cached.close()
