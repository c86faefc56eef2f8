"""Work that waits for language models, side by side in threads, with results in the order of what was asked."""

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


class SideBySide:
    """Maps functions over items, up to `parallel` at a time; with 1, in this thread. A context manager.

    The items must share nothing that depends on their order. When one fails, those not yet begun are left out: the
    first failure, by the order of the items, is raised when those under way have ended.
    """

    def __init__(self, parallel: int = 1) -> None:
        """Begin; no thread is started before there is work for it."""
        self._pool = ThreadPoolExecutor(parallel) if parallel > 1 else None

    def __enter__(self) -> "SideBySide":
        return self

    def __exit__(self, *raised: object) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)

    def map(self, function: Callable[[Item], Result], items: Iterable[Item]) -> list[Result]:
        """The results in the order of the items."""
        if self._pool is None:
            return [function(item) for item in items]
        futures = [self._pool.submit(function, item) for item in items]
        try:
            return [future.result() for future in futures]
        except BaseException:  # an interruption too: what was not begun need not be paid
            for future in futures:
                future.cancel()
            raise
