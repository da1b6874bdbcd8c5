"""How a Hugging Face model comes to attend over our cache: an attention function of its interface.

Any architecture that looks its attention up by name and hands keyword arguments on can be a target;
sliding windows and soft-capped scores are arguments of the call.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor
from transformers import AttentionInterface

from eagle_lab.errors import UserError
from eagle_lab.models.tree_pass import TreePass

ATTENTION_NAME = "eagle_lab_tree"


def use_tree_attention(model: Any) -> None:
    """Make `model` attend by the `tree_pass` that its calls are given.

    Raises:
        UserError: it does not use the attention interface of transformers.
    """
    try:
        model.set_attn_implementation(ATTENTION_NAME)
    except ValueError as error:
        raise UserError(
            f"{type(model).__name__} does not use the attention interface of transformers"
        ) from error


def _tree_attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float,
    tree_pass: TreePass | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Attention function in the form transformers expects; returns [B, N, heads, d]."""
    if tree_pass is None or kwargs.get("s_aux") is not None:
        raise UserError(
            f"{type(module).__name__} cannot be a target: its attention "
            + ("uses sinks" if tree_pass else "does not receive keyword arguments of the model")
        )
    output = tree_pass.attend(module.layer_idx, query, key, value, scaling, sliding_window, softcap)
    return output.transpose(1, 2), None


AttentionInterface.register(ATTENTION_NAME, _tree_attention)
