"""Conversations and plain prompts over a library: what is reused, what it says, and what it refuses."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch

from ragblend.config import GenerationSettings, ReuseSettings
from ragblend.errors import ConfigError, ContextOverflowError, LibraryError, StoreError
from ragblend.library.library import Library
from ragblend.library.texts import TextDocument
from ragblend.prompt import Message, Passage
from tests import tiny

ROOT = Path(__file__).parents[2]
SHORT = GenerationSettings(max_tokens=4)
WARRANTY = "The warranty of the robot lasts two years."
BATTERY = "The battery of the robot is charged in ninety minutes."
BLADES = "Blades are changed every spring by the gardener."
TEXTS = (WARRANTY, BATTERY, BLADES)


def user(*content: str | Passage) -> list[Message]:
    return [Message("user", content)]


def stuffed(*texts: str) -> list[Message]:
    """What a chain makes of documents that it joins into one string."""
    context = "\n\n".join(texts)
    return user(f"Context information is below.\n-----\n{context}\n-----\nAnswer the query.\nQuery: which?\nAnswer: ")


def ask(library: Library, messages: list[Message], **options):
    return library.chat(messages, generation=SHORT, **options).complete()


@pytest.fixture
def known(library) -> Library:
    library.precompute(TEXTS)
    return library


class TestFinding:
    def test_known_texts_in_any_order_and_number(self, known):
        for texts in (TEXTS, TEXTS[::-1], (BATTERY, BATTERY)):
            answer = ask(known, stuffed(*texts))
            assert (answer.hits, answer.misses) == (len(texts), 0)
            assert answer.matched_tokens == sum(map(len, texts)) <= answer.usage.cached_tokens
            assert [source.text for source in answer.sources] == list(texts)

    def test_the_prompt_is_what_the_chat_template_makes_of_it(self, known, engine):
        messages = [Message("system", ("Be brief.",)), *stuffed(*TEXTS)]
        turns = [{"role": message.role, "content": "".join(message.content)} for message in messages]
        expected = engine.tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
        answer = ask(known, messages, policy="full")
        ids = torch.tensor([engine.template.control_ids(expected)])
        assert answer.usage.prompt_tokens == ids.shape[1]
        reference = tiny.family("llama", 0, max_position_embeddings=4096, num_hidden_layers=2)
        made = reference.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=4, do_sample=False)
        assert answer.token_ids == tuple(made[0, ids.shape[1] :].tolist())

    @pytest.mark.parametrize("policy", ["query", "hkvd"])
    def test_at_ratio_one_the_answer_is_full_prefill_s(self, known, policy):
        messages = stuffed(BATTERY, WARRANTY, BLADES)
        assert ask(known, messages, policy=policy, ratio=1.0).token_ids == ask(known, messages, policy="full").token_ids

    def test_policies_that_do_not_reuse_still_say_what_was_known(self, known):
        full, prefix = (ask(known, stuffed(*TEXTS), policy=policy) for policy in ("full", "prefix"))
        for answer in (full, prefix):
            assert answer.hits == 0
            assert answer.matched_tokens == sum(map(len, TEXTS)) > answer.usage.cached_tokens

    def test_in_every_message(self, known):
        messages = [
            Message("system", (f"Answer from this:\n\n{BATTERY}",)),
            Message("user", (f"Is this true? {WARRANTY}",)),
            Message("assistant", (f"Yes: {WARRANTY}",)),
            Message("user", ("And the blades?", f"\n{BLADES}\n")),
        ]
        assert ask(known, messages).hits == 4

    def test_indexed_chunks_as_they_stand_in_prompts(self, library, docs):
        library.add([docs])
        [hit] = library.search("warranty", k=1)
        rendered = f"[{hit.source.title}]\n{hit.text}\n\n"
        answer = ask(library, user(f"Documents:\n\n{rendered}Question: how long?"))
        assert answer.sources[0].document == hit.document
        assert answer.hits == 1
        assert ask(library, user(f"Documents:\n\n{hit.text}\n\nQuestion: how long?")).hits == 0

    def test_texts_that_a_program_gave_under_ids(self, library):
        library.texts.add([TextDocument("one", f" {WARRANTY}\n")])
        assert ask(library, stuffed(WARRANTY)).hits == 1
        library.texts.add([TextDocument("one", BATTERY)])
        assert (ask(library, stuffed(WARRANTY)).hits, ask(library, stuffed(BATTERY)).hits) == (0, 1)

    def test_right_behind_the_whole_anchor_it_is_exact(self, open_library, make_engine):
        """A conversation that begins as the library's own prompts do needs no recomputing at all."""
        library = open_library(engine=make_engine(preamble=""))
        library.precompute(TEXTS)
        system = library.engine.template.system
        messages = [Message("system", (system,)), Message("user", (f"Documents:\n\n{WARRANTY}\n\nHi",))]
        answer = ask(library, messages, ratio=1.0)
        assert answer.usage.cached_tokens == len(library.engine.anchor_ids) + len(WARRANTY)
        assert answer.usage.recomputed_tokens == 0

    def test_can_be_switched_off(self, known, open_library):
        library = open_library(reuse=ReuseSettings(find=False))
        answer = ask(library, [*stuffed(*TEXTS)])
        assert (answer.hits, answer.matched_tokens) == (0, 0)
        assert ask(library, user(Passage(WARRANTY), "How long?")).hits == 1

    def test_follows_another_process(self, open_library, known):
        texts = [f"{WARRANTY} Edition {number}." for number in range(3)]
        assert ask(known, stuffed(*texts)).hits == 3  # each contains the first edition
        script = f"""
from tests.library import conftest
from ragblend.library.library import Library
with Library.open({str(known.folder)!r}, engine=conftest.tiny_engine()) as library:
    print(library.precompute({texts!r}).computed, library.forget([{BATTERY!r}]))
"""
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=ROOT)
        assert done.stdout == "3 1\n"
        answer = ask(known, stuffed(BATTERY, *texts))
        assert [source.text for source in answer.sources] == texts

    def test_a_damaged_entry_is_computed(self, known):
        for path in known.folder.glob("kv/**/*.safetensors"):
            path.write_bytes(path.read_bytes()[:-1])
        answer = ask(known, stuffed(WARRANTY, BATTERY))
        assert (answer.hits, answer.misses, answer.matched_tokens) == (0, 2, 0)
        assert answer.token_ids == ask(known, stuffed(WARRANTY, BATTERY), policy="full").token_ids

    def test_most_of_a_shuffled_context_is_reused(self, library):
        chance = random.Random(0)
        words = [
            "robot",
            "mower",
            "battery",
            "warranty",
            "blade",
            "station",
            "garden",
            "slope",
            "rain",
            "sensor",
            "cable",
            "signal",
        ]
        texts = [" ".join(chance.choices(words, k=30)).capitalize() + "." for _ in range(12)]
        library.precompute(texts)
        for _ in range(5):
            context = chance.sample(texts, k=6)
            answer = ask(library, stuffed(*context))
            assert answer.matched_tokens / sum(map(len, context)) == 1.0
            assert answer.matched_tokens / answer.usage.prompt_tokens > 0.8


class TestPassages:
    def test_are_chunks_and_sources(self, known):
        passages = [Passage(WARRANTY, document="a.md", chunk=3, score=0.5), Passage(BLADES, title="Blades")]
        answer = ask(known, user("Documents:", *passages, "Question: which?"))
        assert [(s.document, s.chunk, s.score, s.title, s.text) for s in answer.sources] == [
            ("a.md", 3, 0.5, "", WARRANTY),
            ("", 0, 0.0, "Blades", BLADES),
        ]
        assert (answer.hits, answer.misses) == (2, 0)

    def test_stand_apart_from_the_text_around_them(self, known, engine):
        stream = known.chat(user("Documents:", Passage(WARRANTY), Passage(BLADES, "Blades"), "Which?"))
        text = engine.tokenizer.decode(stream._prompt.token_ids)
        assert f"Documents:\n\n{WARRANTY}\n\n[Blades]\n{BLADES}\n\nWhich?" in text

    def test_hit_what_was_indexed_with_their_title(self, library, docs):
        library.add([docs])
        [hit] = library.search("warranty", k=1)
        answer = ask(library, user(Passage(hit.text, title=hit.source.title), "How long?"))
        assert (answer.hits, answer.misses) == (1, 0)

    def test_that_are_not_known_are_computed(self, library):
        answer = ask(library, user(Passage(WARRANTY), Passage(BLADES, "Blades"), "How long?"))
        assert (answer.hits, answer.misses, answer.matched_tokens) == (0, 2, 0)
        assert answer.usage.computed_tokens > len(WARRANTY) + len(BLADES)
        assert len(answer.sources) == 2


class TestComplete:
    def test_reuses_known_texts_in_plain_text(self, known, engine):
        prompt = f"{WARRANTY}\n\n{BATTERY}\n\nQuestion: how long is the warranty?\nAnswer:"
        answer = known.complete(prompt, generation=SHORT).complete()
        assert (answer.hits, answer.usage.prompt_tokens) == (2, len(prompt))
        full = known.complete(prompt, generation=SHORT, policy="full").complete()
        ids = torch.tensor([engine.template.text_ids(prompt)])
        reference = tiny.family("llama", 0, max_position_embeddings=4096, num_hidden_layers=2)
        made = reference.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=4, do_sample=False)
        assert full.token_ids == tuple(made[0, ids.shape[1] :].tolist())

    def test_a_prompt_that_ends_with_a_known_text(self, known):
        for prompt, hits in ((f"{WARRANTY}\n\n{BATTERY}", 1), (WARRANTY, 0), (f"{WARRANTY}\n{BATTERY}\n", 2)):
            answer = known.complete(prompt, generation=SHORT).complete()
            assert (answer.hits, answer.usage.prompt_tokens) == (hits, len(prompt))
            assert answer.token_ids

    def test_control_tokens_stay_text(self, known):
        prompt = f"<|end|>\n<|start|>system\n{WARRANTY}<|end|>"
        assert known.complete(prompt, generation=SHORT).complete().usage.prompt_tokens == len(prompt)

    @pytest.mark.parametrize(("prompt", "reason"), [("", "empty"), (" \n", "empty"), (b"x", "must be a string")])
    def test_bad_prompts(self, library, prompt, reason):
        with pytest.raises(ConfigError, match=reason):
            library.complete(prompt)


class TestRefusals:
    def test_tools_that_the_model_would_not_see(self, library, engine):
        assert not engine.supports_tools
        with pytest.raises(ConfigError, match="no place for tools"):
            library.chat(user("Hi"), tools=[{"type": "function", "function": {"name": "search"}}])

    def test_settings(self, known):
        for wrong, message in (
            ({"ratio": 2.0}, "ratio"),
            ({"policy": "magic"}, "magic"),
            ({"overflow": "x"}, "overflow"),
        ):
            with pytest.raises(ConfigError, match=message):
                known.chat(user("Hi"), **wrong)

    def test_without_a_model(self, known):
        with Library.open(known.folder) as library:
            for use in (lambda: library.chat(user("Hi")), lambda: library.complete("Hi")):
                with pytest.raises(LibraryError, match="opened without a model"):
                    use()

    def test_too_much_for_the_context(self, library):
        passages = [Passage(f"{WARRANTY} Edition {n}. " + "It covers all parts. " * 5, score=-n) for n in range(200)]
        with pytest.raises(ContextOverflowError, match=r"the prompt has \d\d,\d+ tokens .* context is 4,096"):
            library.chat(user(*passages, "How long?"), generation=SHORT)
        answer = ask(library, user(*passages, "How long?"), overflow="drop")
        assert len(answer.sources) + len(answer.dropped) == 200
        assert min(source.score for source in answer.sources) > max(source.score for source in answer.dropped)

    def test_dropped_texts_are_reported(self, library):
        texts = [f"{WARRANTY} Edition {number}. " + "It covers all parts. " * 60 for number in range(4)]
        library.precompute(texts)
        answer = ask(library, stuffed(*(text.strip() for text in texts)), overflow="drop")
        assert [source.text for source in answer.dropped] == [texts[3].strip()]
        assert answer.hits == 3

    def test_text_that_is_not_known_cannot_be_dropped(self, library):
        with pytest.raises(ContextOverflowError) as caught:
            library.chat(user("What? " * 1000), generation=SHORT, overflow="drop")
        assert caught.value.prompt_tokens > caught.value.limit == 4096


class TestClosing:
    def test_ends_running_streams_with_an_error(self, known):
        stream = known.chat(stuffed(*TEXTS), generation=GenerationSettings(max_tokens=500))
        next(stream)
        known.close()
        with pytest.raises(LibraryError, match="the library was closed while it answered"):
            list(stream)
        with pytest.raises(ConfigError, match="not finished"):
            _ = stream.answer

    def test_ends_a_stream_that_another_thread_reads(self, known):
        began, errors = threading.Event(), []

        def read():
            try:
                for _ in known.chat(stuffed(*TEXTS), generation=GenerationSettings(max_tokens=2000)):
                    began.set()
            except LibraryError as error:
                errors.append(str(error))

        thread = threading.Thread(target=read)
        thread.start()
        assert began.wait(30)
        known.close()
        thread.join(30)
        assert errors == ["the library was closed while it answered"]

    @pytest.mark.parametrize("policy", ["query", "full"])
    def test_refuses_streams_that_have_not_begun(self, known, policy):
        stream = known.chat(stuffed(*TEXTS), policy=policy)
        known.close()
        with pytest.raises(LibraryError, match="the library was closed before it answered"):
            next(stream)

    def test_leaving_a_stream_afterwards_is_quiet(self, known):
        with known.chat(stuffed(*TEXTS), generation=GenerationSettings(max_tokens=500)) as stream:
            next(stream)
            known.close()
        assert stream.answer.finish_reason == "cancelled"

    def test_refuses_what_comes_later(self, known):
        known.close()
        for use in (lambda: known.chat(user("Hi")), lambda: known.precompute([WARRANTY])):
            with pytest.raises(StoreError):
                use()


def test_several_conversations_at_once(known):
    prompts = [stuffed(*random.Random(number).sample(TEXTS, k=2)) for number in range(8)]
    expected = [ask(known, prompt).token_ids for prompt in prompts]
    found: dict[int, tuple[int, ...]] = {}

    def run(number: int) -> None:
        found[number] = ask(known, prompts[number]).token_ids

    threads = [threading.Thread(target=run, args=(number,)) for number in range(len(prompts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [found[number] for number in range(len(prompts))] == expected


class TestTemporaryLibrary:
    def test_is_private_and_gone_after_closing(self, open_library):
        with open_library(None) as library:
            library.precompute(TEXTS)
            assert ask(library, stuffed(*TEXTS)).hits == 3
            assert library.folder.stat().st_mode & 0o777 == 0o700
        assert not library.folder.exists()

    def test_is_gone_when_it_is_freed_or_the_program_ends(self):
        script = """
import gc
from tests.library import conftest
from ragblend.library.library import Library
engine = conftest.tiny_engine()
freed, ended = Library.open(None, engine=engine), Library.open(None, engine=engine)
folders = freed.folder, ended.folder
del freed
gc.collect()
print(*folders, folders[0].exists(), folders[1].exists())
"""
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=ROOT)
        freed, ended, *there = done.stdout.split()
        assert there == ["False", "True"]
        assert not Path(freed).exists()
        assert not Path(ended).exists()

    def test_cannot_be_read_only(self):
        with pytest.raises(ConfigError, match="cannot be read-only"):
            Library.open(None, read_only=True)
