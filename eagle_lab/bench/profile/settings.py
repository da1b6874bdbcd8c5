"""What a profile measures: the schema of the `profile` section.

What each key means, and its default, stands in conf/profile/default.yaml.
"""

from __future__ import annotations

from dataclasses import dataclass

from eagle_lab.errors import UserError


@dataclass
class PassSettings:
    """Which passes are timed, and in how many rounds; one token, plain decoding's, is among them.

    Raises:
        UserError: an empty list, a count below 1, or no pass over one token.
    """

    batch_sizes: list[int]
    contexts: list[int]
    num_tokens: list[int]
    repeats: int

    def __post_init__(self) -> None:
        for name in ("batch_sizes", "contexts", "num_tokens"):
            values = getattr(self, name)
            if not values or min(values) < 1:
                raise UserError(f"profile.{name}={values}; give at least one value, all above 0")
        if 1 not in self.num_tokens:
            raise UserError(
                f"profile.num_tokens={self.num_tokens}; it must hold 1, plain decoding's pass, "
                "which every cost is compared with"
            )
        if self.repeats < 1:
            raise UserError(f"profile.repeats={self.repeats}; it must be at least 1")


@dataclass
class ProfileSettings(PassSettings):
    """The whole `profile` section."""

    run: str | None
    shapes: list[str]
    max_minutes: float | None
