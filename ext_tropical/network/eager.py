"""What errors call a call of an equation; and eager calls of one step, where what depends on
anything but entries of arrays is found once.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import jax

from tenferro_jax.errors import InvalidConfig, TenferroError, shortened
from tenferro_jax.shapes import is_plain

from ..step.layout import is_step

P = ParamSpec("P")
T = TypeVar("T")


def names_itself(fn: Callable[P, T]) -> Callable[P, T]:
    """A function of an equation whose errors all begin with its name and the equation."""

    @functools.wraps(fn)
    def call(*args: P.args, **how: P.kwargs) -> T:
        try:
            return fn(*args, **how)
        except TenferroError as error:
            written = [repr(shortened(x)) for x in args[:1] if isinstance(x, str)]
            place = " ".join([fn.__name__, *written])
            detail = re.sub(rf"^{re.escape(place)}(, )?", "", error.where)
            detail = detail if detail != error.where else _PLACES.sub("", error.where)
            error.put_at(", ".join(filter(None, [place, detail])))
            raise

    return call


_PLACES = re.compile(
    r"^(equation of a tropical step|(plan_)?tropical_einsum(_with_argmax)?|best_assignment|"
    r"einsum equation|einsum|(extension )?tenferro-ext-tropical\.\w+\.v\d+)\b"
    r"( '[^']*')?(, )?"
)
"""What parts of a call name as their place, which its author never wrote."""


def compiled_if_one_step(fn: Callable[P, T]) -> Callable[P, T]:
    """A function of an equation and its operands that runs as one jitted function where the
    equation is one step and the operands are JAX arrays outside all transforms.

    JAX's own cache then finds what was traced for their shapes and dtypes, with all checks.
    """

    @functools.lru_cache(maxsize=1024, typed=True)
    def program(equation: Any, **how: Any) -> Callable[..., T] | None:
        if not is_step(equation) or any(how.get(x) is not None for x in ("memory_limit", "over")):
            return None
        run = functools.partial(fn, equation, **how)
        functools.update_wrapper(run, fn)
        return jax.jit(run)

    @functools.wraps(fn)
    def call(*args: P.args, **how: P.kwargs) -> T:
        if len(args) > 1 and all(map(is_plain, args[1:])):
            try:
                compiled = program(args[0], **how)  # type: ignore[arg-type]
            except (TypeError, InvalidConfig):  # what cannot be hashed or read: `fn` says so
                compiled = None
            if compiled is not None:
                return compiled(*args[1:])
        return fn(*args, **how)

    return call
