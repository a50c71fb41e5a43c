"""Host failures inside compiled programs, given back their class."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator

import jax

from ..errors import BackendFailure

_FAMILY = re.compile(r"extension[, ]+(?:family_id=)?([!-~]+\.v\d+)")


@contextlib.contextmanager
def host_errors() -> Iterator[None]:
    """Turn the JaxRuntimeError of a failed host op inside a jitted function into BackendFailure.

    Wait for the results inside the block (`jax.block_until_ready`), since JAX runs ahead.

    Raises:
      BackendFailure: with the family_id and the author's error text; the JaxRuntimeError is the cause.

    Example:
      >>> with host_errors():
      ...     total = jax.block_until_ready(jax.numpy.ones(3).sum())
    """
    try:
        yield
    except jax.errors.JaxRuntimeError as error:
        found = _FAMILY.search(str(error))
        if found is None:
            raise
        lines = [line for line in str(error).splitlines() if found[1] in line]
        raise BackendFailure(
            where=f"extension {found[1]} inside a compiled program",
            given=lines[-1].strip(),
            needed="an execution without an exception",
            fix="See the cause; call the op outside jit to get the author's own exception.",
        ) from error
