import threading
import time

import pytest

from stopwise.models.parallel import SideBySide


@pytest.mark.parametrize("parallel", [1, 4])
def test_results_come_in_the_order_of_the_items(parallel):
    with SideBySide(parallel) as side:
        assert side.map(lambda wait: time.sleep(wait / 100) or wait, [3, 0, 2, 1]) == [3, 0, 2, 1]
        assert side.map(len, []) == []


def test_they_are_really_side_by_side():
    together = threading.Barrier(3, timeout=10)
    with SideBySide(3) as side:
        side.map(lambda _: together.wait(), range(3))


def test_one_after_the_other_stays_in_this_thread():
    with SideBySide(1) as side:
        assert side.map(lambda _: threading.get_ident(), range(2)) == [threading.get_ident()] * 2


def test_a_failure_is_raised_and_what_was_not_begun_is_left_out():
    done = []

    def work(item):
        if item == 0:
            raise ValueError("first")
        time.sleep(0.05)
        done.append(item)

    with pytest.raises(ValueError, match="first"), SideBySide(2) as side:
        side.map(work, range(50))
    assert len(done) < 10
