"""The FAISS index and its file."""

from __future__ import annotations

import os
import random
import stat

import numpy as np
import pytest

from ragblend.library.index import VectorIndex
from ragblend.store.encryption import KEY_BYTES, Cipher


def unit_vectors(count: int, dimensions: int = 8) -> np.ndarray:
    vectors = np.random.default_rng(0).normal(size=(count, dimensions)).astype(np.float32)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


VECTORS = unit_vectors(20)
IDS = np.arange(100, 120)


@pytest.fixture
def index() -> VectorIndex:
    made = VectorIndex(8)
    made.add(IDS, VECTORS)
    return made


def test_search_is_exact(index):
    scores, ids = index.search(VECTORS[3], 5)
    cosines = VECTORS @ VECTORS[3]
    assert ids.tolist() == IDS[np.argsort(-cosines)[:5]].tolist()
    np.testing.assert_allclose(scores, np.sort(cosines)[::-1][:5], atol=1e-3)


def test_search_for_more_than_there_are(index):
    assert len(index.search(VECTORS[0], 1000)[1]) == 20


def test_remove(index):
    index.remove(IDS[:5])
    assert sorted(index.ids) == IDS[5:].tolist()
    assert 100 not in index.search(VECTORS[0], 20)[1]


class TestFile:
    @pytest.fixture
    def path(self, tmp_path, index):
        path = tmp_path / "index" / "x.faiss"
        index.save(path, "stamp")
        return path

    def test_round_trip(self, path, index):
        loaded = VectorIndex.load(path, "stamp")
        assert loaded.ids.tolist() == IDS.tolist()
        assert loaded.search(VECTORS[7], 3)[1].tolist() == index.search(VECTORS[7], 3)[1].tolist()

    def test_is_private_and_alone(self, path):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert list(path.parent.iterdir()) == [path]

    def test_of_something_else(self, path):
        assert VectorIndex.load(path, "other stamp") is None

    def test_absent(self, path):
        assert VectorIndex.load(path.with_name("y.faiss"), "stamp") is None

    def test_a_thousand_flipped_bits_are_found(self, path):
        whole = path.read_bytes()
        for bit in random.Random(0).sample(range(8 * len(whole)), 1000):
            damaged = bytearray(whole)
            damaged[bit // 8] ^= 1 << bit % 8
            path.write_bytes(damaged)
            assert VectorIndex.load(path, "stamp") is None

    def test_every_truncation_is_found(self, path):
        whole = path.read_bytes()
        for length in range(0, len(whole), 11):
            path.write_bytes(whole[:length])
            assert VectorIndex.load(path, "stamp") is None

    def test_a_failed_save_leaves_the_old_file(self, path, index, monkeypatch):
        def fail(*_: object) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(os, "fsync", fail)
        with pytest.raises(OSError, match="No space"):
            index.save(path, "stamp")
        assert list(path.parent.iterdir()) == [path]
        assert VectorIndex.load(path, "stamp") is not None


class TestSealedFile:
    CIPHER = Cipher(bytes(KEY_BYTES))

    @pytest.fixture
    def path(self, tmp_path, index):
        path = tmp_path / "index" / "x.faiss"
        index.save(path, "stamp", self.CIPHER)
        return path

    def test_round_trip(self, path, index):
        loaded = VectorIndex.load(path, "stamp", self.CIPHER)
        assert loaded.search(VECTORS[7], 3)[1].tolist() == index.search(VECTORS[7], 3)[1].tolist()

    def test_no_vector_lies_open(self, path, index):
        kept = [vector.tobytes() for vector in VECTORS.astype(np.float16)]
        assert not any(vector in path.read_bytes() for vector in kept)
        index.save(path, "stamp")
        assert all(vector in path.read_bytes() for vector in kept)

    def test_without_its_key_or_of_something_else(self, path):
        assert VectorIndex.load(path, "stamp") is None
        assert VectorIndex.load(path, "stamp", Cipher(bytes([1] * KEY_BYTES))) is None
        assert VectorIndex.load(path, "other stamp", self.CIPHER) is None

    def test_one_that_is_not_sealed(self, path, index):
        index.save(path, "stamp")
        assert VectorIndex.load(path, "stamp", self.CIPHER) is None
