"""A RayService of KubeRay: what an application needs of a Kubernetes cluster, as one manifest."""

from rayllm.kuberay.cache import read_cache
from rayllm.kuberay.nodes import Nodes, read_selector, read_toleration
from rayllm.kuberay.options import Options
from rayllm.kuberay.serve_config import local_paths, moved, variables_of
from rayllm.kuberay.service import manifest

__all__ = [
    "Nodes",
    "Options",
    "local_paths",
    "manifest",
    "moved",
    "read_cache",
    "read_selector",
    "read_toleration",
    "variables_of",
]
