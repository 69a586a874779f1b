"""Stores of benchmarks: gone after the block, and copies that are whole or an error."""

from __future__ import annotations

import pytest

from ragblend.bench.stores import in_memory, temporary_store
from ragblend.errors import StoreError
from ragblend.prompt import Segment
from ragblend.store.key import digest_fields
from tests import tiny


def test_a_copy_holds_every_chunk_in_the_codec_asked_for(tiny_engine):
    chunks = [Segment("chunk", tiny.random_ids(20, seed), key=digest_fields(str(seed))) for seed in range(2)]
    with temporary_store() as store:
        folder = store.root
        for chunk, kv in zip(chunks, tiny_engine.prefill([chunk.token_ids for chunk in chunks]), strict=True):
            store.put(chunk.key, kv)
        copy = in_memory(store, chunks, "int8")
        missing = Segment("chunk", chunks[0].token_ids, key=digest_fields("missing"))
        with pytest.raises(StoreError, match="not in its store"):
            in_memory(store, [*chunks, missing])
    assert not folder.exists()
    reader = copy.open(chunks[0].key, chunks[0].token_ids)
    assert reader.layer(0).codec == "int8"
    reader.close()
