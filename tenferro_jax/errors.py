"""Every exception class of the project.

A message says, in this order: where it happened, what was given, what is needed, and, if that adds
something, what to do. The four parts are attributes too, so that a program can read them. Each
class derives from the builtin exception that a caller who does not know this project would catch.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ParamSpec, TypeVar


class TenferroError(Exception):
    """Base of all errors of this project.

    Args:
      where: the place: a function, an op, an operand, a family_id.
      given: the wrong value, or what happened.
      needed: a correct value.
      fix: advice; "" if `needed` says it already.
      clause: the clause of docs/spec/extension_op.md that a call or a result of an extension
        breaks, such as "X7.1"; "" in other errors.

    Example:
      >>> from tenferro_jax.errors import ShapeError
      >>> print(ShapeError(where="demo", given="shape (2,)", needed="rank 2",
      ...     fix="Reshape the array."))
      demo: given shape (2,); needed rank 2. Reshape the array.
    """

    def __init__(self, *, where: str, given: str, needed: str, fix: str = "", clause: str = ""):
        self.where, self.given, self.needed, self.fix, self.clause = (
            where,
            given,
            needed,
            fix,
            clause,
        )
        super().__init__(f"{where}: given {given}; needed {needed}. {fix}".rstrip(" "))

    def put_at(self, where: str) -> None:
        """Change the place: the caller knows what its user wrote."""
        parts = vars(self) | {"where": where}
        names = ("where", "given", "needed", "fix", "clause")
        TenferroError.__init__(self, **{name: parts[name] for name in names})

    def __reduce__(self) -> Any:
        # Without __init__, whose parameters are those of each class.
        return _new, (type(self), *self.args), vars(self)


def _new(cls: type[TenferroError], *args: object) -> TenferroError:
    return cls.__new__(cls, *args)


def first_line(error: BaseException) -> str:
    """The text of another library's exception, shortened for our sentence."""
    return next(
        (line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__
    )


def reason_of(error: BaseException) -> str:
    """The kind and the text of another library's exception, for our sentence.

    Example:
      >>> reason_of(ValueError("a size")), reason_of(AssertionError())
      ('ValueError: a size', 'AssertionError')
    """
    kind = type(error).__name__
    return f"{kind}: {first_line(error)}" if str(error).strip() else kind


def counted(count: int, noun: str) -> str:
    """A number of things.

    Example:
      >>> counted(1, "input"), counted(2, "input")
      ('1 input', '2 inputs')
    """
    return f"{count} {noun}{'' if count == 1 else 's'}"


def shortened(text: str) -> str:
    """A text shortened to its two ends if it is longer than 80 characters.

    Example:
      >>> shortened("ab," * 40 + "ba->")
      'ab,ab,ab,ab,ab,ab,ab,ab,ab,ab,ab,ab,ab,a...ab,ab,ab,ab,ab,ab,ba->'
    """
    return text if len(text) <= 80 else f"{text[:40]}...{text[-22:]}"


def no_attribute(module: str, name: str, rooms: Sequence[str]) -> AttributeError | ImportError:
    """The error of the `__getattr__` of a module: it names the one of these modules that has the
    name.

    `from module import name` drops the text of an AttributeError, and gets an ImportError.
    """

    def has(room: str) -> bool:
        names = vars(importlib.import_module(room))
        is_its_own = getattr(names.get(name), "__module__", "") == room
        return is_its_own or name in names.get("__all__", ())

    place = "" if name.startswith("_") else next(filter(has, rooms), "")
    asked_by = sys._getframe(2).f_globals.get("__name__", "")
    if place and asked_by.startswith("importlib"):
        return ImportError(f"cannot import name {name!r} from {module!r}; use {place}.{name}")
    text = f"module {module!r} has no attribute {name!r}"
    return AttributeError(f"{text}; use {place}.{name}" if place else text, name=name)


# --- wrong input ----------------------------------------------------------------------------------


class InvalidConfig(TenferroError, ValueError):
    """What was given to the library contradicts itself or its contract.

    Examples are a wrong number of arguments, a wrong payload or equation, and a graph that breaks a
    rule.
    """


class ShapeError(InvalidConfig):
    """Shapes, ranks or sizes that do not fit together, or symbolic sizes that JAX cannot
    compare.
    """


class DTypeError(InvalidConfig, TypeError):
    """A dtype that is not taken, or dtypes that differ where they must agree.

    This includes 64-bit arrays while 64-bit types are off.
    """


def require_kind(
    value: object,
    kind: Any,
    where: str,
    needed: str,
    fix: str = "",
    name: str = "",
) -> Any:
    """The value, which must be an instance of a class or of one of a union; `name` is the parameter
    that it was given as.

    Raises:
      InvalidConfig: it is not.
    """
    if not isinstance(value, kind):
        given = f"{value!r:.500}"
        raise InvalidConfig(
            where=where, given=f"{name}={given}" if name else given, needed=needed, fix=fix
        )
    return value


P = ParamSpec("P")
T = TypeVar("T")


def typed_call(fn: Callable[P, T], fix: str = "") -> Callable[P, T]:
    """A function that raises InvalidConfig where Python would say that its arguments do not fit its
    signature, with this advice if there are too many by position; of all other errors nothing
    changes.

    Example:
      >>> @typed_call
      ... def scaled(x, *, by=1.0):
      ...     return by * x
      >>> scaled(2.0, factor=3.0)
      Traceback (most recent call last):
      ...
      tenferro_jax.errors.InvalidConfig: scaled: given 1 argument, factor=; needed (x, *, by=1.0).
    """

    @functools.wraps(fn)
    def call(*args: P.args, **options: P.kwargs) -> T:
        try:
            return fn(*args, **options)
        except TypeError as error:
            place = error.__traceback__
            if place is None or place.tb_next is not None:  # of the body
                raise
            raise _other_arguments(fn, args, options, fix) from None

    return call


_Class = TypeVar("_Class", bound=type)


def typed_calls(cls: _Class) -> _Class:
    """A class whose constructor and public methods are `typed_call`s."""
    for name, member in list(vars(cls).items()):
        if inspect.isfunction(member) and (name == "__init__" or not name.startswith("_")):
            setattr(cls, name, typed_call(member))
    return cls


def _other_arguments(
    fn: Callable[..., object], args: Sequence[object], options: Mapping[str, object], fix: str
) -> InvalidConfig:
    signature = inspect.signature(fn)
    parameters = [x.replace(annotation=x.empty) for x in signature.parameters.values()]
    own = int(parameters[0].name == "self")
    by_position = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    most = sum(x.kind in by_position for x in parameters)
    positions = counted(len(args) - own, "argument")
    return InvalidConfig(
        where=fn.__qualname__.removesuffix(".__init__"),
        given=", ".join([positions, *(f"{name}=" for name in options)]),
        needed=str(inspect.Signature(parameters[own:])),
        fix=fix if len(args) > most else "",
    )


# --- what cannot be done --------------------------------------------------------------------------


class Unsupported(TenferroError, NotImplementedError):
    """A valid request that this op, platform or version does not support."""


RULES = {"jvp": "linearize", "transpose": "transpose_rule"}
"""The method of an AD rule for each kind of derivative."""


class ADRuleError(Unsupported):
    """An AD rule is missing for an extension family, or declares that there is no derivative.

    Attributes:
      family_id: the family.
      kind: "jvp" or "transpose".
    """

    def __init__(
        self,
        family_id: str,
        kind: str,
        *,
        place: str = "",
        given: str = "",
        needed: str = "",
        fix: str = "",
        clause: str = "X10.2",
    ):
        self.family_id, self.kind = family_id, kind
        super().__init__(
            where=f"{kind} of {place or f'extension {family_id}'}",
            given=given or f"no {kind} rule for family_id {family_id}",
            needed=needed
            or f"{RULES[kind]} in the op's class, or an ExtensionAdRule for its family",
            fix=fix
            or "Write the rule, pass rules=ExtensionRuleSet(...) to apply, or stop the gradient "
            "of the inputs with jax.lax.stop_gradient.",
            clause=clause,
        )


# --- failures while running -----------------------------------------------------------------------


class BackendFailure(TenferroError, RuntimeError):
    """An implementation of an extension raised while it ran; the author's exception is the
    `__cause__`.
    """


class ExtensionLoweringError(TenferroError, RuntimeError):
    """Raised by an extension author in lower_to_standard_ops: the payload, a dtype or a shape
    cannot be lowered.
    """

    def __init__(self, message: str):
        super().__init__(
            where="lower_to_standard_ops",
            given=message,
            needed="a payload, dtypes and shapes that the family can lower",
        )


class ConformanceError(TenferroError, AssertionError):
    """An op breaks clauses of the extension contract; the text contains the report."""

    def __init__(self, family_id: str, report: str, fix: str):
        self.family_id = family_id
        super().__init__(
            where=f"conformance of extension {family_id}",
            given=f"failures:\n{report}\n",
            needed="that every check passes or is not applicable",
            fix=fix,
        )


class ArtifactError(TenferroError, ValueError):
    """The bytes of a graph or an exported program cannot be read.

    They are damaged, truncated, of another format, or exceed the limits of the reader.
    """

    def __init__(
        self,
        *,
        where: str,
        given: str,
        needed: str = "bytes as a writer wrote them: write or copy them again",
        fix: str = "",
        clause: str = "",
    ):
        super().__init__(where=where, given=given, needed=needed, fix=fix, clause=clause)


# --- registries -----------------------------------------------------------------------------------


class RegistrationError(TenferroError, ValueError):
    """A factory cannot be registered."""


class Duplicate(RegistrationError):
    """A factory for this family_id, a semiring or a pytree name is registered already."""


class ExtensionRegistryError(TenferroError, ValueError):
    """An AD rule cannot be added to a rule set, or a kernel to a runtime set; for example, it has
    one already.
    """


class DuplicateRule(ExtensionRegistryError):
    """The rule set, or the class of the op, has a rule for this family_id already."""


class MalformedFamilyId(RegistrationError, ExtensionRegistryError):
    """A family_id that is not `<package>.<op>.v<major>`."""

    def __init__(self, family_id: object, *, problem: str = ""):
        self.family_id = family_id
        super().__init__(
            where="family_id",
            given=f"{family_id!r}" + (f": {problem}" if problem else ""),
            needed="'<package>.<op>.v<major>', printable ASCII without spaces, no zeros before the "
            "version, for example 'my-package.soft_sort.v1'",
        )
