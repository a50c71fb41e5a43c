"""What is known while a method of an author runs. Errors need its name, guards need the sizes that
it compared, calls inside it inherit its rules and kernels, and it may not close over arrays.
"""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax

from ..dimensions import SymDim, are_equal
from ..dimensions import require_equal as require_equal_sizes

Assume = Callable[[Any, Any, str], None]
"""A function that records two dimensions that are assumed to be equal, and where."""

LOWERING = "lower_to_standard_ops"


class Method(NamedTuple):
    """A method of an author.

    Attributes:
      name: of the method.
      where: the method, its op and what its author wrote, for errors.
      assume: a function that takes equalities of sizes that JAX cannot decide; None refuses them.
    """

    name: str
    where: str
    assume: Assume | None = None

    def __str__(self) -> str:
        return self.where


running: contextvars.ContextVar[Method | None] = contextvars.ContextVar(
    "method of an author", default=None
)

inherited = jax.make_user_context(None)
"""In an AD rule, the rules and runtimes that were given to the call that it differentiates, as a
pair. They are part of the key of jit's caches, so that a function traced in one rule is not reused
in another."""


lowering_at = jax.make_user_context(None)
"""The site for which an extension is lowered, if kernels may run there; part of the key of jit's
caches."""


def require_equal(a: SymDim, b: SymDim) -> None:
    """Require that two dimensions are equal, in `infer_output_meta` and in AD rules; they may be
    symbolic.

    If JAX cannot decide whether they are equal, a graph that is being recorded keeps the equality
    as a guard, which is checked when the graph is bound to sizes.

    Args:
      a: a size, an int or a symbolic dimension.
      b: another.

    Raises:
      ShapeError: they differ; or they are symbolic, JAX cannot decide, and no graph is recorded;
        the text names the constraint to add.

    Example:
      >>> require_equal(3, 2 + 1)
      >>> require_equal(3, 4)
      Traceback (most recent call last):
      ...
      tenferro_jax.errors.ShapeError: require_equal: given dimensions 3 and 4; needed equal \
dimensions.
    """
    method = running.get()
    where = "require_equal" if method is None else str(method)
    if method is not None and method.assume is not None and are_equal(a, b) is None:
        method.assume(a, b, where)
    else:
        require_equal_sizes(a, b, where)


@contextlib.contextmanager
def run_as(method: Method) -> Iterator[None]:
    """Runs a method of an author."""
    token = running.set(method)
    try:
        yield
    except Exception as error:
        note = f"in {method}"
        if note not in getattr(error, "__notes__", ()):
            error.add_note(note)
        raise
    finally:
        running.reset(token)


def closed_over(function: object) -> Iterator[object]:
    """The leaves of the pytrees that a function closes over."""
    for cell in getattr(function, "__closure__", None) or ():
        # A cell that has no value yet, or a value that JAX cannot flatten and so holds no weights.
        with contextlib.suppress(ValueError, TypeError):
            yield from jax.tree.leaves(cell.cell_contents)
