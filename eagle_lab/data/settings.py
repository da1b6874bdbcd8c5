"""What a capture does: the schema of the `data` section.

What each key means, and its default, stands in conf/data/default.yaml. Needs no torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from eagle_lab.errors import UserError


@dataclass
class CaptureSettings:
    """The whole `data` section.

    Raises:
        UserError: a count below 1, or a share that cannot be.
    """

    store: Any  # a folder or several
    prompts: str
    answers: str | None
    num_prompts: int | None
    num_tokens: int | None
    batch_size: int
    max_new_tokens: int
    sampled_share: float
    temperature: float
    top_p: float
    top_k: int
    features: list[str]
    feature_dtype: str

    def __post_init__(self) -> None:
        for name in ("num_prompts", "num_tokens", "batch_size", "max_new_tokens"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise UserError(f"data.{name}={value}; allowed: 1 or more")
        if not 0 <= self.sampled_share <= 1:
            raise UserError(f"data.sampled_share={self.sampled_share}; allowed: 0 to 1")
        if self.answers is None and self.sampled_share > 0 and self.temperature == 0:
            raise UserError("data.sampled_share is above 0, so data.temperature must be, too")
