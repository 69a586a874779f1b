"""What stores tell of their work as Prometheus metrics, in a registry of the caller's."""

from __future__ import annotations

import weakref

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from ragblend.errors import StoreError
from ragblend.store.base import EvictionReason, KVStore, MissCause, StoreEvents
from ragblend.store.key import digest_fields

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


class StoreMetrics:
    """One set of metrics for all libraries and namespaces of a process.

    A namespace is told apart by the first twelve digits of its digest (``namespace_label``), so that no tenant's name
    leaves the process with them. Nothing holds a word of a document, a prompt or a key.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        def counter(name: str, help: str, *labels: str) -> Counter:
            return Counter(f"ragblend_store_{name}", help, ("namespace", *labels), registry=registry)

        def histogram(name: str, help: str, *labels: str) -> Histogram:
            labelnames = ("namespace", *labels)
            return Histogram(f"ragblend_{name}_seconds", help, labelnames, registry=registry, buckets=_SECONDS)

        self.hits = counter("hits", "Entries opened.", "tier")
        self.misses = counter("misses", "Entries not served, by cause.", "tier", "cause")
        self.loaded_bytes = counter("loaded_bytes", "Bytes of chunk KV read.", "tier")
        self.evictions = counter("evictions", "Entries evicted.", "tier", "reason")
        self.evicted_bytes = counter("evicted_bytes", "Bytes evicted.", "tier", "reason")
        self.remote = counter("remote_operations", "Operations on remote tiers, by outcome.", "operation", "outcome")
        self.load = histogram("store_load", "Reading one entry.", "tier")
        self.compute = histogram("chunk_compute", "Computing the KV of one chunk that was put.")
        self.answer_load = histogram("answer_load", "Reading all chunk KV of one answer.")
        self.answer_recompute = histogram("answer_recompute", "Computing rows of one answer before its first token.")
        self.bytes = Gauge("ragblend_store_bytes", "Bytes of chunk KV held.", ("namespace", "tier"), registry=registry)

    def of(self, namespace: str) -> StoreEvents:
        """Where the stores of one namespace tell their events."""
        return _NamespaceMetrics(self, namespace_label(namespace))


def namespace_label(namespace: str) -> str:
    """How a namespace is called in metrics."""
    return digest_fields(namespace)[:12]


class _NamespaceMetrics(StoreEvents):
    def __init__(self, metrics: StoreMetrics, namespace: str) -> None:
        self._metrics = metrics
        self._namespace = namespace

    def hit(self, tier: str) -> None:
        self._metrics.hits.labels(self._namespace, tier).inc()

    def miss(self, tier: str, cause: MissCause) -> None:
        self._metrics.misses.labels(self._namespace, tier, cause).inc()

    def loaded(self, tier: str, nbytes: int, seconds: float) -> None:
        self._metrics.loaded_bytes.labels(self._namespace, tier).inc(nbytes)
        self._metrics.load.labels(self._namespace, tier).observe(seconds)

    def computed(self, seconds: float) -> None:
        self._metrics.compute.labels(self._namespace).observe(seconds)

    def answered(self, load_s: float, recompute_s: float) -> None:
        self._metrics.answer_load.labels(self._namespace).observe(load_s)
        self._metrics.answer_recompute.labels(self._namespace).observe(recompute_s)

    def evicted(self, tier: str, reason: EvictionReason, entries: int, nbytes: int) -> None:
        self._metrics.evictions.labels(self._namespace, tier, reason).inc(entries)
        self._metrics.evicted_bytes.labels(self._namespace, tier, reason).inc(nbytes)

    def remote(self, operation: str, outcome: str) -> None:
        self._metrics.remote.labels(self._namespace, operation, outcome).inc()

    def watch(self, store: KVStore) -> None:
        reference = weakref.ref(store)

        def nbytes() -> float:
            watched = reference()
            try:
                return 0.0 if watched is None else float(watched.nbytes())
            except StoreError:  # closed
                return 0.0

        self._metrics.bytes.labels(self._namespace, store.tier).set_function(nbytes)
