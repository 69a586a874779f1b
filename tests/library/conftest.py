"""A tiny engine, a fast embedder, PDF files, and libraries made of them."""

from __future__ import annotations

import hashlib
import os
import re
import tempfile
from collections.abc import Callable, Iterator, Sequence
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from pypdf import PdfWriter
from pypdf.generic import DecodedStreamObject, DictionaryObject, NameObject
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ragblend.config import ChunkSettings, PrefixSettings, StoreSettings
from ragblend.engine import Engine
from ragblend.library.library import Library
from ragblend.store.files import SYSTEM_FILES, Files
from tests import tiny
from tests.clock import Clock

CHUNK_TOKENS = 128


class WordEmbedder:
    """Counts words in hashed buckets, so that texts are near when they share words."""

    name = "words"

    def __init__(self, digest: str = "words-1", buckets: int = 1024) -> None:
        self.digest = digest
        self.buckets = buckets

    def embed_chunks(self, texts: Sequence[str]) -> np.ndarray:
        return np.stack([self.embed_question(text) for text in texts])

    def embed_question(self, text: str) -> np.ndarray:
        vector = np.full(self.buckets, 1e-4, np.float32)
        for word in re.findall(r"\w+", text.lower()):
            vector[int(hashlib.sha256(word.encode()).hexdigest()[:8], 16) % self.buckets] += 1
        return vector / np.linalg.norm(vector)


def tiny_engine(seed: int = 0, **options: str) -> Engine:
    """A random llama with one token a byte and room for 4,096 of them."""
    model = tiny.family("llama", seed, max_position_embeddings=4096, num_hidden_layers=2)
    return Engine.from_model(model, tiny.tokenizer(), name=f"tiny-{seed}", **options)


def caching_model(seed: int = 0) -> PreTrainedModel:
    """The model of ``start``."""
    return tiny.family("llama", seed, max_position_embeddings=4096, num_hidden_layers=2)


class WatchedEngine:
    """An engine that remembers what it prefilled."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.prefilled: list[tuple[int, ...]] = []

    def __getattr__(self, name: str) -> object:
        return getattr(self._engine, name)

    def prefill(self, chunks: Sequence[tuple[int, ...]], **options: object) -> Iterator[object]:
        for kv in self._engine.prefill(chunks, **options):
            self.prefilled.append(kv.token_ids)
            yield kv


def make_pdf(pages: Sequence[str], *, title: str = "", password: str = "") -> bytes:
    """A PDF with one line of text for each line of each page."""
    writer = PdfWriter()
    font = DictionaryObject(
        {
            NameObject("/Type"): NameObject("/Font"),
            NameObject("/Subtype"): NameObject("/Type1"),
            NameObject("/BaseFont"): NameObject("/Helvetica"),
        }
    )
    for text in pages:
        page = writer.add_blank_page(600, 800)
        page[NameObject("/Resources")] = DictionaryObject(
            {NameObject("/Font"): DictionaryObject({NameObject("/F"): font})}
        )
        content = DecodedStreamObject()
        lines = " T* ".join(f"({line}) Tj" for line in text.split("\n"))
        content.set_data(f"BT /F 12 Tf 14 TL 50 750 Td {lines} ET".encode())
        page[NameObject("/Contents")] = content
    if title:
        writer.add_metadata({"/Title": title})
    if password:
        writer.encrypt(password)
    file = BytesIO()
    writer.write(file)
    return file.getvalue()


@pytest.fixture(scope="session")
def engine() -> Engine:
    return tiny_engine()


@pytest.fixture(scope="session")
def other_engine() -> Engine:
    return tiny_engine(seed=1)


@pytest.fixture
def watched(engine: Engine) -> WatchedEngine:
    return WatchedEngine(engine)


@pytest.fixture
def pdf() -> Callable[..., bytes]:
    return make_pdf


@pytest.fixture
def embedder() -> WordEmbedder:
    return WordEmbedder()


@pytest.fixture
def open_library(tmp_path: Path, engine: Engine, embedder: WordEmbedder) -> Iterator[Callable[..., Library]]:
    """Opens the test's library, as often as it is called; what it is made of can be changed by keyword."""
    opened: list[Library] = []

    def open_it(folder: Path = tmp_path / "test.rag", **options: object) -> Library:
        made_of = {"engine": engine, "embedder": embedder, "chunk": ChunkSettings(CHUNK_TOKENS)}
        opened.append(Library.open(folder, **{**made_of, **options}))
        return opened[-1]

    yield open_it
    for library in opened:
        library.close()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def start(tmp_path: Path, clock: Clock, embedder: WordEmbedder) -> Iterator[Callable[..., Library]]:
    """A new engine, as in a new process, on the test's library. settings: of its prefix cache."""
    opened: list[Library] = []
    usual = caching_model()

    def start_it(
        namespace: str = "default",
        *,
        engine: Engine | None = None,
        model: PreTrainedModel | None = None,
        tokenizer: PreTrainedTokenizerBase | None = None,
        store: StoreSettings | None = None,
        chunk: ChunkSettings | None = None,
        files: Files = SYSTEM_FILES,
        **settings: object,
    ) -> Library:
        engine = engine or Engine.from_model(
            model or usual,
            tokenizer or tiny.tokenizer(),
            prefix=PrefixSettings(**settings),
            clock=clock,
            preamble="",
        )
        folder = tmp_path / "test.rag"
        library = Library.open(
            folder, engine=engine, namespace=namespace, embedder=embedder, store=store, chunk=chunk, files=files
        )
        opened.append(library)
        return library

    yield start_it
    for library in opened:
        library.close()


@pytest.fixture
def library(open_library: Callable[..., Library]) -> Library:
    return open_library()


@pytest.fixture
def docs(tmp_path: Path) -> Path:
    """A folder of three small documents."""
    folder = tmp_path / "docs"
    folder.mkdir()
    (folder / "warranty.md").write_text("# Warranty\n\nThe warranty of the robot lasts two years.\n")
    (folder / "battery.md").write_text("# Battery\n\nThe battery is charged in ninety minutes.\n")
    (folder / "blades.txt").write_text("Blades are changed every spring by the gardener.\n")
    return folder


@pytest.fixture
def many_docs(tmp_path: Path) -> Path:
    """Twelve documents of one chunk each."""
    folder = tmp_path / "many"
    folder.mkdir()
    for number in range(12):
        text = f"Machine {number} is painted in colour {number * 7}. Its weight is {number + 3} kilograms."
        (folder / f"{number}.txt").write_text(text)
    return folder


@pytest.fixture
def other_key_file(tmp_path: Path) -> Path:
    path = tmp_path / "other"
    path.write_text("00" * 32)
    path.chmod(0o600)
    return path


@pytest.fixture
def ordinary_user() -> Iterator[Path]:
    """A folder of an ordinary user, whom permissions bind, and that user's identity for the test."""
    with tempfile.TemporaryDirectory() as name:
        if os.geteuid() != 0:
            yield Path(name)
            return
        os.chown(name, 65534, 65534)
        os.seteuid(65534)
        try:
            yield Path(name)
        finally:
            os.seteuid(0)


@pytest.fixture
def make_engine() -> Callable[..., Engine]:
    return tiny_engine


@pytest.fixture
def make_embedder() -> Callable[..., WordEmbedder]:
    return WordEmbedder
