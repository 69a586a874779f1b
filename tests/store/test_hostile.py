"""The files in ``hostile/``, which whoever writes another reader may try on it, are refused as misses."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from ragblend.store.disk import DiskStore, Entry
from tests.store.make_hostile import FOLDER, HOSTILE, KEY, SOUND

STALE = ("another-key", "another-version")


def put_in_place(disk: DiskStore, content: bytes) -> Path:
    path = disk.folder / KEY[:2] / f"{KEY}.safetensors"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    disk.record([Entry(KEY, 2, len(content))])
    return path


def test_the_sound_one_is_served(disk):
    put_in_place(disk, SOUND)
    assert disk.check(KEY) is None


@pytest.mark.parametrize("name", HOSTILE)
def test_it_is_a_miss_and_set_aside(disk, name):
    content = (FOLDER / f"{name}.safetensors").read_bytes()
    path = put_in_place(disk, content)
    cause = "stale" if name in STALE else "corrupt"
    assert disk.check(KEY) == cause
    reader = disk.open(KEY, (1, 2))
    if reader is None:
        assert disk.misses == {cause: 1}
    else:  # the header is sound, a layer is not
        reader.close()
        disk.discard(KEY, cause)
    assert not path.exists()
    assert [aside.read_bytes() for aside in disk.quarantined()] == [content]
    assert not disk.contains(KEY)


def test_the_folder_holds_what_the_script_makes():
    assert sorted(path.stem for path in FOLDER.iterdir()) == sorted(HOSTILE)
    for name, content in HOSTILE.items():
        assert (FOLDER / f"{name}.safetensors").read_bytes() == content


def test_safetensors_files_of_others_are_refused(disk, tmp_path):
    import torch
    from safetensors.torch import save_file

    save_file({"weight": torch.ones(2, 2)}, tmp_path / "model.safetensors")
    path = put_in_place(disk, b"")
    shutil.copy(tmp_path / "model.safetensors", path)
    assert disk.check(KEY) == "corrupt"
