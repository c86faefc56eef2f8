import threading

import pytest

from stopwise.data.errors import UsageError
from stopwise.models.chat import ChatFailure, ChatReply, Usage
from stopwise.models.ledger import Budget, BudgetSpent, Ledger, Prices

PRICES = Prices(prompt=2.0, cached=0.5, completion=10.0)  # of a million tokens
REPLY = ChatReply("a", "stop", "m", Usage(prompt=1000, cached=600, completion=100), seconds=2.0)


def test_cached_prompt_tokens_have_a_price_of_their_own():
    assert PRICES.of(REPLY.usage) == pytest.approx((400 * 2 + 600 * 0.5 + 100 * 10) / 1e6)
    assert Prices(prompt=2.0).of(REPLY.usage) == pytest.approx(1000 * 2 / 1e6)
    assert Prices().of(REPLY.usage) == 0


def test_the_bill_is_by_purpose_with_evaluation_apart():
    ledger = Ledger()
    ledger.paid("agent", REPLY, PRICES)
    ledger.paid("agent", REPLY, PRICES)
    ledger.reused("agent", REPLY, PRICES)
    ledger.failed("controller", ChatFailure("timeout", "", Usage(5, 0, 1), attempts=3), PRICES)
    ledger.paid("judge", REPLY, PRICES)
    report = ledger.report()
    agent = report["operation"]["agent"]
    assert (agent["calls"], agent["from_cache"], agent["prompt_tokens"], agent["completion_tokens"]) == (
        2,
        1,
        2000,
        200,
    )
    assert agent["money"] == pytest.approx(2 * 0.0021)
    assert agent["saved_money"] == pytest.approx(0.0021)
    assert agent["seconds"] == 4.0
    controller = report["operation"]["controller"]
    assert (controller["calls"], controller["failures"], controller["attempts"]) == (0, 1, 3)
    assert controller["prompt_tokens"] == 5
    assert set(report["operation"]) == {"agent", "controller", "total"}
    assert set(report["evaluation"]) == {"judge", "total"}
    assert report["operation"]["total"]["prompt_tokens"] == 2005
    assert report["evaluation"]["total"]["calls"] == 1
    assert Ledger().report()["operation"]["total"]["money"] == 0


@pytest.mark.parametrize(
    ("budget", "possible"),
    [(Budget(calls=3), 3), (Budget(tokens=2200), 2), (Budget(money=0.0043), 3), (Budget(calls=0), 0)],
)
def test_no_call_is_begun_beyond_the_budget(budget, possible):
    ledger = Ledger(budget)
    for _ in range(possible):
        ledger.begin()
        ledger.paid("agent", REPLY, PRICES)
    with pytest.raises(BudgetSpent, match=r"budget\.\w+: .* are spent; .*goes on where it stopped"):
        ledger.begin()


def test_failed_calls_use_up_the_budget_too():
    ledger = Ledger(Budget(calls=1))
    ledger.begin()
    ledger.failed("agent", ChatFailure("timeout", ""), PRICES)
    with pytest.raises(BudgetSpent):
        ledger.begin()


def test_calls_are_bounded_exactly_between_threads():
    ledger, begun = Ledger(Budget(calls=50)), []

    def work():
        for _ in range(20):
            try:
                ledger.begin()
            except BudgetSpent:
                return
            begun.append(1)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(begun) == 50


def test_prices_and_budgets_that_cannot_be():
    with pytest.raises(UsageError, match=r"prices\.cached: -1; expected money for a million tokens"):
        Prices(cached=-1)
    with pytest.raises(UsageError, match=r"budget\.money: nan; expected at least 0"):
        Budget(money=float("nan"))
