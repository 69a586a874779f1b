"""Encrypted files: bit for bit the same KV with the key, and nothing at all without it."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import pytest
import torch

from ragblend.errors import ConfigError, CorruptEntryError, PathNotFoundError, StoreError
from ragblend.store.catalogue import Catalogue
from ragblend.store.disk import DiskStore
from ragblend.store.encryption import HEADER_BYTES, KEY_BYTES, SEGMENT_BYTES, Cipher
from ragblend.store.format import StaleEntryError
from ragblend.store.source import MemorySource

KEY = bytes(range(KEY_BYTES))


@pytest.fixture
def cipher() -> Cipher:
    return Cipher(KEY)


def sealed(cipher: Cipher, plain: bytes, label: str = "label") -> bytes:
    return b"".join(cipher.seal(label, [plain[:7], memoryview(plain)[7:]]))


def opened(cipher: Cipher, data: bytes, label: str = "label"):
    return cipher.open(label, MemorySource("test", data))


@pytest.mark.parametrize("length", [0, 1, SEGMENT_BYTES - 1, SEGMENT_BYTES, SEGMENT_BYTES + 1, 3 * SEGMENT_BYTES + 5])
def test_what_is_sealed_can_be_opened(cipher, length):
    plain = os.urandom(length)
    source = opened(cipher, sealed(cipher, plain))
    assert source.nbytes == length
    assert bytes(source.read(0, length)) == plain


def test_any_stretch_can_be_read(cipher):
    plain = os.urandom(3 * SEGMENT_BYTES + 5)
    source = opened(cipher, sealed(cipher, plain))
    edges = [0, 1, SEGMENT_BYTES - 1, SEGMENT_BYTES, SEGMENT_BYTES + 1, 2 * SEGMENT_BYTES, len(plain) - 1, len(plain)]
    for begin in edges:
        for end in (edge for edge in edges if edge >= begin):
            assert bytes(source.read(begin, end - begin)) == plain[begin:end]
    with pytest.raises(CorruptEntryError, match="ends at byte"):
        source.read(len(plain), 1)


def test_the_same_bytes_are_never_sealed_the_same_way_twice(cipher):
    first, second = sealed(cipher, bytes(1000)), sealed(cipher, bytes(1000))
    assert first[HEADER_BYTES:] != second[HEADER_BYTES:]
    assert first[24:56] != second[24:56]  # the salt


def test_every_changed_byte_is_found(cipher):
    plain = os.urandom(300)
    data = sealed(cipher, plain)
    for position in range(len(data)):
        changed = bytearray(data)
        changed[position] ^= 1
        with pytest.raises(CorruptEntryError):
            opened(cipher, bytes(changed)).read(0, 300)


def test_segments_may_not_be_moved_left_out_or_added(cipher):
    data = sealed(cipher, os.urandom(2 * SEGMENT_BYTES))
    step = SEGMENT_BYTES + 16
    head, first, second = data[:HEADER_BYTES], data[HEADER_BYTES:-step], data[-step:]
    for changed in (head + second + first, head + first, head + first + second + second, head):
        with pytest.raises(CorruptEntryError):
            opened(cipher, changed).read(0, 10)


def test_another_label_or_key_opens_nothing(cipher):
    data = sealed(cipher, b"secret")
    with pytest.raises(CorruptEntryError, match="belongs elsewhere"):
        opened(cipher, data, "another entry").read(0, 6)
    with pytest.raises(StaleEntryError, match="another key"):
        opened(Cipher(bytes(KEY_BYTES)), data)


def test_the_key_is_not_shown(cipher):
    assert KEY.hex() not in repr(cipher)
    assert cipher.key_id not in KEY.hex()
    assert cipher.secret_name("tenant") == Cipher(KEY).secret_name("tenant") != cipher.secret_name("another")


class TestKeyFile:
    def write(self, folder: Path, data: bytes, mode: int = 0o600) -> Path:
        path = folder / "key"
        path.write_bytes(data)
        path.chmod(mode)
        return path

    @pytest.mark.parametrize("data", [KEY, KEY.hex().encode(), KEY.hex().upper().encode() + b"\n"])
    def test_holds_raw_bytes_or_digits(self, tmp_path, cipher, data):
        assert Cipher.from_file(self.write(tmp_path, data)).key_id == cipher.key_id

    @pytest.mark.parametrize("data", [b"", KEY[:-1], KEY + b"\n", b"password", KEY.hex()[:-1].encode()])
    def test_anything_else_is_refused(self, tmp_path, data):
        with pytest.raises(ConfigError, match="64 hexadecimal digits"):
            Cipher.from_file(self.write(tmp_path, data))

    def test_that_others_can_read_is_refused(self, tmp_path):
        with pytest.raises(ConfigError, match="chmod 600"):
            Cipher.from_file(self.write(tmp_path, KEY, 0o640))

    def test_that_is_not_there(self, tmp_path):
        with pytest.raises(PathNotFoundError, match="key cannot be read"):
            Cipher.from_file(tmp_path / "nothing")


class TestDiskStore:
    @pytest.fixture
    def store(self, tmp_path, catalogue, cipher) -> DiskStore:
        return DiskStore(tmp_path, catalogue, "tenant", cipher=cipher)

    def test_no_byte_of_the_kv_lies_on_the_disk(self, store, make_kv, make_key, same_kv):
        kv = make_kv(tokens=200)
        store.put(make_key(), kv)
        (path,) = store.folder.glob("*/*")
        data = path.read_bytes()
        for layer in kv.layers:
            for half in (layer.keys, layer.values):
                assert half.view(torch.uint8).numpy().tobytes()[:16] not in data
        assert b"safetensors" not in data
        assert b"layer." not in data
        with contextlib.closing(store.open(make_key(), kv.token_ids)) as reader:
            assert same_kv(reader, kv)

    def test_swapped_files_are_misses(self, store, make_kv, make_key):
        for number in (1, 2):
            store.put(make_key(number), make_kv(number))
        first, second = (store._path(make_key(number)) for number in (1, 2))
        aside = first.with_name("aside")
        first.rename(aside)
        second.rename(first)
        aside.rename(second)
        assert store.open(make_key(1), make_kv(1).token_ids) is None
        assert store.misses == {"corrupt": 1}

    def test_without_the_key_nothing_is_read_written_or_set_aside(self, store, tmp_path, catalogue, make_kv, make_key):
        kv = make_kv()
        store.put(make_key(), kv)
        locked = DiskStore(tmp_path, catalogue, "tenant")
        for use in (
            lambda: locked.open(make_key(), kv.token_ids),
            lambda: locked.put(make_key(1), kv),
            lambda: locked.check(make_key()),
        ):
            with pytest.raises(StoreError, match="encrypted: give its key"):
                use()
        assert locked.nbytes() == store.nbytes()
        assert store.check(make_key()) is None
        locked.delete(make_key())  # erasing needs no key
        assert not store.contains(make_key())

    def test_another_key_is_refused(self, store, tmp_path, catalogue):
        with pytest.raises(StoreError, match="another key"):
            DiskStore(tmp_path, catalogue, "tenant", cipher=Cipher(bytes(KEY_BYTES)))

    def test_a_key_comes_too_late_for_what_is_there_unencrypted(self, tmp_path, catalogue, cipher, make_kv, make_key):
        DiskStore(tmp_path, catalogue, "plain").put(make_key(), make_kv())
        with pytest.raises(StoreError, match="not encrypted"):
            DiskStore(tmp_path, catalogue, "plain", cipher=cipher)

    def test_the_key_is_nowhere_in_the_folder(self, store, make_kv, make_key, tmp_path):
        store.put(make_key(), make_kv())
        for path in tmp_path.rglob("*"):
            if path.is_file():
                assert KEY not in path.read_bytes()
                assert KEY.hex().encode() not in path.read_bytes()

    def test_a_reader_of_a_read_only_library_needs_it_too(self, store, tmp_path, make_kv, make_key, same_kv, cipher):
        kv = make_kv()
        store.put(make_key(), kv)
        with contextlib.closing(Catalogue(tmp_path / "catalogue.db", read_only=True)) as read_only:
            reader = DiskStore(tmp_path, read_only, "tenant", cipher=cipher).open(make_key(), kv.token_ids)
            with contextlib.closing(reader):
                assert same_kv(reader, kv)
