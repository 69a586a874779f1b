"""Reads the KV of one chunk, a layer at a time, checked before any byte is handed out."""

from __future__ import annotations

import torch

from ragblend.errors import CorruptEntryError
from ragblend.kernels.layout import LayerKV
from ragblend.store.codecs import is_finite
from ragblend.store.format import MAX_HEADER_BYTES, Span, checksum, decode_header
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
            token_ids = torch.frombuffer(self._read(self._layout.token_ids), dtype=torch.int32)
            self.token_ids = tuple(token_ids.tolist())
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
        """Read one layer with one contiguous read, into memory of its own. A compact one stays compact.

        Raises CorruptEntryError when the bytes are not what was written, EntryAllocationError.
        """
        span = self._layout.layers[index]
        name = f"{self._source.name}: {span.name}"
        layer = self._layout.codec.unpack(name, self._read(span), span.dtype, span.shape)
        if not is_finite(layer):
            raise CorruptEntryError(f"{name} holds NaN or Inf")
        return layer

    def close(self) -> None:
        self._source.close()

    def _read(self, span: Span) -> memoryview:
        data = self._source.read(span.begin, span.nbytes)
        if checksum(self.key, span.name, span.label, [data]) != span.checksum:
            raise CorruptEntryError(f"{self._source.name}: {span.name} does not match its checksum")
        return data
