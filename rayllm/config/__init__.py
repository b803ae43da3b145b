"""What the service is, in frozen words: schemas, and the loading of YAML into them."""

from rayllm.config.app import AppConfig, CorsConfig, RouterConfig
from rayllm.config.load import load_app, load_model, load_serve_file, model_from
from rayllm.config.model import GenerationConfig, ModelConfig
from rayllm.config.source import BucketSource, HubSource, LocalSource, Source

__all__ = [
    "AppConfig",
    "BucketSource",
    "CorsConfig",
    "GenerationConfig",
    "HubSource",
    "LocalSource",
    "ModelConfig",
    "RouterConfig",
    "Source",
    "load_app",
    "load_model",
    "load_serve_file",
    "model_from",
]
