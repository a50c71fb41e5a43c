"""Whether a function or a class is an earlier one that was defined again: a cell of a notebook that
ran again, a module that was reloaded, source that was executed again. It then takes the place of
the earlier one.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import types
import weakref
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


HOLDERS: weakref.WeakSet[Any] = weakref.WeakSet()
"""Objects that keep what they found out about their author's code, in a dict `known`."""

_caches: list[Callable[[], None]] = []


def kept(size: int) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """As functools.lru_cache, for what follows from an author's code: `forget` empties it."""

    def decorate(function: Callable[P, T]) -> Callable[P, T]:
        cached = functools.lru_cache(size)(function)
        _caches.append(cached.cache_clear)
        return cached  # type: ignore[return-value]

    return decorate


def forget() -> None:
    """Forget what is known of authors' code, because some of it is defined again or has a new rule:
    what calls it was traced with the earlier one.
    """
    for clear in _caches:
        clear()
    for holder in HOLDERS:
        holder.known.clear()


class Definition(NamedTuple):
    """A function or a class, and the run of its module that defined it.

    Attributes:
      source: the function or the class.
      run: what a reload of the module replaces, its `__spec__`; None in a notebook.
    """

    source: Any
    run: object

    @classmethod
    def of(cls, source: object) -> Definition:
        """The definition of a function or a class that was defined just now."""
        source = inspect.unwrap(source)  # type: ignore[arg-type]
        names: Any = next((f.__globals__ for f in _functions(source).values()), {})
        return cls(source, names.get("__spec__"))

    def is_again(self, known: Definition) -> bool:
        """Whether this is `known`, defined again: it has the same name in the same module.

        What a function makes has no name in its module, and lambdas share one. Such a definition
        must have the same text, or come from another run of the module or the notebook; made twice
        by one function it must close over the same values. Otherwise one file defines two things.
        """
        if self.source is known.source:
            return True
        if not _name(self.source) or _name(self.source) != _name(known.source):
            return False
        if "<" not in self.source.__qualname__:
            return True
        mine, others = _functions(self.source), _functions(known.source)
        if mine.keys() != others.keys():
            return self._is_of_another_run(known)
        pairs = [(mine[name], others[name]) for name in mine]
        if any(f.__code__ != g.__code__ for f, g in pairs):
            return self._is_of_another_run(known)
        # Text that was compiled anew is another run; one code is run twice by a loop or a function.
        return all(f.__code__ is not g.__code__ or _holds_the_same(f, g) for f, g in pairs)

    def _is_of_another_run(self, known: Definition) -> bool:
        """Whether the two come from different cells, or from different runs of a module."""
        if self.run is not known.run:
            return True
        mine, others = _functions(self.source), _functions(known.source)
        if not mine or not others:  # fields alone, which readers compare
            return True
        f, g = next(iter(mine.values())), next(iter(others.values()))
        cells = f.__code__.co_filename, g.__code__.co_filename
        is_interactive = all(name.startswith("<") for name in cells)
        return f.__globals__ is not g.__globals__ or cells[0] != cells[1] or is_interactive


def is_edited(source: object, known: object) -> bool:
    """Whether a function or a class has the name of another, and other code, wherever its lines
    stand.
    """
    if source is known or _name(source) != _name(known):
        return False
    mine, others = _functions(source), _functions(known)
    return mine.keys() != others.keys() or any(
        _text(f.__code__) != _text(others[name].__code__) for name, f in mine.items()
    )


def _text(code: types.CodeType) -> tuple[Any, ...]:
    constants = [_text(c) if isinstance(c, types.CodeType) else repr(c) for c in code.co_consts]
    return code.co_code, code.co_names, code.co_varnames, code.co_freevars, constants


def _name(source: object) -> tuple[Any, ...] | None:
    """Module and name; None of what has no name, as a functools.partial."""
    name = getattr(source, "__qualname__", None)
    return name and (getattr(source, "__module__", None), name)


def _functions(source: object) -> dict[str, types.FunctionType]:
    """The function itself, or those that the author wrote in the body of a class; dataclasses and
    named tuples add some that have no file.
    """
    if not isinstance(source, type):
        return {"": source} if isinstance(source, types.FunctionType) else {}
    found: dict[str, types.FunctionType] = {}
    inside = f"{source.__qualname__}."
    for name, member in vars(source).items():
        function = getattr(member, "__func__", getattr(member, "fget", member))
        is_function = isinstance(function, types.FunctionType)
        if is_function and function.__code__.co_qualname.startswith(inside):
            found[name] = function
    return found


def _holds_the_same(f: types.FunctionType, g: types.FunctionType) -> bool:
    """Whether two functions of one code close over the same values."""
    if f.__globals__ is not g.__globals__:
        return True  # source that was executed again
    pairs = zip(_held(f), _held(g), strict=True)
    return all(x is y or _is_same_number(x, y) for x, y in pairs)


def _is_same_number(x: object, y: object) -> bool:
    kinds = (bool, int, float, complex, str, bytes)
    return type(x) is type(y) and type(x) in kinds and repr(x) == repr(y)


def _held(function: types.FunctionType) -> Iterator[object]:
    """What a function closes over; None for a name that is bound later, as its own."""
    for cell in function.__closure__ or ():
        value: object = None
        with contextlib.suppress(ValueError):
            value = cell.cell_contents
        yield value
