"""The names that the installed vLLM has, for `rayllm.config.vllm_versions`.

`python scripts/vllm_names.py` writes those of its series, as `make generate` does for the locked one; `--check` fails
where they are stale.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from pathlib import Path

from rayllm.config.vllm_versions import current_series
from rayllm.engine.vllm import moved_names
from rayllm.engine.vllm.metadata import architectures, parser_names, request_fields

DATA = Path(__file__).resolve().parent.parent / "rayllm" / "config" / "data" / "vllm"


def vllm_names() -> dict[Path, str]:
    """The file of the installed series, and its text."""
    from vllm.engine.arg_utils import AsyncEngineArgs

    arguments = {
        kind: sorted(f.name for f in dataclasses.fields(cls) if not f.name.startswith("_"))
        for kind, cls in (("engine", AsyncEngineArgs), ("server", moved_names.load("FrontendArgs")))
    }
    names = arguments | parser_names() | {"architectures": architectures(), "requests": request_fields()}
    return {DATA / f"{current_series()}.json": json.dumps(names, indent=1) + "\n"}


def main() -> int:
    os.environ["VLLM_LOGGING_LEVEL"] = "ERROR"
    for path, text in vllm_names().items():
        if "--check" not in sys.argv:
            path.write_text(text)
        elif not path.exists() or path.read_text() != text:
            print(f"stale: {path.name}")
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
