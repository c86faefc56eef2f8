import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stopwise.envs.arena.chance import TOP_K, Chance, choose, softmax_weights


def test_numbers_depend_on_seed_and_purpose_only() -> None:
    chance = Chance("a")
    first = chance.uniform(3, "move")
    chance.uniform(4, "move")
    assert chance.uniform(3, "move") == first == Chance("a").uniform(3, "move")
    assert len({first, chance.uniform(3, "mode"), chance.uniform(4, "move"), Chance("b").uniform(3, "move")}) == 4


def test_numbers_are_uniform() -> None:
    numbers = [Chance("u").uniform(number) for number in range(4000)]
    assert all(0 <= number < 1 for number in numbers)
    assert abs(sum(numbers) / 4000 - 0.5) < 4 * math.sqrt(1 / 12 / 4000)


@pytest.mark.parametrize(("number", "index"), [(0.0, 0), (0.249, 0), (0.25, 2), (0.99, 2)])
def test_choice_by_cumulative_weight(number: float, index: int) -> None:
    choice = choose([1, 0, 3], number)
    assert choice.index == index
    assert choice.top == pytest.approx((math.log(0.75), math.log(0.25)), abs=1e-6)


@given(st.lists(st.floats(0, 10), min_size=1, max_size=60), st.floats(0, 1, exclude_max=True))
def test_choice_never_takes_an_impossible_option(weights: list[float], number: float) -> None:
    weights = [*weights, 1.0]
    choice = choose(weights, number)
    assert weights[choice.index] > 0
    assert len(choice.top) <= TOP_K
    assert list(choice.top) == sorted(choice.top, reverse=True)
    assert sum(map(math.exp, choice.top)) <= 1 + 1e-4


def test_softmax_weights() -> None:
    assert softmax_weights([1.0, 1.0 + math.log(2), 1.0], 1.0) == pytest.approx([0.5, 1.0, 0.5])
    assert softmax_weights([-1000.0, 0.0], 0.1) == [0.0, 1.0]
