"""Embeddings by LangChain's suite, and in both directions."""

from __future__ import annotations

import pytest
from langchain_core.embeddings import DeterministicFakeEmbedding, Embeddings
from langchain_tests.unit_tests import EmbeddingsUnitTests

from langchain_ragblend import RagBlendEmbeddings
from langchain_ragblend.embeddings import LangChainEmbedder, embedder_of
from ragblend.errors import LibraryError, ModelError


class TestRagBlendEmbeddings(EmbeddingsUnitTests):
    @property
    def embeddings_class(self) -> type[Embeddings]:
        return RagBlendEmbeddings


def test_a_folder_without_a_model_is_refused(tmp_path) -> None:
    with pytest.raises(ModelError, match="holds no sentence-transformers model"):
        RagBlendEmbeddings(model=tmp_path)


def test_a_misspelt_argument_is_refused() -> None:
    with pytest.raises(ValueError, match="modle"):
        RagBlendEmbeddings(modle="x")


def test_no_texts_have_no_vectors() -> None:
    assert RagBlendEmbeddings().embed_documents([]) == []


def test_a_library_embeds_with_langchains_embeddings_at_length_one() -> None:
    embedder = embedder_of(DeterministicFakeEmbedding(size=8))
    vectors = embedder.embed_chunks(["a", "b"])
    assert vectors.shape == (2, 8)
    assert (vectors**2).sum(axis=1) == pytest.approx(1)
    assert embedder.embed_question("a") == pytest.approx(vectors[0])


def test_other_lengths_are_another_embedder() -> None:
    six, eight = (LangChainEmbedder(DeterministicFakeEmbedding(size=size)) for size in (6, 8))
    assert six.digest == LangChainEmbedder(DeterministicFakeEmbedding(size=6)).digest != eight.digest


def test_a_library_takes_our_own_embeddings_as_they_are() -> None:
    embeddings = RagBlendEmbeddings()
    assert embedder_of(embeddings) is embeddings.embedder


def test_vectors_of_zeros_are_refused() -> None:
    class Zeros(Embeddings):
        def embed_documents(self, texts):
            return [[0.0, 0.0] for _ in texts]

        def embed_query(self, text):
            return [0.0, 0.0]

    with pytest.raises(LibraryError, match="vector of zeros"):
        LangChainEmbedder(Zeros()).embed_question("a")
