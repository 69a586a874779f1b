"""What a library was made with, and the refusal to mix it with anything else.

The rule: a library with documents or texts belongs to one model (by its identity), one anchor and one codec,
one with documents to one embedder too, because its KV and vectors are of no use to others. An empty
library belongs to nothing. The question's wording and the size of chunks may change at any time.
"""

from __future__ import annotations

import secrets
import time
from dataclasses import dataclass
from pathlib import Path

from ragblend.errors import LibraryMismatchError
from ragblend.library.embedding import Embedder
from ragblend.library.protocol import LibraryEngine
from ragblend.store.catalogue import Catalogue
from ragblend.store.key import digest_fields, token_bytes


@dataclass(frozen=True, slots=True)
class Origin:
    """The catalogue's settings that tell where a library comes from, each empty while unknown."""

    catalogue: Catalogue
    folder: Path

    def create(self) -> None:
        """Give the library its random id and date, unless it has them."""
        self.catalogue.set({"library": secrets.token_hex(16), "created_at": repr(time.time())}, keep=True)

    def read(self, name: str) -> str:
        return self.catalogue.setting(name) or ""

    def codec(self, wanted: str | None) -> str:
        """What the library's KV is kept as; what is wanted, where it holds none. Raises LibraryMismatchError."""
        recorded = self.read("codec") or "raw"
        if wanted in (None, recorded) or not self._is_used():
            return wanted or recorded
        raise LibraryMismatchError(
            f"{self.folder} keeps its KV as {recorded}, not as {wanted}: "
            f"leave the codec out, or index the documents again into a new folder"
        )

    def bind(self, engine: LibraryEngine, codec: str, embedder: Embedder, chunk_tokens: int) -> None:
        """Make the library one of ``engine`` and ``embedder``. Raises LibraryMismatchError if it is another's."""
        with self.catalogue.transaction():
            self.bind_engine(engine, codec)
            self.require_embedder(embedder)
            made_with = {
                "embedder": embedder.name,
                "embedder_digest": embedder.digest,
                "chunk_tokens": str(chunk_tokens),
            }
            self.catalogue.set(made_with)

    def bind_engine(self, engine: LibraryEngine, codec: str) -> None:
        """Make the library one of ``engine``, with KV in ``codec``. Raises LibraryMismatchError if it is another's."""
        with self.catalogue.transaction():
            self.require_engine(engine)
            made_with = {
                "codec": self.codec(codec),
                "model": engine.name,
                "model_reference": engine.reference,
                "identity": engine.identity.digest(),
                "anchor": _anchor_digest(engine),
            }
            self.catalogue.set(made_with)

    def require_engine(self, engine: LibraryEngine) -> None:
        """Raise LibraryMismatchError if documents or texts have their KV from another model or anchor."""
        if not self._is_used():
            return
        model = self.read("model")
        if self.read("identity") != engine.identity.digest():
            other = engine.name if engine.name != model else f"this {model}: its weights, tokenizer or dtype differ"
            raise LibraryMismatchError(
                f"{self.folder} was indexed with {model}, not with {other}: "
                "open it with the first model, or index the documents again into a new folder"
            )
        if self.read("anchor") != _anchor_digest(engine):
            raise LibraryMismatchError(
                f"{self.folder} was indexed with {model} behind another system prompt, chat template or preamble than "
                f"that of {engine.name}: use the first one, or index the documents again into a new folder"
            )

    def require_embedder(self, embedder: Embedder) -> None:
        """Raise LibraryMismatchError if the documents were embedded by something else."""
        if self._holds("documents") and self.read("embedder_digest") != embedder.digest:
            raise LibraryMismatchError(
                f"{self.folder} was embedded with {self.read('embedder')}, which differs from this {embedder.name}: "
                "use the first embedder, or index the documents again into a new folder"
            )

    def index_stamp(self, namespace: str) -> str:
        """What a namespace's search index has to belong to."""
        return digest_fields(self.read("library"), self.read("embedder_digest"), namespace)

    def _is_used(self) -> bool:
        return self._holds("documents") or self._holds("precomputed")

    def _holds(self, table: str) -> bool:
        return bool(self.catalogue.rows(f"SELECT 1 FROM {table} LIMIT 1"))


def _anchor_digest(engine: LibraryEngine) -> str:
    return digest_fields(token_bytes(engine.anchor_ids))
