import importlib.util
import json
import os
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from typing import Any

import numpy as np
import pytest
from hypothesis import settings

from stopwise.data.splits import split_of
from stopwise.signals.labels import LABELS
from stopwise.signals.table import Episode, SignalInfo, build_table
from stopwise.signals.tracker import SignalConfig, SignalRow

# a loaded machine is slow: time is measured in benchmarks/, not in tests
settings.register_profile("stopwise", deadline=None)
settings.load_profile("stopwise")

NAN = float("nan")


@pytest.fixture(scope="session")
def questions_of():
    """``questions_of("val", 3)``: ids of three questions that belong to the split."""

    def find(split: str, number: int) -> list[str]:
        names = (f"q{index}" for index in count())
        return [next(name for name in names if split_of(name) == split) for _ in range(number)]

    return find


@pytest.fixture(scope="session")
def run_of():
    """One hand-made run, for `table_of`.

    ``recall`` gives R_t after each search step, or None for a run without gold; in ``signals`` a number is a value and
    a text is the reason why there is none. Each step shows ``shown`` new documents.
    """

    def make(
        recall: Sequence[float] | None,
        *,
        id: str | None = None,
        question: str = "q0",
        signals: Mapping[str, Sequence[float | str]] = {},
        steps: int | None = None,
        final_recall: float | None = None,
        probes: Sequence[float] | None = None,
        correct: float = NAN,
        ended_by: str = "answer",
        agent: str | None = None,
        gold: float = 4.0,
        shown: int = 5,
        visible: Sequence[float] | None = None,
    ) -> tuple[Episode, list[SignalRow], np.ndarray]:
        length = len(recall) if recall is not None else steps or 0
        known = np.array(recall if recall is not None else [NAN] * length, dtype=float)
        nir = np.diff(known, prepend=0.0)
        labels = np.full((length, len(LABELS)), NAN)
        columns = {
            "recall": known,
            "nir": nir,
            "relevant_new": nir * gold,
            "relevant_seen": 0 * nir,
            "irrelevant_new": shown - nir * gold,
            "irrelevant_seen": 0 * nir,
            "documents_seen": shown * np.arange(1.0, length + 1),
            "probe_correct": np.array(probes if probes is not None else [NAN] * length),
            "answer_visible": np.array(visible if visible is not None else [NAN] * length),
            "pages_opened": np.zeros(length),
        }
        for name, column in columns.items():
            labels[:, LABELS.index(name)] = column
        rows = []
        for index in range(length):
            cells = {name: cell[index] for name, cell in signals.items()}
            values = {name: float(cell) for name, cell in cells.items() if not isinstance(cell, str)}
            rows.append(SignalRow(index + 1, values, {n: c for n, c in cells.items() if isinstance(c, str)}))
        if final_recall is None:
            final_recall = (float(known[-1]) if length else 0.0) if recall is not None else NAN
        episode = Episode(
            id=id or f"{question}/{agent}/{length}/{id}",
            question_id=question,
            agent=agent,
            dataset=None,
            outcome="unknown",
            ended_by=ended_by,
            correct=correct,
            gold=gold if recall is not None else NAN,
            final_recall=final_recall,
            final_seen=float(shown * length),
            final_relevant=final_recall * gold,
            final_visible=NAN if visible is None else visible[-1],
        )
        return episode, rows, labels

    return make


@pytest.fixture(scope="session")
def table_of():
    """A signal table of runs that `run_of` made; no encoder, no files."""

    def make(runs: Sequence[Any], signals: Sequence[str] = (), **info: Any):
        names = tuple(signals) or tuple(
            dict.fromkeys(name for _, rows, _ in runs for row in rows for name in row.values)
        )
        complete = []
        for episode, rows, labels in runs:
            absent = {name: "not asked for" for name in names if rows and name not in (*rows[0].values, *rows[0].nulls)}
            complete.append((episode, [replace(row, nulls={**row.nulls, **absent}) for row in rows], labels))
        config = info.pop("config", SignalConfig(signals=names))
        return build_table(
            names,
            complete,
            SignalInfo(**{"config": config, "encoder": None, "calibrations": (), "logs_sha256": None} | info),
        )

    return make


class ScriptedServer:
    """A chat server that says what it is told to, one entry of ``script`` a call, then ``otherwise`` for ever.

    An entry is a text, or a dictionary: ``text``, ``status``, ``headers``, ``raw`` (the body as it is), ``model``,
    ``message`` (instead of a text), ``choices``, ``logprobs``, ``usage``, ``finish``, ``hang`` (seconds before the
    answer), ``cut`` (break off in the middle), ``drop`` (close without an answer), ``drip`` (seconds between bytes).
    A function of the request's body makes an entry.
    """

    def __init__(self) -> None:
        self.script: list[Any] = []
        self.otherwise: Any = "fine"
        self.requests: list[dict[str, Any]] = []  # bodies
        self.headers: list[dict[str, str]] = []
        self.waited = threading.Event()  # set when the test ends: whoever hangs may go
        lock = threading.Lock()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                with lock:
                    outer.requests.append(body)
                    outer.headers.append({name.lower(): value for name, value in self.headers.items()})
                    entry = outer.script.pop(0) if outer.script else outer.otherwise
                outer.answer(self, entry(body) if callable(entry) else entry, body)

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/v1"

    def answer(self, handler: BaseHTTPRequestHandler, entry: Any, body: dict[str, Any]) -> None:
        entry = {"text": entry} if isinstance(entry, str) else entry
        if "hang" in entry:
            self.waited.wait(entry["hang"])
        if entry.get("drop"):
            handler.close_connection = True
            return
        message = entry.get("message", {"role": "assistant", "content": entry.get("text")})
        choice = {"index": 0, "message": message, "finish_reason": entry.get("finish", "stop")}
        if "logprobs" in entry:
            choice["logprobs"] = {"content": entry["logprobs"]}
        completion = {
            "object": "chat.completion",
            "model": entry.get("model", body["model"]),
            "choices": entry.get("choices", [choice]),
            "usage": entry.get("usage", {"prompt_tokens": 10, "completion_tokens": 3}),
        }
        data = (entry["raw"] if "raw" in entry else json.dumps(completion)).encode()
        with suppress(ConnectionError):
            handler.send_response(entry.get("status", 200))
            handler.send_header("Content-Length", str(len(data)))
            for name, value in entry.get("headers", {}).items():
                handler.send_header(name, value)
            handler.end_headers()
            if entry.get("cut"):
                handler.wfile.write(data[: len(data) // 2])
                handler.close_connection = True
            elif "drip" in entry:
                for byte in data:
                    if self.waited.wait(entry["drip"]):
                        break
                    handler.wfile.write(bytes([byte]))
                    handler.wfile.flush()
            else:
                handler.wfile.write(data)

    def close(self) -> None:
        self.waited.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@pytest.fixture
def server():
    """A `ScriptedServer` on a free local port."""
    running = ScriptedServer()
    yield running
    running.close()


@pytest.fixture
def client_of(server):
    """``client_of(model=..., cache=..., budget=..., parallel=..., tries=..., **endpoint)``: a client of `server`.

    It does not wait between attempts; the waits are in ``client.waits``.
    """
    from stopwise.models.chat_client import ChatClient
    from stopwise.models.endpoints import Endpoint, Patience
    from stopwise.models.http_chat import HttpChat
    from stopwise.models.ledger import Ledger
    from stopwise.models.response_cache import ResponseCache

    opened: list[Any] = []

    def make(
        *,
        cache: Any = ":memory:",
        budget: Any = None,
        parallel: int = 8,
        tries: int = 2,
        ledger: Any = None,
        **fields: Any,
    ) -> Any:
        waits: list[float] = []
        fields = {"url": server.url, "model": "test-model", "patience": Patience(timeout=5)} | fields
        endpoint = Endpoint(**fields)
        model = HttpChat(endpoint, sleep=waits.append)
        replies = ResponseCache(cache)
        opened.extend((model, replies))
        client = ChatClient(
            model, replies, ledger or Ledger(budget), prices=endpoint.prices, parallel=parallel, tries=tries
        )
        client.waits = waits  # type: ignore[attr-defined]
        return client

    yield make
    for thing in opened:
        thing.close()


@pytest.fixture(scope="session")
def tiny_lm_folder(tmp_path_factory):
    """A folder with a random causal language model of 300 tokens that knows how to chat; no weights are downloaded."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    tokenizers = pytest.importorskip("tokenizers")
    text = ["The first search found a bridge over the river; the town is still unknown.", "Search: river town"] * 20
    tokenizer = tokenizers.ByteLevelBPETokenizer()
    tokenizer.train_from_iterator(
        text, vocab_size=300, min_frequency=1, special_tokens=["<|im_start|>", "<|im_end|>"], show_progress=False
    )
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer._tokenizer, eos_token="<|im_end|>", pad_token="<|im_end|>"
    )
    fast.chat_template = (
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    torch.manual_seed(0)
    network = transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            vocab_size=len(fast),
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=2048,
            initializer_range=0.3,  # peaked enough that entropies differ from position to position
            eos_token_id=fast.eos_token_id,
            pad_token_id=fast.pad_token_id,
            bos_token_id=None,
        )
    )
    folder = tmp_path_factory.mktemp("models") / "tiny"
    network.save_pretrained(folder)
    fast.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def tiny_lm(tiny_lm_folder):
    """A `LocalLM` of `tiny_lm_folder`."""
    from stopwise.models.local_lm import LocalLM

    return LocalLM(str(tiny_lm_folder), device="cpu")


@pytest.fixture(scope="session")
def served_smollm2():
    """Address and model name of SmolLM2-135M behind `transformers serve`; for slow tests."""
    from stopwise.models.smollm2 import PACKAGE, dense_smollm2

    for name in (PACKAGE, "gguf", "fastapi", "uvicorn", "openai"):
        if importlib.util.find_spec(name) is None:
            pytest.skip(f"needs {name}")
    folder = dense_smollm2()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "transformers.cli.transformers", "serve", "--host", "127.0.0.1", "--device", "cpu"]
    serving = subprocess.Popen(
        [*command, "--port", str(port), "--dtype", "float32"],
        env=os.environ | {"HF_HUB_OFFLINE": "1"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        deadline = time.monotonic() + 180
        while True:
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5).close()
                break
            except OSError:
                assert serving.poll() is None, "the server ended"
                assert time.monotonic() < deadline, "the server does not answer"
                time.sleep(1)
        yield f"http://127.0.0.1:{port}/v1", str(folder)
    finally:
        serving.terminate()
        serving.wait(30)
