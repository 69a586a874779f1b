"""Ask one question under several policies: time to the first token, tokens computed, and the answer.

    python examples/compare_policies.py
    python examples/compare_policies.py --policies full,none,query --ratio 0.1

One run on one question: `ragblend bench` measures with repeats.
"""

import argparse
import tempfile
from pathlib import Path

from ragblend import Engine, GenerationSettings, Library

DOCUMENTS = [Path(__file__).parent / "handbook" / name for name in ("warranty.md", "models.md", "welcome.md")]

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("question", nargs="?", default="How long does the warranty of the Wren 3 last?")
parser.add_argument("--documents", nargs="+", type=Path, default=DOCUMENTS, help="files and folders")
parser.add_argument("--model", help="a folder, a .gguf file or a transformers id (default: the embedded model)")
parser.add_argument("--policies", default="full,none,hkvd,query", help="separated by commas")
parser.add_argument("--ratio", type=float, default=0.15, help="share of the reused tokens to recompute, 0 to 1")
parser.add_argument("--max-tokens", type=int, default=32, help="longest answer")
options = parser.parse_args()
generation = GenerationSettings(max_tokens=options.max_tokens)

with tempfile.TemporaryDirectory() as folder, Library.open(folder, engine=Engine(options.model)) as library:
    library.add(options.documents)
    library.ask(options.question, generation=generation)  # the first request also warms up
    print("policy    first token  computed tokens  answer")
    for policy in options.policies.split(","):
        answer = library.ask(options.question, policy=policy, ratio=options.ratio, generation=generation)
        computed = f"{answer.usage.computed_tokens:,} of {answer.usage.prompt_tokens:,}"
        print(f"{policy:9} {answer.timings.ttft_s:9.3f} s  {computed:>15}  {' '.join(answer.text.split())}")
