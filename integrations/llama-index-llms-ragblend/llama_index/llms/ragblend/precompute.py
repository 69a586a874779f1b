"""Chunk KV at ingestion, so that the first question already finds it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from llama_index.core.bridge.pydantic import PrivateAttr
from llama_index.core.schema import BaseNode, MetadataMode, TransformComponent

from llama_index.llms.ragblend.base import RagBlend, library_of
from llama_index.llms.ragblend.opening import engine_of
from ragblend import Engine, Library, Passage
from ragblend.errors import ConfigError

logger = logging.getLogger(__name__)


def llm_text(node: BaseNode) -> str:
    """A node's text as it will stand in prompts."""
    return node.get_content(metadata_mode=MetadataMode.LLM).strip()


def document_of(node: BaseNode, pieces: bool) -> str:
    """The document that a node is a piece of, or "" for a node that stands alone."""
    return (node.ref_doc_id or "") if pieces else ""


class PrecomputeKV(TransformComponent):
    """Precomputes the KV of nodes in an IngestionPipeline. The nodes come out as they went in.

    ```python
    pipeline = IngestionPipeline(transformations=[SentenceSplitter(), PrecomputeKV(llm), embed_model])
    ```

    library: the RagBlend that will answer, or its library, or the folder of one.
    engine, model: what to prefill with, where a folder is given.

    pieces: nodes in a row of the same document (``ref_doc_id``) are pieces of it, and each is prefilled behind those
        before it; else each alone, which takes less work and stays further from full prefill.

    Put it after everything that changes a node's text or metadata: KV is found by exactly the text that
    the LLM will receive. The KV stays in the library; nodes, pipeline cache and docstore hold none of it.
    The pipeline runs in one process: with ``num_workers`` this raises ConfigError.
    """

    _library: Library = PrivateAttr()
    _pieces: bool = PrivateAttr()

    def __init__(
        self,
        library: RagBlend | Library | str | Path,
        *,
        engine: Engine | None = None,
        model: str | Path | None = None,
        pieces: bool = True,
    ) -> None:
        super().__init__()
        self._library = library_of(library, engine=engine, model=model)
        self._pieces = pieces

    @classmethod
    def class_name(cls) -> str:
        return "PrecomputeKV"

    @property
    def library(self) -> Library:
        """Where the KV goes."""
        return self._library

    def __call__(self, nodes: Sequence[BaseNode], **kwargs: Any) -> Sequence[BaseNode]:
        """Precompute what is not in the library yet. Raises StoreFullError, LibraryBusyError, ..."""
        texts = ((llm_text(node), document_of(node, self._pieces)) for node in nodes)
        report = self._library.precompute(Passage(text, document=document) for text, document in texts if text)
        logger.info("KV of %d texts computed, %d known before", report.computed, report.unchanged)
        for skipped in report.skipped:
            logger.warning("no KV for %r: %s", skipped.path, skipped.reason)
        return nodes

    async def acall(self, nodes: Sequence[BaseNode], **kwargs: Any) -> Sequence[BaseNode]:
        return await asyncio.to_thread(self, nodes, **kwargs)

    def to_dict(self, **kwargs: Any) -> dict[str, Any]:
        """What the pipeline's cache knows it by: what another library, model or way has to fill again."""
        library = self._library
        made = {"folder": str(library.folder), "created_at": library.info().created_at, "pieces": self._pieces}
        return {**super().to_dict(**kwargs), **made, "model": engine_of(library).identity.digest()}

    def __getstate__(self) -> dict[str, Any]:
        raise ConfigError("PrecomputeKV cannot go to another process: run the pipeline without num_workers")
