"""What is found below the given paths, and what is left out and why."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ragblend.errors import PathNotFoundError
from ragblend.library import layout
from ragblend.library.walk import Found, find_files


@pytest.fixture
def root(tmp_path):
    folder = tmp_path / "root"
    (folder / "b").mkdir(parents=True)
    for name in ("z.txt", "a.txt", "b/c.txt"):
        (folder / name).write_text("text")
    return folder


def names(found: Found, root: Path) -> list[str]:
    return [str(path.relative_to(root)) for path in found.files]


def reasons(found: Found, root: Path) -> dict[str, str]:
    return {str(Path(skipped.path).relative_to(root)): skipped.reason for skipped in found.skipped}


def test_files_in_a_stable_order(root):
    found = find_files([root])
    assert names(found, root) == ["a.txt", "z.txt", "b/c.txt"]
    assert (found.roots, found.skipped) == ((root,), ())


def test_each_file_once_however_it_is_named(root, monkeypatch):
    monkeypatch.chdir(root)
    found = find_files(["a.txt", root, ".", "b/../b", root / "b" / "c.txt"])
    assert sorted(names(found, root)) == ["a.txt", "b/c.txt", "z.txt"]


def test_hidden_names_are_left_out_unless_given(root):
    (root / ".git").mkdir()
    (root / ".git" / "config").write_text("x")
    (root / ".env").write_text("x")
    found = find_files([root])
    assert (names(found, root), found.skipped) == (["a.txt", "z.txt", "b/c.txt"], ())
    assert names(find_files([root / ".env"]), root) == [".env"]


def test_links(root):
    outside = root.parent / "outside"
    outside.mkdir()
    (outside / "secret.txt").write_text("secret")
    for name, target in {
        "to-file": "../outside/secret.txt",
        "to-folder": "../outside",
        "inside": "b/c.txt",
        "up": "b/..",
        "self": "self",
        "nowhere": "gone.txt",
    }.items():
        (root / name).symlink_to(target)
    found = find_files([root])
    assert names(found, root) == ["a.txt", "z.txt", "b/c.txt"]
    assert reasons(found, root) == {
        "to-file": "a link to outside the folder",
        "to-folder": "a link to outside the folder",
        "inside": "a link to b/c.txt, which is looked at under its own name",
        "up": "a link that loops",
        "self": "a link that loops",
        "nowhere": "a link to nothing",
    }


def test_a_link_that_is_given_is_followed(root):
    link = root.parent / "link"
    link.symlink_to(root)
    assert find_files([link]).roots == (root,)


def test_libraries_are_left_out(root):
    library = root / "b" / "my.rag"
    library.mkdir()
    (library / layout.CATALOGUE).touch()
    (library / "notes.txt").write_text("x")
    found = find_files([root])
    assert (names(found, root), found.skipped) == (["a.txt", "z.txt", "b/c.txt"], ())


def test_a_library_that_is_given_is_refused(root):
    (root / layout.CATALOGUE).touch()
    found = find_files([root])
    assert (found.files, reasons(found, root)) == ((), {".": "a ragblend library"})


def test_names_that_are_no_text(root):
    bad = Path(os.fsdecode(os.fsencode(root) + b"/bad\xff.txt"))
    bad.write_text("x")
    for given in (root, bad):
        assert reasons(find_files([given]), root) == {"bad\ufffd.txt": "its name is not valid UTF-8"}


def test_missing_paths_are_refused_before_anything_else(root):
    with pytest.raises(PathNotFoundError, match=r"no such file or folder: .*gone.*, .*away; nothing was indexed"):
        find_files([root, root / "gone", root / "away"])


def test_paths_that_cannot_be_paths():
    with pytest.raises(PathNotFoundError, match="no usable path"):
        find_files(["nul\0"])


class TestWithoutPermission:
    """As an ordinary user: root may read everything."""

    @pytest.fixture
    def root(self, ordinary_user):
        folder = ordinary_user / "root"
        folder.mkdir()
        (folder / "a.txt").write_text("text")
        return folder

    def test_a_closed_folder_is_reported(self, root):
        closed = root / "closed"
        closed.mkdir(mode=0o000)
        assert reasons(find_files([root]), root) == {"closed": "permission denied"}

    def test_a_folder_that_may_only_be_listed(self, root):
        listed = root / "listed"
        listed.mkdir()
        (listed / "b.txt").write_text("text")
        listed.chmod(0o444)
        try:
            assert root / "a.txt" in find_files([root]).files
        finally:
            listed.chmod(0o755)

    def test_a_path_behind_a_closed_folder(self, root):
        closed = root / "closed"
        closed.mkdir(mode=0o000)
        with pytest.raises(PathNotFoundError):
            find_files([closed / "a.txt"])
