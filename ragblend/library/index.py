"""The search index: FAISS over chunk ids, and its file, which can always be rebuilt from the catalogue."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ragblend.errors import EntryError
from ragblend.library.embedding import Vectors
from ragblend.store.encryption import Cipher
from ragblend.store.files import SYSTEM_FILES
from ragblend.store.key import digest_fields
from ragblend.store.source import FileSource

Ids = npt.NDArray[np.int64]

_DIGEST_BYTES = 64
# How vectors are kept, part of what a file's digest is made from: a file of another kind is built anew.
_KIND = "float16"


class VectorIndex:
    """Search by inner product among all vectors, each under its chunk's id; a chunk may have several.

    Vectors are kept in float16: half the memory, half the time, and scores right to 0.0002.
    """

    def __init__(self, dimensions: int) -> None:
        import faiss

        kept = faiss.IndexScalarQuantizer(dimensions, faiss.ScalarQuantizer.QT_fp16, faiss.METRIC_INNER_PRODUCT)
        self._index: Any = faiss.IndexIDMap2(kept)

    def __len__(self) -> int:
        return int(self._index.ntotal)

    @property
    def dimensions(self) -> int:
        return int(self._index.d)

    @property
    def ids(self) -> Ids:
        """The ids in the index, ascending, each once."""
        import faiss

        return np.unique(faiss.vector_to_array(self._index.id_map)).astype(np.int64)

    def add(self, ids: Ids, vectors: Vectors) -> None:
        self._index.add_with_ids(np.ascontiguousarray(vectors), ids)

    def remove(self, ids: Ids) -> None:
        self._index.remove_ids(ids)

    def search(self, vector: Vectors, count: int) -> tuple[Vectors, Ids]:
        """Scores and ids of the ``count`` nearest vectors (or all, if fewer), best first."""
        scores, ids = self._index.search(vector[None], min(count, len(self)))
        return scores[0], ids[0]

    def save(self, path: Path, stamp: str, cipher: Cipher | None = None) -> None:
        """Write the index whole or not at all, sealed by ``cipher``. stamp: what it belongs to. Raises OSError."""
        import faiss

        payload: memoryview = faiss.serialize_index(self._index).data
        pieces: list[bytes | memoryview] = [digest_fields(_KIND, stamp, payload).encode(), payload]
        SYSTEM_FILES.make_private_folder(path.parent)
        SYSTEM_FILES.write_whole(path, pieces if cipher is None else cipher.seal(_label(stamp), pieces))

    @classmethod
    def load(cls, path: Path, stamp: str, cipher: Cipher | None = None) -> VectorIndex | None:
        """The saved index, or None if it is absent, damaged or belongs to something else."""
        import faiss

        try:
            with closing(FileSource(path)) as file:  # hundreds of megabytes in a large library: not copied
                data = file.read(0, file.nbytes) if cipher is None else cipher.open_whole(_label(stamp), file)
        except (OSError, EntryError):
            return None
        digest, payload = data[:_DIGEST_BYTES], data[_DIGEST_BYTES:]
        # FAISS trusts the sizes in a file, so nothing unchecked may reach it.
        if digest != digest_fields(_KIND, stamp, payload).encode():
            return None
        index = cls(1)
        index._index = faiss.deserialize_index(np.frombuffer(payload, np.uint8))
        return index


def _label(stamp: str) -> str:
    return f"search index {stamp}"
