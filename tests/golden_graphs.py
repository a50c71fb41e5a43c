"""Writes the golden files of a version of graph bytes that are not there yet; a file that is there
is never written again.

JAX_ENABLE_X64=1 python -m tests.golden_graphs VERSION

Each graph has, beside it, the arrays that go in and those that NumPy says come out, where there is
an oracle.
"""

import pathlib
import sys

import jax
import jax.numpy as jnp
import numpy as np

import ext_tropical
from ext_tropical.algebra.semiring import SemiringKey
from ext_tropical.network.log_derivatives import NetworkCurvature, NetworkShares
from ext_tropical.network.network_best import NetworkBest
from ext_tropical.network.network_entries import NetworkEntries
from ext_tropical.network.network_op import TropicalNetwork
from ext_tropical.network.network_samples import NetworkSamples
from ext_tropical.network.rows import Rows
from ext_tropical.step.at_winner import AtWinner
from ext_tropical.step.log_einsum import LogEinsumV1, LogEinsumV2
from ext_tropical.step.sum_einsum import SumEinsum
from ext_tropical.step.weighted_sum import WeightedSum
from ext_tropical.uses.alignment_op import Alignment, AlignmentCounts
from tenferro_jax import to_wire, trace
from tenferro_jax.graph import GraphBuilder
from tenferro_jax.ops.linalg import ValidateNonsingular
from tenferro_jax.ops.op import call
from tenferro_jax.ops.vocabulary import ROOMS

from .cases import CASES as EXTENSION_CASES
from .ext_tropical.sums import Modulo
from .io.graph_bank import (
    DTYPES,
    FEATURES,
    KEYED_CASES,
    all_bits,
    applied,
    op_of,
    register_families,
)
from .ops.test_vocabulary import CASES as OP_CASES

FOLDER = pathlib.Path(__file__).parent / "golden"
NAMED = (
    "pytrees",
    "classes",
    "control flow",
    "gradient of control flow",
    "symbolic",
    "guarded",
    "batched by hand",
    "every leaf",
)


def room(ops):
    """(graph, inputs, wanted outputs) of the cases of a room; NumPy's results where there is an
    oracle, else those of the op.
    """
    cases = [case for case in OP_CASES if type(case[0]) in ops]
    cases += [
        (op, inputs, lambda *xs, op=op: call(op, [jnp.asarray(x) for x in xs]))
        for op, inputs in KEYED_CASES
        if type(op) in ops
    ]
    cases = [case for case in cases if not isinstance(case[0], ValidateNonsingular)]
    wanted = [out for _, inputs, oracle in cases for out in several(oracle(*inputs))]
    return (
        applied(*((op, inputs) for op, inputs, _ in cases)),
        [x for _, inputs, _ in cases for x in inputs],
        wanted,
    )


def several(outs):
    return list(outs) if isinstance(outs, tuple | list) else [outs]


def families():
    """(name, graph, inputs, wanted outputs) for each extension family: the tropical ones, and those
    that the tests publish.
    """
    for case in {op_of(case).family_id: case for case in EXTENSION_CASES}.values():
        yield (
            op_of(case).family_id,
            applied((case.op, case.inputs)),
            case.inputs,
            several(case.oracle(*case.inputs)),
        )
    x = np.arange(4.0).reshape(2, 2)
    for kind in (LogEinsumV1, LogEinsumV2, ext_tropical.step.log_einsum.LogEinsum):
        log = kind(1.0, "ij,jk->ik")
        yield log.family_id, applied((log, (x, x))), (x, x), [np.log(np.exp(x) @ np.exp(x))]
    sums, n = SumEinsum(Modulo(5), "ij,jk->ik"), np.arange(4, dtype=np.int32).reshape(2, 2)
    yield sums.family_id, applied((sums, (n, n))), (n, n), [n @ n % 5]
    cells = x, np.array([[0, 2], [2, 0]], np.int32)
    sums = AtWinner("ij,jk->ik", ext_tropical.step.weighted_sum.Place.RHS, (3,))
    yield sums.family_id, applied((sums, cells)), cells, [np.array([[0.0, 3], [0, 0], [2, 1]])]
    split = jax.grad(lambda a: ext_tropical.tropical_einsum("ij,jk->ik", a, x, ties="split").sum())
    yield (
        "tenferro-ext-tropical.weighted_sum.v1",
        trace(split, x),
        (x,),
        [np.array([[0.0, 2.0], [0.0, 2.0]])],
    )
    y = np.array([1.0, -1.0])  # a network: value, assignment, derivatives
    text = "ab,bc,c->a|1,2:b|0,3:a"
    labels = TropicalNetwork(SemiringKey.of("max_plus"), text, with_labels=True)
    yield (
        labels.family_id,
        applied((labels, (x, x, y))),
        (x, x, y),
        [np.array([4.0, 6.0]), np.array([[1, 1], [0, 0]], np.int32)],
    )
    entries = NetworkEntries("ab,b", "a", (("a", 2), ("b", 2)), is_sum=True)
    at = np.array([[1, 0]], np.int32)
    yield entries.family_id, applied((entries, (at, x, y))), (at, x, y), [np.array([0.0, 3.0])]
    weights = np.exp(x[:, :, None] + x + y)
    shares = NetworkShares(1.0, text, (2,), is_transposed=True)
    cotangents = (weights.sum(1) / weights.sum((1, 2))[:, None]).sum(0)
    given = (x, x, y, np.ones(2))
    yield shares.family_id, applied((shares, given)), given, [cotangents]
    along = np.array([1.0, 2.0])  # the covariance of c and itself, given a
    means = (weights.sum(1) / weights.sum((1, 2))[:, None]) @ along
    squares = (weights.sum(1) / weights.sum((1, 2))[:, None]) @ along**2
    bend = NetworkCurvature(1.0, text, (2,))
    given = (x, x, y, along, along)
    yield bend.family_id, applied((bend, given)), given, [squares - means**2]
    plan = "ab,bc,c->|1,2:b|0,3:"
    best = NetworkBest(plan, 2)
    found = [np.array([6.0, 5.0]), np.array([[1, 1], [1, 1], [0, 1]], np.int32)]
    yield best.family_id, applied((best, (x, x, y))), (x, x, y), found
    samples = NetworkSamples(1.0, plan)
    numbers = np.array([[0.2, 0.99], [0.6, 0.01]])
    given = (x, x, y, numbers)
    found = [np.array([[1, 0], [1, 1], [0, 1]], np.int32)]
    yield samples.family_id, applied((samples, given)), given, found
    pair = Alignment("max_plus", False, False, False, with_path=True)
    given = (np.array([[1.0, -1.0], [0.0, 3.0], [2.0, 0.0]]), np.array(-1.0), np.array(-1.0))
    found = [np.array(3.0), np.array([[0, 0], [1, 1], [2, -1], [-1, -1], [-1, -1]], np.int32)]
    yield pair.family_id, applied((pair, given)), given, found
    counts = AlignmentCounts(1.0, True, False, False)
    given = (np.zeros((2, 2)), np.array(0.0), np.array(0.0))  # three ways, of equal weights
    found = [np.array([[1.0, 1 / 3], [1 / 3, 1.0]]), np.array(0.0), np.array(0.0)]
    yield counts.family_id, applied((counts, given)), given, found
    rows, labels = Rows(2), np.array([[1, 0], [1, 1]], np.int32)
    yield rows.family_id, applied((rows, (labels,))), (labels,), list(labels)


def items():
    """(name, graph, inputs, wanted outputs or None) of every golden file."""
    for name, ops in ROOMS.items():
        yield (name, *room(ops))
    yield from families()
    for name in NAMED:
        yield f"with {name}", FEATURES[name](), (), None
    builder = GraphBuilder()
    builder.lose_rules(["square at model.py:3"])
    yield from (
        ("with lost derivative", builder.build([builder.input(np.ones(2))]), (), None),
        ("with validate nonsingular", applied((ValidateNonsingular(), (np.eye(3),))), (), None),
    )
    x = np.arange(4.0).reshape(2, 2)
    given = x, x, np.log(np.exp(x) @ np.exp(x))
    log = "tenferro-ext-tropical.log_sum_exp.v1"
    for name, fields in (("exact", (1.0,)), ("certified", (1.0, "certified"))):  # of older payloads
        shares = WeightedSum(SemiringKey(log, fields), "ij,jk->ik")
        yield f"with {name} shares", applied((shares, given)), given, [np.ones((2, 2))]
    arrays = [all_bits(name) for name in DTYPES]
    builder = GraphBuilder()
    yield "with dtypes", builder.build([builder.constant(array) for array in arrays]), (), None


def plain(array):
    """An array in a dtype that a .npz file keeps: keys as their data."""
    array = (
        jax.random.key_data(array)
        if jax.dtypes.issubdtype(jnp.asarray(array).dtype, jax.dtypes.prng_key)
        else array
    )
    return np.asarray(array)


def main(version):
    register_families()
    folder = FOLDER / f"graph_v{version}"
    folder.mkdir(parents=True, exist_ok=True)
    for name, graph, inputs, wanted in items():
        content = to_wire(graph)
        if int.from_bytes(content[16:20], "little") != version:
            continue
        path = folder / f"{name.lower().replace(' ', '_').replace(',', '')}.graph"
        try:
            with open(path, "xb") as file:  # refuses a file that exists
                file.write(content)
        except FileExistsError:
            print(f"kept    {path.name}")
            continue
        if wanted is not None:
            arrays = {f"in_{i:03}": plain(x) for i, x in enumerate(inputs)} | {
                f"out_{i:03}": plain(x) for i, x in enumerate(wanted)
            }
            np.savez_compressed(path.with_suffix(".npz"), **arrays)
        print(f"written {path.name}, {path.stat().st_size} bytes")


if __name__ == "__main__":
    main(int(sys.argv[1]))
