"""A prompt in the model's own form is the conversation that it stands for; other text never becomes one."""

from __future__ import annotations

from pathlib import Path

from ragblend import GenerationSettings, Library, Message

SHORT = GenerationSettings(max_tokens=6)
TEXT = "A text that is long enough to be known once it has been precomputed by somebody."
WRITTEN = f"<|start|>system\nBe kind.<|end|>\n<|start|>user\n{TEXT} Why?<|end|>\n<|start|>assistant\n"


def test_control_tokens_are_parsed_for_those_who_ask_for_it(tiny_engine, tmp_path: Path) -> None:
    with Library.open(tmp_path / "library", engine=tiny_engine) as library:
        library.precompute([TEXT])
        said = [Message("system", ("Be kind.",)), Message("user", (f"{TEXT} Why?",))]
        chat = library.chat(said, generation=SHORT).complete()
        own = library.complete(WRITTEN, control_tokens=True, generation=SHORT).complete()
        plain = library.complete(WRITTEN, generation=SHORT).complete()
    assert own.token_ids == chat.token_ids
    assert own.usage.prompt_tokens == chat.usage.prompt_tokens
    assert own.hits == plain.hits == 1
    assert plain.usage.prompt_tokens > own.usage.prompt_tokens
