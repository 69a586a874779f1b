"""Metadata filters, nested ones included."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from llama_index.core.vector_stores.types import FilterCondition, MetadataFilter, MetadataFilters
from llama_index.core.vector_stores.utils import build_metadata_filter_fn


def matches(filters: MetadataFilters | None, metadata: Mapping[str, Any]) -> bool:
    """Whether ``metadata`` passes. Single filters mean what they mean to LlamaIndex's own stores."""
    if filters is None or not filters.filters:
        return True
    results = (_matches(each, metadata) for each in filters.filters)
    if filters.condition == FilterCondition.OR:
        return any(results)
    if filters.condition == FilterCondition.NOT:
        return not any(results)
    return all(results)


def _matches(each: MetadataFilter | MetadataFilters, metadata: Mapping[str, Any]) -> bool:
    if isinstance(each, MetadataFilters):
        return matches(each, metadata)
    return build_metadata_filter_fn(lambda _: metadata, MetadataFilters(filters=[each]))("")
