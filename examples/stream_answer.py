"""Stream an answer piece by piece, and cancel it before it is finished.

    python examples/stream_answer.py --pieces 8

Leaving the `with` block early, or `stream.cancel()` from any thread, frees what the request held.
"""

import argparse
import tempfile
from pathlib import Path

from ragblend import Engine, Library

DOCUMENT = Path(__file__).parent / "handbook" / "welcome.md"

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("question", nargs="?", default="Who founded Tillerby Garden Machines?")
parser.add_argument("--documents", nargs="+", type=Path, default=[DOCUMENT], help="files and folders")
parser.add_argument("--model", help="a folder, a .gguf file or a transformers id (default: the embedded model)")
parser.add_argument("--pieces", type=int, default=8, help="cancel after so many pieces of text")
options = parser.parse_args()

with tempfile.TemporaryDirectory() as folder, Library.open(folder, engine=Engine(options.model)) as library:
    library.add(options.documents)
    with library.stream(options.question) as stream:
        for count, piece in enumerate(stream, start=1):
            print(piece, end="", flush=True)
            if count == options.pieces:
                stream.cancel()

answer = stream.answer
print(f"\n\n{answer.finish_reason} after {answer.usage.completion_tokens} tokens")
print(f"first token after {answer.timings.ttft_s:.2f} s, all after {answer.timings.total_s:.2f} s")
