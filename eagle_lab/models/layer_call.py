"""The call of the kernel that computes a whole decoder layer, for target and drafter alike.

Shapes: B rows, T columns, K hidden width, d head width.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from eagle_lab.models.fast_ops import applies, kernels, match_threads, scratch
from eagle_lab.models.packed_weights import all_packed, is_packed
from eagle_lab.models.tree_pass import TreePass


class LayerCall:
    """A decoder layer's weights and sizes, and the call of the kernel with them.

    Args:
        module: the layer, its parts named as in Llama's; `input_layernorm` may be None.
        epsilon: of its norms.
        packed: read packed copies of its weight matrices where packing changes none.
    """

    def __init__(self, module: Any, epsilon: float, *, packed: bool = False):
        heads, mlp = module.self_attn, module.mlp
        self._head_width = int(heads.head_dim)
        self._num_heads = heads.q_proj.out_features // self._head_width
        self._num_kv = heads.k_proj.out_features // self._head_width
        self._inner_width = mlp.gate_proj.out_features
        self._epsilon = epsilon
        projections = (heads.q_proj, heads.k_proj, heads.v_proj, heads.o_proj)
        matrices = [
            each.weight for each in (*projections, mlp.gate_proj, mlp.up_proj, mlp.down_proj)
        ]
        if packed:
            matrices = all_packed(matrices, kernels().LANES)
        self._packed = is_packed(matrices[0])
        self._scratch_size = kernels().scratch_size(
            projections[0].in_features, self._num_heads * self._head_width,
            self._num_kv * self._head_width, self._inner_width,
        )  # fmt: skip
        self._like = torch.empty(0, self._num_kv, 0, self._head_width)  # a state in the cache
        first_norm = getattr(module.input_layernorm, "weight", None)
        self._norm: Tensor = module.post_attention_layernorm.weight
        norms = [getattr(heads, name, None) for name in ("q_norm", "k_norm")]
        self._weights = [
            *(first_norm, *matrices[:4], self._norm, *matrices[4:]),
            *(each.bias for each in (heads.q_proj, heads.k_proj, heads.v_proj)),
            *(None if norm is None else norm.weight for norm in norms),
        ]

    def takes(self, hidden: Tensor, angles: Any, tree_pass: TreePass) -> bool:
        """Whether the kernel computes a pass over `hidden` [B, T, K]."""
        num_slots = tree_pass.cache.max_length + tree_pass.visible.shape[2]
        return (
            tree_pass.cache.fast
            and applies(hidden, self._norm)
            and num_slots >= kernels().ROWS
            and isinstance(angles, tuple)
            and angles[0].shape[-1] == self._head_width
            and angles[0].dtype is torch.float32
        )

    def __call__(
        self,
        hidden: Tensor,
        angles: tuple[Tensor, Tensor],
        tree_pass: TreePass,
        layer: int,
        scaling: float,
        window: int | None = None,
    ) -> Tensor:
        """`hidden` [B, T, K] -> [B, T, K].

        Args:
            hidden: the layer's input.
            angles: cosine and sine [B or 1, T, d].
            tree_pass: what its columns write and see.
            layer, scaling, window: see `TreePass.attend`.
        """
        hidden = hidden.contiguous()
        batch, num_tokens, width = hidden.shape
        cosine, sine = (angle.contiguous() for angle in angles)
        mask = tree_pass.mask(window).contiguous()
        cache = tree_pass.cache
        num_slots = cache.max_length + tree_pass.visible.shape[2]
        store = cache.reserve(num_slots, self._like)
        layer_stride, value_stride, *cache_strides = store.stride()[:4]
        keys = store.data_ptr() + 4 * layer * layer_stride  # addresses, without views
        outputs = torch.empty_like(hidden)
        match_threads()
        kernels().decoder_layer(
            hidden.data_ptr(), outputs.data_ptr(), scratch(batch * num_tokens * self._scratch_size),
            batch, num_tokens, width,
            self._num_heads, self._num_kv, self._head_width, self._inner_width, self._packed,
            *(0 if weight is None else weight.data_ptr() for weight in self._weights),
            cosine.data_ptr(), sine.data_ptr(), cosine.stride(0) if cosine.shape[0] > 1 else 0,
            keys, keys + 4 * value_stride, *cache_strides,
            cache.lengths.data_ptr(), tree_pass.offset, mask.data_ptr(), num_slots,
            scaling, self._epsilon,
        )  # fmt: skip
        return outputs
