"""Renders a serve config as a KubeRay RayService manifest. Pure: reads no cluster."""

from rayllm.deploy.kuberay.options import (
    ManifestOptions,
    parse_cache_volume,
    parse_selector,
    parse_toleration,
)
from rayllm.deploy.kuberay.ray_service import render_manifest
from rayllm.deploy.kuberay.serve_config import local_paths, open_applications, relocate_paths, required_variables

__all__ = [
    "ManifestOptions",
    "local_paths",
    "open_applications",
    "parse_cache_volume",
    "parse_selector",
    "parse_toleration",
    "relocate_paths",
    "render_manifest",
    "required_variables",
]
