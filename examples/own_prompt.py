"""Blend a prompt of your own, without a library: your texts, your order, your words in between.

    python examples/own_prompt.py

Each text is prefilled once and kept in memory. Two questions then use both, in opposite orders.
"""

import argparse

from ragblend import Engine, GenerationSettings, MemoryStore, Prompt, Segment

NOTES = {
    "Anna's note": "The key to the boathouse hangs behind the blue door. The rowing boat needs new oars.",
    "Bela's note": "The gardener comes on Thursday at nine. Please leave the gate open for him.",
}
QUESTIONS = ("When does the gardener come?", "Where is the key to the boathouse?")

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--model", help="a folder, a .gguf file or a transformers id (default: the embedded model)")
parser.add_argument("--max-tokens", type=int, default=32, help="longest answer")
options = parser.parse_args()

engine = Engine(options.model)
template = engine.template
texts = [template.chunk_ids(title, "", text) for title, text in NOTES.items()]
chunks = [Segment("chunk", ids, engine.chunk_key("notes", ids)) for ids in texts]

store = MemoryStore(budget_bytes=100_000_000)
for chunk, kv in zip(chunks, engine.prefill(texts), strict=True):
    store.put(chunk.key, kv)

glue = Segment("glue", tuple(template.text_ids("The next note was found beside it.\n\n")))
for question, (first, second) in zip(QUESTIONS, (chunks, chunks[::-1]), strict=True):
    prefix, suffix = template.build([], question).segments
    prompt = Prompt((prefix, first, glue, second, suffix))
    answer = engine.generate(prompt, store=store, generation=GenerationSettings(options.max_tokens))
    print(f"{question}\n{answer.text}")
    print(f"{answer.usage.cached_tokens} tokens reused, {answer.usage.computed_tokens} computed\n")
