"""Section 9 of the contract: one factory for each family, safe under threads, asked by nothing that
runs. Families of installed packages are found by entry points where the reader trusts the bytes;
where it does not, no module is imported.
"""

import concurrent.futures
import contextlib
import dataclasses
import importlib
import importlib.metadata
import json
import re
import sys
import threading
import time
import tomllib

import jax
import numpy as np
import pytest

import tenferro_jax as tj
from tenferro_jax import trace
from tenferro_jax.__main__ import main
from tenferro_jax.engine import Engine
from tenferro_jax.errors import (
    Duplicate,
    InvalidConfig,
    MalformedFamilyId,
    RegistrationError,
    Unsupported,
)
from tenferro_jax.extension import ExtensionOp, apply, register_extension
from tenferro_jax.extension import registry as registry_module
from tenferro_jax.extension.carrier import Extension
from tenferro_jax.extension.family import parse_family_id
from tenferro_jax.extension.registry import ExtensionFactory, lookup_extension_factory
from tenferro_jax.payload_text import payload_json

from ..extension_ops import RULES, HostCumulate, ScaledSquare
from ..helpers import close, each_ends_in, ends_in, equal
from ..house import ROOT
from ..io.plain_format import sealed


@pytest.fixture(autouse=True)
def _empty_registry(monkeypatch):
    monkeypatch.setattr(registry_module, "_factories", {})
    monkeypatch.setattr(registry_module, "_definitions", {})


@pytest.mark.clause("X9.1", "X9.3", "X12.6")
def test_one_factory_a_family():
    factory = ExtensionFactory(ScaledSquare)
    assert lookup_extension_factory(ScaledSquare.family_id) is None
    assert (
        lookup_extension_factory("nonsense")
        is lookup_extension_factory(None)
        is lookup_extension_factory([])
        is None
    )
    register_extension(factory)
    assert lookup_extension_factory(ScaledSquare.family_id) is factory
    register_extension(ScaledSquare)  # the same thing again is nothing

    class Other(ExtensionOp):
        family_id = ScaledSquare.family_id

    assert lookup_extension_factory(ScaledSquare.family_id) is factory
    error = ends_in(
        lambda: register_extension(Other),
        Duplicate,
        r"test-package\.scaled_square\.v1, which belongs to tests\.extension_ops\.ScaledSquare",
    )
    assert isinstance(error.value, RegistrationError)
    assert lookup_extension_factory(ScaledSquare.family_id) is factory
    ends_in(lambda: register_extension(ScaledSquare()), InvalidConfig, "ExtensionOp subclass")
    register_extension(HostCumulate)
    assert lookup_extension_factory(HostCumulate.family_id) == ExtensionFactory(HostCumulate)


@pytest.mark.clause("X9.2", "X12.10")
def test_a_malformed_family_id_is_not_stored():
    bad = type("Bad", (ExtensionOp,), {"family_id": "bad"})
    for _ in range(2):  # the second is not a duplicate
        ends_in(lambda: register_extension(ExtensionFactory(bad)), MalformedFamilyId, "'bad'")
    ends_in(lambda: registry_module.require_known_version("bad"), MalformedFamilyId)
    assert registry_module._factories == {}


class _Yielding(dict):
    """Lets other threads run between a look and what follows from it."""

    def __contains__(self, family_id):
        found = super().__contains__(family_id)
        time.sleep(0)
        return found


@pytest.mark.clause("X9.4")
def test_threads_register_and_look_up_at_once(monkeypatch):
    """Of eight factories of a family one is registered; who is refused finds that one."""
    monkeypatch.setattr(registry_module, "_factories", _Yielding())
    start = threading.Barrier(8)

    def registered(factory):
        start.wait()
        with contextlib.suppress(Duplicate):
            register_extension(factory)
            return factory
        return lookup_extension_factory(factory.family_id)

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        for i in range(300):
            family_id = f"test-package.raced_{i}.v1"
            ops = [type(f"Op{k}", (ExtensionOp,), {"family_id": family_id}) for k in range(8)]
            found = pool.map(registered, map(ExtensionFactory, ops))
            assert set(map(id, found)) == {id(lookup_extension_factory(family_id))}


@pytest.mark.clause("X9.5", "X5.9")
def test_a_factory_is_derived_from_the_class():
    factory = ExtensionFactory(ScaledSquare)
    assert (factory.family_id, factory.version, factory.instantiate_default()) == (
        "test-package.scaled_square.v1",
        1,
        ScaledSquare(),
    )
    op = factory.decode(payload_json(ScaledSquare(0.1)))
    assert Extension.of(op) == Extension.of(ScaledSquare(0.1))
    each_ends_in(
        (
            (
                lambda: factory.decode(text)
                for text in (
                    "",
                    "[]",
                    "{}",
                    '{"factor": 1.0, "more": 2}',
                    payload_json(HostCumulate()),
                )
            ),
            InvalidConfig,
            "ScaledSquare payload",
        ),
        (
            lambda: ExtensionFactory(HostCumulate).decode('{"reverse": 1}'),
            InvalidConfig,
            "needed a value of its annotation, bool",
        ),
    )
    stateless = type("Stateless", (ExtensionOp,), {"family_id": "test-package.stateless.v1"})
    assert Extension.of(
        ExtensionFactory(stateless).decode(payload_json(stateless()))
    ) == Extension.of(stateless())


@pytest.mark.clause("X9.2", "X9.5")
@pytest.mark.parametrize("members", [{}, {"family_id": property(str)}])
def test_a_factory_is_of_a_class_of_ops_with_a_family_id(members):
    ends_in(
        (lambda: ExtensionFactory(wrong) for wrong in (3, int, None, ScaledSquare(1.0))),
        InvalidConfig,
        "needed an ExtensionOp subclass",
    )
    bad = ExtensionFactory(type("Bad", (ExtensionOp,), members))
    ends_in((lambda: bad.family_id, lambda: register_extension(bad)), MalformedFamilyId)


@pytest.mark.clause("X5.9")
@pytest.mark.parametrize(
    "text",
    [
        None, 3, b"\xff", "[" * 5000, '{"factor":' * 5000, '{"factor": '
                                                           '"1"}', '{"factor": '
                                                                   'true}', '{"factor": '
                                                                            '[[]]}',
                                                                            '{"factor": null}',
        '{"factor": {"dtype": "int8"}}', '{"factor": {"array": [null, [], '
                                         '""]}}', '{"factor": {"array": ["int8", [1], "AAAA"]}}',
        '{"factor": {"array": [">i4", [1], "AAAAAA=="]}}', '{"factor": {"of": ["int", '
                                                           '{}]}}',
                                                           '{"factor": {"enum": ["Path", "x"]}}',
        '{"factor": {"dimension": "a, b"}}', "{" + '"factor": ' + "1" * 5000 + "}",
    ],
    ids=lambda text: repr(text)[:30],
)  # fmt: skip
def test_text_that_is_no_payload_is_refused(text):
    ends_in(
        lambda: ExtensionFactory(ScaledSquare).decode(text),
        InvalidConfig,
        r"test-package\.scaled_square\.v1",
    )


@pytest.mark.clause("X9.5")
def test_a_factory_may_offer_a_default_and_validate_more():
    @dataclasses.dataclass(frozen=True)
    class Power(ExtensionOp):
        family_id = "test-package.power.v1"
        exponent: int

    assert ExtensionFactory(Power).instantiate_default() is None
    assert ExtensionFactory(Power, Power(2)).instantiate_default() == Power(2)

    class Positive(ExtensionFactory):
        def decode(self, payload):
            op = super().decode(payload)
            if op.factor <= 0:
                raise ValueError(f"factor {op.factor}")
            return op

    factory = Positive(ScaledSquare)
    register_extension(factory)
    assert lookup_extension_factory(factory.family_id).instantiate_default() == ScaledSquare()
    assert factory.decode(payload_json(ScaledSquare(2.0))) == ScaledSquare(2.0)
    ends_in(lambda: factory.decode(payload_json(ScaledSquare(-1.0))), ValueError, r"factor -1\.0")


class _Untouchable(dict):
    """A registry that nobody may look into."""

    def _touch(self, *_):
        raise AssertionError("the registry was asked")

    __getitem__ = __contains__ = __iter__ = __setitem__ = get = keys = items = values = _touch


@pytest.mark.clause("X9.6")
def test_running_and_differentiating_never_ask_the_registry(monkeypatch):
    monkeypatch.setattr(registry_module, "_factories", _Untouchable())
    ends_in(lambda: lookup_extension_factory(ScaledSquare.family_id), AssertionError, "asked")
    x = np.arange(3.0)

    def f(x):
        return apply(HostCumulate(), apply(ScaledSquare(), x, rules=RULES)[0], rules=RULES)[0].sum()

    want = 2 * x * np.array([3.0, 2.0, 1.0])
    close(
        (jax.grad(f)(x), want),
        (jax.jit(jax.vmap(jax.grad(f)))(x[None]), want[None]),
        (Engine().eval(tj.grad(trace(f, x)), x), want),
    )
    assert tj.export(lambda x: apply(ScaledSquare(), x)[0], x).call(x).tolist() == [0.0, 1.0, 4.0]


FAMILY = ScaledSquare.family_id
X = np.arange(3.0)
PUBLISHER = """
from tenferro_jax.extension import register_extension
from tenferro_jax.extension.registry import lookup_extension_factory
from tests.extension_ops import RULES, ScaledSquare

def register():
    if lookup_extension_factory(ScaledSquare.family_id) is None:
        register_extension(ScaledSquare)
    return RULES

def leaves(): raise SystemExit(7)
def other(): return 7
def silent(): pass
"""


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Puts two distributions on the path: one that publishes the family, by the function that is
    named, and a bystander.
    """
    monkeypatch.syspath_prepend(tmp_path)

    def put(function="register"):
        points = {
            "test-package": f"publisher_of_squares:{function}",
            "bystander": "bystander_of_squares:register",
        }
        for package, point in points.items():
            info = tmp_path / f"{package.replace('-', '_')}-1.0.dist-info"
            info.mkdir()
            (info / "METADATA").write_text(
                f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n"
            )
            (info / "entry_points.txt").write_text(
                f"[tenferro_jax.extensions]\n{package} = {point}\n"
            )
        (tmp_path / "publisher_of_squares.py").write_text(PUBLISHER)
        (tmp_path / "bystander_of_squares.py").write_text("raise RuntimeError('nobody asked')")
        for module in list(sys.modules):
            if module.endswith("_of_squares"):
                del sys.modules[module]
        importlib.invalidate_caches()

    return put


def imported():
    return {name for name in sys.modules if name.endswith("_of_squares")}


def loop(x):
    return jax.lax.fori_loop(0, 2, lambda i, x: apply(ScaledSquare(0.5), x)[0], x).sum()


@pytest.fixture
def path(tmp_path):
    tj.save_graph(tj.trace(loop, X), tmp_path / "squares.graph")
    return tmp_path / "squares.graph"


@pytest.mark.clause("X9.7")
def test_a_trusted_file_finds_its_families_and_their_rules(install, path):
    install()
    ends_in(
        lambda: tj.load_graph(path),
        Unsupported,
        rf"{FAMILY}: not registered.*register_extension with the class .*\.ScaledSquare\.",
    )
    tj.load_graph(path, skip_missing_extensions=True)
    assert imported() == set()
    for _ in range(2):  # registered already, the rules come all the same
        graph = tj.load_graph(path, trusted=True)
        assert imported() == {"publisher_of_squares"}
        equal(
            (graph.to_jax()(X), np.sum(X**4 / 8)),
            (tj.jvp(graph).to_jax()(X, np.ones(3))[1], np.sum(X**3 / 2)),
        )
        assert tj.from_wire(path.read_bytes(), trusted=True) == graph
    assert not len(tj.load_graph(path).rules)


@pytest.mark.clause("X9.7")
def test_a_package_without_rules_and_nobody_at_all(install, path):
    ends_in(lambda: tj.load_graph(path, trusted=True), Unsupported, "not registered")
    install("silent")
    ends_in(lambda: tj.load_graph(path, trusted=True), Unsupported, "not registered")
    assert tj.load_graph(path, trusted=True, skip_missing_extensions=True).nodes


def test_what_registers_a_family_is_named(install):
    """Of a class of this process the class, of an installed package its function; with
    trusted=True, which asked it already, another release.
    """
    lines = [
        '["type","float64",[2]]',
        '["extension","test-package.lost_family.v1","{}",[],1]',
        '["graph",[0],["tuple",0]]',
        '["node",0,[0],[0]]',
        '["return",[1],0,[],[]]',
    ]
    content = sealed("".join(f"{line}\n" for line in lines))
    unknown = (
        "Install the package that publishes test-package, or import the module with the op's class "
        "and pass the class to register_extension"
    )
    for trusted in (False, True):
        ends_in(lambda t=trusted: tj.from_wire(content, trusted=t), Unsupported, unknown)
    install("silent")
    called = r"Call publisher_of_squares\.silent\(\), or pass trusted=True to load_graph\."
    ends_in(lambda: tj.from_wire(content), Unsupported, called)
    later = "Install the release of test-package with this op: the installed one lacks it"
    ends_in(lambda: tj.from_wire(content, trusted=True), Unsupported, later)

    class Gone(ExtensionOp):
        family_id = "test-package.lost_family.v1"

        def lower_to_standard_ops(self, x):
            return (x,)

    named = rf"Call register_extension with the class {re.escape(__name__)}\..*Gone\."
    ends_in(lambda: tj.from_wire(content), Unsupported, named)
    assert Gone.family_id in str(tj.from_wire(content, skip_missing_extensions=True).nodes)


@pytest.mark.parametrize(
    ("function", "given"),
    [("leaves", "SystemExit: 7"), ("other", "given 7"), ("gone", "AttributeError")],
)
@pytest.mark.clause("X9.7")
def test_a_package_that_fails_is_named(function, given, install, path):
    install(function)
    ends_in(
        lambda: tj.load_graph(path, trusted=True),
        Unsupported,
        rf"entry point test-package = publisher_of_squares:{function} in .*{given}",
    )


@pytest.mark.clause("X9.7")
def test_the_command_line_inspects_without_them(install, path, capsys):
    def here(*options):
        assert main(["inspect", str(path), *options]) == 0
        (family,) = json.loads(capsys.readouterr().out)["extensions"]
        return family["here"]

    assert here() == "not registered"
    install()
    assert here() == "installed"
    assert imported() == set()
    assert here("--trusted") == "registered"
    assert imported() == {"publisher_of_squares"}


def test_the_entry_points_of_this_project():
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"][
        "tenferro_jax.extensions"
    ]
    for name, value in declared.items():
        register = importlib.metadata.EntryPoint(name, value, "tenferro_jax.extensions").load()
        rules = register()
        assert rules is register()
        known = set(registry_module._factories)
        assert known
        assert {parse_family_id(family).package for family in known} == {name}
        assert {rule.family_id for rule in rules or ()} <= known
        assert lookup_extension_factory(next(iter(known))) is not None
