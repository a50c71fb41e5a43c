"""What an op of a function holds: the payload, how arrays are nested, and which part it is.

`function_parts` has what each part computes, and `function_extension` the class of the ops.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib
import json
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import numpy as np
from jax.tree_util import PyTreeDef

from ..errors import ADRuleError, TenferroError, Unsupported, first_line
from ..jax_seam import lacks_derivative
from ..shapes import TensorMeta
from .authored import MISSING_RULE, Authored, shown
from .contract import ExtensionOp
from .nesting import PyTree, has_classes, held, released, treedef_of
from .registry import require_current, require_extension_factory

NO_RULE = "no rule, with code that JAX cannot differentiate"


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class FunctionCall(ExtensionOp):
    """The fields of the op of a function, and what the author wrote with the payload filled in.

    Attributes:
      function: what the author published.
      in_tree: how the arguments are nested, as text; "" if every argument is one array.
      out_tree: the same of the result; "" if it is one array.
      stage: which part of the function the op is, a key of `function_parts.PARTS`.
      result_metas: the dtype and shape of each result, of the part "tangent" alone.
    """

    function: ClassVar[Authored]
    is_part = True
    advice = "Return arrays from the function, or write @f.def_host."
    in_tree: str = ""
    out_tree: str = ""
    stage: str = ""
    result_metas: tuple[tuple[np.dtype[Any], tuple[int, ...]], ...] = ()

    @property
    def arguments(self) -> PyTreeDef:
        """The nesting of the arguments."""
        return treedef_of(self.in_tree) if self.in_tree else self.function.plain

    @property
    def input_count(self) -> int:
        """Arrays in the arguments."""
        return int(self.arguments.num_leaves)

    @property
    def metas(self) -> list[TensorMeta]:
        """Of the results whose tangents the part "tangent" gives."""
        return [TensorMeta(*meta) for meta in self.result_metas]

    @property
    def payload(self) -> dict[str, Any]:
        """The keyword-only arguments of the function."""
        return {name: getattr(self, name) for name in self.function.payload}

    @property
    def reverse(self) -> tuple[Callable[..., PyTree], Callable[..., PyTree]]:
        """(fwd, bwd) of the author."""
        function = self.function

        def fwd(*args: PyTree) -> PyTree:
            made = function.fwd(*args, **self.payload)
            if not isinstance(made, tuple | list) or len(made) != 2:
                raise function.error(
                    f"fwd, which returned {shown(made)}", "(the result, residuals)"
                )
            return made[0], held(made[1])

        def bwd(residuals: PyTree, cotangents: PyTree) -> PyTree:
            return function.bwd(released(residuals), cotangents, **self.payload)

        return fwd, bwd

    def rule(self, name: str) -> Callable[..., PyTree]:
        """A rule of the author for derivatives, of arrays alone: "jvp", "bwd" or "transpose"."""
        if name == "bwd":
            return self.reverse[1]
        return functools.partial(getattr(self.function, name), **self.payload)

    def __reduce__(self) -> Any:
        require_current(type(self), f"pickle of {self!r}")
        rebuild, (_, state) = super().__reduce__()
        return _unpickled, (rebuild, type(self).__module__, self.family_id, state)

    def payload_text(self) -> str:
        """The payload as text; residuals of a pytree class have none that others can read."""
        if any(has_classes(json.loads(text or "0")) for text in (self.in_tree, self.out_tree)):
            raise Unsupported(
                where=f"writing a derivative of {self.function.place}",
                given="residuals in a pytree class, which another process does not know",
                needed="residuals in tuples, lists and dicts with text as keys",
                fix="Let the fwd of f.defvjp return them so.",
            )
        return super().payload_text()

    def missing_rule(self, kind: str) -> ADRuleError:
        """The error that names the function."""
        place = self.function.place
        return ADRuleError(self.family_id, kind, place=place, needed="a rule", fix=MISSING_RULE)

    def __repr__(self) -> str:
        fields = [f"{name}={value!r}" for name, value in self.payload.items()]
        stage = f" {self.stage}" if self.stage else ""
        return f"{type(self).__name__}({', '.join(fields)}){stage}"


def op_class_of(module: str, family_id: str) -> Any:
    """The class of a family that `module` publishes: it need not have a name there."""
    importlib.import_module(module)
    return require_extension_factory(family_id).op_class


def _unpickled(rebuild: Callable[..., Any], module: str, family_id: str, state: Any) -> Any:
    """The op of a family that `module` publishes."""
    return rebuild(op_class_of(module, family_id), state)


@contextlib.contextmanager
def named_in_errors(op: FunctionCall) -> Iterator[None]:
    """Name the function where JAX cannot differentiate it."""
    try:
        yield
    except (TypeError, NotImplementedError, ValueError) as error:
        own = op.function.has_rule or isinstance(error, TenferroError)
        if own or not lacks_derivative(error):
            raise
        raise ADRuleError(
            op.family_id,
            "jvp",
            place=op.function.place,
            given=f"{NO_RULE}: {first_line(error)}",
            needed="a rule",
            fix=MISSING_RULE,
        ) from error
