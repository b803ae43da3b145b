"""Files that come with RayLLM: the demo model with its adapters, its serve config, and the catalog of model files."""

from pathlib import Path

from rayllm.core.errors import ConfigError

_DEMO = Path("serve_configs", "demo.yaml")


def bundled_folder(package: Path = Path(__file__).parents[1]) -> Path:
    """The folder with `models` and `serve_configs`: `rayllm/data` of a wheel, or a clone's root. Raises ConfigError."""
    candidates = (package / "data", package.parent)
    for folder in candidates:
        if (folder / _DEMO).is_file():
            return folder
    raise ConfigError(f"no {_DEMO} in {' or '.join(map(str, candidates))}: reinstall RayLLM.")


def demo_file() -> Path:
    """The serve config of the demo; raises as `bundled_folder`."""
    return bundled_folder() / _DEMO
