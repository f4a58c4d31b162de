"""The exposition of metrics in the formats of Prometheus, with its own client library."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

Sample = tuple[dict[str, str], float]


def gauge(name: str, meaning: str, samples: Sequence[Sample]) -> Any:
    """Return a gauge with a value for each set of labels."""
    from prometheus_client.core import GaugeMetricFamily

    return _filled(GaugeMetricFamily(name, meaning, labels=_labels(samples)), samples)


def counter(name: str, meaning: str, samples: Sequence[Sample]) -> Any:
    """Return a counter with a value for each set of labels; its name gets the ending `_total`."""
    from prometheus_client.core import CounterMetricFamily

    return _filled(CounterMetricFamily(name, meaning, labels=_labels(samples)), samples)


def exposed(families: Iterable[Any], accept: str) -> tuple[bytes, str]:
    """Return metrics as text, in the format that a request accepts, and its content type."""
    from prometheus_client import CollectorRegistry
    from prometheus_client.exposition import choose_encoder

    made = list(families)

    class Collected:
        """What was collected."""

        def collect(self) -> Iterable[Any]:
            """Return it."""
            return made

    registry = CollectorRegistry(auto_describe=False)
    registry.register(Collected())
    encode, kind = choose_encoder(accept)
    return encode(registry), kind


def _labels(samples: Sequence[Sample]) -> list[str]:
    return list(samples[0][0]) if samples else []


def _filled(family: Any, samples: Sequence[Sample]) -> Any:
    for labels, value in samples:
        family.add_metric(list(labels.values()), value)
    return family
