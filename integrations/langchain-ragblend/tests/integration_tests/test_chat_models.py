"""LangChain's integration suite for chat models, on the embedded model."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk
from langchain_tests.integration_tests import ChatModelIntegrationTests

from langchain_ragblend import ChatRagBlend
from ragblend import Engine, Library

pytestmark = pytest.mark.real_model

PARAGRAPH = "The warranty of the Wren 3 lasts four years from the day on which it is delivered to the customer."


@pytest.fixture(scope="module")
def embedded() -> Iterator[Library]:
    with Library.open(None, engine=Engine()) as library:
        library.precompute([PARAGRAPH])
        yield library


class TestChatRagBlend(ChatModelIntegrationTests):
    @pytest.fixture(autouse=True)
    def _library(self, embedded: Library) -> None:
        self.library = embedded

    @property
    def chat_model_class(self) -> type[BaseChatModel]:
        return ChatRagBlend

    @property
    def chat_model_params(self) -> dict[str, Any]:
        return {"library": self.library, "max_tokens": 12}

    @property
    def has_tool_calling(self) -> bool:
        return False  # the embedded model's chat template has no tools: bind_tools says so

    @property
    def has_structured_output(self) -> bool:
        return False

    @property
    def supports_model_override(self) -> bool:
        return False  # a model on this machine is loaded once

    @property
    def supported_usage_metadata_details(self) -> dict[str, list[str]]:
        details = ["cache_read_input", "cache_creation_input"]
        return {"invoke": details, "stream": details}

    def invoke_with_cache_read_input(self, *, stream: bool = False) -> AIMessage:
        message = self._ask(stream=stream)
        assert message.usage_metadata["input_token_details"]["cache_read"] > 0
        return message

    def invoke_with_cache_creation_input(self, *, stream: bool = False) -> AIMessage:
        return self._ask(stream=stream)

    def _ask(self, *, stream: bool) -> AIMessage:
        llm = ChatRagBlend(**self.chat_model_params)
        question = f"{PARAGRAPH}\n\nHow long is the warranty?"
        if not stream:
            return llm.invoke(question)
        whole = AIMessageChunk("")
        for chunk in llm.stream(question):
            whole += chunk
        return whole
