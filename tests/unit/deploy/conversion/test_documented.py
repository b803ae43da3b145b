"""Every key in the tables of docs/converting.md is treated as they say."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from rayllm.config.legacy import Change
from rayllm.deploy.conversion.formats import Format
from rayllm.deploy.conversion.model import Draft, convert_model
from rayllm.deploy.conversion.serve import INGRESS_OPTIONS, ServeDraft, read_serve
from tests.unit.deploy.conversion.forms import Mapping

PAGE = (Path(__file__).parents[4] / "docs/converting.md").read_text()

# A value for each documented key, where a number, which most take, would be none.
VALUES: dict[str, Any] = {
    "generation": {"stopping_sequences": ["x"]},
    "generation_config.prompt_format.tools_list_in_last_user": True,
    "generation_config.prompt_format.use_hf_chat_templates": True,
    "generation_config.prompt_format.vision": True,
    "llm_engine": "VLLMEngine",
    "accelerator_type": "A100_40G",
    "engine_kwargs.speculative_model": "org/draft",
    "engine_kwargs.guided_decoding_backend": "xgrammar",
    "engine_kwargs.chat_template": "{{ messages }}",
    "engine_kwargs.default_chat_template_kwargs": {"a": 1},
    "engine_kwargs.tool_call_parser": "hermes",
    "engine_kwargs.enable_auto_tool_choice": False,
    "engine_kwargs.tool_parser_plugin": "/plugin.py",
    "engine_kwargs.reasoning_parser": "qwen3",
    "engine_kwargs.lora_modules": ["a=/a"],
    "engine_kwargs.tokenizer": "org/t",
    "engine_kwargs.revision": "v2",
    "engine_kwargs.task": "embed",
    "engine_kwargs.hf_token": "mine",
    "resources_per_bundle": {"GPU": 1},
    "accelerator_config": {"kind": "gpu"},
    "server_cls": "ray.serve.llm:LLMServer",
    "deployment_config.request_router_config.request_router_class": "x.PrefixCacheAffinityRouter",
    "callback_config": {"callback_class": "x"},
    "model_loading_config.anytensor_config": {"model_path": "s3://b/a"},
    "runtime_env.env_vars.ANYSCALE_VLLM_ENABLE_JSON_MODE": "1",
}
TEMPLATES = {"system": "{instruction}", "assistant": "{instruction}", "user": "{instruction}"}


def rows(section: str) -> Iterator[tuple[str, str, str]]:
    """Form, their key and what is said of ours."""
    text = PAGE.partition(f"\n## {section}\n")[2].partition("\n## ")[0]
    yield from re.findall(r"^\| `([\w.-]+)` \| `([^`]+)` \| (.+) \|$", text, re.MULTILINE)


def holding(path: str, value: Any) -> Mapping:
    key, _, rest = path.partition(".")
    return {key: holding(rest, value) if rest else value}


def merged(one: Mapping, other: Mapping) -> Mapping:
    both = {key: merged(one[key], other[key]) for key in one.keys() & other.keys() if isinstance(one[key], dict)}
    return {**one, **other, **both}


def model(form: str, theirs: str) -> Mapping:
    """A model of the form with their key; `key: value` says the value as well."""
    key, _, text = theirs.partition(": ")
    value = yaml.safe_load(text) if text else VALUES.get(key, 1)
    base: Mapping = {"model_loading_config": {"model_id": "m"}}
    if form == Format.RAY_SERVE_LLM:
        base["experimental_configs"] = {}
    if form == Format.EARLY and theirs != "input_modality":
        base["input_modality"] = "text"
    if "tools_list" in theirs:
        base["generation_config"] = {"prompt_format": TEMPLATES}
    if theirs.endswith("tool_parser_plugin"):
        base["engine_kwargs"] = {"tool_call_parser": "hermes"}
    if theirs.endswith("speculative_model"):
        base["engine_kwargs"] = {"num_speculative_tokens": 3}
    return merged(base, holding(key, value))


def kinds(notes: tuple[Change, ...] | list[Change], key: str) -> set[str]:
    return {note.kind for note in notes if note.key == key}


def holds(config: Any, path: str) -> bool:
    for key in path.split("."):
        if not isinstance(config, dict) or key not in config:
            return False
        config = config[key]
    return True


@pytest.mark.parametrize(("form", "theirs", "ours"), list(rows("Keys of a model")), ids=lambda text: text[:60])
def test_keys_of_a_model(form: str, theirs: str, ours: str) -> None:
    converted = convert_model(Draft(Path("old.yaml"), model(form, theirs), ()), None)
    recorded = kinds(converted.changes, theirs.partition(": ")[0])
    assert converted.form == form
    if ours.startswith("nothing"):
        assert recorded == {"not_carried"}
    else:
        assert recorded & {"renamed", "secret"}
    if ours.startswith("`"):
        carried = re.findall(r"`([\w.]+)`", ours.partition(",")[0])
        assert carried
        assert all(holds(converted.config, name) for name in carried)


def served(theirs: str) -> ServeDraft:
    value = {"ingress_cls": "x"} if theirs == "ingress_cls_config" else 2
    application = {"import_path": "ray.serve.llm:build_openai_app", "args": holding(theirs, value)}
    return read_serve(Path("serve.yaml"), {"applications": [application]}, None)


@pytest.mark.parametrize(("theirs", "ours"), [row[1:] for row in rows("`args` of a serve config")])
def test_arguments_of_a_serve_config(theirs: str, ours: str) -> None:
    draft = served(theirs)
    notes = [note for note in draft.changes.all if note.key.startswith(f"applications.0.args.{theirs}")]
    is_carried = not ours.startswith("nothing")
    assert ("renamed" if is_carried else "not_carried") in {note.kind for note in notes}
    [application] = draft.served
    if is_carried:
        assert holds({"router": application.router}, ours.strip("`"))


def test_the_tables_name_everything_that_is_listed_in_the_code() -> None:
    documented = {theirs for _, theirs, _ in rows("`args` of a serve config")}
    assert {f"ingress_deployment_config.{name}" for name in INGRESS_OPTIONS} <= documented


def test_every_format_has_a_row() -> None:
    first = PAGE.partition("\n| format | files |\n")[2].partition("\n\n")[0]
    assert re.findall(r"^\| `([\w.-]+)`", first, re.MULTILINE) == [str(each) for each in Format]
