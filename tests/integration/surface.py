"""A second application: one model of every kind that the service knows, on weights made on the spot."""

from __future__ import annotations

import json
import shutil
import zipfile
from pathlib import Path
from typing import Any

import yaml

from rayllm.config import load_model
from rayllm.prompt import compile_template
from tests.integration.service import BACKENDS, DEMO, ROOT

PREFIX = "/surface"
# What ends every answer of the model `extras`, by its configuration: a text, and a token.
STOP_TEXT = "Germany"
STOP_TOKEN = " Japan"
MAX_TOKENS = 100
BARE = "{% for message in messages %}<{{ message.content }}>{% endfor %}"
PLUGIN = ROOT / "tests" / "vllm" / "tool_plugin.py"
WEIGHTS = DEMO.parent / "rayllm-demo" / "weights"


def surface_models(root: Path) -> list[dict[str, Any]]:
    """The models; their folders are made below `root`."""
    from tests.integration import models  # imports transformers

    embedder = {"is_matryoshka": True, "matryoshka_dimensions": [64, 128, 256]}
    return [
        tiny_model("extras", _with_named_templates(root / "extras"), 1024, **_extras(root)),
        tiny_model(
            "embedder", WEIGHTS, 512, task="embed", engine_kwargs={"hf_overrides": embedder}, chat_template=CHATML
        ),
        tiny_model("classifier", models.make_classifier(root / "classifier"), 512, **_classifier(root)),
        tiny_model("reranker", models.make_reranker(root / "reranker"), 512, task="score"),
        tiny_model("vision", models.make_vision(root / "vision"), 512, **VISION),
        tiny_model("whisper", models.make_whisper(root / "whisper"), None),
    ]


VISION = {
    "engine_kwargs": {
        "allowed_media_domains": ["localhost"],
        # So that a test can make the model reason.
        "structured_outputs_config": {"enable_in_reasoning": True},
    },
    "reasoning_parser": "granite",
    "tool_calling": {"parser": "hermes", "chat_template": "hermes"},
}
CHATML = (
    "{{ bos_token }}{% for message in messages %}{{ '<|im_start|>' + message.role + '\\n' + message.content }}"
    "{{ '<|im_end|>\\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


def tiny_model(name: str, folder: Path, length: int | None, **keys: Any) -> dict[str, Any]:
    """The configuration of a small model: its id, folder, context length and further keys."""
    demo = yaml.safe_load(DEMO.read_text())
    # Many engines stand side by side: none may take a gigabyte for its KV cache, of which a few blocks are used.
    engine = {"dtype": "bfloat16", "enforce_eager": True, "max_num_seqs": 8, "num_gpu_blocks_override": 64}
    engine |= keys.pop("engine_kwargs", {})
    variables = demo["runtime_env"]["env_vars"] | keys.pop("env_vars", {})
    config = {
        "model_loading_config": {"model_id": name, "model_source": str(folder.resolve())},
        "engine_kwargs": engine,
        "runtime_env": {"env_vars": variables},
        **keys,
    }
    return config | ({"max_request_context_length": length} if length else {})


def _extras(root: Path) -> dict[str, Any]:
    from transformers import AutoTokenizer

    return {
        "max_tokens": "refuse",
        "engine_kwargs": {"trust_request_chat_template": True},
        "tool_calling": {"parser": "example", "plugin": str(PLUGIN)},
        "generation_config": {
            "stopping_sequences": [STOP_TEXT],
            "stopping_tokens": AutoTokenizer.from_pretrained(WEIGHTS).encode(STOP_TOKEN, add_special_tokens=False),
            "generate_kwargs": {"max_tokens": MAX_TOKENS},
        },
        "env_vars": {
            "NIM_TRUST_CUSTOM_CODE": "1",
            "NIM_CUSTOM_GUIDED_DECODING_BACKENDS": str(_backends(root / "backends")),
            "NIM_GUIDED_DECODING_BACKEND": "by-default",
        },
    }


def _classifier(root: Path) -> dict[str, Any]:
    template = root / "bare.jinja"
    template.write_text(BARE)
    return {"task": "classify", "chat_template": str(template)}


def _with_named_templates(folder: Path) -> Path:
    """The demo's weights with two templates, as transformers keeps them: one for requests with tools."""
    shutil.copytree(WEIGHTS, folder)
    prompt_format = load_model(DEMO).generation_config.prompt_format
    assert prompt_format is not None
    config = json.loads((folder / "tokenizer_config.json").read_text())
    config["chat_template"] = [
        {"name": "default", "template": CHATML},
        {"name": "tool_use", "template": compile_template(prompt_format)},
    ]
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


def _backends(folder: Path) -> Path:
    shutil.copytree(BACKENDS, folder, ignore=shutil.ignore_patterns("__pycache__"))
    with zipfile.ZipFile(folder / "signed" / "my_dep-0.1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("my_dep/__init__.py", "def shout(text):\n    return text.upper()\n")
        wheel.writestr("my_dep-0.1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: my_dep\nVersion: 0.1.0\n")
    return folder
