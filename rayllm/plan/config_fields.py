"""Validated access to the numbers of a config.json, and the sizes of the data types in one."""

from collections.abc import Mapping
from typing import Any

from rayllm.core.errors import ConfigError

# The parts within each other, the outermost first: Qwen's models of speech have one more, and drafts in the format of
# the speculators library another.
_PARTS = ("thinker_config", "text_config", "transformer_layer_config")

# A plan lists every layer, so their number is bounded, far above that of any model.
_MOST = dict.fromkeys(("num_hidden_layers", "num_nextn_predict_layers", "mtp_num_hidden_layers"), 10_000)

_DTYPE_BYTES = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2}


def text_part(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The part of a config.json that describes the decoder of text: the whole file if it has no parts."""
    for name in _PARTS:
        part = config.get(name)
        if part and isinstance(part, Mapping):
            config = part
    return config


def dtype_bytes(dtype: str) -> int:
    """Bytes per element of a type such as `bfloat16`; raises ConfigError for an unknown type."""
    name = dtype.removeprefix("torch.")
    if name not in _DTYPE_BYTES:
        raise ConfigError(f"dtype: `{dtype}` is not supported; known are {', '.join(_DTYPE_BYTES)}.")
    return _DTYPE_BYTES[name]


def missing(name: str) -> ConfigError:
    """The error for a key that the model's size depends on."""
    return ConfigError(f"config.json: {name} is missing, so the model's size cannot be computed.")


class Fields:
    """The values of a config.json; `spellings` are the keys of the model's family, by their usual name."""

    def __init__(self, values: Mapping[str, Any], spellings: Mapping[str, str] | None = None) -> None:
        self.values = values
        self._spellings = spellings or {}

    def optional(self, name: str) -> int | None:
        """The number at a key; None if the key is missing. Raises ConfigError for any other value."""
        name, most = self._spellings.get(name, name), _MOST.get(name)
        value = self.values.get(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise ConfigError(f"config.json: {name}: {value!r} is no non-negative integer.")
        if most is not None and value > most:
            raise ConfigError(f"config.json: {name}: {value} is more than the {most:,} that a model may have.")
        return value

    def required(self, name: str) -> int:
        """The positive number at a key that the model's size depends on; raises ConfigError without."""
        value = self.optional(name)
        if not value:
            raise missing(self._spellings.get(name, name))
        return value

    def layer_types(self, key: str = "layer_types") -> list[str] | None:
        """The type of each layer; None if the configuration does not list the types at `key`."""
        types = self.values.get(key)
        if not isinstance(types, list | str) or not types:
            return None
        count = self.optional("num_hidden_layers")
        if count is not None and len(types) != count:
            raise ConfigError(f"config.json: {key} has {len(types)} entries for {count} layers.")
        return [str(kind) for kind in types]

    def attention(self) -> tuple[int, int]:
        """Number of key-value heads, and the size of a head."""
        heads = self.required("num_attention_heads")
        return self.optional("num_key_value_heads") or heads, self.optional("head_dim") or self.head_size()

    def head_size(self, hiddens: int = 1) -> int:
        """The default size of a head: heads share what attention reads, which is `hiddens` hidden sizes."""
        hidden, heads = self.required("hidden_size"), self.required("num_attention_heads")
        if hiddens * hidden < heads:
            raise ConfigError(
                f"config.json: num_attention_heads: {heads} heads cannot share a hidden_size of {hidden}."
            )
        return hiddens * hidden // heads
