"""Pages of metrics in Prometheus' formats, from several processes as one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from prometheus_client import CollectorRegistry, Metric
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.registry import Collector

_END = "# EOF\n"


def wants_openmetrics(accept: str) -> bool:
    """Whether a scraper's `Accept` header asks for OpenMetrics."""
    return "application/openmetrics-text" in accept


def content_type(is_openmetrics: bool) -> str:
    """Content type of a page."""
    return openmetrics.CONTENT_TYPE_LATEST if is_openmetrics else CONTENT_TYPE_PLAIN_0_0_4


def render(registry: CollectorRegistry, labels: Mapping[str, str], is_openmetrics: bool) -> str:
    """Render one process's metrics.

    Args:
        registry: the metrics.
        labels: labels of every sample, such as the replica.
        is_openmetrics: the format.
    """
    labelled = CollectorRegistry(auto_describe=False)
    labelled.register(_Labelled(registry, labels))
    if is_openmetrics:
        # By default, it replaces the colon of vLLM's names in samples, but not in their headers.
        page: bytes = openmetrics.generate_latest(labelled, openmetrics.ALLOWUTF8)  # type: ignore[no-untyped-call]
    else:
        page = generate_latest(labelled)
    return page.decode()


def merge(pages: Iterable[str]) -> str:
    """Join pages of one format into one, with all samples of a metric together, as both formats want."""
    families: dict[str, list[str]] = {}
    is_openmetrics = False
    for page in pages:
        is_openmetrics = is_openmetrics or page.endswith(_END)
        for header, samples in _families(page.removesuffix(_END)):
            families.setdefault(header, []).append(samples)
    return "".join(header + "".join(samples) for header, samples in families.items()) + (_END if is_openmetrics else "")


def _families(page: str) -> Iterator[tuple[str, str]]:
    """The header and the samples of each metric on a page."""
    for family in page.split("# HELP ")[1:]:
        # The help, the type and, in OpenMetrics, the unit.
        end = family.index("\n") + 1
        while family.startswith("# ", end):
            end = family.index("\n", end) + 1
        yield "# HELP " + family[:end], family[end:]


class _Labelled(Collector):
    """The metrics of a registry, with more labels.

    Args:
        registry: the metrics.
        labels: the labels; those of a sample win.
    """

    def __init__(self, registry: CollectorRegistry, labels: Mapping[str, str]) -> None:
        self._registry = registry
        self._labels = labels

    def collect(self) -> Iterator[Metric]:
        for metric in self._registry.collect():
            labelled = Metric(metric.name, metric.documentation, metric.type, metric.unit)
            labelled.samples = [
                sample._replace(labels={**self._labels, **sample.labels})
                for sample in metric.samples
                # When each series began: a third of the page, and nobody asks.
                if sample.name != f"{metric.name}_created"
            ]
            yield labelled
