import importlib.util
import sys
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from stopwise.data.errors import DataError, UsageError
from stopwise.models import smollm2
from stopwise.models.chat import ChatFailure, ChatRequest, Message, Tool
from stopwise.models.chat_client import ChatClient
from stopwise.models.ledger import Ledger
from stopwise.models.local_lm import LocalLM
from stopwise.models.response_cache import ResponseCache
from stopwise.models.smollm2 import INSTALL, PACKAGE, SMOLLM2

ASK = ChatRequest((Message("system", "Search."), Message("user", "Which river?")), max_tokens=30, top_logprobs=5)


def _full_logprobs(lm, text):
    """Log-probabilities of every position by one plain forward, for comparison."""
    import torch

    ids = lm._encode(text)
    with torch.inference_mode():
        logits = lm._network(torch.tensor([ids])).logits[0]
    return ids, logits.float().log_softmax(-1).numpy()


def test_greedy_takes_the_likeliest_token_each_time(tiny_lm):
    reply = tiny_lm.complete(ASK)
    assert reply == replace(tiny_lm.complete(ASK), seconds=reply.seconds)
    assert reply.usage.completion <= 30
    assert reply.model == tiny_lm.id
    assert reply.logprobs is not None
    assert all(len(position.top) == 5 for position in reply.logprobs)
    assert all(list(p.top) == sorted(p.top, reverse=True) for p in reply.logprobs)
    assert "".join(position.token for position in reply.logprobs) == reply.text


@pytest.mark.parametrize("sample", range(4))
@pytest.mark.parametrize("temperature", [0.0, 1.0, 2.0])
def test_logprobs_are_those_of_the_text(tiny_lm, temperature, sample):
    """Whatever pieces it was sampled in: a plain forward over prompt and text finds the same."""
    reply = tiny_lm.complete(replace(ASK, temperature=temperature, sample=sample))
    prompt = tiny_lm.render(ASK.messages, begin_reply=True)
    start = len(tiny_lm._encode(prompt))
    ids, expected = _full_logprobs(tiny_lm, prompt + reply.text)
    assert len(reply.logprobs) == len(ids) - start
    for number, position in enumerate(reply.logprobs):
        row = expected[start + number - 1]
        assert position.logprob == pytest.approx(row[ids[start + number]], abs=1e-4)
        np.testing.assert_allclose(position.top, np.sort(row)[::-1][:5], atol=1e-4)


def test_samples_follow_their_seed(tiny_lm):
    hot = replace(ASK, temperature=1.0)
    texts = [tiny_lm.complete(replace(hot, sample=number)).text for number in range(4)]
    assert len(set(texts)) > 1
    assert [tiny_lm.complete(replace(hot, sample=number)).text for number in range(4)] == texts
    assert tiny_lm.complete(replace(hot, seed=1)).text != texts[0]


def test_a_tiny_nucleus_is_greedy(tiny_lm):
    hot = replace(ASK, temperature=1.5, top_p=1e-6)
    assert tiny_lm.complete(hot).text == tiny_lm.complete(ASK).text


def test_generation_ends_at_the_first_stop(tiny_lm):
    whole = tiny_lm.complete(ASK).text
    stop = whole[len(whole) // 2 :][:2]
    reply = tiny_lm.complete(replace(ASK, stop=("never", stop)))
    assert reply.text == whole[: whole.index(stop)]
    assert reply.finish == "stop"
    assert "".join(position.token for position in reply.logprobs) == reply.text


def test_length_is_the_reason_when_it_was_cut(tiny_lm):
    assert tiny_lm.complete(replace(ASK, max_tokens=3)).finish == "length"
    assert tiny_lm.complete(replace(ASK, max_tokens=3)).usage.completion == 3


def test_a_prompt_beyond_the_context_is_refused(tiny_lm):
    with pytest.raises(ChatFailure, match=r"the prompt has \d+ tokens; .* more than the context of 2048") as caught:
        tiny_lm.complete(ChatRequest((Message("user", "river " * 3000),)))
    assert caught.value.kind == "refused"


def test_no_tools(tiny_lm):
    with pytest.raises(UsageError, match="does not offer tools"):
        tiny_lm.complete(replace(ASK, tools=(Tool("t", "", {}),)))


def test_scores_in_a_batch_equal_those_alone(tiny_lm):
    texts = ["The first search found a bridge.", "Search: river", "The town is still unknown; a river"]
    sequences = [tiny_lm._encode(text) for text in texts]
    positions = [np.arange(2, len(ids)) for ids in sequences]
    batch = tiny_lm.top_logprobs(sequences, positions, 7)
    for text, places, found in zip(texts, positions, batch, strict=True):
        _, expected = _full_logprobs(tiny_lm, text)
        np.testing.assert_allclose(found, -np.sort(-expected[places - 1])[:, :7], atol=1e-5)


def test_the_client_takes_it_as_any_other_model(tiny_lm, tmp_path):
    cache = ResponseCache(tmp_path / "c.sqlite")
    client = ChatClient(tiny_lm, cache, Ledger())
    assert client.complete(ASK, "agent") == client.complete(ASK, "agent")
    bill = client.ledger.report()["operation"]["agent"]
    assert (bill["calls"], bill["from_cache"]) == (1, 1)
    cache.close()


def test_the_id_names_the_weights(tiny_lm, tiny_lm_folder):
    assert tiny_lm.id.startswith("tiny@")
    assert LocalLM(SMOLLM2).id == f"{SMOLLM2}@{smollm2.GGUF_SHA256[:12]}"
    assert LocalLM("Qwen/Qwen3-0.6B").id == "Qwen/Qwen3-0.6B"


def test_a_model_that_is_not_there_is_one_clear_error(tmp_path):
    pytest.importorskip("transformers")
    with pytest.raises(UsageError, match=f"cannot be loaded .*name {SMOLLM2}, a Hugging Face id or a folder") as caught:
        LocalLM(str(tmp_path)).complete(ASK)
    assert "\n" not in str(caught.value)


def test_a_missing_package_names_the_command_that_installs_it(monkeypatch, tmp_path):
    monkeypatch.setenv("STOPWISE_CACHE", str(tmp_path))
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name == PACKAGE else found(name, *rest)
    )
    with pytest.raises(UsageError, match=f"is not installed; run `{INSTALL}`"):
        LocalLM().complete(ASK)


def test_missing_transformers_name_the_command_too(monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(UsageError, match=r"transformers is not installed; run `pip install 'stopwise\[lm\]'`"):
        LocalLM().complete(ASK)


def test_another_gguf_is_refused(monkeypatch, tmp_path):
    monkeypatch.setenv("STOPWISE_CACHE", str(tmp_path / "cache"))
    (tmp_path / smollm2.GGUF).write_bytes(b"other weights")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: SimpleNamespace(origin=str(tmp_path / "__init__.py")))
    with pytest.raises(DataError, match=f"sha256 [0-9a-f]{{64}}; expected {smollm2.GGUF_SHA256}"):
        smollm2.dense_smollm2()


def test_changed_dense_weights_are_refused(monkeypatch, tmp_path):
    monkeypatch.setenv("STOPWISE_CACHE", str(tmp_path))
    folder = tmp_path / "models" / f"{SMOLLM2}-{smollm2.GGUF_SHA256[:12]}"
    folder.mkdir(parents=True)
    (folder / "model.safetensors").write_bytes(b"broken")
    smollm2.write_json(folder / smollm2.RECORD, {"source_sha256": smollm2.GGUF_SHA256, "weights_sha256": "0" * 64})
    with pytest.raises(DataError, match=r"expected 0{64}; delete .*, and it is made again"):
        smollm2.dense_smollm2()


@pytest.mark.slow
def test_smollm2_is_made_dense_once_and_knows_its_geography(monkeypatch, tmp_path):
    pytest.importorskip("gguf")
    if importlib.util.find_spec(PACKAGE) is None:
        pytest.skip(f"needs {PACKAGE}")
    monkeypatch.setenv("STOPWISE_CACHE", str(tmp_path))
    folder = smollm2.dense_smollm2()
    monkeypatch.setattr(smollm2, "packaged_gguf", lambda: pytest.fail("it was made already"))
    assert smollm2.dense_smollm2() == folder
    request = ChatRequest((Message("user", "What is the capital of France?"),), max_tokens=20)
    assert "Paris" in LocalLM(device="cpu").complete(request).text
