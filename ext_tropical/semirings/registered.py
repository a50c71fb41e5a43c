"""Which semirings there are, and whether they are well formed: by id in a registry, as a key in
payloads.
"""

from __future__ import annotations

import dataclasses
import functools
import threading
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from tenferro_jax.errors import Duplicate, InvalidConfig
from tenferro_jax.extension.definitions import Definition, is_edited
from tenferro_jax.extension.family import parse_family_id

from .semiring import FLOATS, INTEGERS, SelectiveSemiring, Semiring

SHIPPED = f"{__package__}.shipped"
"""The module of this package's own semirings; an author may register an id of this package too."""

_classes: dict[str, type[Semiring]] = {}
_definitions: dict[str, Definition] = {}
_lock = threading.Lock()
_Class = TypeVar("_Class", bound=type[Semiring])


def register_semiring(cls: _Class) -> _Class:
    """Register a semiring by its id, so that payloads can name it. A class decorator, written above
    the dataclass.

    A class of the same name in the same module, of a cell that ran again, takes the place of the
    earlier one. Values and ops of the earlier one compute as before.

    If a semiring of this package has the same short name, the short name means that one; use your
    id instead.

    Raises:
      MalformedFamilyId: the id is not `<package>.<name>.v<n>`.
      InvalidConfig: not a frozen dataclass that derives from Semiring.
      Duplicate: another class has the id.

    Example:
      >>> from ext_tropical import max_plus
      >>> @register_semiring
      ... @dataclasses.dataclass(frozen=True, repr=False)
      ... class BestSum(type(max_plus)):
      ...     id = "my-package.best_sum.v1"
      >>> as_semiring("best_sum")
      best_sum
    """
    is_frozen = getattr(getattr(cls, "__dataclass_params__", None), "frozen", False)
    if not (isinstance(cls, type) and issubclass(cls, Semiring) and is_frozen):
        raise _not_a_semiring(cls, "a frozen dataclass that derives from SelectiveSemiring")
    parse_family_id(getattr(cls, "id", None))
    base: Any = SelectiveSemiring if issubclass(cls, SelectiveSemiring) else Semiring
    reduction = getattr(cls, "reduction", "")
    if reduction not in ("", "max", "min"):
        raise _not_a_semiring(cls, "a reduction 'max', 'min' or ''")
    # A reduction says what is better, and so the zero.
    names = (
        ["times", "one"]
        if reduction
        else ["times", "zero", "one", "better" if base is SelectiveSemiring else "plus"]
    )
    missing = [name for name in names if getattr(cls, name) is getattr(base, name)]
    if missing:
        raise _not_a_semiring(cls, f"a class that writes {', '.join(missing)}")
    with _lock:
        known = _classes.get(cls.id, cls)
        if not Definition.of(cls).is_again(_definitions.get(cls.id) or Definition.of(known)):
            raise Duplicate(
                where=f"register_semiring({cls.__name__})",
                given=f"the id {cls.id!r} of {known.__module__}.{known.__qualname__}",
                needed="an id of its own",
                fix="Choose another name, or a higher version.",
            )
        if cls.key_class is None:
            cls.key_class = type("SemiringKey", (SemiringKey,), {"of_class": cls})
            _classes[cls.id], _definitions[cls.id] = cls, Definition.of(cls)
            _found.cache_clear()
    return cls


def _not_a_semiring(cls: object, needed: str) -> InvalidConfig:
    return InvalidConfig(
        where="register_semiring",
        given=repr(cls),
        needed=needed,
        fix="Write @register_semiring above @dataclass(frozen=True, repr=False).",
    )


def as_semiring(value: object, where: str = "semiring") -> Semiring:
    """The semiring for a value, a short name, an id, or a class (with its defaults); `where` is the
    argument, for the error.

    Raises:
      InvalidConfig: unknown or not registered (the text lists the known ones), with fields that no
        payload can hold, with methods whose results have a wrong type, or, where plus does not
        select, with a zero or a one that is not neutral.

    Example:
      >>> as_semiring("min_plus")
      min_plus
    """
    found = _registered(value, where)
    if type(found).__module__ == SHIPPED:  # these are tested
        return found
    wellformed(found)
    # Where plus selects, zero and one are needed only if nothing is contracted.
    problem = "" if hasattr(found, "better") else _not_neutral(found)
    if problem:
        raise InvalidConfig(
            where=f"semiring {found.id}",
            given=problem,
            needed="a zero that is neutral for plus and absorbs, and a one neutral for times",
            fix="broken_laws tests all laws on values of yours.",
        )
    return found


def _registered(value: object, where: str) -> Semiring:
    if isinstance(value, Semiring) and value.key_class is not None:
        return value
    if isinstance(value, type) and issubclass(value, Semiring) and value.key_class is not None:
        return _found(value.key_class(value.id))
    names = [id for id in _classes if value in (id, parse_family_id(id).op)]
    found = [id for id in names if id == value or is_ours(id)] or names  # our names stay ours
    if len(found) == 1:
        return _found(SemiringKey(found[0]))
    raise _unknown(repr(value), found, where)


def is_ours(id: str) -> bool:
    """Whether a semiring is one of this package."""
    return parse_family_id(id).package == "tenferro-ext-tropical"


def wellformed(semiring: Semiring) -> Semiring:
    """The semiring itself.

    Raises:
      InvalidConfig: a field that no payload can hold, or a method whose result has a wrong type.
    """
    for name, value in semiring.parameters.items():
        if not isinstance(value, bool | int | float | str):
            raise InvalidConfig(
                where=f"semiring {semiring.id}, field {name}",
                given=repr(value),
                needed="a bool, int, float or str, because parameters are written into payloads",
                fix="Pass arrays as operands; write several parameters as several fields.",
            )
    require_methods(semiring)
    return semiring


def _unknown(given: str, sharing: Sequence[str] = (), where: str = "semiring") -> InvalidConfig:
    """The error for an unregistered semiring, or for a name that several ids share."""
    names = ", ".join(sorted({parse_family_id(id).op for id in _classes}))
    shared = f"one of the ids {', '.join(sharing)}, which share the name"
    return InvalidConfig(
        where=where,
        given=given,
        needed=f"a registered semiring: {shared if len(sharing) > 1 else names}",
        fix="Pass the value or its name; decorate your own class with @register_semiring.",
    )


def as_selective(value: object, wanted: str) -> SelectiveSemiring:
    """A semiring that has winners.

    Args:
      value: as for `as_semiring`.
      wanted: the operation that needs winners, for the error.

    Raises:
      InvalidConfig: unknown, or not selective.
    """
    semiring = as_semiring(value, f"{wanted}, semiring")
    if not isinstance(semiring, SelectiveSemiring):
        raise InvalidConfig(
            where=wanted,
            given=repr(semiring),
            needed="a selective semiring, whose plus returns one of its arguments",
            fix="There are no winners. Use max_plus for the best entry; under log_sum_exp the "
            "gradient says how much each entry contributes.",
        )
    return semiring


@dataclasses.dataclass(frozen=True)
class SemiringKey:
    """A semiring in a payload.

    Every registered class of semirings has a subclass of its own for its keys, so that ops of a
    class that was defined again are not taken for those of the earlier one.

    Attributes:
      id: of a registered class.
      fields: its parameters.
      of_class: the class of the semiring; None in text that was just read, where the id says it.
    """

    of_class: ClassVar[type[Semiring] | None] = None
    id: str
    fields: tuple[bool | int | float | str, ...] = ()

    def __repr__(self) -> str:
        return repr(self.semiring)

    def __reduce__(self) -> Any:
        self.require_current("pickle of a payload")
        return _key_of, (self.id, self.fields)

    def require_current(self, where: str) -> None:
        """Refuse a class that was edited and defined again since: the id names the other one.

        Raises:
          InvalidConfig: the text names the class.
        """
        known = _classes.get(self.id)
        if known is None or self.of_class is None or not is_edited(self.of_class, known):
            return
        raise InvalidConfig(
            where=f"{where} with semiring {self.id}",
            given=f"a value of {self.of_class.__qualname__} as it was before it was edited and "
            f"defined again",
            needed="the class that the id names now",
            fix="Make the semiring, and what holds it, again.",
        )

    @property
    def semiring(self) -> Semiring:
        """The semiring.

        Raises:
          InvalidConfig: the id is not registered, or its class does not take these fields.
        """
        return _found(self)

    @classmethod
    def of(cls, given: Semiring | SemiringKey | str) -> SemiringKey:
        """The key of a registered semiring, or of its name; of a key its own fields, so that what
        was read from bytes is written again to the byte. InvalidConfig as `as_semiring`.
        """
        if not isinstance(given, SemiringKey):
            semiring = as_semiring(given)
            return _key_of(semiring.id, tuple(semiring.parameters.values()), type(semiring))
        as_semiring(given.semiring)
        return given if given.of_class else _key_of(given.id, given.fields)


def _key_of(
    id: str, fields: tuple[bool | int | float | str, ...], cls: type[Semiring] | None = None
) -> SemiringKey:
    """The key of a semiring of a class, by default of the one that the id names."""
    known = cls or _classes.get(id)
    made = (known and known.key_class) or SemiringKey
    return made(id, fields)


class OfSemiring:
    """A payload with a semiring, given as itself, by name or as a key."""

    semiring: SemiringKey

    def __post_init__(self) -> None:
        object.__setattr__(self, "semiring", SemiringKey.of(self.semiring))

    @property
    def algebra(self) -> Any:
        """The semiring itself."""
        return self.semiring.semiring

    def payload_text(self) -> str:
        """The payload as text for files, which name the semiring by its id."""
        self.semiring.require_current("to_wire")
        return super().payload_text()  # type: ignore[misc]


@functools.lru_cache(maxsize=1024)
def _found(key: SemiringKey) -> Semiring:
    cls: Any = key.of_class or _classes.get(key.id)
    if cls is None:
        raise _unknown(repr(key.id))
    try:
        return cls(*key.fields)
    except TypeError as error:
        raise InvalidConfig(
            where=f"semiring {key.id}",
            given=f"fields {key.fields}",
            needed=f"the fields of {cls.__name__}",
            fix=str(error),
        ) from error


def require_methods(semiring: Semiring, dtype: np.dtype | None = None) -> None:
    """Try the methods of a semiring on tiny arrays of a dtype, by default one that it takes.

    Raises:
      InvalidConfig: a method whose result has a wrong type.
    """
    problem = _problem_of(semiring, dtype)
    if problem:
        raise InvalidConfig(
            where=f"semiring {semiring.id}",
            given=problem,
            needed="methods as documented in Semiring and SelectiveSemiring",
        )


@functools.lru_cache(maxsize=1024)
def _problem_of(semiring: Semiring, dtype: np.dtype | None = None) -> str:
    """The first method of a semiring with a wrong result on tiny arrays of a dtype, by default one
    that it takes, as text; "" if there is none.
    """
    dtypes, known = semiring.dtypes, (*FLOATS, *INTEGERS, "bool")
    if not isinstance(dtypes, tuple) or not dtypes or not all(name in known for name in dtypes):
        return f"dtypes is {dtypes!r}, where a tuple of names of {', '.join(known)} is needed"
    dtype = _sample_dtype(semiring) if dtype is None else dtype
    for name, returned, shape, kind in _tried(semiring, dtype):
        try:
            out = returned()
            have = (np.shape(out), jnp.dtype(getattr(out, "dtype", type(out))))
        except Exception as error:  # any exception of the author's code
            return f"{name} raises {type(error).__name__}: {' '.join(str(error).split())[:200]}"
        if have != (shape, kind):
            given, needed = f"{have[1].name}{list(have[0])}", f"{kind.name}{list(shape)}"
            return f"{name} returns {given}, where {needed} is needed"
    return ""


def _sample_dtype(semiring: Semiring) -> np.dtype:
    """One of the dtypes, narrow if it can be."""
    narrow = (name for name in ("float32", "int32", "bool") if name in semiring.dtypes)
    return jnp.dtype(next(narrow, semiring.dtypes[0]))


def _tried(semiring: Semiring, dtype: np.dtype) -> Iterator[tuple[str, Any, tuple[int, ...], Any]]:
    """(method, a call of it, shape, dtype) of the required results."""
    x, table, other = (jax.ShapeDtypeStruct(s, dtype) for s in ((2,), (1, 2, 3), (1, 3, 4)))
    for name in ("zero", "one", "identity"):
        constant = getattr(semiring, name)
        yield f"{name}({dtype.name})", lambda f=constant: np.asarray(f(dtype)), (), dtype
    for name in ("times", "plus"):
        method = getattr(semiring, name)
        yield name, lambda f=method: jax.eval_shape(f, x, x), (2,), dtype
    if not hasattr(semiring, "better"):
        none = jax.ShapeDtypeStruct((1, 2, 4), dtype)  # a product need not have these sizes
        product = functools.partial(jax.eval_shape, semiring.matmul, table, other)
        yield "matmul", lambda: product() or none, none.shape, dtype
        return
    selective: Any = semiring
    truth = np.dtype(bool)
    yield "better", lambda: jax.eval_shape(selective.better, x, x), (2,), truth
    yield "best", lambda: jax.eval_shape(lambda t: selective.best(t, 1), table), (1, 3), dtype
    if jnp.issubdtype(dtype, jnp.floating):
        yield "may_make_nan", lambda: jax.eval_shape(selective.may_make_nan, x, x), (), truth


@functools.lru_cache(maxsize=1024)
@jax.ensure_compile_time_eval()
def _not_neutral(semiring: Semiring) -> str:
    """What does not hold, as text; or ""."""
    dtype = _sample_dtype(semiring)
    zero, one = (jnp.asarray(f(dtype), dtype) for f in (semiring.zero, semiring.one))
    for x in (zero, one, semiring.plus(one, one)):
        for name, out, wanted in (
            ("zero is not neutral for plus: plus(x, zero)", semiring.plus(x, zero), x),
            ("zero does not absorb: times(x, zero)", semiring.times(x, zero), zero),
            ("one is not neutral for times: times(x, one)", semiring.times(x, one), x),
        ):
            if not np.array_equal(out, wanted, equal_nan=True):
                return f"{name} of x = {x} is {out}"
    return ""
