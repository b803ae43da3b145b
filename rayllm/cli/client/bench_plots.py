"""Plots of `rayllm bench`."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

from rayllm.errors import ConfigError

if TYPE_CHECKING:
    from rayllm.client.benchmark.report import Report

_TITLES = {"ttft": "time to first token", "itl": "inter-token latency", "e2e": "end-to-end latency"}
_BINS = 20
_ROWS = 16


def terminal_plot(report: Report) -> str:
    """Text plot of the time to first token, and of the output over time."""
    try:
        import plotext  # type: ignore[import-untyped]
    except ImportError:
        return "Install 'rayllm[bench]' to see plots here."

    figure = plotext.figure
    figure.clear()
    figure.subplots(1, 2)
    figure.plot_size(figure.size()[0], _ROWS)
    left, right = figure.subplot(1, 1), figure.subplot(1, 2)
    left.draw(left.hist(report.measures["ttft"].values, _BINS))
    right.draw(right.signal(*report.timeline()).lines())
    for panel, title, unit in ((left, "time to first token", "ms"), (right, "output tokens a second", "s")):
        panel.theme("colorless")
        panel.title(title)
        panel.label(unit)
    return str(figure.build().string()).rstrip()


def check_png() -> None:
    """Check that plots can be drawn.

    Raises:
        ConfigError: matplotlib is not installed.
    """
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise ConfigError("--png needs matplotlib.\nhint: pip install 'rayllm[plots]'") from None


def png(report: Report, title: str) -> bytes:
    """Cumulative distributions of the latencies, and the output over time, as a PNG file."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 7), layout="constrained")
    panels = figure.subplots(2, 2).flat
    for panel, (name, label) in zip(panels, _TITLES.items(), strict=False):
        _draw_distribution(panel, report.measures[name].values)
        panel.set(title=label, xlabel="ms", ylabel="% at most", ylim=(0, 100))
    panels[3].plot(*report.timeline())
    panels[3].set(title="output tokens a second", xlabel="s", ylim=(0, None))
    figure.suptitle(title)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=120)
    return buffer.getvalue()


def _draw_distribution(panel: Any, values: list[float]) -> None:
    panel.plot(values, [100 * (rank + 1) / len(values) for rank in range(len(values))])
    panel.grid(alpha=0.3)
