"""YAML that refuses duplicate keys, of which PyYAML silently takes the last."""

import sys
from pathlib import Path
from typing import Any

import yaml

from rayllm.core.errors import ConfigError


class _UniqueKeyLoader(yaml.SafeLoader):
    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: dict[Any, int] = {}
        for key_node, _ in node.value:
            if key_node.tag == "tag:yaml.org,2002:merge":
                continue
            key = self.construct_object(key_node, deep=True)
            line = key_node.start_mark.line + 1
            if not isinstance(key, str | int | float | bool | None):
                raise yaml.constructor.ConstructorError(None, None, "a key must be a plain word", key_node.start_mark)
            if key in seen:
                raise _DuplicateKeyError(key, seen[key], line)
            seen[key] = line
        return super().construct_mapping(node, deep)


class _DuplicateKeyError(Exception):
    def __init__(self, key: object, first: int, second: int) -> None:
        super().__init__(f"`{key}` is given twice, in lines {first} and {second}; keep one")


def parse_yaml(text: str, name: str, many: bool = False) -> Any:
    """Parse YAML text, called `name` in errors; with `many`, all of its documents, as a list.

    Raises ConfigError if the text is not valid YAML, or a mapping has a duplicate key.
    """
    try:
        return list(yaml.load_all(text, _UniqueKeyLoader)) if many else yaml.load(text, _UniqueKeyLoader)
    except _DuplicateKeyError as error:
        raise ConfigError(f"{name}: {error}.") from None
    except yaml.YAMLError as error:
        mark, problem = getattr(error, "problem_mark", None), str(getattr(error, "problem", None) or error)
        fault = f"line {mark.line + 1}, column {mark.column + 1}: {problem}" if mark else " ".join(problem.split())
        raise ConfigError(f"{name}: not valid YAML: {fault}.") from None


def read_yaml(path: Path, many: bool = False) -> Any:
    """Parse the YAML file at `path` as `parse_yaml`; raises ConfigError also if the file cannot be read."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}.") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: is not UTF-8 text.") from None
    return parse_yaml(text, str(path), many)


def dump_yaml(value: Any, literal: bool = False) -> str:
    """Dump as YAML, with multi-line strings escaped on one line, as prompt formats are, or as literal blocks."""
    dumper = _LiteralDumper if literal else _Dumper
    return yaml.dump(value, Dumper=dumper, sort_keys=False, allow_unicode=True, width=sys.maxsize)


class _Dumper(yaml.SafeDumper):
    """Dumper with block style, lists indented below their key, and no anchors."""

    multiline = '"'

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        return super().increase_indent(flow, indentless=False)

    def ignore_aliases(self, data: Any) -> bool:
        return True

    def represent_text(self, text: str) -> yaml.ScalarNode:
        return self.represent_scalar("tag:yaml.org,2002:str", text, style=self.multiline if "\n" in text else None)


class _LiteralDumper(_Dumper):
    multiline = "|"


_Dumper.add_representer(str, _Dumper.represent_text)
