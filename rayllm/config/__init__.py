"""The configuration: frozen schemas, and the loading of YAML. Process: any."""

from rayllm.config.app import AppConfig, BatchesConfig, RouterConfig
from rayllm.config.load import load_app, load_model, load_serve_file, model_from, named_model, yaml_files
from rayllm.config.model import GenerationConfig, ModelConfig
from rayllm.config.policy import GuardConfig, HookConfig, OidcConfig
from rayllm.config.source import AwsCredentials, BucketSource, ExtraFile, HubSource, LocalSource, Source

__all__ = [
    "AppConfig",
    "AwsCredentials",
    "BatchesConfig",
    "BucketSource",
    "ExtraFile",
    "GenerationConfig",
    "GuardConfig",
    "HookConfig",
    "HubSource",
    "LocalSource",
    "ModelConfig",
    "OidcConfig",
    "RouterConfig",
    "Source",
    "load_app",
    "load_model",
    "load_serve_file",
    "model_from",
    "named_model",
    "yaml_files",
]
