"""What the tests share: tiny random models (bytes as tokens), embeddings that count words, texts."""

from __future__ import annotations

import hashlib
import re

from llama_index.core.base.embeddings.base import BaseEmbedding, Embedding

import tiny
from ragblend import Engine

# The form in which Qwen2.5's own template shows tools, calls and results.
TOOL_TEMPLATE = """\
{%- if tools %}<|start|>system
You may call functions. They are, as JSON:
<tools>{% for tool in tools %}
{{ tool | tojson }}{% endfor %}
</tools>
For a call, return <tool_call>
{"name": <name>, "arguments": <arguments as JSON>}
</tool_call><|end|>
{% endif %}{% for m in messages %}{% if m.role == 'tool' %}<|start|>user
<tool_response>
{{ m.content }}
</tool_response><|end|>
{% else %}<|start|>{{ m.role }}
{{ m.content }}{% for call in m.tool_calls or [] %}
<tool_call>
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}
</tool_call>{% endfor %}<|end|>
{% endif %}{% endfor %}{% if add_generation_prompt %}<|start|>assistant
{% endif %}"""

TEXTS = [
    "The Heron mower cuts grass up to nine centimetres high. Its blades are changed with a key of size ten.",
    "The warranty of the Heron lasts six years. It covers the motor, the battery and every part of the deck.",
    "A Wren is the small robot of the family. It climbs slopes of twenty degrees and sleeps in its dock at night.",
    "The data centre of Tillerby keeps all pictures for thirty days. Nobody reads them, and they are then deleted.",
    "Orders are sent within two days. What was ordered by mistake may come back within a month, postage paid.",
    "Error E14 means that the wheel is blocked. Switch the robot off before you take the stone out of the wheel.",
]


class WordEmbedding(BaseEmbedding):
    """Texts are near when they share words."""

    def _get_text_embedding(self, text: str) -> Embedding:
        vector = [1e-4] * 256
        for word in re.findall(r"\w+", text.lower()):
            vector[int(hashlib.sha256(word.encode()).hexdigest()[:8], 16) % 256] += 1.0
        return vector

    def _get_query_embedding(self, query: str) -> Embedding:
        return self._get_text_embedding(query)

    async def _aget_query_embedding(self, query: str) -> Embedding:
        return self._get_text_embedding(query)


def make_engine(chat_template: str | None = tiny.CHAT_TEMPLATE, seed: int = 0, **options: str) -> Engine:
    """A random llama with one token a byte and a long context."""
    model = tiny.family("llama", seed, max_position_embeddings=32768, num_hidden_layers=2)
    return Engine.from_model(model, tiny.tokenizer(chat_template), name=f"tiny-{seed}", **options)
