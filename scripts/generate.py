"""Write what is generated: `generate.py` writes, `generate.py --check` fails where a file is stale."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path

from cli_page import reference as cli_reference
from config_pages import batch_reference, model_schema, reference
from dashboards import dashboards
from documentation import llms_txt
from error_codes import reference as error_reference
from figures import readme_figures
from manifests import manifests
from manual_page import manual
from openapi import description, http_page, openapi_json
from python_api import reference as python_reference
from vllm_names import vllm_names

from rayllm.serving.cluster.metrics import Series
from rayllm.serving.replica.metrics import SERIES as REPLICA_SERIES
from rayllm.serving.router.application import DESCRIPTION_FILE as DESCRIPTION
from rayllm.serving.router.telemetry.metrics import SERIES as ROUTER_SERIES
from rayllm.serving.wire.states import STEPS

ROOT = Path(__file__).resolve().parent.parent
DATA = ROOT / "rayllm" / "config" / "data"
ARCHITECTURE = ROOT / "docs" / "architecture.md"
BATCH = ROOT / "docs" / "batch.md"
# Names as NVML gives them, without "NVIDIA".
NVIDIA_GPUS = (
    "A10",
    "A30",
    "A40",
    "A800-SXM4-80GB",
    "L20",
    "L40",
    "H800",
    "GH200 480GB",
    "GB10",
    "RTX 6000 Ada Generation",
)
NVIDIA_GPUS += ("RTX A6000", "GeForce RTX 3090", "GeForce RTX 4090", "GeForce RTX 5090")
OBSERVABILITY = ROOT / "docs" / "observability.md"
README = ROOT / "README.md"


def configuration_schema() -> str:
    """JSON Schema of a model's YAML."""
    return json.dumps(model_schema(), indent=1, ensure_ascii=False) + "\n"


def batch_page() -> str:
    """docs/batch.md with the keys of the configuration."""
    return with_table(BATCH, "keys", batch_reference())


def observability_page() -> str:
    """docs/observability.md with the series of routers and replicas."""
    page = OBSERVABILITY.read_text()
    for name, series in (("routers", ROUTER_SERIES), ("replicas", REPLICA_SERIES)):
        page = with_table(OBSERVABILITY, name, _series_table(series), page)
    return page


def _series_table(series: tuple[Series, ...]) -> str:
    rows = [f"| `{each.name}` | {each.kind} | {', '.join(each.labels)} | {each.help} |" for each in series]
    return "\n".join(["| Series | Kind | Labels | Meaning |", "| --- | --- | --- | --- |", *rows]) + "\n"


def architecture_page() -> str:
    """docs/architecture.md with the steps of an exchange."""
    rows = [f"| {before.name} | {after.name} | {who} |" for (before, after), who in STEPS.items()]
    table = ["| from | to | who makes the step, and when |", "| --- | --- | --- |", *rows]
    return with_table(ARCHITECTURE, "steps", "\n".join(table) + "\n")


def readme() -> str:
    """README.md with the figures of other pages."""
    return with_table(README, "figures", readme_figures())


def with_table(path: Path, name: str, table: str, page: str | None = None) -> str:
    """A page with the table between its marks.

    Args:
        path: the page's file.
        name: of the marks.
        table: the table.
        page: the page's text; None reads the file.
    """
    marked = re.compile(rf"(<!-- {name} -->\n).*?(<!-- /{name} -->)", re.DOTALL)
    page, times = marked.subn(lambda marks: marks[1] + table + marks[2], page or path.read_text())
    if times != 1:
        raise SystemExit(f"{path.relative_to(ROOT)} must have the marks <!-- {name} --> and <!-- /{name} --> once.")
    return page


def http_pages() -> dict[Path, str]:
    """The OpenAPI description, and the page of its fields."""
    described = description()
    return {DESCRIPTION: openapi_json(described), ROOT / "docs" / "http-reference.md": http_page(described)}


def ray_accelerators() -> str:
    """Accelerator names of the pinned Ray: its constants, and what it makes of NVIDIA's names."""
    from ray._private.accelerators.nvidia_gpu import NvidiaGPUAcceleratorManager
    from ray.util.accelerators import accelerators

    names = [v for k, v in vars(accelerators).items() if not k.startswith("_") and isinstance(v, str)]
    names += [NvidiaGPUAcceleratorManager._gpu_name_to_accelerator_type(f"NVIDIA {name}") for name in NVIDIA_GPUS]
    return json.dumps(list(dict.fromkeys(names)), indent=1) + "\n"


def main() -> int:
    os.environ["VLLM_LOGGING_LEVEL"] = "ERROR"
    made = {
        DATA / "ray_accelerators.json": ray_accelerators,
        ROOT / "docs" / "cli.md": cli_reference,
        ROOT / "rayllm" / "cli" / "rayllm.1": manual,
        ROOT / "docs" / "configuration.md": reference,
        ROOT / "docs" / "model.schema.json": configuration_schema,
        ARCHITECTURE: architecture_page,
        BATCH: batch_page,
        OBSERVABILITY: observability_page,
        README: readme,
        ROOT / "docs" / "errors.md": error_reference,
        ROOT / "docs" / "python-api.md": python_reference,
    }
    texts = {path: make() for path, make in made.items()}
    stale = stale_files({**texts, **http_pages(), **vllm_names(), **manifests(), **dashboards()})
    # It quotes the pages.
    stale += stale_files({ROOT / "docs" / "llms.txt": llms_txt()})
    for path in stale:
        print(f"{'stale' if '--check' in sys.argv else 'written'}: {path.relative_to(ROOT)}")
    return 1 if stale and "--check" in sys.argv else 0


def stale_files(texts: dict[Path, str]) -> list[Path]:
    """The files that have another text, which is written unless they are only checked."""
    stale = []
    for path, text in texts.items():
        if not path.exists() or path.read_text() != text:
            stale.append(path)
            if "--check" not in sys.argv:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text)
    return stale


if __name__ == "__main__":
    sys.exit(main())
