"""Several processes and threads, full disks, and kill -9."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ragblend.config import GenerationSettings
from ragblend.errors import LibraryBusyError, LibraryError, StoreFullError
from ragblend.library import layout, lock
from ragblend.library.lock import writing

SHORT = GenerationSettings(max_tokens=2)
ROOT = Path(__file__).parents[2]
# Operations on files and SQL statements in which a third of sixty documents are indexed.
MOMENTS = 1500


def write_documents(folder: Path, count: int, paragraphs: int = 4) -> None:
    folder.mkdir(exist_ok=True)
    for number in range(count):
        lines = [f"Document {number}, part {part}: the robot mows lawn {number * part}." for part in range(paragraphs)]
        (folder / f"{number:03}.txt").write_text("\n\n".join(lines))


class TestOneWriter:
    def test_a_second_one_is_refused(self, library, docs, monkeypatch):
        monkeypatch.setattr(lock, "BUSY_TIMEOUT_S", 0.1)
        with writing(library.folder / layout.WRITER_LOCK):
            for write in (lambda: library.add([docs]), lambda: library.remove([docs]), library.gc, library.repair):
                with pytest.raises(
                    LibraryBusyError, match=rf"process {os.getpid()} on \S+ \(since [\d:]+\) is writing"
                ):
                    write()
        with writing(library.folder / layout.WRITER_LOCK):
            (library.folder / "writer.holder").write_bytes(b"\xff{")
            with pytest.raises(LibraryBusyError, match="another process is writing; try again when it has finished"):
                library.gc()
        assert not (library.folder / "writer.holder").exists()
        assert library.add([docs]).indexed == 3

    def test_a_second_one_waits_for_a_short_time(self, open_library, docs):
        folders = [docs.parent / f"docs-{number}" for number in range(4)]
        for folder in folders:
            shutil.copytree(docs, folder)
        open_library()
        with ThreadPoolExecutor(4) as pool:
            reports = list(pool.map(lambda folder: open_library().add([folder]), folders))
        assert [report.indexed for report in reports] == [3] * 4
        library = open_library()
        assert library.info().documents == 12
        assert len(library.store.entries()) == 3
        assert library.verify().ok

    def test_the_lock_dies_with_its_holder(self, library, docs):
        script = f"""
import sys, time
from ragblend.library.lock import writing
from pathlib import Path
with writing(Path({str(library.folder / layout.WRITER_LOCK)!r})):
    print("held", flush=True)
    time.sleep(60)
"""
        with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as holder:
            assert holder.stdout.readline() == "held\n"
            holder.kill()
        assert library.add([docs]).indexed == 3


class TestQuestionsDuringChanges:
    @pytest.mark.parametrize(("versions", "questions"), [(12, 20), pytest.param(100, 100, marks=pytest.mark.long)])
    def test_each_answer_uses_one_version(self, open_library, tmp_path, versions, questions):
        """A document of three chunks is replaced and removed again and again while it is asked about."""
        path = tmp_path / "story.txt"

        def write(version: int) -> None:
            path.write_text("\n\n".join(f"Version {version} part {part} " + "of the story " * 7 for part in range(3)))

        library = open_library()
        write(0)
        library.add([path])
        done = threading.Event()

        def change() -> None:
            writer = open_library()
            for version in range(1, versions):
                if version % 4 == 0:
                    writer.remove([path])
                write(version)
                writer.add([path])
            done.set()

        def ask() -> int:
            asked = 0
            while not (done.is_set() and asked > 3):
                try:
                    answer = library.ask("version of the story", k=3, generation=SHORT)
                except LibraryError:  # nothing is indexed at this moment
                    continue
                assert len({source.text.split(" part")[0] for source in answer.sources}) == 1
                assert len(answer.sources) == 3
                asked += 1
            return asked

        with ThreadPoolExecutor(5) as pool:
            changing = pool.submit(change)
            asking = [pool.submit(ask) for _ in range(4)]
            changing.result()
            assert sum(asked.result() for asked in asking) > questions
        assert library.search("story", k=1)[0].text.startswith(f"Version {versions - 1} ")
        assert library.verify().ok
        assert library.verify().orphans == ()

    def test_after_remove_returns_nothing_is_left(self, open_library, docs):
        reader, writer = open_library(), open_library()
        writer.add([docs])
        reader.search("battery")
        writer.remove([docs / "battery.md"])
        assert "battery.md" not in {Path(hit.document).name for hit in reader.search("battery", k=10)}
        writer.remove([docs])
        assert writer.info().kv_bytes == 0
        assert list(writer.folder.glob("kv/**/*.safetensors")) == []


class TestFullDisk:
    @pytest.fixture
    def small_disk(self, tmp_path):
        """A real filesystem of 2 MB, where mounting one is allowed."""
        folder = tmp_path / "small"
        folder.mkdir()
        mount = ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(folder)]
        if shutil.which("mount") is None or subprocess.run(mount, capture_output=True, check=False).returncode:
            pytest.skip("mounting a filesystem is not allowed here")
        yield folder
        subprocess.run(["umount", "--lazy", str(folder)], check=True)

    def test_finished_documents_stay_and_the_rest_resumes(self, open_library, small_disk, tmp_path, watched):
        write_documents(tmp_path / "docs", 30)
        library = open_library(small_disk / "test.rag", engine=watched)
        (small_disk / "filler").write_bytes(bytes(1_200_000))
        with pytest.raises(StoreFullError, match="free some space and run the command again"):
            library.add([tmp_path / "docs"])
        finished = library.info().documents
        assert library.verify().ok
        if finished:
            assert library.search("robot")
        stored = {entry.key for entry in library.store.entries()}
        assert 0 < len(stored) < 60

        (small_disk / "filler").unlink()
        for path in sorted((tmp_path / "docs").iterdir())[12:]:
            path.unlink()
        watched.prefilled.clear()
        report = library.add([tmp_path / "docs"])
        assert report.unchanged == finished
        assert report.documents == 12
        assert not stored & {watched.chunk_key("default", ids) for ids in watched.prefilled}
        assert library.verify().ok


class TestKilled:
    def test_at_any_moment(self, open_library, tmp_path, watched):
        self.kill(6, open_library, tmp_path, watched)

    @pytest.mark.long
    def test_at_two_hundred_moments(self, open_library, tmp_path, watched):
        self.kill(200, open_library, tmp_path, watched)

    def kill(self, times: int, open_library, tmp_path, watched) -> None:
        """Index in a process that is killed, look at what it left, and index again."""
        write_documents(tmp_path / "docs", 60)
        chance = random.Random(0)
        folder = tmp_path / "test.rag"
        command = [sys.executable, "-W", "error", "-m", "tests.library.killed_indexer"]
        acknowledged = tmp_path / "acknowledged"
        command += [str(folder), str(tmp_path / "docs"), str(acknowledged)]
        with subprocess.Popen(command, stdin=-1, stdout=-1, text=True, cwd=ROOT) as parent:
            for number in range(times):
                parent.stdin.write(f"{chance.randrange(MOMENTS)}\n")
                parent.stdin.flush()
                assert parent.stdout.readline() == "gone\n"
                if number % 20 == 19:  # a run that is through has nothing left to be killed at
                    for path in sorted((tmp_path / "docs").iterdir()):
                        path.write_text(f"{path.read_text()} Version {number}.")
                    acknowledged.unlink(missing_ok=True)
                self.check(open_library, folder, acknowledged)
            parent.stdin.close()

        library = open_library(folder, engine=watched)
        finished = library.info().documents
        stored = {entry.key for entry in library.store.entries()}
        report = library.add([tmp_path / "docs"])
        assert (report.documents, report.unchanged + report.replaced, report.indexed) == (60, finished, 60 - finished)
        assert not stored & {watched.chunk_key("default", ids) for ids in watched.prefilled}
        assert library.verify().ok
        library.gc()
        assert library.verify().orphans == ()

    @staticmethod
    def check(open_library, folder: Path, acknowledged: Path) -> None:
        """What was acknowledged is there and whole; what is not finished is not to be seen."""
        done = set(acknowledged.read_text().split()) if acknowledged.exists() else set()
        if not (folder / layout.CATALOGUE).exists():
            assert not done
            return
        with open_library(folder) as library:
            report = library.verify()
            assert (report.missing, report.damaged) == ((), ())
            documents = {path for (path,) in library.catalogue.rows("SELECT path FROM documents")}
            assert documents >= done
            if documents:
                assert library.search("robot", k=3)
