"""A target's model as Hugging Face ships it, beside the one that our engine runs.

Our engine replaces the attention of the model it runs and, on a CPU, its linear layers. A peer
needs neither, so it gets a second model of the same class and configuration whose parameters are
the target's own tensors: the weights are in memory once, only buffers and caches twice.
"""

from __future__ import annotations

from typing import Any

from transformers import GenerationConfig

from eagle_lab.models.target import Target


def unmodified(target: Target) -> Any:
    """A `PreTrainedModel` that shares the weights of `target` and none of its changes.

    Its generation settings are those of an empty `GenerationConfig`: a penalty or temperature
    that came with the weights would make another law than the one that is benched.
    """
    from accelerate import init_empty_weights

    model = target.model
    # Through a dictionary, which knows no attention implementation: the class takes its default.
    config = type(model.config).from_dict(model.config.to_dict())
    with init_empty_weights(include_buffers=False):
        plain = type(model)(config)
    plain.load_state_dict(model.state_dict(), assign=True)
    plain.to(target.device)  # the buffers; the parameters are there already
    if getattr(plain.config, "attn_logit_softcapping", None):
        plain.set_attn_implementation("eager")  # sdpa, the default of 5.17, leaves the cap out
    plain.generation_config = GenerationConfig()
    return plain.eval().requires_grad_(False)
