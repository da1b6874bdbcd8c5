"""The EAGLE-1 drafter's pass on a CPU: fc, then its whole layer in one kernel call.

    use_fast_drafter(drafter)     # float32 on a CPU; the drafter's code is not touched

Weights that are bfloat16 numbers are read from packed copies, made once: whoever changes weights
afterwards makes a drafter anew. Passes that the kernels do not take run through `Eagle1.forward`,
layer by layer; so does, for good, a drafter whose activation or sizes do not fit.

Shapes: B rows, N columns, H hidden width.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from eagle_lab.drafters import blocks
from eagle_lab.drafters.eagle1.network import Eagle1
from eagle_lab.targets.cpu.ops import fits, kernels, multiply, pack
from eagle_lab.targets.cpu.patch import FastForward, LayerCall, use_fast_layers
from eagle_lab.targets.tree_pass import TreePass


@dataclass(frozen=True)
class CacheAttend:
    """The drafter's attention over its single cached layer, see `blocks.Attend`."""

    tree_pass: TreePass

    def __call__(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """query [B, heads, N, d]; key, value [B, kv_heads, N, d] -> [B, heads, N, d]."""
        return self.tree_pass.attend(0, query, key, value, query.shape[-1] ** -0.5)


def use_fast_drafter(drafter: Eagle1) -> None:
    """Give `drafter` its fast form, or what parts of it there are; once is enough."""
    use_fast_layers(drafter)
    linears = [module for module in drafter.modules() if isinstance(module, nn.Linear)]
    config = drafter.config
    if (
        "forward" not in drafter.__dict__
        and config.hidden_act == "silu"
        and config.head_dim % kernels().LANES == 0
        and all(fits(layer.weight) for layer in linears)
    ):
        drafter.__dict__["forward"] = FastEagle1(drafter)


class FastEagle1(FastForward):
    """`Eagle1.forward` with its layer in one call."""

    def __init__(self, drafter: Eagle1):
        self._drafter = drafter
        self._scaling = drafter.config.head_dim**-0.5
        weight = drafter.fc.weight
        self._fc = weight if (packed := pack(weight, kernels().LANES)) is None else packed
        self._layer = LayerCall(drafter.layers[0], drafter.config.rms_norm_eps, packed=True)

    def __call__(
        self,
        tokens: Tensor,
        features: Tensor,
        positions: Tensor,
        attend: blocks.Attend,
        columns: Tensor | None = None,
    ) -> Tensor:
        """See `Eagle1.forward`."""
        drafter = self._drafter
        angles = drafter.rotary(features, positions)
        if not (
            columns is None
            and isinstance(attend, CacheAttend)
            and self._layer.takes(features, angles, attend.tree_pass)
        ):
            return Eagle1.forward(drafter, tokens, features, positions, attend, columns)
        assert drafter.attached is not None, "attach(target) comes first"
        embedded = drafter.attached.embedding(tokens)  # [B, N, H]
        [hidden] = multiply(torch.cat((embedded, features), dim=-1), [self._fc])
        if drafter.fc.bias is not None:
            hidden = hidden + drafter.fc.bias
        return self._layer(hidden, angles, attend.tree_pass, 0, self._scaling)
