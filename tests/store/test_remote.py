"""A remote tier that is slow, gone, damaged or hostile: misses with their causes, and never a wrong byte."""

from __future__ import annotations

import contextlib
import logging
import socket
import stat
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from ragblend.errors import ConfigError, RemoteStoreError
from ragblend.store.encryption import Cipher
from ragblend.store.remote import RemoteStore

CIPHER = Cipher(bytes(range(32)))


@pytest.fixture
def remote(tmp_path) -> RemoteStore:
    return RemoteStore(f"file://{tmp_path}/remote")


@pytest.fixture
def kv(make_kv):
    return make_kv()


@pytest.fixture
def key(make_key):
    return make_key()


def objects(tmp_path: Path) -> list[Path]:
    return [path for path in (tmp_path / "remote").rglob("*") if path.is_file()]


class TestObjects:
    def test_only_the_owner_can_read_them(self, remote, tmp_path, kv, key):
        remote.put(key, kv)
        for path in (tmp_path / "remote", *(tmp_path / "remote").rglob("*")):
            assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600)

    def test_are_the_files_of_the_disk_store(self, remote, disk, tmp_path, kv, key):
        disk.put(key, kv)
        remote.put(key, kv)
        assert objects(tmp_path)[0].read_bytes() == disk.blob(key)

    def test_are_sealed_where_the_namespace_is(self, tmp_path, kv, key, same_kv):
        remote = RemoteStore(f"file://{tmp_path}/remote", cipher=CIPHER)
        remote.put(key, kv)
        assert b"safetensors" not in objects(tmp_path)[0].read_bytes()
        with contextlib.closing(remote.open(key, kv.token_ids)) as reader:
            assert same_kv(reader, kv)
        without_key = RemoteStore(f"file://{tmp_path}/remote")
        assert without_key.open(key, kv.token_ids) is None

    def test_another_key_reads_nothing_and_removes_nothing(self, tmp_path, kv, key):
        RemoteStore(f"file://{tmp_path}/remote", cipher=CIPHER).put(key, kv)
        other = RemoteStore(f"file://{tmp_path}/remote", cipher=Cipher(bytes(32)))
        assert other.open(key, kv.token_ids) is None
        assert other.misses == {"stale": 1}
        assert len(objects(tmp_path)) == 1

    def test_namespaces_share_nothing(self, tmp_path, kv, key):
        first, second = (RemoteStore(f"file://{tmp_path}/remote", namespace) for namespace in ("first", "second"))
        first.put(key, kv)
        assert not second.contains(key)
        assert second.open(key, kv.token_ids) is None
        second.delete(key)
        assert (first.contains(key), second.nbytes()) == (True, 0)

    @pytest.mark.parametrize("position", [0, 8, 100, 1000, -1])
    def test_that_are_damaged_are_misses_and_put_anew(self, remote, tmp_path, kv, key, same_kv, position):
        remote.put(key, kv)
        (path,) = objects(tmp_path)
        data = bytearray(path.read_bytes())
        data[position] ^= 0x10
        path.write_bytes(data)
        assert remote.open(key, kv.token_ids) is None
        assert set(remote.misses) <= {"corrupt", "stale"}
        path.unlink(missing_ok=True)
        remote.put(key, kv)
        with contextlib.closing(remote.open(key, kv.token_ids)) as reader:
            assert same_kv(reader, kv)

    def test_under_anothers_name_are_not_served(self, remote, tmp_path, make_kv, make_key):
        for number in (1, 2):
            remote.put(make_key(number), make_kv(number))
        first, second = objects(tmp_path)
        first.write_bytes(second.read_bytes())
        served = [remote.open(make_key(number), make_kv(number).token_ids) is not None for number in (1, 2)]
        assert sorted(served) == [False, True]
        assert remote.misses == {"stale": 1}

    @pytest.mark.parametrize("data", [b"", b"{}", b"\xff" * 8, bytes(100), b"\x02\0\0\0\0\0\0\0{}"])
    def test_of_nonsense_are_misses(self, remote, tmp_path, kv, key, data):
        remote.put(key, kv)
        objects(tmp_path)[0].write_bytes(data)
        assert remote.open(key, kv.token_ids) is None
        assert objects(tmp_path) == []


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def silent_server() -> Iterator[str]:
    """The system accepts connections for it, and nobody ever answers."""
    with socket.create_server(("127.0.0.1", 0), backlog=64) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


class TestFailure:
    @pytest.fixture
    def clock(self) -> Clock:
        return Clock()

    @pytest.fixture
    def broken(self, tmp_path, clock) -> RemoteStore:
        """A folder that is a file: every operation on it fails."""
        (tmp_path / "remote").write_text("in the way")
        return RemoteStore(f"file://{tmp_path}/remote", pause_s=10, clock=clock)

    def test_is_a_miss_with_its_cause(self, broken, kv, key, clock):
        assert broken.open(key, kv.token_ids) is None
        assert not broken.contains(key)
        assert broken.misses == {"remote": 1}
        for change in (lambda: broken.put(key, kv), lambda: broken.delete(key)):
            clock.now += 20
            with pytest.raises(RemoteStoreError):
                change()

    def test_leaves_the_tier_alone_for_a_while(self, broken, tmp_path, kv, key, clock, same_kv):
        assert broken.open(key, kv.token_ids) is None
        assert not broken.available
        (tmp_path / "remote").unlink()
        assert broken.open(key, kv.token_ids) is None  # not even tried
        assert broken.misses == {"remote": 2}
        clock.now += 20
        assert broken.available
        broken.put(key, kv)
        with contextlib.closing(broken.open(key, kv.token_ids)) as reader:
            assert same_kv(reader, kv)

    def test_is_tried_again_first(self, tmp_path, kv, key, monkeypatch, same_kv):
        remote = RemoteStore(f"file://{tmp_path}/remote", tries=3)
        remote.put(key, kv)
        attempts = iter([OSError("first"), TimeoutError("second")])
        whole = remote._filesystem.cat_file

        def cat_file(*arguments: object, **named: object) -> bytes:
            for error in attempts:
                raise error
            return whole(*arguments, **named)

        monkeypatch.setattr(remote._filesystem, "cat_file", cat_file)
        with contextlib.closing(remote.open(key, kv.token_ids)) as reader:
            assert same_kv(reader, kv)

    def test_of_a_server_that_never_answers_ends_in_time(self, silent_server, kv, key):
        options = {"key": "test", "secret": "test", "endpoint_url": silent_server}
        remote = RemoteStore("s3://bucket", options=options, timeout_s=0.5)
        finished = threading.Event()

        def read() -> None:
            if remote.open(key, kv.token_ids) is None:
                finished.set()

        threading.Thread(target=read, daemon=True).start()
        assert finished.wait(30)  # a machine under load is slow, but botocore alone would wait for minutes
        assert remote.misses == {"remote": 1}
        for _ in range(1000):  # costs nothing now
            assert remote.open(key, kv.token_ids) is None

    def test_of_a_server_that_is_gone(self, kv, key):
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
        options = {"key": "test", "secret": "test", "endpoint_url": f"http://127.0.0.1:{port}"}
        remote = RemoteStore("s3://bucket", options=options, timeout_s=1.0, tries=2)
        assert remote.open(key, kv.token_ids) is None
        assert remote.misses == {"remote": 1}

    def test_without_the_right_to_read(self, s3, kv, key):
        anonymous = RemoteStore("s3://no-such-bucket/folder", options=s3.options, timeout_s=30)
        assert anonymous.open(key, kv.token_ids) is None
        with pytest.raises(RemoteStoreError):
            anonymous.put(key, kv)

    def test_tells_the_log_no_addresses_and_no_secrets(self, kv, key, caplog):
        options = {"key": "test", "secret": "canary-secret", "endpoint_url": "http://127.0.0.1:9"}
        remote = RemoteStore("s3://canary-bucket", options=options, timeout_s=1.0, tries=1)
        with caplog.at_level(logging.DEBUG, "ragblend"):
            assert remote.open(key, kv.token_ids) is None
        assert [record.levelname for record in caplog.records if record.name.startswith("ragblend")] == ["WARNING"]
        told = [record.__dict__ for record in caplog.records if record.name.startswith("ragblend")]
        assert "canary" not in str(told)


@pytest.mark.parametrize(("url", "message"), [("bucket", "is a URL"), ("nonsense://bucket", "check its URL")])
def test_a_bad_url_is_refused(url, message):
    with pytest.raises(ConfigError, match=message):
        RemoteStore(url)


@pytest.mark.parametrize("setting", [{"timeout_s": 0}, {"tries": 0}, {"pause_s": -1}])
def test_bad_bounds_are_refused(setting):
    with pytest.raises(ConfigError):
        RemoteStore("memory://x", **setting)
