"""Pages of metrics in Prometheus' formats, and their merge for several processes."""

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from prometheus_client import CollectorRegistry, Metric, disable_created_metrics
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.samples import Sample
from prometheus_client.utils import floatToGoString

_END = "# EOF\n"


def wants_openmetrics(accept: str) -> bool:
    """Whether a scraper's `Accept` header asks for OpenMetrics."""
    return "application/openmetrics-text" in accept


def content_type(is_openmetrics: bool) -> str:
    """Content type of a page."""
    return openmetrics.CONTENT_TYPE_LATEST if is_openmetrics else CONTENT_TYPE_PLAIN_0_0_4


class Renderer:
    """Renders one process's metrics, with `labels` beside each sample's own, which win.

    Prometheus' client writes each sample's name and labels once; later pages only have new values. With thousands of
    series, that is most of the work.
    """

    def __init__(self, registry: CollectorRegistry, labels: Mapping[str, str]) -> None:
        # When each series began: a third of the page, and unused.
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self._registry = registry
        self._labels = labels
        self._written: dict[bool, dict[tuple[str, ...], tuple[str, str]]] = {False: {}, True: {}}

    def page(self, is_openmetrics: bool) -> str:
        """The page in OpenMetrics, or in Prometheus' text."""
        written = self._written[is_openmetrics]
        lines: list[str] = []
        values: dict[float, str] = {}
        for metric in self._registry.collect():
            header = ""
            for sample in metric.samples:
                key = (sample.name, *sample.labels.values())
                if (texts := written.get(key)) is None:
                    texts = written[key] = self._write(metric, sample, is_openmetrics)
                if (value := values.get(sample.value)) is None:
                    value = values[sample.value] = f" {floatToGoString(sample.value)}\n"  # type: ignore[no-untyped-call]
                if not header:
                    header = texts[0]
                    lines.append(header)
                lines.append(texts[1] + value)
        if len(written) > 2 * len(lines):
            # Most are of series that are gone.
            written.clear()
        return "".join(lines) + (_END if is_openmetrics else "")

    def _write(self, metric: Metric, sample: Sample, is_openmetrics: bool) -> tuple[str, str]:
        """The header of a metric, and a sample's line up to its value."""
        one = Metric(metric.name, metric.documentation, metric.type, metric.unit)
        one.samples = [sample._replace(labels={**self._labels, **sample.labels}, value=0, exemplar=None)]
        if is_openmetrics:
            # By default, it replaces the colon of vLLM's names in samples, but not in their headers.
            page: bytes = openmetrics.generate_latest(_Just(one), openmetrics.ALLOWUTF8)  # type: ignore[no-untyped-call]
        else:
            page = generate_latest(_Just(one))
        header, end, line = page.decode().removesuffix(_END).removesuffix("\n").rpartition("\n")
        return header + end, line.rpartition(" ")[0]


class _Just(NamedTuple):
    """A registry of one metric."""

    metric: Metric

    def collect(self) -> Iterator[Metric]:
        yield self.metric


def merge(pages: Iterable[str]) -> str:
    """Join pages of one format, with all samples of a metric together, as both formats require."""
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
