"""LangChain's suite for retrievers, over indexed files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from langchain_core.retrievers import BaseRetriever
from langchain_tests.integration_tests import RetrieversIntegrationTests

from langchain_ragblend import RagBlendRetriever
from ragblend import Library

pytestmark = pytest.mark.real_model  # the embedded embedder


class TestRagBlendRetriever(RetrieversIntegrationTests):
    @pytest.fixture(autouse=True)
    def _indexed(self, library: Library, tmp_path: Path) -> None:
        for name in ("warranty", "battery", "blades", "rain"):
            (tmp_path / f"{name}.txt").write_text(f"A few words about the {name} of the robot.\n")
        library.add(sorted(tmp_path.glob("*.txt")))
        self.library = library

    @property
    def retriever_constructor(self) -> type[BaseRetriever]:
        return RagBlendRetriever

    @property
    def retriever_constructor_params(self) -> dict[str, Any]:
        return {"library": self.library, "k": 2}

    @property
    def retriever_query_example(self) -> str:
        return "What does the warranty cover?"
