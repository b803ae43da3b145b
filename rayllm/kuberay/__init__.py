"""Renders a serve config as a KubeRay RayService manifest. Pure: reads no cluster."""

from rayllm.kuberay.cache_volume import parse_cache_volume
from rayllm.kuberay.node_selection import NodeSelection, parse_selector, parse_toleration
from rayllm.kuberay.options import ManifestOptions
from rayllm.kuberay.ray_service import render_manifest
from rayllm.kuberay.serve_config import local_paths, open_applications, relocate_paths, required_variables

__all__ = [
    "ManifestOptions",
    "NodeSelection",
    "local_paths",
    "open_applications",
    "parse_cache_volume",
    "parse_selector",
    "parse_toleration",
    "relocate_paths",
    "render_manifest",
    "required_variables",
]
