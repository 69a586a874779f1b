"""LangChain's suite for vector stores, with the suite's own embeddings."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from langchain_core.vectorstores import VectorStore
from langchain_tests.integration_tests import VectorStoreIntegrationTests

from langchain_ragblend import RagBlendVectorStore
from ragblend import Engine


class TestRagBlendVectorStore(VectorStoreIntegrationTests):
    @pytest.fixture
    def vectorstore(self, tmp_path: Path, engine: Engine) -> Iterator[VectorStore]:
        store = RagBlendVectorStore(tmp_path / "store.rag", engine=engine, embedding=self.get_embeddings())
        yield store
        store.close()
