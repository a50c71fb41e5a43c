"""What this release does not do, as data: refusals cite it and the docs print it."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class Limitation:
    """One known gap.

    Attributes:
      subject: what is missing: an upstream op, a JAX primitive, a combination.
      reason: why it is missing.
      instead: what the user gets or can do.
    """

    subject: str
    reason: str
    instead: str
