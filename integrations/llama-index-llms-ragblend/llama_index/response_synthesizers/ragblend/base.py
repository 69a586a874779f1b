"""One prompt in which every node is a passage: nothing is joined, cut or searched for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llama_index.core.base.llms.types import ChatMessage, ContentBlock, MessageRole, TextBlock
from llama_index.core.base.response.schema import RESPONSE_TYPE
from llama_index.core.llms.llm import astream_chat_response_to_tokens, stream_chat_response_to_tokens
from llama_index.core.prompts import BasePromptTemplate, ChatPromptTemplate
from llama_index.core.prompts.mixin import PromptDictType
from llama_index.core.response_synthesizers.base import BaseSynthesizer
from llama_index.core.schema import NodeWithScore, QueryType
from llama_index.core.types import RESPONSE_TEXT_TYPE

from llama_index.llms.ragblend import RagBlend
from llama_index.llms.ragblend.messages import ScoredBlock
from ragblend.errors import ConfigError
from ragblend.field_types import is_finite_number

_CONTEXT_GOES_HERE = "\u241e\u241econtext\u241e\u241e"
_NODES = "ragblend_nodes"


class RagBlendSynthesizer(BaseSynthesizer):
    """Answers from nodes that stay apart. Use it with a RagBlend: ``as_query_engine(response_synthesizer=...)``.

    Each node is a passage of its own in one prompt, found in the library by its text whatever is in it
    (paragraphs, tables, the marks of other nodes). Nodes seen for the first time are computed, and
    precomputed for the next question unless the library is told to learn nothing.

    best_last: nodes stand in the order of their scores, the best one last, next to the question, where reuse
    harms it least; if one has no score, the other way round than they are given. False places them as they
    are given, for those that a postprocessor or ``RagBlendRetriever(order="document")`` has put in order.

    text_qa_template: a prompt with ``{context_str}`` and ``{query_str}``; None for the engine's own
    template, whose beginning is computed already.

    Nodes that do not fit the model's context are treated as the LLM's ``overflow`` says. Raises
    ConfigError for another LLM, a template without ``{context_str}``, or a best_last that is no truth value.
    """

    def __init__(
        self,
        llm: RagBlend,
        *,
        text_qa_template: BasePromptTemplate | None = None,
        best_last: bool = True,
        streaming: bool = False,
        **kwargs: Any,
    ) -> None:
        if not isinstance(llm, RagBlend):
            raise ConfigError(f"RagBlendSynthesizer needs llm=RagBlend(...), got {type(llm).__name__}")
        if not isinstance(best_last, bool):
            raise ConfigError(f"best_last must be true or false, got {best_last!r}")
        super().__init__(llm=llm, streaming=streaming, **kwargs)
        self._text_qa_template = text_qa_template or _engine_template(llm)
        _require_context(self._text_qa_template)
        self._best_last = best_last

    def _get_prompts(self) -> PromptDictType:
        return {"text_qa_template": self._text_qa_template}

    def _update_prompts(self, prompts_dict: PromptDictType) -> None:
        if template := prompts_dict.get("text_qa_template"):
            _require_context(template)
            self._text_qa_template = template

    def synthesize(
        self,
        query: QueryType,
        nodes: list[NodeWithScore],
        additional_source_nodes: Sequence[NodeWithScore] | None = None,
        **response_kwargs: Any,
    ) -> RESPONSE_TYPE:
        return super().synthesize(query, nodes, additional_source_nodes, **{**response_kwargs, _NODES: nodes})

    async def asynthesize(
        self,
        query: QueryType,
        nodes: list[NodeWithScore],
        additional_source_nodes: Sequence[NodeWithScore] | None = None,
        **response_kwargs: Any,
    ) -> RESPONSE_TYPE:
        return await super().asynthesize(query, nodes, additional_source_nodes, **{**response_kwargs, _NODES: nodes})

    def get_response(self, query_str: str, text_chunks: Sequence[str], **response_kwargs: Any) -> RESPONSE_TEXT_TYPE:
        messages = self._messages(query_str, text_chunks, response_kwargs)
        if self._streaming:
            return stream_chat_response_to_tokens(self._llm.stream_chat(messages))
        return self._llm.chat(messages).message.content or ""

    async def aget_response(
        self, query_str: str, text_chunks: Sequence[str], **response_kwargs: Any
    ) -> RESPONSE_TEXT_TYPE:
        messages = self._messages(query_str, text_chunks, response_kwargs)
        if self._streaming:
            return await astream_chat_response_to_tokens(await self._llm.astream_chat(messages))
        return (await self._llm.achat(messages)).message.content or ""

    def _messages(self, query_str: str, texts: Sequence[str], response_kwargs: dict[str, Any]) -> list[ChatMessage]:
        """The template's messages with a block for each node where ``{context_str}`` stands."""
        nodes: list[NodeWithScore] | None = response_kwargs.pop(_NODES, None)
        names = [n.node.ref_doc_id or n.node.node_id for n in nodes] if nodes else [""] * len(texts)
        passages = [
            ScoredBlock(title="", source=name, content=[TextBlock(text=text)], score=score)
            for name, score, text in zip(names, _scores(nodes, len(texts)), texts, strict=True)
            if text.strip()
        ]
        if self._best_last:
            passages.sort(key=lambda passage: passage.score)
        template = self._text_qa_template.partial_format(query_str=query_str, **response_kwargs)
        return [
            ChatMessage(role=message.role, blocks=_put(passages, message.content or ""))
            for message in template.format_messages(llm=self._llm, context_str=_CONTEXT_GOES_HERE)
        ]


def _scores(nodes: Sequence[NodeWithScore] | None, count: int) -> list[float]:
    """Those of the nodes; if one has none, the places from the end, for the first node is the best then."""
    scores = [node.score for node in nodes or ()]
    known = [float(score) for score in scores if is_finite_number(score)]
    return known if len(known) == count else [float(place) for place in range(count, 0, -1)]


def _put(passages: Sequence[ContentBlock], text: str) -> list[ContentBlock]:
    before, found, after = text.partition(_CONTEXT_GOES_HERE)
    parts = [TextBlock(text=before), *(passages if found else ()), TextBlock(text=after)]
    return [part for part in parts if not isinstance(part, TextBlock) or part.text]


def _engine_template(llm: RagBlend) -> ChatPromptTemplate:
    own = llm.engine.template
    question = own.question.replace("{question}", "{query_str}")
    return ChatPromptTemplate(
        [
            ChatMessage(role=MessageRole.SYSTEM, content=own.system),
            ChatMessage(role=MessageRole.USER, content=f"Documents:\n\n{{context_str}}{question}"),
        ]
    )


def _require_context(template: BasePromptTemplate) -> None:
    if "context_str" not in template.template_vars:
        raise ConfigError("the template has no {context_str}: that is where the nodes go")
