"""The codec that a library keeps its KV in: chosen once, remembered, and refused where it differs."""

from __future__ import annotations

import contextlib

import pytest

from ragblend.config import GenerationSettings, StoreSettings
from ragblend.errors import LibraryMismatchError
from ragblend.library.library import Library

SHORT = GenerationSettings(max_tokens=4)
QUESTION = "How long is the warranty?"


def opened(folder, engine, embedder, codec=None, **settings) -> Library:
    return Library.open(folder, engine=engine, embedder=embedder, store=StoreSettings(codec=codec, **settings))


@pytest.fixture(params=["int8", "fp8", "int4", "raw+zstd", "int8+zstd"])
def codec(request) -> str:
    return request.param


@pytest.fixture
def compact(tmp_path, engine, embedder, docs, codec):
    """A library with documents, in a codec other than raw."""
    with opened(tmp_path / "compact.rag", engine, embedder, codec) as library:
        library.add([docs])
        yield library


def keys_and_tokens(library: Library) -> list[tuple[str, tuple[int, ...]]]:
    return list(library._records.entries())


def test_entries_are_kept_in_it(compact, engine, codec):
    numbers = codec.removesuffix("+zstd")
    for key, token_ids in keys_and_tokens(compact):
        (kv,) = engine.prefill([token_ids])
        with contextlib.closing(compact.store.open(key, token_ids)) as reader:
            assert reader.layer(0).codec == numbers
            assert reader.layer_count == len(kv.layers)


def test_it_is_remembered_and_shown(tmp_path, compact, engine, embedder, codec):
    assert compact.info().store.codec == codec
    compact.close()
    for given in (None, codec):
        with opened(tmp_path / "compact.rag", engine, embedder, given) as again:
            assert again.info().store.codec == codec
            assert again.verify().ok


def test_questions_hit(compact):
    for policy in ("none", "query", "hkvd"):
        answer = compact.ask(QUESTION, k=2, policy=policy, ratio=0.2, generation=SHORT)
        assert answer.hits == 2, policy
        assert answer.misses == 0, policy


def test_another_one_is_refused_by_name(tmp_path, compact, engine, embedder, codec):
    compact.close()
    other = "raw" if codec != "raw" else "int8"
    with pytest.raises(LibraryMismatchError, match=rf"keeps its KV as {codec}, not as {other}".replace("+", r"\+")):
        opened(tmp_path / "compact.rag", engine, embedder, other)


def test_its_keys_are_not_those_of_another(tmp_path, engine, embedder, docs, compact):
    with opened(tmp_path / "raw.rag", engine, embedder) as raw:
        raw.add([docs])
        assert not {key for key, _ in keys_and_tokens(raw)} & {key for key, _ in keys_and_tokens(compact)}


def test_the_audit_allows_what_the_codec_loses_and_nothing_else(compact, engine):
    entries = keys_and_tokens(compact)
    assert compact.verify(audit=len(entries)).ok
    key, token_ids = entries[0]
    (wrong,) = engine.prefill([tuple(reversed(token_ids))])
    compact.store.delete(key)
    compact.store.put(key, type(wrong)(token_ids, wrong.layers))
    assert compact.verify(audit=len(entries)).deviating == (key,)
    assert compact.repair(everything=True).recomputed == len(entries)
    assert compact.verify(audit=len(entries)).ok


def test_a_damaged_entry_is_computed_again(compact):
    key, _ = keys_and_tokens(compact)[0]
    path = compact.store.folder / key[:2] / f"{key}.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    assert compact.verify().damaged == (key,)
    assert compact.repair().recomputed == 1
    assert compact.verify().ok


def test_the_memory_tier_holds_the_compact_form(tmp_path, engine, embedder, docs):
    with opened(tmp_path / "int8.rag", engine, embedder, "int8+zstd", memory_budget=10**8) as library:
        library.add([docs])
        first = library.ask(QUESTION, k=2, generation=SHORT)
        assert library.store.memory.nbytes() > 0
        for key, token_ids in keys_and_tokens(library):
            reader = library.store.memory.open(key, token_ids)
            if reader is not None:
                assert reader.layer(0).codec == "int8"
        assert library.ask(QUESTION, k=2, generation=SHORT).text == first.text


def test_a_remote_tier_brings_compact_entries_to_another_machine(tmp_path, engine, embedder, docs):
    settings = {"codec": "int4+zstd", "remote": f"file://{tmp_path}/remote"}
    with opened(tmp_path / "here.rag", engine, embedder, **settings) as here:
        here.add([docs])
        assert here.store.flush(60)
        entries = keys_and_tokens(here)
    with opened(tmp_path / "there.rag", engine, embedder, **settings) as there:
        there.add([docs])
        for key, token_ids in entries:
            (kv,) = engine.prefill([token_ids])
            with contextlib.closing(there.store.open(key, token_ids)) as reader:
                assert reader.layer(0).codec == "int4"
                assert reader.layer_count == len(kv.layers)


def test_an_empty_library_takes_another_one(tmp_path, engine, embedder, docs):
    opened(tmp_path / "new.rag", engine, embedder, "int8").close()
    with opened(tmp_path / "new.rag", engine, embedder, "int4") as library:
        library.add([docs])
        assert library.info().store.codec == "int4"
        library.remove([docs])
    with opened(tmp_path / "new.rag", engine, embedder) as library:
        assert library.info().store.codec == "int4"


def test_two_that_open_an_empty_one_do_not_mix(tmp_path, engine, embedder, docs):
    with (
        opened(tmp_path / "new.rag", engine, embedder, "int8") as first,
        opened(tmp_path / "new.rag", engine, embedder, "raw") as second,
    ):
        first.add([docs])
        with pytest.raises(LibraryMismatchError, match="keeps its KV as int8, not as raw"):
            second.add([docs])


def test_a_library_from_before_codecs_is_raw(tmp_path, engine, embedder, docs):
    with opened(tmp_path / "old.rag", engine, embedder) as library:
        library.add([docs])
        with library.catalogue.transaction() as connection:
            connection.execute("DELETE FROM settings WHERE name = 'codec'")
    with pytest.raises(LibraryMismatchError, match="keeps its KV as raw, not as int8"):
        opened(tmp_path / "old.rag", engine, embedder, "int8")
    with opened(tmp_path / "old.rag", engine, embedder) as library:
        key, token_ids = keys_and_tokens(library)[0]
        (kv,) = engine.prefill([token_ids])
        with contextlib.closing(library.store.open(key, token_ids)) as reader:
            assert reader.layer(0).keys.shape == kv.layers[0].keys.shape
        assert library.ask(QUESTION, k=1, generation=SHORT).hits == 1


def test_other_texts_are_kept_in_it_too(tmp_path, engine, embedder):
    text = "The lamp of the lighthouse is lit by a keeper who climbs three hundred steps every evening."
    with opened(tmp_path / "texts.rag", engine, embedder, "int8") as library:
        assert library.precompute([text]).computed == 1
        assert library.precompute([text]).unchanged == 1
        ((key, token_ids),) = keys_and_tokens(library)
        with contextlib.closing(library.store.open(key, token_ids)) as reader:
            assert reader.layer(0).codec == "int8"
        answer = library.complete(f"Read this.\n\n{text}\n\nWho lights the lamp?", generation=SHORT).complete()
        assert answer.hits == 1
