"""Progress of models that start, as lines on the terminal."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import click

_PERIOD_S = 0.5
# Between two lines about one download.
_DOWNLOAD_S = 10.0
_PHASES = {"fetch": "fetching its weights", "load": "starting its engine", "warm_up": "warming up"}


@contextmanager
def start_display(application: str) -> Iterator[None]:
    """Show each phase of the starts of an application's models for the duration of the block.

    Args:
        application: its name, in the connected cluster.
    """
    stopped = threading.Event()
    thread = threading.Thread(target=_show, args=(application, stopped), daemon=True)
    thread.start()
    try:
        yield
    finally:
        stopped.set()
        thread.join()


def _show(application: str, stopped: threading.Event) -> None:
    from ray.exceptions import RayError

    from rayllm.serving.cluster.state.start_progress import starts_of

    shown: dict[str, tuple[str, int]] = {}
    while not stopped.wait(_PERIOD_S):
        try:
            found = starts_of(application)
        except (RayError, RuntimeError, ConnectionError):
            # It is progress only: what is wrong shows elsewhere.
            continue
        for model_id, start in found.items():
            periods = int(start.elapsed_s / _DOWNLOAD_S) if start.size else 0
            if shown.get(model_id) != (start.phase, periods):
                shown[model_id] = (start.phase, periods)
                click.echo(f"{model_id}: {_PHASES.get(start.phase, start.phase)}{start.share}", err=True)
