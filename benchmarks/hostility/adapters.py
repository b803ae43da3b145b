"""Adapters that are forged from a good one: those that must never answer, and any that Hypothesis makes."""

from __future__ import annotations

import itertools
import json
import shutil
import struct
from collections.abc import Callable
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn

from benchmarks.hostility.corpus import JSON, TEXTS, make_request
from benchmarks.hostility.judge import Judge
from rayllm.core.endpoints import COMPLETIONS

_CONFIG, _WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
_BASE = "base_model.model."
_BYTES = {"F64": 8, "F32": 4, "I32": 4, "F16": 2, "BF16": 2, "U8": 1}


@dataclass
class Tensor:
    """A tensor in a safetensors file."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes

    def resized(self, *shape: int, dtype: str | None = None) -> Tensor:
        """A tensor of another shape, or of another type, with the same bytes as far as they go."""
        dtype = dtype or self.dtype
        size = prod(shape) * _BYTES[dtype]
        return Tensor(dtype, shape, self.data[:size].ljust(size, b"\0"))


@dataclass
class Adapter:
    """An adapter's configuration, its tensors and, once it is written, the bytes of its file."""

    config: dict[str, Any]
    tensors: dict[str, Tensor]
    change_file: Callable[[bytes], bytes] = bytes

    @classmethod
    def read(cls, folder: Path) -> Adapter:
        """Read the adapter in a folder."""
        raw = (folder / _WEIGHTS).read_bytes()
        end = 8 + struct.unpack("<Q", raw[:8])[0]
        header = json.loads(raw[8:end])
        header.pop("__metadata__", None)
        tensors = {}
        for name, entry in header.items():
            first, last = entry["data_offsets"]
            tensors[name] = Tensor(entry["dtype"], tuple(entry["shape"]), raw[end + first : end + last])
        return cls(json.loads((folder / _CONFIG).read_text()), tensors)

    def write(self, folder: Path) -> None:
        """Write the adapter into a folder of its own."""
        folder.mkdir(parents=True)
        (folder / _CONFIG).write_text(json.dumps(self.config))
        header, data = {}, b""
        for name, tensor in self.tensors.items():
            offsets = [len(data), len(data) + len(tensor.data)]
            header[name] = {"dtype": tensor.dtype, "shape": tensor.shape, "data_offsets": offsets}
            data += tensor.data
        raw = json.dumps(header).encode()
        (folder / _WEIGHTS).write_bytes(self.change_file(struct.pack("<Q", len(raw)) + raw + data))


Forgery = Callable[[Adapter], None]


def _config(**values: Any) -> Forgery:
    return lambda adapter: adapter.config.update(values)


def _without(key: str) -> Forgery:
    return lambda adapter: adapter.config.pop(key)


def _rename(old: str, new: str) -> Forgery:
    """Rename what all names have, or what some have."""

    def forge(adapter: Adapter) -> None:
        adapter.tensors = {name.replace(old, new, 1): tensor for name, tensor in adapter.tensors.items()}

    return forge


def _also(suffix: str, *shape: int) -> Forgery:
    """A tensor besides."""
    tensor = Tensor("F32", shape, bytes(4 * prod(shape)))
    return lambda adapter: adapter.tensors.update({_BASE + suffix: tensor})


def also_pair(module: str, into: int, out: int, prefix: str = _BASE) -> Forgery:
    """A module besides."""

    def forge(adapter: Adapter) -> None:
        rank = adapter.config["r"]
        adapter.tensors[f"{prefix}{module}.lora_A.weight"] = Tensor("F32", (rank, into), bytes(4 * rank * into))
        adapter.tensors[f"{prefix}{module}.lora_B.weight"] = Tensor("F32", (out, rank), bytes(4 * rank * out))

    return forge


def _change(ends: str, change: Callable[[Tensor], Tensor]) -> Forgery:
    """Change each tensor whose name has an ending."""

    def forge(adapter: Adapter) -> None:
        adapter.tensors |= {name: change(each) for name, each in adapter.tensors.items() if name.endswith(ends)}

    return forge


def _file(change: Callable[[bytes], bytes]) -> Forgery:
    def forge(adapter: Adapter) -> None:
        adapter.change_file = change

    return forge


def _rank(factor: float) -> Forgery:
    """Tensors of another rank than the configuration says."""

    def forge(adapter: Adapter) -> None:
        _change("lora_A.weight", lambda a: a.resized(int(a.shape[0] * factor), a.shape[1]))(adapter)
        _change("lora_B.weight", lambda b: b.resized(b.shape[0], int(b.shape[1] * factor)))(adapter)

    return forge


def _overlap(raw: bytes) -> bytes:
    """A header by which a tensor lies on another's bytes."""
    end = 8 + struct.unpack("<Q", raw[:8])[0]
    header = json.loads(raw[8:end])
    first, second = (f"{_BASE}model.layers.{layer}.self_attn.q_proj.lora_A.weight" for layer in (0, 1))
    header[second] = header[first]
    changed = json.dumps(header).encode()
    return struct.pack("<Q", len(changed)) + changed + raw[end:]


_Q = "model.layers.0.self_attn.q_proj"
FORGERIES: dict[str, tuple[Forgery, str]] = {
    "pissa": (_config(init_lora_weights="pissa"), "init_lora_weights"),
    "pissa-niter": (_config(init_lora_weights="pissa_niter_16"), "init_lora_weights"),
    "olora": (_config(init_lora_weights="olora"), "init_lora_weights"),
    "corda": (_config(init_lora_weights="corda"), "init_lora_weights"),
    "loftq": (_config(init_lora_weights="loftq"), "init_lora_weights"),
    "lora-bias": (_config(lora_bias=True), "lora_bias"),
    "alora": (_config(alora_invocation_tokens=[5, 6]), "alora_invocation_tokens"),
    "replicated-layers": (_config(layer_replication=[[0, 3], [1, 4]]), "layer_replication"),
    "qalora": (_config(use_qalora=True), "use_qalora"),
    "bdlora": (_config(use_bdlora={"nblocks": 2}), "use_bdlora"),
    "dora": (_config(use_dora=True), "use_dora"),
    "bias": (_config(bias="all"), "bias"),
    "whole-layers": (_config(modules_to_save=["lm_head"]), "modules_to_save"),
    "ia3": (_config(peft_type="IA3"), "peft_type"),
    "no-alpha": (_without("lora_alpha"), "lora_alpha"),
    "no-rank": (_without("r"), "`r`"),
    "alpha-a-text": (_config(lora_alpha="16"), "lora_alpha"),
    "alpha-infinite": (_config(lora_alpha=float("inf")), "lora_alpha"),
    "alpha-pattern-a-list": (_config(alpha_pattern=["q_proj"]), "pattern"),
    "alpha-pattern-broken": (_config(alpha_pattern={"(q_proj": 16}), "pattern"),
    "rank-pattern-of-others": (_config(rank_pattern={"q_proj": 4}), "rank"),
    "rank-pattern-too-large": (_config(rank_pattern={"q_proj": 512}), "rank"),
    "rank-not-said": (_config(r=4), "rank"),
    "rank-too-large": (_rank(64), "rank"),
    "rank-halved": (_rank(0.5), "rank"),
    "a-multimodal-models": (_rename("model.model.layers", "model.model.language_model.model.layers"), "language_model"),
    "a-bare-models": (_rename("model.model.layers", "model.layers"), "layers.0"),
    "another-architectures": (_rename("model.layers", "transformer.h"), "transformer.h"),
    "one-more-layer": (_rename("layers.3.", "layers.4."), "layers.4"),
    "no-such-module": (_rename("q_proj", "query"), "query"),
    "one-no-such-module": (_rename("layers.0.self_attn.q_proj", "layers.0.self_attn.query"), "query"),
    "fused": (_rename("q_proj", "qkv_proj"), "qkv_proj"),
    "default-in-names": (_rename(".weight", ".default.weight"), "no LoRA weights"),
    "a-norm-besides": (_also("model.norm.weight", 256), "model.norm"),
    "a-router-besides": (also_pair("model.layers.0.mlp.gate", 256, 8), "mlp.gate"),
    "a-head-besides": (_also("score.weight", 8, 256), "score"),
    "a-module-twice": (also_pair(_Q, 256, 256, prefix=""), "q_proj"),
    "magnitudes-besides": (_also(f"{_Q}.lora_magnitude_vector", 256), "lora_magnitude_vector"),
    "other-tokens": (_also("model.embed_tokens.token_adapter.trainable_tokens_delta", 2, 256), "token_adapter"),
    "nested": (_rename("q_proj", "q_proj.base_layer"), "base_layer"),
    "half-a-pair": (lambda adapter: adapter.tensors.pop(f"{_BASE}{_Q}.lora_B.weight"), "lacks lora_A or lora_B"),
    "nothing": (lambda adapter: adapter.tensors.clear(), "no LoRA weights"),
    "smaller-input": (_change("q_proj.lora_A.weight", lambda a: a.resized(a.shape[0], 128)), "q_proj"),
    "larger-input": (_change("q_proj.lora_A.weight", lambda a: a.resized(a.shape[0], 512)), "q_proj"),
    "smaller-output": (_change("k_proj.lora_B.weight", lambda b: b.resized(64, b.shape[1])), "k_proj"),
    "larger-output": (_change("down_proj.lora_B.weight", lambda b: b.resized(257, b.shape[1])), "down_proj"),
    "three-dimensions": (_change("q_proj.lora_B.weight", lambda b: b.resized(*b.shape, 1)), "q_proj"),
    "integers": (_change("q_proj.lora_A.weight", lambda a: a.resized(*a.shape, dtype="I32")), "q_proj"),
    "not-a-number": (
        _change("k_proj.lora_A.weight", lambda a: replace(a, data=b"\xff" * len(a.data))),
        "a norm of nan",
    ),
    "too-strong": (_config(lora_alpha=1e9), "overflow"),
    "cut-in-the-header": (_file(lambda raw: raw[:100]), "adapter_model.safetensors"),
    "cut-in-the-data": (_file(lambda raw: raw[:-1]), "adapter_model.safetensors"),
    "more-data": (_file(lambda raw: raw + b"\0"), "adapter_model.safetensors"),
    "an-unknown-type": (_file(lambda raw: raw.replace(b'"BF16"', b'"BF17"')), "adapter_model.safetensors"),
    "on-each-other": (_file(_overlap), "vLLM refuses it"),
    "no-header": (_file(lambda raw: raw[:8] + b"x" + raw[9:]), "adapter_model.safetensors"),
    "pickled": (_file(lambda raw: b"\x80\x04\x95" + raw), "adapter_model.safetensors"),
    "empty": (_file(lambda raw: b""), "adapter_model.safetensors"),
}
"""Name → what makes an adapter of the demo wrong in a way that must not reach an answer, and what is said of it."""


def forge(good: Path, folder: Path) -> None:
    """Write all forged adapters below `folder`, each by its name."""
    for name, (change, _) in FORGERIES.items():
        adapter = Adapter.read(good)
        change(adapter)
        adapter.write(folder / name)


def check_forged(judge: Judge, model: str) -> None:
    """Ask for each forged adapter.

    Raises:
        AssertionError: one was not refused, or its refusal does not say why.
    """
    for name, (_, said) in FORGERIES.items():
        status, reply = _ask(judge, model, name)
        assert (status, reply["error"]["code"]) == (400, "adapter_broken"), (name, reply)
        assert said in reply["error"]["message"], (name, reply)


def _ask(judge: Judge, model: str, name: str) -> tuple[int, Any]:
    body = {"model": f"{model}:{name}", "prompt": "The capital of France is", "max_tokens": 4, "temperature": 0}
    status, reply = judge.check(make_request("POST", COMPLETIONS, json.dumps(body).encode(), {}))
    return status, json.loads(reply)


# fmt: off
_KEYS = [
    "alora_invocation_tokens", "alpha_pattern", "arrow_config", "base_model_name_or_path", "bias", "corda_config",
    "eva_config", "exclude_modules", "fan_in_fan_out", "inference_mode", "init_lora_weights", "layer_replication",
    "layers_pattern", "layers_to_transform", "loftq_config", "lora_alpha", "lora_bias", "lora_dropout",
    "megatron_config", "modules_to_save", "peft_type", "qalora_group_size", "r", "rank_pattern", "target_modules",
    "target_parameters", "task_type", "trainable_token_indices", "use_bdlora", "use_dora", "use_qalora", "use_rslora",
]
# fmt: on
_PATTERNS = st.dictionaries(st.sampled_from(["q_proj", "layers.0", ".*", "("]) | TEXTS, st.integers(0, 20) | JSON)
_PARTS = st.sampled_from([_BASE, "model.", "layers.0", "layers", "self_attn", "q_proj", ".lora_A", "lora_B", "weight"])
_NEW_PARTS = TEXTS | st.sampled_from(
    ["lm_head", "embed_tokens", "experts.0", "base_layer", "lora_embedding_A", "score"]
)


def _resize(ends: str, shape: list[int], dtype: str) -> Forgery:
    return _change(ends, lambda tensor: tensor.resized(*shape, dtype=dtype))


def _splice(at: int, until: int, new: bytes) -> Forgery:
    return _file(lambda raw: raw[:at] + new + raw[max(at, until) :])


_ENDS = st.sampled_from(["layers.0.self_attn.q_proj.lora_A.weight", "lora_A.weight", "down_proj.lora_B.weight"])
_SHAPES = st.lists(st.sampled_from([0, 1, 2, 8, 16, 255, 256, 704]), max_size=2) | st.lists(
    st.integers(0, 9), max_size=4
)
_PLACES = st.integers(0, 12) | st.integers(0, 400_000)
_FORGERIES = st.one_of(
    st.builds(lambda key, value: _config(**{key: value}), st.sampled_from(_KEYS), JSON | _PATTERNS),
    st.builds(_rename, _PARTS, _NEW_PARTS),
    st.builds(_resize, _ENDS, _SHAPES, st.sampled_from(sorted(_BYTES))),
    st.builds(_splice, _PLACES, _PLACES, st.binary(max_size=12)),
)


@st.composite
def _made(draw: DrawFn, good: Path) -> Adapter:
    """The adapter in a folder, changed in up to three ways, any of which may leave it good."""
    adapter = Adapter.read(good)
    for forgery in draw(st.lists(_FORGERIES, min_size=1, max_size=3)):
        forgery(adapter)
    return adapter


def check_made(judge: Judge, model: str, good: Path, folder: Path, count: int) -> None:
    """Ask for so many made adapters, which are written below `folder`.

    Raises:
        AssertionError: the service failed on one, or it changed what the good one answers.
    """
    Adapter.read(good).write(folder / "unchanged")
    _, before = _ask(judge, model, "unchanged")
    numbers = itertools.count()

    @settings(
        max_examples=count,
        derandomize=True,
        database=None,
        deadline=None,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
    )
    @given(_made(good))
    def check(adapter: Adapter) -> None:
        name = f"made-{next(numbers)}"
        adapter.write(folder / name)
        status, reply = _ask(judge, model, name)
        assert status == 200 or reply["error"]["code"] == "adapter_broken", reply
        shutil.rmtree(folder / name)

    check()
    _, after = _ask(judge, model, "unchanged")
    assert after["choices"] == before["choices"]
