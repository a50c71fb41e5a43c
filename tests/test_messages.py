"""Error classes: the four parts in order, builtin bases, survival of pickling (worker processes)."""

import inspect
import pickle

import pytest

from tenferro_jax import errors

CLASSES = [c for c in vars(errors).values() if inspect.isclass(c) and issubclass(c, errors.TenferroError)]
PLAIN = [c for c in CLASSES if "where" in inspect.signature(c).parameters]
BUILTINS = {
    errors.InvalidConfig: ValueError,
    errors.DTypeError: TypeError,
    errors.PayloadError: TypeError,
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


def test_special_classes_have_the_parts_too():
    for error in (
        errors.ADRuleError("a.b.v1", "transpose"),
        errors.NotDifferentiableError("a.b.v1", "jvp"),
        errors.MalformedFamilyId("x", column=0, problem="short"),
        errors.ExtensionLoweringError("odd window"),
        errors.ConformanceError("a.b.v1", "a table", "Mend it."),
    ):
        assert all((error.where, error.given, error.needed, error.fix))
        back = pickle.loads(pickle.dumps(error))
        assert (type(back), str(back), vars(back)) == (type(error), str(error), vars(error))
    assert len(PLAIN) + 5 == len(CLASSES)


@pytest.mark.parametrize(("cls", "builtin"), BUILTINS.items(), ids=[c.__name__ for c in BUILTINS])
def test_builtin_bases(cls, builtin):
    assert issubclass(cls, builtin)
