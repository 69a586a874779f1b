"""What every store promises (``ragblend.testing``), of each of ours."""

from __future__ import annotations

import secrets

import pytest

from ragblend.config import DiskLimits
from ragblend.store.device import DeviceStore
from ragblend.store.disk import DiskStore
from ragblend.store.encryption import Cipher
from ragblend.store.memory import MemoryStore
from ragblend.store.remote import RemoteStore
from ragblend.store.tiers import TieredStore
from ragblend.testing import StoreConformance

CIPHER = Cipher(bytes(range(32)))


class TestMemory(StoreConformance):
    @pytest.fixture
    def store(self) -> MemoryStore:
        return MemoryStore(1_000_000)


class TestDisk(StoreConformance):
    @pytest.fixture
    def store(self, tmp_path, catalogue) -> DiskStore:
        return DiskStore(tmp_path, catalogue)


class TestEncryptedDiskWithLimits(StoreConformance):
    @pytest.fixture
    def store(self, tmp_path, catalogue) -> DiskStore:
        limits = DiskLimits(budget=1_000_000, total_budget=2_000_000, ttl_s=3600)
        return DiskStore(tmp_path, catalogue, limits=limits, cipher=CIPHER)


class TestInt4Memory(StoreConformance):
    @pytest.fixture
    def store(self) -> MemoryStore:
        return MemoryStore(1_000_000, codec="int4")


class TestCompressedDisk(StoreConformance):
    @pytest.fixture
    def store(self, tmp_path, catalogue) -> DiskStore:
        return DiskStore(tmp_path, catalogue, codec="raw+zstd")


class TestInt8EncryptedDisk(StoreConformance):
    @pytest.fixture
    def store(self, tmp_path, catalogue) -> DiskStore:
        return DiskStore(tmp_path, catalogue, codec="int8+zstd", cipher=CIPHER)


class TestFp8Tiers(StoreConformance):
    @pytest.fixture
    def store(self, tmp_path, catalogue) -> TieredStore:
        remote = RemoteStore(f"file://{tmp_path}/remote", "default", codec="fp8")
        return TieredStore(tmp_path, catalogue, codec="fp8", memory=MemoryStore(1_000_000), remote=remote)


class TestDevice(StoreConformance):
    @pytest.fixture
    def store(self) -> DeviceStore:
        return DeviceStore(1_000_000, "cpu")


class TestNearTiers(StoreConformance):
    """Every reading brings an entry one tier nearer."""

    @pytest.fixture
    def store(self, tmp_path, catalogue) -> TieredStore:
        near = {"device": DeviceStore(1_000_000, "cpu"), "memory": MemoryStore(1_000_000)}
        return TieredStore(tmp_path, catalogue, **near)


class TestRemoteMemory(StoreConformance):
    @pytest.fixture
    def store(self) -> RemoteStore:
        return RemoteStore(f"memory://{secrets.token_hex(4)}")


class TestRemoteFolder(StoreConformance):
    @pytest.fixture
    def store(self, tmp_path) -> RemoteStore:
        return RemoteStore(f"file://{tmp_path}/remote", cipher=CIPHER)


class TestRemoteS3(StoreConformance):
    @pytest.fixture
    def store(self, s3) -> RemoteStore:
        return RemoteStore(f"{s3.url}/{secrets.token_hex(4)}", options=s3.options, timeout_s=60)


class TestTiers(StoreConformance):
    @pytest.fixture
    def store(self, tmp_path, catalogue) -> TieredStore:
        remote = RemoteStore(f"file://{tmp_path}/remote", "default")
        return TieredStore(tmp_path, catalogue, memory=MemoryStore(1_000_000), remote=remote)
