"""The chat client: one model behind a cache of replies, a budget, a bill, and a limit on parallel calls."""

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

from stopwise.models.chat import Abilities, ChatFailure, ChatModel, ChatReply, ChatRequest, Message, Purpose
from stopwise.models.ledger import Ledger, Prices
from stopwise.models.meter import count_call
from stopwise.models.response_cache import ResponseCache, request_key
from stopwise.models.structured import bounded, read_answer, schema_of

Answer = TypeVar("Answer")

REPAIR = "That was not usable: {problem}. Reply again, with the JSON object alone."


@dataclass(frozen=True, slots=True)
class Asked(Generic[Answer]):
    """A validated answer and the replies that led to it."""

    answer: Answer
    replies: tuple[ChatReply, ...]  # the last one holds the answer


class ChatClient:
    """Calls a model for a purpose. Safe to share between threads.

    Equal requests get one reply, from the cache if it is there; so a run that is repeated costs nothing and is the same
    to the byte. Failures are never cached. All replies of a client come from one model: when the name that a server
    gives to what answers changes, that is a failure.

    Args:
        model: what answers.
        cache: of replies.
        ledger: counts, and keeps to the budget; shared by the clients of a run.
        prices: of the model's tokens.
        parallel: calls under way at one time, at most.
        tries: times that an answer is asked for when replies cannot be read; from the second on, the model is told
            what was wrong with its last one.
    """

    def __init__(
        self,
        model: ChatModel,
        cache: ResponseCache,
        ledger: Ledger,
        *,
        prices: Prices | None = None,
        parallel: int = 8,
        tries: int = 2,
    ) -> None:
        self._model = model
        self._cache = cache
        self.ledger = ledger
        self._prices = prices or Prices()
        self._parallel = parallel
        self._tries = tries
        self._slots = threading.BoundedSemaphore(parallel)
        self._lock = threading.Lock()
        self._asking: dict[bytes, threading.Lock] = {}  # requests under way
        self._served: str | None = None

    @property
    def id(self) -> str:
        """The model's id."""
        return self._model.id

    @property
    def abilities(self) -> Abilities:
        """What may be asked of the model."""
        return self._model.abilities

    @property
    def parallel(self) -> int:
        """Calls under way at one time, at most: more threads than that gain nothing."""
        return self._parallel

    @property
    def served_model(self) -> str | None:
        """The name under which the model answers; None before the first reply."""
        return self._served

    def complete(self, request: ChatRequest, purpose: Purpose) -> ChatReply:
        """One reply.

        Raises:
            ChatFailure: it could not be had.
            BudgetSpent: it would cost more than there is.
            UsageError: the model lacks an ability, or the key is not set.
        """
        key = request_key(self._model.id, request)
        with self._alone(key):
            reply = self._cache.get(key)
            if reply is not None:
                self._check_served(reply)
                self.ledger.reused(purpose, reply, self._prices)
                count_call(purpose, reply.attempts, reply.usage, reply.seconds)
                return reply
            with self._slots:
                self.ledger.begin()
                started = time.perf_counter()
                try:
                    reply = self._model.complete(request)
                    self._check_served(reply)
                except ChatFailure as failure:
                    self.ledger.failed(purpose, failure, self._prices)
                    count_call(purpose, failure.attempts, failure.usage, time.perf_counter() - started)
                    raise
            self.ledger.paid(purpose, reply, self._prices)
            count_call(purpose, reply.attempts, reply.usage, reply.seconds)
            return self._cache.put(key, self._model.id, reply)

    def complete_all(self, requests: Sequence[ChatRequest], purpose: Purpose) -> list[ChatReply | ChatFailure]:
        """The replies to many requests, in their order, several at a time; a failure stands in its reply's place.

        Raises:
            BudgetSpent: the budget did not last; replies that came before are cached.
        """

        def one(request: ChatRequest) -> ChatReply | ChatFailure:
            try:
                return self.complete(request, purpose)
            except ChatFailure as failure:
                return failure

        with ThreadPoolExecutor(self._parallel) as pool:
            return list(pool.map(one, requests))

    def ask(
        self,
        request: ChatRequest,
        kind: type[Answer],
        purpose: Purpose,
        check: Callable[[Answer], str | None] | None = None,
        narrow: Mapping[str, Any] | None = None,
    ) -> Asked[Answer]:
        """A reply read as `kind`; the model is held to its schema if its server can do that.

        Args:
            request: must say in words which JSON object is wanted: not every server knows schemas.
            kind: a frozen dataclass.
            purpose: whom the call is for.
            check: says what is wrong with an answer of the right shape, or None; what is wrong is told to the model.
            narrow: JSON schemas of some fields, instead of those of their types: what `check` refuses, a model that is
                held to bounds cannot even write. Others are asked without them.

        Raises:
            ChatFailure: no reply, or none that could be read (``no JSON in reply``, ``wrong schema``,
                ``wrong answer``); its usage, attempts and seconds are those of all calls made in vain.
            BudgetSpent: it would cost more than there is.
        """
        if self.abilities.structured != "none":
            schema = schema_of(kind)
            if self.abilities.bounded:  # in the request, so that the bounds are part of its key in the cache
                schema["properties"] |= narrow or {}
                schema = bounded(schema, request.max_tokens)
            request = replace(request, schema=schema)
        replies: list[ChatReply] = []
        while True:
            try:
                replies.append(self.complete(request, purpose))
            except ChatFailure as failure:
                raise _in_vain(failure, str(failure), replies) from failure
            try:
                answer = read_answer(replies[-1].text, kind)
                problem = None if check is None else check(answer)
                if problem is not None:
                    raise ChatFailure("wrong answer", problem)
                return Asked(answer, tuple(replies))
            except ChatFailure as failure:
                if len(replies) >= self._tries:
                    raise _in_vain(failure, f"{self.id}: {failure}", replies) from failure
                told = Message("user", REPAIR.format(problem=failure))
                said = Message("assistant", replies[-1].text)
                request = replace(request, messages=(*request.messages, said, told))

    @contextmanager
    def _alone(self, key: bytes) -> Iterator[None]:
        """Let nobody else make the same request meanwhile: the second would be paid twice."""
        with self._lock:
            lock = self._asking.setdefault(key, threading.Lock())
        with lock:
            try:
                yield
            finally:
                with self._lock:
                    self._asking.pop(key, None)

    def _check_served(self, reply: ChatReply) -> None:
        with self._lock:
            if self._served is None:
                self._served = reply.model
            elif self._served != reply.model:
                raise ChatFailure(
                    "changed model",
                    f"{self.id}: answered as {reply.model!r}, before as {self._served!r}; results of one run come from "
                    "one model: fix the model's version, or begin with a new cache",
                    reply.usage,
                    reply.attempts,
                    reply.seconds,
                )


def _in_vain(failure: ChatFailure, message: str, replies: Sequence[ChatReply]) -> ChatFailure:
    """The failure of a whole request for an answer, with what the replies before it cost."""
    usage = sum((reply.usage for reply in replies), failure.usage)
    attempts = failure.attempts + sum(reply.attempts for reply in replies)
    return ChatFailure(
        failure.kind, message, usage, attempts, failure.seconds + sum(reply.seconds for reply in replies)
    )
