"""Error classes: the parts in order, no fix that says nothing, builtin bases, survival of pickling
(worker processes).
"""

import inspect
import pathlib
import pickle
import re

import pytest

import ext_tropical
import tenferro_jax
from tenferro_jax import errors

CLASSES = [
    c for c in vars(errors).values() if inspect.isclass(c) and issubclass(c, errors.TenferroError)
]
PLAIN = [c for c in CLASSES if "where" in inspect.signature(c).parameters]
BUILTINS = {
    errors.InvalidConfig: ValueError,
    errors.DTypeError: TypeError,
    errors.Unsupported: NotImplementedError,
    errors.BackendFailure: RuntimeError,
    errors.ExtensionLoweringError: RuntimeError,
    errors.ConformanceError: AssertionError,
    errors.RegistrationError: ValueError,
    errors.ExtensionRegistryError: ValueError,
}


@pytest.mark.parametrize("cls", PLAIN, ids=lambda c: c.__name__)
def test_four_parts_in_order(cls):
    error = cls(where="the place", given="this", needed="that", fix="Do so.")
    assert str(error) == "the place: given this; needed that. Do so."
    back = pickle.loads(pickle.dumps(error))
    assert (type(back), str(back), back.given) == (cls, str(error), "this")
    short = cls(where="the place", given="this", needed="that")
    assert (str(short), short.fix, str(pickle.loads(pickle.dumps(short)))) == (
        "the place: given this; needed that.",
        "",
        str(short),
    )


def test_special_classes_have_the_parts_too():
    for error in (
        errors.ADRuleError("a.b.v1", "transpose"),
        errors.ADRuleError("a.b.v1", "jvp", clause="X10.5"),
        errors.MalformedFamilyId("x", problem="short"),
        errors.ExtensionLoweringError("odd window"),
        errors.ConformanceError("a.b.v1", "a table", "Mend it."),
    ):
        assert all((error.where, error.given, error.needed))
        back = pickle.loads(pickle.dumps(error))
        assert (type(back), str(back), vars(back)) == (type(error), str(error), vars(error))
    assert len(PLAIN) + 4 == len(CLASSES)


@pytest.mark.parametrize(("cls", "builtin"), BUILTINS.items(), ids=[c.__name__ for c in BUILTINS])
def test_builtin_bases(cls, builtin):
    assert issubclass(cls, builtin)


EMPTY = re.compile(
    r'"((Name|Pass|Write|Correct|Use|Rename|Mend) (it|them|one|those|one of '
    r"(them|those|these)|the \w+)( so)?"
    r'|Leave it out|Drop one of the two)\."'
)


def test_no_fix_says_nothing():
    """What only repeats that something else is needed is left out."""
    for package in (tenferro_jax, ext_tropical):
        for path in pathlib.Path(package.__file__).parent.rglob("*.py"):
            found = [
                line.strip()
                for line in path.read_text().splitlines()
                if "fix" in line and EMPTY.search(line)
            ]
            assert not found, (path, found)
    assert EMPTY.search('fix="Name them so."')
