"""Rows by hand, and one rendering of a run however it is read."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stopwise.controllers.rendering import (
    ASKS,
    RenderingSpec,
    RowStream,
    Tokens,
    context_start,
    contexts,
    fit_edges,
)
from stopwise.data.errors import DataError, UsageError
from stopwise.signals.tracker import SignalRow

NAN = float("nan")
SPEC = RenderingSpec(("Nov", "Cov"), ((0.25, 0.5), (0.1,)), interventions=2, price=0.0125)


def letters(text):
    """A tokenizer in which every character is a token."""
    return [ord(letter) for letter in text]


@pytest.fixture
def tokens():
    return Tokens(SPEC, letters)


class TestRow:
    def test_levels_changes_and_nulls(self):
        assert SPEC.row(1, [0.2, 0.1], None) == "\n010_1_abc"  # a value on an edge is above it; nothing came before
        assert SPEC.row(2, [0.25, 0.05], [0.2, 0.1]) == "\n021+0-abc"
        assert SPEC.row(3, [0.25, NAN], [0.25, 0.05]) == "\n031=__abc"
        assert SPEC.row(4, [0.9, 0.3], [0.25, NAN]) == "\n042+1_abc"  # what was unknown neither rose nor fell

    def test_rounding_is_no_change(self):
        assert SPEC.row(2, [0.2 + 9e-7, 0.1], [0.2, 0.1 + 2e-6]) == "\n020=1-abc"

    def test_numbers_end_at_99(self):
        assert [SPEC.row(t, [NAN, NAN], None)[:3] for t in (9, 10, 99, 100, 250)] == [
            "\n09",
            "\n10",
            "\n99",
            "\n99",
            "\n99",
        ]

    def test_every_row_has_the_same_number_of_tokens(self, tokens):
        rows = [SPEC.row(1, [NAN, NAN], None), SPEC.row(50, [0.3, 0.2], [NAN, 0.3])]
        assert {len(row) for row in rows} == {SPEC.row_tokens} == {10}
        assert tokens.ask_positions(2).tolist() == [
            [n - 3, n - 2, n - 1] for n in (len(SPEC.header) + 10, len(SPEC.header) + 20)
        ]

    def test_the_header_names_signals_actions_and_price(self):
        assert SPEC.header == "Nov Cov. C continue, I intervene, S stop. Price 0.0125."
        assert SPEC.at_price(0.5).header == SPEC.header.replace("0.0125", "0.5000")

    def test_edges_are_tenths_of_what_occurs(self, run_of, table_of):
        nov = (np.arange(101) / 100).tolist()
        cov = [0.0] * 60 + [1.0] * 41
        table = table_of(
            [run_of([0.0] * 101, signals={"Nov": nov, "Cov": cov, "RE": ["no logprobs"] * 101})],
            signals=("Nov", "Cov", "RE"),
        )
        first, second, third = fit_edges(table, ("Nov", "Cov", "RE"))
        assert first == pytest.approx(np.arange(1, 10) / 10)
        assert second == (0.0, 1.0)  # equal ones once
        assert third == ()  # nothing is known of it: one level
        spec = RenderingSpec(("Nov", "Cov", "RE"), (first, second, third), 0, 0.01)
        assert [spec.level(0, value) for value in (-1, 0.05, 0.95, 7)] == [0, 0, 9, 9]
        assert [spec.level(1, value) for value in (0.0, 1.0)] == [1, 2]
        assert spec.level(2, 0.5) == 0

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"signals": ()}, "signals none"),
            ({"signals": ("Nov", "nonsense")}, "nonsense"),
            ({"edges": ((0.5,),)}, "edges for each of 2 signals"),
            ({"edges": (tuple(range(10)), ())}, "up to 9 edges"),
            ({"interventions": 10}, "interventions"),
            ({"price": -0.1}, "price: -0.1"),
            ({"price": 10.0}, "price"),
            ({"context_rows": 1}, "context_rows: 1"),
            ({"version": 2}, "version 2"),
            ({"sharpness": 0.0}, "sharpness: 0"),
            ({"offsets": (0.0, NAN, 0.0)}, "offsets .*expected 3 numbers"),
            ({"offsets": (0.0, 1.0)}, "offsets .*expected 3 numbers"),
        ],
    )
    def test_what_cannot_be_rendered_is_refused(self, changes, message):
        from dataclasses import replace

        with pytest.raises((UsageError, DataError), match=message):
            replace(SPEC, **changes)


class TestTokens:
    def test_a_symbol_of_two_tokens_is_refused(self):
        with pytest.raises(UsageError, match="'7' is 2 tokens of this tokenizer; expected a single one"):
            Tokens(
                SPEC, lambda text: [token for letter in text for token in ([1, 2] if letter == "7" else [ord(letter)])]
            )

    def test_an_action_of_two_tokens_is_refused(self):
        with pytest.raises(UsageError, match="'I' is 2 tokens"):
            Tokens(
                SPEC, lambda text: [token for letter in text for token in ([1, 2] if letter == "I" else [ord(letter)])]
            )

    def test_two_symbols_of_one_token_are_refused(self):
        with pytest.raises(UsageError, match="two symbols are the same token"):
            Tokens(SPEC, lambda text: [0 if letter in "+-" else ord(letter) for letter in text])

    def test_an_action_that_is_an_ask_is_refused(self):
        """A tokenizer without capitals: completions could not be told from questions."""
        with pytest.raises(UsageError, match="two symbols are the same token"):
            Tokens(SPEC, lambda text: letters(text.lower()))

    def test_answers_are_read_with_sharpness_and_offsets(self, tokens):
        """By hand; and what is read does not depend on how answers are."""
        torch = pytest.importorskip("torch")
        logits = torch.zeros(2, 300)
        logits[0, list(tokens.actions)] = torch.tensor([1.0, 2.0, 3.0])
        assert tokens.answers(logits).tolist() == [[1.0, 2.0, 3.0], [0.0, 0.0, 0.0]]
        other = tokens.read_by(2.0, (0.0, -1.0, 0.5))
        assert other.answers(logits).tolist() == [[2.0, 3.0, 6.5], [0.0, -1.0, 0.5]]
        assert other.answers(logits.bfloat16()).dtype == torch.float32
        assert tokens.answers(logits).tolist() == [[1.0, 2.0, 3.0], [0.0, 0.0, 0.0]]  # a copy was changed
        values = np.array([[0.2, 0.1], [0.3, NAN]])
        assert other.context(values, 0, 2) == tokens.context(values, 0, 2)

    def test_answers_are_turned_back_into_questions(self, tokens):
        values = np.array([[0.2, 0.1], [0.3, NAN], [0.1, 0.0]])
        ids = tokens.run(values)
        places = tokens.ask_positions(3) - len(tokens.header)
        answered = list(ids)
        answered[places[0, 0]] = tokens.actions[0]
        answered[places[1, 0]] = tokens.actions[1]
        answered[places[1, 1]] = tokens.actions[2]
        assert answered != ids
        assert tokens.as_asked(answered) == ids


VALUES = st.one_of(st.just(NAN), st.sampled_from([0.0, 0.1, 0.25, 0.5]), st.floats(-1, 2))
RUNS = st.lists(st.tuples(VALUES, VALUES), min_size=1, max_size=30)


def observed(values):
    return [
        SignalRow(t, {n: v for n, v in zip(SPEC.signals, row, strict=True) if not np.isnan(v)}, {})
        for t, row in enumerate(values, 1)
    ]


class TestOneRendering:
    @given(RUNS)
    def test_a_stream_gives_the_ids_of_the_whole(self, values):
        tokens = Tokens(SPEC, letters)
        stream = RowStream(tokens)
        rows = [stream.push(row) for row in observed(values)]
        assert [token for row in rows for token in row] == tokens.run(np.array(values))

    @given(RUNS, st.integers(0, 40), st.integers(0, 40))
    def test_a_context_is_the_header_and_some_of_its_rows(self, values, start, stop):
        start, stop = sorted((start % (len(values) + 1), stop % (len(values) + 1)))
        tokens = Tokens(SPEC, letters)
        size = SPEC.row_tokens
        found = tokens.context(np.array(values), start, stop)
        assert found == tokens.header + tokens.run(np.array(values))[start * size : stop * size]

    @given(RUNS)
    def test_a_prefix_of_a_run_reads_the_same(self, values):
        tokens = Tokens(SPEC, letters)
        whole = tokens.run(np.array(values))
        for stop in range(len(values) + 1):
            assert tokens.run(np.array(values[:stop]).reshape(-1, 2)) == whole[: stop * SPEC.row_tokens]

    @given(RUNS)
    def test_it_is_its_text_letter_by_letter(self, values):
        tokens = Tokens(SPEC, letters)
        before = [None, *values[:-1]]
        rows = [SPEC.row(t, row, last) for t, (row, last) in enumerate(zip(values, before, strict=True), 1)]
        assert tokens.run(np.array(values)) == letters("".join(rows))


class TestContexts:
    def test_by_hand(self):
        assert [context_start(row, 4) for row in range(10)] == [0, 0, 0, 0, 2, 2, 4, 4, 6, 6]
        assert contexts(9, 4) == [(0, 0, 4), (2, 4, 6), (4, 6, 8), (6, 8, 9)]
        assert contexts(4, 4) == [(0, 0, 4)]
        assert contexts(0, 4) == []

    @given(st.integers(1, 200), st.integers(2, 40))
    def test_contexts_are_what_a_stream_reads(self, rows, most):
        cut = contexts(rows, most)
        decided = [row for _, first, stop in cut for row in range(first, stop)]
        assert decided == list(range(rows))
        for start, first, stop in cut:
            assert start <= first < stop <= rows
            assert stop - start <= most
            assert all(context_start(row, most) == start for row in range(first, stop))

    @given(st.integers(0, 500), st.integers(2, 40))
    def test_a_context_is_bounded_and_never_goes_back(self, row, most):
        start = context_start(row, most)
        assert 0 <= start <= row
        assert row - start < most
        assert start <= context_start(row + 1, most)
        if row >= most:
            assert row - start >= most // 2 - 1  # at least the half of it stands before the row


def test_there_is_an_ask_for_every_number_of_interventions():
    spec = RenderingSpec(("Nov",), ((),), len(ASKS) - 1, 0.01)
    assert spec.row(1, [0.3], None).endswith(ASKS)
