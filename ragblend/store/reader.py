"""Reads the KV of one chunk, a layer at a time, checked before any byte is handed out."""

from __future__ import annotations

import torch

from ragblend.errors import CorruptEntryError
from ragblend.store.base import LayerKV
from ragblend.store.format import DTYPES, MAX_HEADER_BYTES, Span, checksum, decode_header, is_finite
from ragblend.store.source import ByteSource


class ChunkReader:
    """An open entry (a KVReader). Layers may be read from several threads at once.

    Raises CorruptEntryError (StaleEntryError for another format version or key) when the header or
    the token ids are damaged, EntryAllocationError when no memory is left; the source is then closed.
    """

    def __init__(self, source: ByteSource, key: str) -> None:
        self.key = key
        self._source = source
        try:
            header_bytes = int.from_bytes(source.read(0, 8), "little") if source.nbytes >= 8 else 0
            if not 2 <= header_bytes <= min(MAX_HEADER_BYTES, source.nbytes - 8):
                raise CorruptEntryError(f"{source.name}: the header's length is damaged")
            self._layout = decode_header(key, bytes(source.read(8, header_bytes)), source.nbytes)
            self.token_ids = tuple(self._read_tensor(self._layout.token_ids).view(torch.int32).tolist())
        except BaseException:
            source.close()
            raise

    @property
    def tokens(self) -> int:
        return len(self.token_ids)

    @property
    def layer_count(self) -> int:
        return len(self._layout.layers)

    def layer(self, index: int) -> LayerKV:
        """Read one layer with one contiguous read, into memory of its own.

        Raises CorruptEntryError when the bytes are not what was written, EntryAllocationError.
        """
        span = self._layout.layers[index]
        tensor = self._read_tensor(span).view(DTYPES[span.dtype]).view(span.shape)
        if not is_finite(tensor):
            raise CorruptEntryError(f"{self._source.name}: {span.name} holds NaN or Inf")
        return LayerKV(tensor[0], tensor[1])

    def close(self) -> None:
        self._source.close()

    def _read_tensor(self, span: Span) -> torch.Tensor:
        data = self._source.read(span.begin, span.nbytes)
        if checksum(self.key, span.name, span.dtype, span.shape, [data]) != span.checksum:
            raise CorruptEntryError(f"{self._source.name}: {span.name} does not match its checksum")
        return torch.frombuffer(data, dtype=torch.uint8)
