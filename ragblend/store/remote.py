"""Chunk KV behind a URL, through fsspec: ``s3://``, ``file://`` (a mounted folder), ``memory://`` and more.

Objects are the files of the disk store, encrypted ones included, so nothing that is not on the disk leaves the
machine. A remote tier may be slow, gone or hostile: every operation has a deadline, and after one that failed the
tier is left alone for a while, so that a question waits for it once and not for every chunk.
"""

from __future__ import annotations

import contextlib
import logging
import random
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from ragblend.config import DEFAULT_NAMESPACE, require
from ragblend.errors import ConfigError, EntryError, RemoteStoreError, StoreError
from ragblend.store.base import ChunkKV, KVStore, MissCause, StoreEvents, read_whole
from ragblend.store.encryption import Cipher
from ragblend.store.files import SYSTEM_FILES
from ragblend.store.format import encode_chunk
from ragblend.store.key import digest_fields
from ragblend.store.memory import MemoryReader
from ragblend.store.reader import ChunkReader
from ragblend.store.source import MemorySource

T = TypeVar("T")

MAX_OBJECT_BYTES = 1 << 32
_MOST_THREADS = 16
_FIRST_PAUSE_S = 0.05

log = logging.getLogger(__name__)


class RemoteStore(KVStore):
    """The entries of one namespace below ``url``.

    options: what fsspec's filesystem takes, such as ``endpoint_url``, ``key`` and ``secret``.
    timeout_s: for one operation with all its tries. tries: how often it is tried. pause_s: how long the tier counts
    as failed after an operation that did. cipher: seals and opens the objects.

    A failure is a miss with the cause ``remote`` for who reads, and a RemoteStoreError for who writes or deletes.
    Raises ConfigError for a URL that no installed package can open.
    """

    tier = "remote"

    def __init__(
        self,
        url: str,
        namespace: str = DEFAULT_NAMESPACE,
        *,
        options: Mapping[str, Any] | None = None,
        timeout_s: float = 5.0,
        tries: int = 3,
        pause_s: float = 30.0,
        cipher: Cipher | None = None,
        codec: str = "raw",
        events: StoreEvents | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(events, codec)
        require(timeout_s > 0, f"the remote timeout must be positive, got {timeout_s} seconds")
        require(tries >= 1, f"a remote operation is tried at least once, got {tries}")
        require(pause_s >= 0, f"the pause after a remote failure must not be negative, got {pause_s} seconds")
        self.timeout_s = timeout_s
        self.tries = tries
        self.pause_s = pause_s
        self.cipher = cipher
        self._filesystem, root = _filesystem(url, options or {})
        self._folder = f"{root.rstrip('/')}/{digest_fields(namespace)}"
        self._clock = clock
        self._failed_until = -1.0
        self._threads = threading.BoundedSemaphore(_MOST_THREADS)
        self._closed = False

    @property
    def available(self) -> bool:
        """Whether operations are tried at all: not for a while after one that failed."""
        return self._clock() >= self._failed_until

    def contains(self, key: str) -> bool:
        """Whether an object is there. A tier that fails has none."""
        try:
            return self._size(key) is not None
        except RemoteStoreError:
            return False

    def put(self, key: str, kv: ChunkKV) -> int:
        pieces = encode_chunk(key, kv, self.codec)
        data = b"".join(pieces if self.cipher is None else self.cipher.seal(key, pieces))
        size = self._size(key)
        return self.put_blob(key, data) if size is None else size

    def put_blob(self, key: str, data: bytes) -> int:
        """Write an entry's file as it lies on the disk. Returns its bytes. Raises RemoteStoreError."""
        path = self._path(key)
        self._call("put", lambda: self._write(path, data))
        return len(data)

    def _open(self, key: str, token_ids: tuple[int, ...]) -> MemoryReader | None:
        cause: MissCause
        try:
            path = self._path(key)
            data = self._call("get", lambda: self._filesystem.cat_file(path, start=0, end=MAX_OBJECT_BYTES))
            kv = self._decode(key, path, data)
        except FileNotFoundError:
            cause = "missing"
        except RemoteStoreError:
            cause = "remote"
        except EntryError as error:
            self.discard(key, error.cause)
            return None
        else:
            if kv.token_ids == token_ids:
                return MemoryReader(kv)
            cause = "stale"
        self.count_miss(cause)
        return None

    def discard(self, key: str, cause: MissCause = "corrupt") -> None:
        """Count a miss, and remove a damaged object if that can be done."""
        self.count_miss(cause)
        if cause == "corrupt":
            with contextlib.suppress(RemoteStoreError):
                self.delete(key)

    def delete(self, key: str) -> None:
        path = self._path(key)
        with contextlib.suppress(FileNotFoundError):
            self._call("delete", lambda: self._filesystem.rm_file(path))

    def nbytes(self) -> int:
        self._require_open()
        with contextlib.suppress(FileNotFoundError):
            return int(self._call("list", lambda: self._filesystem.du(self._folder)))
        return 0

    def close(self) -> None:
        self._closed = True

    def _size(self, key: str) -> int | None:
        path = self._path(key)
        with contextlib.suppress(FileNotFoundError):
            return int(self._call("look", lambda: self._filesystem.info(path))["size"])
        return None

    def _decode(self, key: str, path: str, data: bytes) -> ChunkKV:
        """The entry in an object's bytes, all of it checked. Raises EntryError."""
        source = MemorySource(path, data)
        reader = ChunkReader(source if self.cipher is None else self.cipher.open(key, source), key)
        with contextlib.closing(reader):
            return read_whole(reader, reader.token_ids)

    def _write(self, path: str, data: bytes) -> None:
        if self._is_local:
            SYSTEM_FILES.make_private_folder(Path(path).parent)
            SYSTEM_FILES.write_whole(Path(path), [data])
            return
        try:
            self._filesystem.pipe_file(path, data)
        except FileNotFoundError as error:  # of the bucket, which is no answer to a writer
            raise NotADirectoryError(str(error)) from error

    @property
    def _is_local(self) -> bool:
        """fsspec writes local files readable to all, and not at once."""
        return "file" in self._filesystem.protocol

    def _path(self, key: str) -> str:
        self._require_open()
        require(len(key) == 64 and key.isalnum(), f"an entry's key is 64 hexadecimal digits, got {key!r}")
        return f"{self._folder}/{key[:2]}/{key}.safetensors"

    def _require_open(self) -> None:
        if self._closed:
            raise StoreError("the remote store is closed")

    def _call(self, operation: str, function: Callable[[], T]) -> T:
        """Run an operation, several times if need be, within its deadline.

        Raises FileNotFoundError, which is an answer, and RemoteStoreError.
        """
        if not self.available:
            raise RemoteStoreError("the remote tier failed a moment ago and is left alone for a while")
        deadline = time.monotonic() + self.timeout_s
        attempt = 1
        while True:
            try:
                result = self._within(deadline - time.monotonic(), function)
            except FileNotFoundError:
                self.events.remote(operation, "ok")
                raise
            except Exception as error:
                pause = _FIRST_PAUSE_S * 2**attempt * random.uniform(0.5, 1.0)
                last = attempt == self.tries or time.monotonic() + pause >= deadline
                self._tell(operation, attempt, error, last)
                if last:
                    self._failed_until = self._clock() + self.pause_s
                    raise RemoteStoreError(
                        f"the remote tier failed to {operation} an entry ({type(error).__name__}): "
                        "check its address, credentials and network"
                    ) from error
                time.sleep(pause)
                attempt += 1
            else:
                self.events.remote(operation, "ok")
                return result

    def _tell(self, operation: str, attempt: int, error: Exception, last: bool) -> None:
        self.events.remote(operation, "failed" if last else "retry")
        kind = type(error).__name__  # its text may hold addresses and credentials
        fields = {"operation": operation, "attempt": attempt, "error": kind}
        log.log(logging.WARNING if last else logging.INFO, "remote tier: %s failed (%s)", operation, kind, extra=fields)

    def _within(self, seconds: float, function: Callable[[], T]) -> T:
        """Run ``function`` in a thread of its own and give it so many seconds. Raises TimeoutError.

        A thread that hangs cannot be ended; there are at most sixteen, and a process may exit in spite of them.
        """
        results: list[T] = []
        errors: list[BaseException] = []
        done = threading.Event()

        def run() -> None:
            try:
                results.append(function())
            except BaseException as error:
                errors.append(error)
            finally:
                self._threads.release()
                done.set()

        deadline = time.monotonic() + seconds
        if not self._threads.acquire(timeout=max(0.0, seconds)):
            raise TimeoutError("too many operations hang")
        threading.Thread(target=run, name="ragblend-remote", daemon=True).start()
        if not done.wait(max(0.0, deadline - time.monotonic())):
            raise TimeoutError("no answer in time")
        if errors:
            raise errors[0]
        return results[0]


def _filesystem(url: str, options: Mapping[str, Any]) -> tuple[Any, str]:
    from fsspec.core import url_to_fs

    require("://" in url, f"a remote tier is a URL such as s3://bucket/folder, got {url!r}")
    try:
        filesystem, root = url_to_fs(url, use_listings_cache=False, **options)
    except ImportError as error:
        raise ConfigError(
            f"the remote tier needs another package ({error}): for S3, pip install 'ragblend[s3]'"
        ) from error
    except (ValueError, TypeError) as error:
        raise ConfigError(f"the remote tier cannot be opened ({error}): check its URL and options") from error
    return filesystem, str(root)
