"""LangChain's suite for embeddings, on the embedded model."""

from __future__ import annotations

import pytest
from langchain_core.embeddings import Embeddings
from langchain_tests.integration_tests import EmbeddingsIntegrationTests

from langchain_ragblend import RagBlendEmbeddings

pytestmark = pytest.mark.real_model


class TestRagBlendEmbeddings(EmbeddingsIntegrationTests):
    @property
    def embeddings_class(self) -> type[Embeddings]:
        return RagBlendEmbeddings
