"""What language models cost: prices, bounds, and a bill by purpose."""

import threading
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, get_args

from stopwise.data.errors import DataError, StopwiseError, UsageError
from stopwise.data.files import read_json, write_json
from stopwise.models.chat import ChatFailure, ChatReply, Purpose, Usage

BILL = "llm_cost.json"  # in a run's folder; a result that is a file has `bill_beside` it
PARTS = ("operation", "evaluation")
PURPOSES: tuple[str, ...] = get_args(Purpose)
EVALUATION: frozenset[str] = frozenset({"judge", "reader"})  # spent on measuring a run, not on running it


@dataclass(frozen=True, slots=True)
class Prices:
    """Money for a million tokens, in the user's currency; 0 where nothing is charged."""

    prompt: float = 0.0
    cached: float | None = None  # prompt tokens read from the server's cache; None: as other prompt tokens
    completion: float = 0.0

    def __post_init__(self) -> None:
        for price in fields(self):
            value = getattr(self, price.name)
            if value is not None and not value >= 0:
                raise UsageError(f"prices.{price.name}: {value}; expected money for a million tokens, at least 0")

    def of(self, usage: Usage) -> float:
        """Money for these tokens."""
        cached = self.prompt if self.cached is None else self.cached
        fresh = usage.prompt - usage.cached
        return (fresh * self.prompt + usage.cached * cached + usage.completion * self.completion) / 1e6


@dataclass(frozen=True, slots=True)
class Budget:
    """Bounds on what is really spent; replies from the cache cost nothing. None: no bound.

    Calls are bounded exactly. Tokens and money are known only afterwards: the calls under way when a bound is reached
    are finished and paid, no further one is begun.
    """

    calls: int | None = None
    tokens: int | None = None  # prompt and generated together
    money: float | None = None

    def __post_init__(self) -> None:
        for bound in fields(self):
            value = getattr(self, bound.name)
            if value is not None and not value >= 0:
                raise UsageError(f"budget.{bound.name}: {value}; expected at least 0")


class BudgetSpent(StopwiseError):
    """The next call would go beyond the budget; what was done so far is kept."""


@dataclass(slots=True)
class Account:
    """Totals of one purpose."""

    calls: int = 0  # really made and answered
    attempts: int = 0  # calls on the wire, with those that failed
    failures: int = 0  # calls that brought no reply
    from_cache: int = 0  # replies that cost nothing now
    prompt_tokens: int = 0
    cached_prompt_tokens: int = 0
    completion_tokens: int = 0
    money: float = 0.0
    seconds: float = 0.0  # wall clock, summed over parallel calls
    saved_money: float = 0.0  # what the replies from the cache cost when they were made


class Ledger:
    """Counts every call by purpose and keeps to a budget. Safe to share between threads."""

    def __init__(self, budget: Budget | None = None) -> None:
        self.budget = budget or Budget()
        self._lock = threading.Lock()
        self._accounts: dict[str, Account] = {}
        self._begun = 0  # calls begun, whatever came of them

    def begin(self) -> None:
        """Ask for leave to make a call.

        Raises:
            BudgetSpent: the budget has no room for it.
        """
        with self._lock:
            tokens = sum(a.prompt_tokens + a.completion_tokens for a in self._accounts.values())
            money = sum(account.money for account in self._accounts.values())
            for name, spent, bound in (
                ("calls", self._begun, self.budget.calls),
                ("tokens", tokens, self.budget.tokens),
                ("money", money, self.budget.money),
            ):
                if bound is not None and spent >= bound:
                    raise BudgetSpent(
                        f"budget.{name}: {spent:g} of {bound:g} are spent; replies so far are cached, "
                        f"so with a larger budget.{name} the same command goes on where it stopped"
                    )
            self._begun += 1

    def paid(self, purpose: Purpose, reply: ChatReply, prices: Prices) -> None:
        """A call was answered."""
        with self._lock:
            account = self._account(purpose)
            account.calls += 1
            account.attempts += reply.attempts
            account.seconds += reply.seconds
            self._add(account, reply.usage, prices)

    def reused(self, purpose: Purpose, reply: ChatReply, prices: Prices) -> None:
        """A reply came from the cache."""
        with self._lock:
            account = self._account(purpose)
            account.from_cache += 1
            account.saved_money += prices.of(reply.usage)

    def failed(self, purpose: Purpose, failure: ChatFailure, prices: Prices) -> None:
        """A call brought no reply; what it cost is counted all the same."""
        with self._lock:
            account = self._account(purpose)
            account.failures += 1
            account.attempts += failure.attempts
            self._add(account, failure.usage, prices)

    def report(self) -> dict[str, Any]:
        """JSON-able: the account of each purpose that occurred, operation and evaluation apart, each with its sum."""
        with self._lock:
            rows = {
                name: {entry.name: getattr(account, entry.name) for entry in fields(Account)}
                for name, account in self._accounts.items()
            }
        parts: dict[str, dict[str, Any]] = {part: {} for part in PARTS}
        for name in PURPOSES:
            if name in rows:
                parts["evaluation" if name in EVALUATION else "operation"][name] = rows[name]
        for part in parts.values():
            sums = {entry.name: sum(row[entry.name] for row in part.values()) for entry in fields(Account)}
            part["total"] = sums
        return parts

    @staticmethod
    def _add(account: Account, usage: Usage, prices: Prices) -> None:
        account.prompt_tokens += usage.prompt
        account.cached_prompt_tokens += usage.cached
        account.completion_tokens += usage.completion
        account.money += prices.of(usage)

    def _account(self, purpose: str) -> Account:
        return self._accounts.setdefault(purpose, Account())


def bill_beside(out: Path) -> Path:
    """Where the bill of a result that is one file stands: ``signals.parquet`` has ``signals.llm_cost.json``."""
    return out.with_name(f"{out.stem}.{BILL}")


def read_bill(path: Path) -> dict[str, Any]:
    """Read a bill: a file of its own, or what stands under ``llm`` in a command's result.

    Raises:
        DataError: it cannot be read, or is no bill.
    """
    bill = read_json(path)
    if isinstance(bill, dict) and isinstance(bill.get("llm"), dict):
        bill = bill["llm"]
    if not _is_bill(bill):
        raise DataError(f"{path}: holds no bill of a language model; expected what a command that called one wrote")
    return bill


def _is_bill(value: Any) -> bool:
    rows = [value.get(part) for part in PARTS] if isinstance(value, dict) else [None]
    names = {entry.name for entry in fields(Account)}
    accounts = [account for row in rows if isinstance(row, dict) for account in row.values()]
    return all(isinstance(row, dict) for row in rows) and all(
        isinstance(account, dict) and set(account) == names for account in accounts
    )


def read_bills(path: Path) -> dict[str, dict[str, Any]]:
    """The bills in a file: one under the empty name, and under "agents" that of an arena benchmark's agents, if any.

    Raises:
        DataError: it cannot be read, or holds no bill.
    """
    result = read_json(path)
    agents = result.get("agents_llm") if isinstance(result, dict) else None
    if agents is None:
        return {"": read_bill(path)}
    if not _is_bill(agents):
        raise DataError(f"{path}: agents_llm is no bill of a language model; expected what a benchmark wrote")
    return {"agents": agents} if result.get("llm") is None else {"agents": agents, "": read_bill(path)}


def add_to_bill(path: Path, report: dict[str, Any]) -> None:
    """Write a bill, or add to the one that an interrupted call of the same run has left there."""
    write_json(path, add_reports(read_bill(path), report) if path.exists() else report)


def add_reports(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """Two bills of one model as one: numbers are summed, at any depth."""
    merged = dict(one)
    for key, value in other.items():
        if isinstance(value, dict):
            merged[key] = add_reports(merged.get(key, {}), value)
        elif value is None or isinstance(value, str):
            merged[key] = merged.get(key) if value is None else value
        else:
            merged[key] = merged.get(key, 0) + value
    return merged
