"""Sentence embeddings of chunks and questions."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np
import numpy.typing as npt

from ragblend.errors import ModelError
from ragblend.store.key import digest_fields

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

Vectors = npt.NDArray[np.float32]

_MODEL_FILES = ("*.json", "*.txt", "*.model", "*.safetensors")


class Embedder(Protocol):
    """Turns text into vectors of length 1. Equal ``digest`` means equal vectors for equal text."""

    @property
    def name(self) -> str: ...

    @property
    def digest(self) -> str: ...

    def embed_chunks(self, texts: Sequence[str]) -> Vectors:
        """[len(texts), dimensions], each row of length 1; there is at least one text."""
        ...

    def embed_question(self, text: str) -> Vectors:
        """[dimensions], of length 1."""
        ...


class SentenceEmbedder:
    """A sentence-transformers model in ``folder`` (None: the embedded all-MiniLM-L6-v2). Safe to share between threads.

    A text that is longer than the model reads is embedded in equal windows: the normalised mean of
    their vectors. device: None for the best one there is. Raises ModelError where the folder holds
    no model.
    """

    def __init__(self, folder: str | Path | None = None, *, device: str | None = None) -> None:
        if folder is None:
            from ragblend.models.embedded import default_embedder_path

            self.folder, self.name = default_embedder_path(), "all-MiniLM-L6-v2"
        else:
            self.folder, self.name = Path(folder), Path(folder).name
        if not (self.folder / "config.json").is_file():
            raise ModelError(f"{self.folder} holds no sentence-transformers model: give the folder of one")
        self.device = device
        self._lock = threading.Lock()

    @cached_property
    def digest(self) -> str:
        """Digest of the model's files, their names included."""
        fields: list[str | bytes] = []
        for path in sorted({path for pattern in _MODEL_FILES for path in self.folder.rglob(pattern)}):
            with path.open("rb") as file:
                fields += [str(path.relative_to(self.folder)), hashlib.file_digest(file, "sha256").digest()]
        return digest_fields(*fields)

    def embed_chunks(self, texts: Sequence[str]) -> Vectors:
        with self._lock:
            windows = [list(self._windows(text)) for text in texts]
            flat = [window for group in windows for window in group]
            vectors = self._model.encode_document(flat, normalize_embeddings=True, show_progress_bar=False)
        ends = np.cumsum([len(group) for group in windows])[:-1]
        means = [group.mean(axis=0) for group in np.split(np.asarray(vectors, np.float32), ends)]
        return np.stack([mean / np.linalg.norm(mean) for mean in means])

    def embed_question(self, text: str) -> Vectors:
        with self._lock:
            vector = self._model.encode_query(text, normalize_embeddings=True, show_progress_bar=False)
        return np.asarray(vector, np.float32)

    @cached_property
    def _model(self) -> SentenceTransformer:
        from sentence_transformers import SentenceTransformer

        from ragblend.models.load import without_progress_bars

        try:
            # Weights in safetensors only: other formats are unpickled.
            with without_progress_bars():
                return SentenceTransformer(
                    str(self.folder), device=self.device, local_files_only=True, model_kwargs={"use_safetensors": True}
                )
        except (OSError, ValueError) as error:
            raise ModelError(f"{self.folder}: the embedder cannot be loaded ({error})") from error

    def _windows(self, text: str) -> Iterator[str]:
        """``text`` in pieces of equal length in tokens, none longer than the model reads."""
        tokenizer = self._model.tokenizer
        encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
        offsets = encoded["offset_mapping"]
        room = (self._model.max_seq_length or tokenizer.model_max_length) - tokenizer.num_special_tokens_to_add()
        for part in np.array_split(np.arange(len(offsets)), max(1, -(-len(offsets) // room))):
            yield text[offsets[part[0]][0] : offsets[part[-1]][1]] if len(part) else text
