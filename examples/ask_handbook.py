"""Index the example handbook (or your own documents) and ask one question.

    python examples/ask_handbook.py
    python examples/ask_handbook.py "Is it waterproof?" --documents manuals/ --library manuals.rag

The first run fills handbook.rag in the working folder (660 MB, about a minute on two cores). Later
runs find every document unchanged and compute only the answer.
"""

import argparse
from pathlib import Path

from ragblend import Engine, GenerationSettings, Library

HANDBOOK = Path(__file__).parent / "handbook"

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("question", nargs="?", default="How long does the warranty of the Wren 3 last?")
parser.add_argument("--documents", nargs="+", type=Path, default=[HANDBOOK], help="files and folders")
parser.add_argument("--library", default="handbook.rag", help="the library's folder")
parser.add_argument("--model", help="a folder, a .gguf file or a transformers id (default: the embedded model)")
parser.add_argument("-k", type=int, default=6, help="how many chunks to answer from")
parser.add_argument("--max-tokens", type=int, default=48, help="longest answer")
options = parser.parse_args()

with Library.open(options.library, engine=Engine(options.model)) as library:
    report = library.add(options.documents)
    print(f"documents: {report.documents}, chunks: {report.chunks}, tokens: {report.tokens:,}")
    answer = library.ask(options.question, options.k, generation=GenerationSettings(options.max_tokens))

print(f"\n{options.question}\n{answer.text}\n")
for source in answer.sources:
    print(f"{source.score:.2f}  {Path(source.document).name}, chunk {source.chunk}: {source.heading}")
print(f"\n{answer.usage}\n{answer.timings}")
