"""A chat model behind HTTP: any server that speaks OpenAI's chat completions.

A call that fails for a passing reason is made again after a wait that doubles; a call that would fail again is not.
"""

import email.utils
import json
import math
import random
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from stopwise.data.errors import UsageError
from stopwise.models.chat import (
    Abilities,
    ChatFailure,
    ChatReply,
    ChatRequest,
    TokenLogprobs,
    ToolCall,
    Usage,
    check_request,
)
from stopwise.models.endpoints import Endpoint

PASSING = frozenset({"rate limited", "server error", "timeout", "connection", "cut", "bad JSON", "empty choice"})
MAX_BYTES = 32 * 2**20  # of a reply; log-probabilities of 20 tokens a position take a kilobyte each


class HttpChat:
    """Calls an endpoint. Safe to share between threads.

    Args:
        endpoint: what to call.
        sleep: waits that many seconds between two attempts.
    """

    def __init__(self, endpoint: Endpoint, sleep: Callable[[float], None] = time.sleep) -> None:
        self.endpoint = endpoint
        self._sleep = sleep
        self._jitter = random.Random()  # of the waits only; no result depends on it
        try:
            import httpx2
        except ImportError as error:
            raise UsageError(f"llm: httpx2 is not installed ({error}); run `pip install 'stopwise[llm]'`") from error
        patience = endpoint.patience
        self._http = httpx2
        self._url = f"{endpoint.url.rstrip('/')}/chat/completions"
        self._client = httpx2.Client(timeout=httpx2.Timeout(patience.timeout, connect=patience.connect_timeout))

    @property
    def id(self) -> str:
        """The endpoint's id."""
        return self.endpoint.id

    @property
    def abilities(self) -> Abilities:
        """What the endpoint is declared to offer."""
        return self.endpoint.can

    def complete(self, request: ChatRequest) -> ChatReply:
        """See `ChatModel.complete`; the reply's usage holds the tokens of attempts that came to nothing too."""
        check_request(self, request)
        body = request_body(self.endpoint, request)
        patience = self.endpoint.patience
        wasted = Usage()
        started = time.monotonic()
        for attempt in range(1, patience.attempts + 1):
            try:
                reply = read_reply(self._post(body), self.endpoint)
                if request.top_logprobs and reply.logprobs is None:
                    raise ChatFailure("no log-probabilities", "the server left them out", reply.usage)
                seconds = time.monotonic() - started
                return replace(reply, usage=wasted + reply.usage, seconds=seconds, attempts=attempt)
            except _Postponed as failed:
                failure, wait = failed.failure, failed.wait
            except ChatFailure as failed:
                failure, wait = failed, None
            wasted += failure.usage
            seconds = time.monotonic() - started
            failure = ChatFailure(failure.kind, f"{self.id}: {failure}", wasted, attempt, seconds)
            if failure.kind not in PASSING or attempt == patience.attempts:
                raise failure
            if wait is None:
                wait = patience.first_wait * 2 ** (attempt - 1) * (1 + self._jitter.random())
                wait = min(wait, patience.longest_wait)
            elif wait > patience.longest_wait:
                raise ChatFailure(
                    failure.kind,
                    f"{failure}; it asks for a wait of {wait:g} s, more than patience.longest_wait = "
                    f"{patience.longest_wait:g}",
                    wasted,
                    attempt,
                    seconds,
                )
            self._sleep(wait)
        raise AssertionError("every attempt returns, raises or is followed by another")

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def _post(self, body: dict[str, Any]) -> Any:
        """One call on the wire; the parsed body of a 200."""
        http, patience = self._http, self.endpoint.patience
        key = self.endpoint.key()
        headers = {"Content-Type": "application/json"}
        if key is not None:
            headers["Authorization"] = f"Bearer {key}"
        status = None
        deadline = time.monotonic() + patience.timeout
        try:
            with self._client.stream("POST", self._url, content=json.dumps(body), headers=headers) as response:
                status = response.status_code
                received = bytearray()
                for block in response.iter_bytes():
                    received += block
                    if time.monotonic() > deadline:  # the library bounds each read, not the whole
                        raise http.ReadTimeout("the reply drips")
                    if len(received) > MAX_BYTES:
                        raise ChatFailure("bad JSON", f"the reply is longer than {MAX_BYTES} bytes")
        except http.TimeoutException as error:
            raise ChatFailure("timeout", f"no whole reply within {patience.timeout:g} s") from error
        except http.RequestError as error:
            kind = "connection" if status is None else "cut"
            raise ChatFailure(
                kind, f"the connection failed ({_hide(str(error), key) or type(error).__name__})"
            ) from None
        text = _hide(received.decode("utf-8", "replace"), key)
        if status != 200:
            raise _refusal(status, text, response.headers.get("retry-after"))
        try:
            return json.loads(text)
        except (ValueError, RecursionError) as error:
            raise ChatFailure("bad JSON", f"the reply is not JSON ({error}); found {_shown(text)}") from None


class _Postponed(Exception):
    """A failed attempt, with the wait in seconds that the server asks for, if it does."""

    def __init__(self, failure: ChatFailure, wait: float | None) -> None:
        super().__init__(str(failure))
        self.failure = failure
        self.wait = wait


def request_body(endpoint: Endpoint, request: ChatRequest) -> dict[str, Any]:
    """The JSON that is sent; fields that the endpoint does not know are left out."""
    body: dict[str, Any] = {
        "model": endpoint.model,
        "messages": [{"role": message.role, "content": message.content} for message in request.messages],
        endpoint.token_limit_field: request.max_tokens,
        "temperature": request.temperature,
    }
    if request.top_p != 1:
        body["top_p"] = request.top_p
    if request.stop:
        body["stop"] = list(request.stop)
    if endpoint.can.seed:
        body["seed"] = request.seed + request.sample
    if request.top_logprobs:
        body |= {"logprobs": True, "top_logprobs": request.top_logprobs}
    if request.schema is not None:
        body["response_format"] = (
            {"type": "json_schema", "json_schema": {"name": "answer", "strict": True, "schema": request.schema}}
            if endpoint.can.structured == "schema"
            else {"type": "json_object"}
        )
    if request.tools:
        body["tools"] = [
            {
                "type": "function",
                "function": {"name": tool.name, "description": tool.description, "parameters": tool.parameters},
            }
            for tool in request.tools
        ]
    return body


def read_reply(answer: Any, endpoint: Endpoint) -> ChatReply:
    """Read a chat completion.

    Raises:
        ChatFailure: ``bad JSON``, ``empty choice`` or ``changed model``; what is malformed is bad JSON.
    """
    if not isinstance(answer, dict) or not isinstance(answer.get("choices"), list):
        raise ChatFailure("bad JSON", f"the reply is no chat completion; found {_shown(json.dumps(answer))}")
    try:
        return _read_completion(answer, endpoint)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ChatFailure("bad JSON", f"the chat completion is malformed ({type(error).__name__}: {error})") from error


def _read_completion(answer: dict[str, Any], endpoint: Endpoint) -> ChatReply:
    usage = _usage(answer.get("usage"))
    model = str(answer.get("model") or endpoint.model)
    if endpoint.served_model is not None and model != endpoint.served_model:
        raise ChatFailure("changed model", f"answered as {model!r}; expected {endpoint.served_model!r}", usage)
    choice = answer["choices"][0] if answer["choices"] else {}
    message = choice.get("message") if isinstance(choice, dict) else None
    if not isinstance(message, dict):
        raise ChatFailure("empty choice", "the reply holds no message", usage)
    text, finish = _text(message.get("content")), str(choice.get("finish_reason") or "unknown")
    calls = tuple(
        ToolCall(str(call["function"].get("name")), str(call["function"].get("arguments")))
        for call in message.get("tool_calls") or ()
        if isinstance(call, dict) and isinstance(call.get("function"), dict)
    )
    if not text.strip() and not calls:
        raise ChatFailure("empty choice", f"the message is empty (finish_reason {finish})", usage)
    return ChatReply(
        text=text,
        finish=finish,
        model=model,
        usage=usage,
        reasoning=message.get("reasoning_content") or message.get("reasoning") or None,
        tool_calls=calls,
        logprobs=_logprobs(choice.get("logprobs")),
    )


def retry_after(value: str | None, now: float) -> float | None:
    """Seconds that a Retry-After header asks for: a number, or a date compared with `now` (seconds since 1970)."""
    if value is None:
        return None
    try:
        seconds = float(value)
        return max(0.0, seconds) if math.isfinite(seconds) else None
    except ValueError:
        pass
    try:
        return max(0.0, email.utils.parsedate_to_datetime(value).timestamp() - now)
    except (TypeError, ValueError):
        return None


def _refusal(status: int, text: str, wait: str | None) -> Exception:
    message = f"HTTP status {status}: {_shown(text)}"
    if status == 429:
        return _Postponed(ChatFailure("rate limited", message), retry_after(wait, time.time()))
    if status >= 500 or status == 408:
        return _Postponed(ChatFailure("server error", message), retry_after(wait, time.time()))
    return ChatFailure("refused", message)


def _text(content: Any) -> str:
    if isinstance(content, list):  # parts, of which text ones count
        return "".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
    return content if isinstance(content, str) else ""


def _usage(usage: Any) -> Usage:
    if not isinstance(usage, dict):
        return Usage()
    details = usage.get("prompt_tokens_details")
    cached = details.get("cached_tokens") if isinstance(details, dict) else None
    return Usage(int(usage.get("prompt_tokens") or 0), int(cached or 0), int(usage.get("completion_tokens") or 0))


def _logprobs(value: Any) -> tuple[TokenLogprobs, ...] | None:
    content = value.get("content") if isinstance(value, dict) else None
    if not isinstance(content, list):
        return None
    return tuple(
        TokenLogprobs(
            str(position["token"]),
            float(position["logprob"]),
            tuple(sorted((float(top["logprob"]) for top in position.get("top_logprobs") or ()), reverse=True)),
        )
        for position in content
    )


def _hide(text: str, key: str | None) -> str:
    """Servers like to quote the key that they refuse."""
    return text if key is None else text.replace(key, "[key]")


def _shown(text: str) -> str:
    plain = " ".join(text.split())
    return repr(plain if len(plain) <= 200 else f"{plain[:197]}...")
