"""The fuzz targets on kept inputs and on mutations of sound ones."""

from __future__ import annotations

from pathlib import Path

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from ragblend.config import CODECS
from ragblend.store.codecs import StoreCodec
from ragblend.store.format import DTYPES
from tests.fuzz.catalogue import read_catalogue
from tests.fuzz.entry import read_entry
from tests.fuzz.forged import TYPES, read_forged
from tests.store.make_hostile import HOSTILE, SOUND

OLD_CATALOGUE = (Path(__file__).parents[1] / "library" / "formats" / "1" / "catalogue.sqlite").read_bytes()


@st.composite
def mutated(draw: st.DrawFn, sound: bytes) -> bytes:
    """``sound`` with a few runs of bytes overwritten, inserted, removed or repeated, and perhaps cut."""
    data = sound
    for _ in range(draw(st.integers(1, 4))):
        begin = draw(st.integers(0, len(data)))
        end = min(len(data), begin + draw(st.integers(0, 64)))
        repeated, special = st.just(data[begin:end] * 2), st.sampled_from([b"9" * 20, b"["])
        middle = draw(st.binary(max_size=64) | repeated | special)
        data = data[:begin] + middle + data[end:]
    return data


def test_a_sound_entry_has_its_layers():
    assert read_entry(SOUND) == 2


@pytest.mark.parametrize("content", HOSTILE.values(), ids=HOSTILE)
def test_hostile_entries(content):
    assert read_entry(content) <= 1  # not all of it


@settings(max_examples=300, deadline=None)
@given(content=mutated(SOUND))
def test_mutated_entries(content):
    assert read_entry(content) < 2 or content == SOUND


@settings(max_examples=60, deadline=None)
@given(content=mutated(OLD_CATALOGUE))
def test_mutated_catalogues(content):
    read_catalogue(content)


@pytest.mark.parametrize("codec", range(len(CODECS)), ids=CODECS)
def test_a_forged_entry_of_sound_numbers_is_read(codec):
    """Its header and checksums fit, so what follows is about layers."""
    kept = StoreCodec.named(CODECS[codec])
    layer = bytes(kept.layer_bytes(DTYPES[TYPES[kept.numbers]], (1, 3, 2)))
    start = bytes([codec, 0, 2, 1])
    assert read_forged(start + (zstandard.compress(layer) if kept.zstd else layer)) == 1


@settings(max_examples=300, deadline=None)
@given(content=st.binary(max_size=300))
def test_forged_layers(content):
    assert read_forged(content) <= 1
