"""Tables in YAML and JSON that come with a package."""

import json
from functools import cache
from importlib.resources import files
from typing import Any

import yaml


@cache
def read_data(package: str, name: str) -> Any:
    """The parsed file `name`, .yaml or .json, in the folder `data` of a package."""
    text = files(package).joinpath("data", name).read_text(encoding="utf-8")
    return yaml.safe_load(text) if name.endswith(".yaml") else json.loads(text)
