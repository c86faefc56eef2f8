"""The comparison in benchmarks/reasoning_source.py, on hand-made signal tables."""

import importlib.util
import sys
from pathlib import Path

import pytest

from stopwise.data.records import Trajectory

PATH = Path(__file__).parents[2] / "benchmarks" / "reasoning_source.py"


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("reasoning_source", PATH)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


def _table(table_of, run_of, flip):
    """Twelve questions of three steps; the second step brings gold in every other one, and RE then is high, or low."""
    runs = []
    for number in range(12):
        gains = number % 2
        told = float(gains != flip)
        signals = {
            "RE": [0.5, told, 0.5],
            "SE": [0.1, 0.2, 0.3],
            "residual": ["first step", told, "no documents" if flip and number == 0 else 0.5],
        }
        recall = [0.25, 0.25 + 0.25 * gains, 0.5]
        runs.append(run_of(recall, question=f"q{number}", agent="ann" if number < 6 else "bob", signals=signals))
    return table_of(runs, ("RE", "SE", "residual"))


def test_both_sources_are_compared_on_the_same_steps(script, table_of, run_of):
    tables = {"logged": _table(table_of, run_of, False), "scored:m": _table(table_of, run_of, True)}
    found = script.compare(tables)
    # twelve first steps have no residual, and one third step has none by the one source
    assert (found["runs"], found["questions"], found["all_steps"]) == (12, 12, 36)
    assert found["steps"] == {"RE": 36, "SE": 36, "residual": 23}
    # every first step brings gold; at the second turn RE tells all 36 pairs, at the third it ties in all 36
    for source, right in (("logged", 36), ("scored:m", 0)):
        row = {name: found["auroc"][source][name]["turn_matched"] for name in script.COMPARED}
        assert (row["RE"]["value"], row["RE"]["pairs"]) == (pytest.approx((right + 36 / 2) / 72), 72)
        assert (row["SE"]["value"], row["SE"]["pairs"]) == (0.5, 72)
        # without that one step 5 times 6 pairs are left at the third turn
        assert (row["residual"]["value"], row["residual"]["pairs"]) == (pytest.approx((right + 30 / 2) / 66), 66)
    assert found["spearman_re"] < -0.9
    assert set(found["spearman_re_by_agent"]) == {"ann", "bob"}
    assert found["re"]["logged"] == {"mean": 0.5, "std": pytest.approx((12 * 0.25 / 36) ** 0.5), "n": 36, "nulls": 0}


def test_the_part_holds_all_runs_of_its_questions_and_larger_parts_hold_smaller_ones(script):
    runs = [Trajectory(f"{agent}{number}", f"q{number}", "Which?") for agent in "ab" for number in range(30)]
    small, large = (script.part_of(runs, count) for count in (4, 9))
    assert len(small) == 8
    assert len({run.question_id for run in large}) == 9
    assert {run.id for run in small} <= {run.id for run in large}
