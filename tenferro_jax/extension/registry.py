"""How a class becomes an op family. And what is needed only to rebuild ops from bytes: factories by
family_id, the entry points of installed packages, and the placeholder of an op without a factory.

Running and differentiating use no registry. Packages publish families by entry points in the group
"tenferro_jax.extensions".
"""

from __future__ import annotations

import dataclasses
import importlib.metadata
import threading
import types
from collections.abc import Callable, Iterator
from typing import Any, NoReturn, TypeVar, dataclass_transform

from ..errors import Duplicate, InvalidConfig, MalformedFamilyId, Unsupported
from ..ops.op import StdTensorOp, op
from ..payload_text import from_payload_json
from ..shapes import TensorMeta
from .contract import ExtensionOp, own_family
from .definitions import Definition, forget, is_edited
from .family import parse_family_id
from .rules import NO_RULES, ExtensionRuleSet


@dataclasses.dataclass(frozen=True)
class ExtensionFactory:
    """Makes the ops of one family from the fields of the class. Subclass it to decode by hand.

    Attributes:
      op_class: the ExtensionOp subclass, a frozen dataclass or a class without fields.
      default: an op for diagnostics, if the class needs arguments.

    Raises:
      InvalidConfig: op_class is not an ExtensionOp subclass.
    """

    op_class: type[ExtensionOp]
    default: ExtensionOp | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.op_class, type) or not issubclass(self.op_class, ExtensionOp):
            raise InvalidConfig(
                where="registration", given=repr(self.op_class), needed="an ExtensionOp subclass"
            )

    @property
    def family_id(self) -> str:
        """The family of the ops; MalformedFamilyId if the class has none, InvalidConfig if it
        belongs to another op.
        """
        return own_family(self.op_class)

    @property
    def version(self) -> int:
        """The major version in the family_id."""
        return parse_family_id(self.family_id).version

    def instantiate_default(self) -> ExtensionOp | None:
        """An op for diagnostics, or None if neither the factory nor the fields of the class have
        defaults.
        """
        fields = getattr(self.op_class, "__dataclass_fields__", {}).values()
        needed = any(f.init and f.default is f.default_factory for f in fields)  # both are missing
        return self.op_class() if self.default is None and not needed else self.default

    def decode(self, payload: str) -> Any:
        """The op of a JSON payload; InvalidConfig if the payload does not belong to this family."""
        return from_payload_json(payload, self.op_class)


_factories: dict[str, ExtensionFactory] = {}
# The class or the function of each family.
_definitions: dict[str, Definition] = {}
_lock = threading.Lock()


def register_extension(family: type[ExtensionOp] | ExtensionFactory) -> None:
    """Register a family in this process. Only reading files needs it, not running and
    differentiating.

    A class that is registered again stays; one of the same name in the same module, of a cell that
    ran again, takes its place.

    Args:
      family: the class of its ops, or a factory that decodes by hand or has a default.

    Raises:
      MalformedFamilyId: the family_id is not `<package>.<op>.v<major>`.
      Duplicate: another class has the family_id; the text names both.
      InvalidConfig: neither a class of ops nor a factory.

    Example:
      >>> from tenferro_jax.extension import ExtensionOp
      >>> class Nothing(ExtensionOp):
      ...     family_id = "docs-example.nothing.v1"
      >>> register_extension(Nothing)
      >>> lookup_extension_factory("docs-example.nothing.v1").version
      1
    """
    factory = family if isinstance(family, ExtensionFactory) else ExtensionFactory(family)
    _register(factory, factory.op_class, "register_extension")


def register_function(op_class: type[ExtensionOp], source: object, place: str) -> None:
    """Register the class of a function. The function that was defined again, as in a cell that ran
    again, takes the place of the earlier one.

    Raises:
      Duplicate: another function or class has the family_id; the text names both.
    """
    _register(ExtensionFactory(op_class), source, place)


def _register(factory: ExtensionFactory, source: object, place: str) -> None:
    family_id, made = factory.family_id, Definition.of(source)
    with _lock:
        other = _factories.get(family_id)
        if other is not None and not _takes_the_place(factory, made, other):
            raise Duplicate(
                where=place,
                given=f"family_id {family_id}, which belongs to {other.op_class.__module__}."
                f"{other.op_class.__qualname__}",
                needed="a family_id of its own",
                fix="Make what differs a keyword-only parameter or a field, or give each its "
                "family_id.",
            )
        if factory != other:
            _factories[family_id], _definitions[family_id] = factory, made
            if other is not None:
                forget()


def _takes_the_place(factory: ExtensionFactory, made: Definition, other: ExtensionFactory) -> bool:
    """Whether a factory is the registered one again."""
    known = _definitions.get(factory.family_id) or Definition.of(other.op_class)
    kinds = Definition.of(type(factory)), Definition.of(type(other))
    return made.is_again(known) and kinds[0].is_again(kinds[1])


def require_current(op_class: type[ExtensionOp], where: str) -> None:
    """Refuse a class or function that was edited and defined again since: its family_id names the
    other definition now, for this process too.

    Raises:
      Unsupported: the text names it.
    """
    known = _definitions.get(op_class.family_id)
    function = getattr(op_class, "function", None)
    source: Any = op_class if function is None else function.source
    if known is None or not is_edited(source, known.source):
        return
    raise Unsupported(
        where=where,
        given=f"an op of {source.__module__}.{source.__qualname__} as it was before it was edited "
        f"and defined again",
        needed=f"the definition that the family_id {op_class.family_id} names now",
        fix="Make the op, or trace the graph, again.",
    )


def lookup_extension_factory(family_id: str) -> ExtensionFactory | None:
    """The factory of a family, or None; never raises.

    Example:
      >>> print(lookup_extension_factory("docs-example.unknown.v1"))
      None
    """
    return _factories.get(family_id) if isinstance(family_id, str) else None


def require_extension_factory(family_id: str, *, trusted: bool = False) -> ExtensionFactory:
    """The factory of a family; `trusted` if its installed package was asked to register it.

    Raises:
      MalformedFamilyId: the family_id cannot be read.
      Unsupported: the family is not registered, or only under another major version.
    """
    require_known_version(family_id)
    factory = lookup_extension_factory(family_id)
    if factory is None:
        raise _not_registered(family_id, trusted)
    return factory


def _not_registered(family_id: str, trusted: bool) -> Unsupported:
    return Unsupported(
        where="extension",
        given=f"{family_id}: not registered",
        needed="a registered factory of the family in this process",
        fix=_how_to_register(family_id, trusted),
    )


def _how_to_register(family_id: str, trusted: bool) -> str:
    """What registers a family: its class, if this process has it; else its package."""
    for cls in _subclasses(ExtensionOp):
        if getattr(cls, "family_id", None) == family_id:
            return f"Call register_extension with the class {cls.__module__}.{cls.__qualname__}."
    package, points = parse_family_id(family_id).package, installed(family_id)
    if not points:
        return (
            f"Install the package that publishes {package}, or import the module with the op's "
            f"class and pass the class to register_extension."
        )
    if trusted:
        return f"Install the release of {package} with this op: the installed one lacks it."
    point = points[0]
    module = f"Import {point.module}"
    called = f"Call {point.module}.{point.attr}()"
    return f"{called if point.attr else module}, or pass trusted=True to load_graph."


def _subclasses(cls: type[ExtensionOp]) -> Iterator[type[ExtensionOp]]:
    for below in cls.__subclasses__():
        yield below
        yield from _subclasses(below)


def require_known_version(family_id: str) -> None:
    """Refuse a family that this process knows only under another major version.

    Raises:
      MalformedFamilyId: the family_id cannot be read.
      Unsupported: the version differs; the text names both.
    """
    name = parse_family_id(family_id)
    if family_id in _factories:
        return
    for known in list(_factories):
        have = parse_family_id(known)
        if have[:2] == name[:2]:
            raise Unsupported(
                where=f"extension {family_id}",
                given=f"version mismatch, graph has v{name.version}, runtime has v{have.version}",
                needed="the same major version",
                fix=f"Install the release of {name.package} that provides {family_id}.",
            )


GROUP = "tenferro_jax.extensions"


def register_installed(family_id: str) -> ExtensionRuleSet:
    """Import the installed package that publishes a family, and let it register.

    An entry point has the name that the family_ids begin with. It refers to a function without
    arguments that registers the families of the package, may be called more than once, and returns
    their AD rules or None; or to a module, if importing it is enough. No other package is imported.

    Returns:
      The AD rules of the package; an empty set if no installed package publishes the family.

    Raises:
      MalformedFamilyId: the family_id cannot be read.
      Unsupported: the function fails, or returns another type.
    """
    rules = NO_RULES
    for point in installed(family_id):
        cause: BaseException | None = None
        try:
            loaded = point.load()
            found = None if isinstance(loaded, types.ModuleType) else loaded()
            if found is None or isinstance(found, ExtensionRuleSet):
                rules = rules.united(found or NO_RULES)
                continue
            given = repr(found)
        except (Exception, SystemExit) as error:  # of another package
            given, cause = f"{type(error).__name__}: {error}", error
        raise Unsupported(
            where=f"entry point {point.name} = {point.value} in {GROUP}",
            given=given,
            needed=f"a module, or a function that registers the families of {point.name} and "
            f"returns an ExtensionRuleSet or None",
            fix=f"Install another release of {point.name}.",
        ) from cause
    return rules


def installed(family_id: str) -> list[importlib.metadata.EntryPoint]:
    """The entry points of installed packages that publish a family; none is imported."""
    return list(
        importlib.metadata.entry_points(group=GROUP, name=parse_family_id(family_id).package)
    )


@op
class MissingExtension(StdTensorOp):
    """A placeholder, read with `skip_missing_extensions=True`: it only keeps the record of an
    unregistered extension.

    Attributes:
      family_id: the family that is not registered.
      payload: its payload as text.
      levels: its batch levels, as canonical JSON text.
      outputs: how many outputs it has.

    Example:
      >>> MissingExtension("my-package.gone.v1", "{}", "[]", 1).infer()  # doctest: +ELLIPSIS
      Traceback (most recent call last):
      ...
      tenferro_jax.errors.Unsupported: extension: given my-package.gone.v1: not registered; \
needed a registered factory of the family in this process. ...
    """

    input_count = None
    family_id: str
    payload: str
    levels: str
    outputs: int

    @property
    def output_count(self) -> int:
        """The number of outputs in the record."""
        return self.outputs

    def infer(self, *metas: TensorMeta) -> NoReturn:
        """Refuses.

        Raises:
          Unsupported: always.
        """
        raise _not_registered(self.family_id, trusted=False)

    apply = infer


Op = TypeVar("Op", bound=ExtensionOp)


@dataclass_transform(frozen_default=True)
def extension_op(*, package: str, name: str, version: int) -> Callable[[type[Op]], type[Op]]:
    """Declare a class as the op family `<package>.<name>.v<version>`.

    The class becomes a frozen dataclass: its annotated fields are the payload.

    Args:
      package: the name of the distribution that publishes the op, without a dot.
      name: the op's name in that package.
      version: the major version, from 0. Raise it on any change of payload, inference, rule or
        numerics.

    Raises:
      MalformedFamilyId: the parts do not make a family_id, or the family_id would be read as other
        parts.
      InvalidConfig: the class is not an ExtensionOp, has another family_id, is a dataclass that is
        not frozen, or has the family_id of a base class and overrides part of it.

    Example:
      >>> @extension_op(package="docs-example", name="shift", version=1)
      ... class Shift(ExtensionOp):
      ...     by: float
      ...     def lower_to_standard_ops(self, x):
      ...         return (x + self.by,)
      >>> Shift.family_id, Shift(2.0)
      ('docs-example.shift.v1', Shift(by=2.0))
    """
    family_id = f"{package}.{name}.v{version}"
    if tuple(parse_family_id(family_id)) != (package, name, version) or isinstance(version, bool):
        raise MalformedFamilyId(
            family_id,
            problem=f"it does not read back as package={package!r}, name={name!r}, "
            f"version={version!r}",
        )

    def declare(cls: type[Op]) -> type[Op]:
        if not (isinstance(cls, type) and issubclass(cls, ExtensionOp)):
            raise _refusal(
                family_id,
                repr(cls),
                "a subclass of ExtensionOp",
                "Derive it from tenferro_jax.extension.ExtensionOp.",
            )
        stated = vars(cls).get("family_id", family_id)
        if stated != family_id:
            raise _refusal(
                family_id,
                f"family_id = {stated!r} in the class",
                "one family_id",
                "Leave the line out.",
            )
        cls.family_id = family_id
        if "__dataclass_params__" not in vars(cls):
            cls = dataclasses.dataclass(frozen=True, eq=False)(cls)  # Sealed compares
        if not vars(cls)["__dataclass_params__"].frozen:
            raise _refusal(
                family_id, "a dataclass that is not frozen", "frozen=True", "Leave @dataclass out."
            )
        own_family(cls)
        return cls

    return declare


def _refusal(family_id: str, given: str, needed: str, fix: str) -> InvalidConfig:
    return InvalidConfig(where=f"extension_op, {family_id}", given=given, needed=needed, fix=fix)
