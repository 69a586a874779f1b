"""A long system prompt and ten questions: what the prefix cache does to the time to the first token.

    python examples/prefix_cache.py

The second library is another one on the same folder, as after a restart of the process: what the first one
kept is read from the disk. Policy `full` computes everything, and is what the others are compared with.
"""

import argparse
import statistics
import tempfile
from pathlib import Path

from ragblend import Engine, GenerationSettings, Library, Message

HANDBOOK = Path(__file__).parent / "handbook"
QUESTIONS = [
    "How long does the warranty last?",
    "How do I clean the blades?",
    "What does error code E04 mean?",
    "How is the battery charged?",
    "Where is the company?",
    "Which models are there?",
    "How do I return an order?",
    "What does the app store about me?",
    "How often is service due?",
    "Who may repair the mower?",
]

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--model", help="a folder, a .gguf file or a transformers id (default: the embedded model)")
parser.add_argument("--tokens", type=int, default=3000, help="length of the system prompt")
parser.add_argument("--questions", type=int, default=len(QUESTIONS), help="how many questions to ask, at least 2")
options = parser.parse_args()


def long_system_prompt(engine: Engine) -> str:
    """As many of the handbook's lines as make up the tokens that were asked for."""
    lines: list[str] = []
    left = options.tokens
    for line in (line for path in sorted(HANDBOOK.glob("*.md")) for line in path.read_text().splitlines()):
        left -= engine.count_tokens(line + "\n")
        if left < 0:
            break
        lines.append(line)
    return "\n".join(lines)


def ask(library: Library, system: str, policy: str) -> list:
    """The answers to all questions, each as a conversation of its own."""
    asked = QUESTIONS[: options.questions]
    one = GenerationSettings(max_tokens=1)
    return [
        library.chat(
            [Message("system", (system,)), Message("user", (question,))], policy=policy, generation=one
        ).complete()
        for question in asked
    ]


def median_ttft(answers: list) -> float:
    """Of the second answer on."""
    return statistics.median(answer.timings.ttft_s for answer in answers[1:])


with tempfile.TemporaryDirectory() as folder:
    engine = Engine(options.model)
    system = long_system_prompt(engine)
    with Library.open(folder, engine=engine) as library:
        without = ask(library, system, "full")
        kept = ask(library, system, "query")
    with Library.open(folder, engine=Engine(options.model)) as library:
        restarted = ask(library, system, "query")
        saved = library.prefixes.statistics().total

print("question  without the cache   with it  after a restart  tokens reused")
for number, rows in enumerate(zip(without, kept, restarted, strict=True), start=1):
    full_s, kept_s, restarted_s = (answer.timings.ttft_s for answer in rows)
    print(f"{number:8}  {full_s:15.3f} s  {kept_s:6.3f} s  {restarted_s:13.3f} s  {rows[1].prefix_tokens:13,}")
full_s, kept_s, restarted_s = map(median_ttft, (without, kept, restarted))
print(f"\nmedian from the second question on: {full_s:.3f} s without the cache, {kept_s:.3f} s with it ", end="")
print(f"({full_s / kept_s:.1f}x), {restarted_s:.3f} s after a restart ({full_s / restarted_s:.1f}x)")
print(f"{saved.read_tokens:,} of {saved.prompt_tokens:,} prompt tokens were read")
