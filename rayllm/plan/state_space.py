"""Recurrent states: Mamba, gated delta nets, linear attention and short convolutions.

A state has the same size for any number of tokens.

Source: vLLM 0.29, `vllm/model_executor/layers/mamba/mamba_utils.py`.
"""

from collections.abc import Hashable
from dataclasses import dataclass

from packaging.version import Version

from rayllm.config.vllm_versions import current_series
from rayllm.plan.config_fields import Fields, dtype_bytes
from rayllm.plan.kv_cache import CacheSettings


@dataclass(frozen=True)
class StateCache:
    """The state of one layer: the last inputs of its convolution, and its matrices.

    Attributes:
        channels: channels of the convolution, kept for `inputs` tokens.
        groups: groups of `group` more channels each, replicated where GPUs cannot split them.
        matrices: elements of all heads' matrices.
        matrix_bytes: bytes of one element of a matrix; None if the model does not set it.
        keeps_drafts: whether the convolution also keeps the inputs of draft tokens.
        checkpoints: states that a long prompt leaves behind for its prefix.
    """

    channels: int
    inputs: int
    matrices: int = 0
    groups: int = 0
    group: int = 0
    matrix_bytes: int | None = None
    keeps_drafts: bool = True
    checkpoints: int = 0

    @property
    def kind(self) -> Hashable:
        return self

    def token_bytes(self, tensor_parallel: int, element_bytes: float) -> int:
        return 0

    def page_bytes(self, block: int, settings: CacheSettings) -> int:
        """Bytes of a state on one GPU, for any `block`."""
        gpus = settings.tensor_parallel
        groups = self.groups if self.groups % gpus == 0 else gpus
        inputs = self.inputs + (settings.draft_tokens if self.keeps_drafts else 0)
        convolution = (self.channels + groups * self.group) // gpus * inputs
        matrix_bytes = settings.matrix_bytes or self.matrix_bytes or settings.state_bytes
        return int(convolution * settings.state_bytes + self.matrices // gpus * matrix_bytes)

    def kept_blocks(self, tokens: int, block: int, in_flight: int, settings: CacheSettings) -> int:
        """Blocks that a sequence occupies: one for the newest state, one per draft token, and one for its prefix."""
        return (2 + self.checkpoints if settings.keeps_prefixes else 1) + settings.draft_tokens


def mamba_1(inner: int, state: int, kernel: int) -> StateCache:
    """Mamba: `inner` channels with a state of `state` numbers each. Source: https://arxiv.org/abs/2312.00752"""
    return StateCache(inner, kernel - 1, inner * state, keeps_drafts=False)


def mamba_2(
    heads: int,
    head: int,
    groups: int,
    state: int,
    kernel: int,
    matrix_bytes: int | None = None,
    keeps_drafts: bool = False,
) -> StateCache:
    """Mamba 2: `heads` with a matrix of `head` × `state` each. Source: https://arxiv.org/abs/2405.21060"""
    inner = heads * head
    # From 0.32 on, vLLM keeps one state within a prompt that it computes in one piece.
    checkpoints = int(Version(current_series()) >= Version("0.32"))
    return StateCache(inner, kernel - 1, inner * state, groups, 2 * state, matrix_bytes, keeps_drafts, checkpoints)


def gated_delta_net(fields: Fields) -> StateCache:
    """A gated delta net. Source: https://arxiv.org/abs/2412.06464"""
    keys = fields.required("linear_num_key_heads") * fields.required("linear_key_head_dim")
    values = fields.required("linear_num_value_heads") * fields.required("linear_value_head_dim")
    return StateCache(
        channels=2 * keys + values,
        inputs=fields.required("linear_conv_kernel_dim") - 1,
        matrices=values * fields.required("linear_key_head_dim"),
        matrix_bytes=declared_bytes(fields, "mamba_ssm_dtype"),
    )


def kimi_delta_attention(fields: Fields) -> StateCache:
    """Kimi delta attention, by the section `linear_attn_config`."""
    heads, head, kernel = (fields.required(name) for name in ("num_heads", "head_dim", "short_conv_kernel_size"))
    # FlashKDA, of which every GPU of Hopper or later has kernels for these layers, keeps one state within a prompt.
    is_flash = head == 128 and fields.values.get("gate_lower_bound") is not None
    return kimi_delta(heads, head, kernel, int(is_flash and bool(fields.values.get("use_full_rank_gate"))))


def kimi_delta(heads: int, head: int, kernel: int, checkpoints: int = 0) -> StateCache:
    """Kimi delta attention: `heads` with a matrix of `head` × `head` each. Source: https://arxiv.org/abs/2510.26692"""
    return StateCache(3 * heads * head, kernel - 1, heads * head**2, matrix_bytes=4, checkpoints=checkpoints)


def linear_attention(heads: int, head: int) -> StateCache:
    """Linear attention: a matrix in the type of states, and no convolution. Source: https://arxiv.org/abs/2401.04658"""
    return StateCache(heads * head**2, 1, keeps_drafts=False)


def short_convolution(fields: Fields) -> StateCache:
    """A short convolution, as in LFM2."""
    channels = fields.optional("conv_dim") or fields.required("hidden_size")
    return StateCache(channels, fields.required("conv_L_cache") - 1, keeps_drafts=False)


def declared_bytes(fields: Fields, key: str, default: str | None = None) -> int | None:
    """Bytes per element of the type that a key names; None if the key is missing and has no default."""
    name = fields.values.get(key) or default
    return dtype_bytes(str(name)) if name else None
