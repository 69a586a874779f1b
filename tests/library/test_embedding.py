"""The embedded sentence embedder."""

from __future__ import annotations

import shutil
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from ragblend.errors import ModelError
from ragblend.library.embedding import SentenceEmbedder

pytestmark = pytest.mark.real_model


@pytest.fixture(scope="module")
def embedder() -> SentenceEmbedder:
    return SentenceEmbedder()


def test_vectors_have_length_one(embedder):
    vectors = embedder.embed_chunks(["a robot", "", "the warranty " * 500])
    assert vectors.dtype == np.float32
    assert vectors.shape == (3, 384)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)


def test_a_question_is_nearest_to_its_answer(embedder):
    texts = ["Blades are changed in spring.", "The warranty lasts two years.", "Charging takes an hour."]
    scores = embedder.embed_chunks(texts) @ embedder.embed_question("How long is the guarantee?")
    assert scores.argmax() == 1


def test_the_end_of_a_long_text_counts(embedder):
    filler = "The lawn is green and the sky is blue. " * 60
    with_answer, without = embedder.embed_chunks([filler + "The warranty lasts two years. " * 10, filler])
    question = embedder.embed_question("How long is the warranty?")
    assert with_answer @ question > without @ question + 0.05


def test_a_long_text_is_the_mean_of_equal_windows(embedder):
    text = "lawn " * 600
    windows = list(embedder._windows(text))
    assert len(windows) == 3
    assert {len(window.split()) for window in windows} == {200}
    mean = embedder.embed_chunks(windows).mean(axis=0)
    np.testing.assert_allclose(embedder.embed_chunks([text])[0], mean / np.linalg.norm(mean), atol=1e-5)


def test_threads_may_share_it(embedder):
    texts = [f"text number {number} " * (1 + number) for number in range(12)]
    alone = [embedder.embed_chunks([text])[0] for text in texts]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(lambda text: embedder.embed_chunks([text])[0], texts))
    np.testing.assert_allclose(together, alone, atol=1e-5)


def test_digest_is_of_the_content(embedder, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(embedder.folder, copy, ignore=shutil.ignore_patterns("*.safetensors"))
    before = SentenceEmbedder(copy).digest
    (copy / "vocab.txt").write_text("changed")
    assert len({embedder.digest, before, SentenceEmbedder(copy).digest}) == 3


def test_a_folder_without_a_model(tmp_path):
    with pytest.raises(ModelError, match="holds no sentence-transformers model"):
        SentenceEmbedder(tmp_path)


def test_a_model_without_weights(embedder, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(embedder.folder, copy, ignore=shutil.ignore_patterns("*.safetensors"))
    with pytest.raises(ModelError, match="the embedder cannot be loaded"):
        SentenceEmbedder(copy).embed_question("x")
