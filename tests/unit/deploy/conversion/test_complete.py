"""Nothing that a form has is unknown here: its keys are those of the sources that define them."""

from __future__ import annotations

import ast
from pathlib import Path

import ray
from ray.serve._private.config import DeploymentConfig as ServeDeploymentConfig
from ray.serve.schema import RayActorOptionsSchema, ServeDeploySchema

from rayllm.config import ModelConfig
from rayllm.config.engine_arguments import OWNED
from rayllm.config.scaling import ActorOptions, DeploymentConfig
from rayllm.deploy.conversion import serve
from rayllm.deploy.conversion.convert import PARAGRAPHS
from rayllm.deploy.conversion.formats import RAY_SERVE_LLM_KEYS
from rayllm.deploy.conversion.keys import deployment, engine_arguments


def fields_of(module: str, name: str) -> set[str]:
    """Public fields of a class of Ray's, read from its source: importing it would import vLLM."""
    tree = ast.parse((Path(ray.__file__).parent / module).read_text())
    [found] = [node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == name]
    names = [
        node.target.id for node in found.body if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    ]
    return {name for name in names if not name.startswith("_")}


def test_keys_of_ray_serve_llm_are_ours_or_told() -> None:
    theirs = fields_of("llm/_internal/serve/core/configs/llm_config.py", "LLMConfig")
    assert theirs <= ModelConfig.model_fields.keys() | RAY_SERVE_LLM_KEYS
    # Its first releases had this one.
    assert RAY_SERVE_LLM_KEYS - theirs == {"resources_per_bundle"}


def test_arguments_of_its_application_are_ours_or_told() -> None:
    theirs = fields_of("llm/_internal/serve/core/ingress/builder.py", "LLMServingArgs")
    assert theirs == {"llm_configs", "ingress_cls_config", "ingress_deployment_config"}


def test_loading_and_lora_keys_of_ray_serve_llm_are_ours() -> None:
    module = "llm/_internal/serve/core/configs/llm_config.py"
    for name, key in (("ModelLoadingConfig", "model_loading_config"), ("LoraConfig", "lora_config")):
        ours = ModelConfig.model_json_schema()["$defs"][name]["properties"]
        assert fields_of(module, name) <= ours.keys(), key


def test_options_of_ray_serve_that_are_not_ours_have_a_reason() -> None:
    internal = {"is_cross_language", "deployment_language", "user_configured_option_names", "request_router_config"}
    theirs = ServeDeploymentConfig.model_fields.keys() - internal - DeploymentConfig.model_fields.keys()
    of_actors = RayActorOptionsSchema.model_fields.keys() - ActorOptions.model_fields.keys()
    known = deployment.NOT_CARRIED.keys()
    assert theirs <= known
    assert {f"ray_actor_options.{name}" for name in of_actors} - known == {
        # It moves to the top; the others have no more to say than that they are not there.
        "ray_actor_options.accelerator_type",
        "ray_actor_options.fallback_strategy",
        "ray_actor_options.label_selector",
    }


def test_keys_of_a_serve_config_are_ray_serves() -> None:
    assert ServeDeploySchema.model_fields.keys() == serve.SERVE_KEYS


def test_arguments_that_rayllm_owns_have_a_way() -> None:
    ways = engine_arguments.MOVED.keys() | engine_arguments.DROPPED.keys()
    # What `ray.serve.llm` does not take either, the schema refuses.
    assert OWNED.keys() - ways == {"model", "served_model_name"}


def test_every_key_of_a_model_has_its_paragraph() -> None:
    keys = [key for paragraph in PARAGRAPHS for key in paragraph]
    assert sorted(keys) == sorted(ModelConfig.model_fields)
