"""A folder in which good files lie among every kind of bad one."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

TEXT = "Größe und Gewicht – the café’s robot weighs 7 kg.\n"
GOOD_KINDS = 5


@pytest.fixture
def mixed(tmp_path, pdf) -> tuple[Path, dict[str, str]]:
    """A folder of 500, and the expected reason for every bad one."""
    root = tmp_path / "mixed"
    root.mkdir()
    bad = {}
    for number in range(0, 490, 10):
        (root / f"{number}-markdown.md").write_text(f"# Document {number}\n\n{TEXT}")
        (root / f"{number}-utf16.txt").write_text(f"{number} {TEXT}", encoding="utf-16")
        (root / f"{number}-cp1252.txt").write_bytes(f"{number} {TEXT}".encode("cp1252"))
        (root / f"{number}-crlf.txt").write_bytes(f"{number}\r\n{TEXT}".encode("utf-8-sig"))
        (root / f"{number}-unknown.xyz").write_text(f"{number} {TEXT}")
        (root / f"{number}-empty.md").touch()
        bad[f"{number}-empty.md"] = "empty file"
        (root / f"{number}-binary.dat").write_bytes(bytes(range(256)) * 4)
        bad[f"{number}-binary.dat"] = "binary file (contains NUL bytes)"
        (root / f"{number}-nul.txt").write_bytes(b"looks like text\0")
        bad[f"{number}-nul.txt"] = "binary file (contains NUL bytes)"
        (root / f"{number}-link.txt").symlink_to("/etc/hostname")
        bad[f"{number}-link.txt"] = "a link to outside the folder"
        (root / f"{number}-loop").symlink_to(f"{number}-loop")
        bad[f"{number}-loop"] = "a link that loops"
    (root / "huge.txt").touch()
    os.truncate(root / "huge.txt", 1_000_000_000)
    bad["huge.txt"] = "1,000,000,000 bytes, more than the 67,108,864 that are read"
    os.mkfifo(root / "fifo.txt")
    bad["fifo.txt"] = "a named pipe, not a regular file"
    (root / "folder-loop").symlink_to(".")
    bad["folder-loop"] = "a link that loops"
    (root / "encrypted.pdf").write_bytes(pdf(["secret"], password="x"))
    bad["encrypted.pdf"] = "encrypted PDF: save a copy without the password"
    (root / "truncated.pdf").write_bytes(pdf(["lost"])[:300])
    bad["truncated.pdf"] = "not a readable PDF"
    (root / "picture.html").write_bytes(b"\x89PNG\r\n\x1a\n\0\0\0")
    bad["picture.html"] = "binary file (contains NUL bytes)"
    (root / "koi8.txt").write_bytes("Привет, мир! Как дела?".encode("koi8-r"))
    bad["koi8.txt"] = "not text in UTF-8, UTF-16, UTF-32 or CP1252"
    (root / "page.html").write_text(f"<title>Page</title><p>{TEXT}")
    (root / "print.pdf").write_bytes(pdf(["The robot weighs 7 kg."]))
    (root / "last.txt").write_text("The last one.")
    return root, bad


def test_good_files_are_indexed_and_each_bad_one_is_reported(library, mixed):
    root, bad = mixed
    report = library.add([root])
    assert report.indexed + len(report.skipped) == len(list(root.iterdir())) == 500
    reasons = {Path(skipped.path).name: skipped.reason for skipped in report.skipped}
    assert reasons.keys() == bad.keys()
    assert all(reasons[name].startswith(reason) for name, reason in bad.items())
    assert report.documents == 49 * GOOD_KINDS + 3
    assert library.verify().ok


def test_the_same_text_in_other_encodings_is_the_same_chunk(library, mixed):
    root, _ = mixed
    report = library.add([root / f"0-{name}" for name in ("utf16.txt", "cp1252.txt", "unknown.xyz")])
    assert report.documents == 3
    (hit,) = library.search("café", k=10)
    assert hit.text == f"0 {TEXT.strip()}"


def test_unreadable_files_and_folders(open_library, ordinary_user):
    (ordinary_user / "closed").mkdir(mode=0o000)
    (ordinary_user / "secret.txt").touch(mode=0o000)
    (ordinary_user / "open.txt").write_text("Readable.")
    report = open_library(ordinary_user / "test.rag").add([ordinary_user])
    assert report.indexed == 1
    assert {Path(skipped.path).name: skipped.reason for skipped in report.skipped} == {
        "closed": "permission denied",
        "secret.txt": "permission denied",
    }


def test_nothing_but_bad_files(library, tmp_path):
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "x.bin").write_bytes(b"\0")
    report = library.add([tmp_path / "bad"])
    assert (report.indexed, report.documents, len(report.skipped)) == (0, 0, 1)
