"""The first mistakes of a newcomer with ext_tropical, each with the whole text of its error."""

import jax
import numpy as np
import pytest

from ext_tropical import (
    Chain,
    Network,
    align,
    closure,
    log_sum_exp,
    min_plus,
    plan_tropical_einsum,
    tropical_dot_general,
    tropical_einsum,
    tropical_reduce_sum,
    viterbi,
)
from ext_tropical.graphs.paths import EdgeGraph, shortest_paths, sparse_matvec
from ext_tropical.graphs.segments import segment_max
from ext_tropical.sequences.ctc import ctc_loss
from tenferro_jax.errors import TenferroError

PAIR = np.zeros((2, 2), np.float32)
A, B = np.ones((2, 3), np.float32), np.ones((3, 4), np.float32)
NET = Network.from_factors({("rain",): PAIR[0], ("rain", "wet"): PAIR})
LINKS = [((f"x{i}", f"x{j}"), PAIR) for i in range(60) for j in range(i)]
WIDE = Network.from_factors(LINKS)  # every variable is linked with every other one
CHAIN = Chain(PAIR[0], PAIR, np.zeros((3, 2), np.float32))
GRAPH = EdgeGraph([0, 0, 1], [1, 2, 2], n=3)
MINUTES = np.array([4, 9, 3], np.float32)
FRAMES = np.zeros((3, 4), np.float32)
PLAN = plan_tropical_einsum("ij,jk->ik", A, B)


def in_jit(ask, *args):
    return lambda: jax.jit(ask)(*args)


MISTAKES = [
    (
        "a list in place of tables",
        lambda: Network.from_factors([PAIR]),
        "InvalidConfig: Network.from_factors, names: given np.float32(0.0) of type float32; "
        "needed variables that are all text, all integers, or all members of an Enum.",
    ),
    (
        "names of two kinds",
        lambda: Network.from_factors({("rain", 0): PAIR}),
        "InvalidConfig: Network.from_factors, names: given names of type int, str; needed "
        "variables that are all text, all integers, or all members of an Enum.",
    ),
    (
        "names that are floats",
        lambda: Network.from_factors({(0.5, 1.5): PAIR}),
        "InvalidConfig: Network.from_factors, names: given 0.5 of type float; needed "
        "variables that are all text, all integers, or all members of an Enum.",
    ),
    (
        "a word in place of several names",
        lambda: Network.from_factors({"ab": PAIR}),
        "ShapeError: Network, table 0 of ab: given shape (2, 2); needed an axis for each of "
        "its variables. For 2 variables write ('a', 'b').",
    ),
    (
        "a table of fewer axes",
        lambda: Network.from_factors({("rain", "wet"): PAIR[0]}),
        "ShapeError: Network, table 0 of rain, wet: given shape (2,); needed an axis for "
        "each of its variables.",
    ),
    (
        "two sizes of a variable",
        lambda: Network("ab,bc->", PAIR, A.T),
        "ShapeError: Network, table 1 of b, c, variable 'b': given 3 values; needed 2, as before.",
    ),
    (
        "tables of two dtypes",
        lambda: Network("ab,bc->", PAIR, PAIR.astype(np.int32)),
        "DTypeError: Network, tables: given float32, int32; needed one dtype for all.",
    ),
    (
        "an equation with an output",
        lambda: Network("ab->a", PAIR),
        "InvalidConfig: Network, equation: given 'ab->a'; needed the labels of the tables "
        'and no output, such as "ab,bc->". Leave out the labels behind the arrow: a network '
        "sums or searches over all.",
    ),
    (
        "a table too few",
        lambda: Network("ab,bc->", PAIR),
        "InvalidConfig: Network 'ab,bc->': given 1 table; needed 2, one for each term.",
    ),
    (
        "a variable that is misspelt",
        lambda: NET.given(rian=1),
        "InvalidConfig: Network.given: given 'rian'; needed one of 'rain', 'wet'.",
    ),
    (
        "a value that is out of range",
        lambda: NET.given(rain=2),
        "InvalidConfig: Network.given, variable 'rain': given 2; needed an integer, 0 to 1. "
        "Values of variables are numbered from 0.",
    ),
    (
        "a value that is a word",
        lambda: NET.given(rain="yes"),
        "InvalidConfig: Network.given, variable 'rain': given 'yes'; needed an integer, 0 to "
        "1. Values of variables are numbered from 0.",
    ),
    (
        "a variable and its value by position",
        lambda: NET.given("rain", 1),
        "InvalidConfig: Network.given: given 2 arguments; needed (values=None, /, **others). "
        "Write given(rain=1), or given({'rain': 1}).",
    ),
    (
        "a list of names to be summed",
        lambda: NET.sum_out(["rain"]),
        "InvalidConfig: Network.sum_out: given ['rain']; needed one of 'rain', 'wet'. Pass "
        "several names one by one.",
    ),
    (
        "k of none",
        lambda: NET.best(k=0),
        "InvalidConfig: Network.best, k: given 0; needed an integer of at least 1.",
    ),
    (
        "a traced k",
        in_jit(lambda k: NET.best(k=k).value, np.int32(2)),
        "InvalidConfig: Network.best, k: given a traced int32[]; needed an integer of at "
        "least 1. Sizes and counts are part of the program: in jax.jit mark them static "
        "(static_argnames).",
    ),
    (
        "counting inside jit",
        in_jit(lambda net: net.count(), NET),
        "Unsupported: Network.count: given a traced float32[2], inside a transform such as "
        "jax.jit; needed concrete arrays, whose values Python can read. Ask outside of it.",
    ),
    (
        "listing within a negative gap",
        lambda: NET.all_best(within=-1),
        "InvalidConfig: Network.all_best, within: given -1; needed a number of at least 0.",
    ),
    (
        "no integer for each value",
        lambda: NET.count_by({"rain": 1}),
        "InvalidConfig: Network.count_by, variable 'rain': given 1; needed 2 integers of at "
        "least 0, one for each value.",
    ),
    (
        "a temperature of 0",
        lambda: NET.marginals(temperature=0),
        "InvalidConfig: Network.marginals, temperature: given 0; needed a positive finite "
        "number of Python or NumPy: it is part of the op. For the limit at 0 use max_plus; "
        "for a minimum negate the operands.",
    ),
    (
        "a seed in place of a key",
        lambda: NET.sample(0),
        "InvalidConfig: Network.sample, key: given 0; needed one key of jax.random. Pass "
        "jax.random.key(0); for many keys use jax.vmap.",
    ),
    (
        "a number in place of a shape",
        lambda: NET.sample(jax.random.key(0), 5),
        "InvalidConfig: Network.sample, shape: given 5; needed a sequence of integers. Write "
        "(5,) for 5.",
    ),
    (
        "marginals of integers",
        lambda: Network("ab->", PAIR.astype(np.int32)).marginals(),
        "DTypeError: Network.marginals: given tables of int32; needed tables of one floating "
        "dtype.",
    ),
    (
        "a memory limit in words",
        lambda: Network("ab->", PAIR, memory_limit="1GB"),
        "InvalidConfig: Network, memory_limit: given '1GB'; needed a positive number of "
        "bytes, an integer. Pass an int such as 2**30.",
    ),
    (
        "a network that is too wide",
        lambda: WIDE.log_partition(),
        "ShapeError: Network.log_partition: given a step with a result of 576460752303423488 entries, "
        "over the 59 variables 'x55', 'x56', 'x57', 'x58', 'x59', 'x0',...', 'x52', 'x53', "
        "'x54'; needed at most 281474976710656 entries. Fix some of them with given, one "
        "value after another, leave out tables that connect them, or try another optimize, "
        "as 'random-greedy-128'.",
    ),
    (
        "a transposed emission",
        lambda: Chain(PAIR[0], PAIR, np.zeros((2, 3), np.float32)).best(),
        "ShapeError: Chain.best: given initial of shape (2,), transition of shape (2, 2), "
        "emission of shape (2, 3); needed initial (..., S), transition (S, S) or (..., R, S, "
        "S), emission (..., T, S), final (..., S); S and T at least 1, R 1 or T - 1; with "
        "columns (..., S) an emission (..., T, C). Transpose the emission: it has a row for "
        "each time.",
    ),
    (
        "a band that is not said to be one",
        lambda: Chain(PAIR[0], PAIR[:1], FRAMES[:, :2]).best(),
        "ShapeError: Chain.best: given initial of shape (2,), transition of shape (1, 2), "
        "emission of shape (3, 2); needed initial (..., S), transition (S, S) or (..., R, S, "
        "S), emission (..., T, S), final (..., S); S and T at least 1, R 1 or T - 1; with "
        "columns (..., S) an emission (..., T, C). Pass banded=True if the transition has a "
        "row for each step of a band.",
    ),
    (
        "integers among floats",
        lambda: Chain(np.int32([0, 0]), PAIR, FRAMES[:, :2]).best(),
        "DTypeError: Chain.best: given operands of dtype int32 and float32; needed one dtype "
        "for all. Convert with .astype; there is no promotion, also not of Python numbers.",
    ),
    (
        "lengths that are floats",
        lambda: Chain(PAIR[0], PAIR, FRAMES[:, :2], np.float32(2)).best(),
        "DTypeError: Chain.best, lengths: given float32; needed integers.",
    ),
    (
        "banded that is a word",
        lambda: Chain(PAIR[0], PAIR[:1], FRAMES[:, :2], banded="yes"),
        "InvalidConfig: Chain, banded: given 'yes'; needed True or False.",
    ),
    (
        "states one-hot",
        lambda: CHAIN.log_prob(np.eye(2, dtype=np.int32)[[0, 1, 0]]),
        "ShapeError: Chain.log_prob, states: given shape (3, 2); needed (..., 3).",
    ),
    (
        "a semiring in the place of k",
        lambda: CHAIN.best("min_plus"),
        "InvalidConfig: Chain.best, k: given 'min_plus'; needed an integer of at least 1.",
    ),
    (
        "many keys",
        lambda: CHAIN.sample(jax.random.split(jax.random.key(0), 2)),
        "InvalidConfig: Chain.sample, key: given key<fry> of shape (2,); needed one key of "
        "jax.random. Pass jax.random.key(0); for many keys use jax.vmap.",
    ),
    (
        "viterbi of a vector",
        lambda: viterbi(PAIR[0], PAIR, PAIR[0]),
        "ShapeError: viterbi: given log_initial of shape (2,), log_transition of shape (2, "
        "2), log_emission of shape (2,); needed log_initial (..., S), log_transition (S, S) "
        "or (..., R, S, S), log_emission (..., T, S), final (..., S); S and T at least 1, R "
        "1 or T - 1; with columns (..., S) an emission (..., T, C). For a batch of "
        "transitions give them the axis of R, of size 1.",
    ),
    (
        "k by position",
        lambda: viterbi(PAIR[0], PAIR, FRAMES[:, :2], 2),
        "InvalidConfig: viterbi: given 4 arguments; needed (log_initial, log_transition, "
        "log_emission, *, k=None, semiring=max_plus).",
    ),
    (
        "nodes with names",
        lambda: EdgeGraph("ab", "bc", n=3),
        "DTypeError: EdgeGraph, senders: given 'ab'; needed integers, the numbers of nodes "
        "from 0. Number nodes that have names, as np.unique(names, return_inverse=True) does.",
    ),
    (
        "nodes from 1",
        lambda: EdgeGraph([1, 2], [2, 3], n=3),
        "InvalidConfig: EdgeGraph, receivers: given 3 at place 1; needed nodes from 0 to 2.",
    ),
    (
        "pairs of nodes",
        lambda: EdgeGraph([[0, 1], [1, 2]], [[0, 1], [1, 2]], n=3),
        "ShapeError: EdgeGraph: given senders (2, 2), receivers (2, 2); needed two arrays "
        "(E,). Of pairs (E, 2) pass edges[:, 0] and edges[:, 1].",
    ),
    (
        "no number of nodes",
        lambda: EdgeGraph([0, 0, 1], [1, 2, 2]),
        "InvalidConfig: EdgeGraph: given 2 arguments; needed (senders, receivers, n).",
    ),
    (
        "a graph inside jit",
        in_jit(lambda s: EdgeGraph(s, [1, 2], n=3), np.int32([0, 1])),
        "Unsupported: EdgeGraph: given a traced int32[2], inside a transform such as "
        "jax.jit; needed concrete arrays, whose values Python can read. Make the graph "
        "outside of it, and pass it in as an argument: it is a pytree.",
    ),
    (
        "a dense matrix of edges",
        lambda: EdgeGraph.from_matrix(np.eye(3)),
        "InvalidConfig: EdgeGraph.from_matrix: given ndarray; needed a BCOO, a BCSR, or a "
        "sparse array of SciPy. For a dense array use "
        "jax.experimental.sparse.BCOO.fromdense, or closure.",
    ),
    (
        "a matrix in place of a graph",
        lambda: shortest_paths(np.eye(3), MINUTES, 0),
        "InvalidConfig: shortest_paths, graph: given an array float64[3,3]; needed an "
        "EdgeGraph. Make it by EdgeGraph(senders, receivers, n). EdgeGraph.from_matrix makes "
        "one of a sparse matrix, and returns the weights, too.",
    ),
    (
        "a weight too few",
        lambda: shortest_paths(GRAPH, MINUTES[:2], 0),
        "ShapeError: shortest_paths, weights: given shape (2,); needed (3,), a weight for "
        "each edge. For many weights use jax.vmap.",
    ),
    (
        "source= for sources=",
        lambda: shortest_paths(GRAPH, MINUTES, source=0),
        "InvalidConfig: shortest_paths: given 2 arguments, source=; needed (graph, weights, "
        "sources, targets=None, *, semiring=min_plus).",
    ),
    (
        "a source that is no node",
        lambda: shortest_paths(GRAPH, MINUTES, 3),
        "InvalidConfig: shortest_paths, sources: given 3; needed nodes from 0 to 2.",
    ),
    (
        "one target",
        lambda: shortest_paths(GRAPH, MINUTES, 0, 2),
        "ShapeError: shortest_paths, targets: given shape (); needed (K,), or None. Write "
        "[3] for 3.",
    ),
    (
        "products of probabilities",
        lambda: shortest_paths(GRAPH, MINUTES, 0, semiring="max_mul"),
        "InvalidConfig: shortest_paths, semiring: given max_mul; needed min_plus, max_plus, "
        "min_max or or_and. For products of probabilities pass -log of them, under min_plus.",
    ),
    (
        "a path from several sources",
        lambda: shortest_paths(GRAPH, MINUTES, [0, 1]).path(2),
        "InvalidConfig: ShortestPaths.path, at: given nothing; needed an index of one of the "
        "sources, which have the shape (2,). Pass at=0 for the first source.",
    ),
    (
        "a source beyond the last",
        lambda: shortest_paths(GRAPH, MINUTES, [0, 1]).path(2, at=5),
        "InvalidConfig: ShortestPaths.path, at: given 5; needed an index of one of the "
        "sources, which have the shape (2,). Pass at=0 for the first source.",
    ),
    (
        "a target that is no node",
        lambda: shortest_paths(GRAPH, MINUTES, 0).path(33),
        "InvalidConfig: ShortestPaths.path, target: given 33; needed nodes from 0 to 2.",
    ),
    (
        "a path inside jit",
        in_jit(lambda w: shortest_paths(GRAPH, w, 0).path(2), MINUTES),
        "Unsupported: ShortestPaths.path: given a traced float32[3], inside a transform such "
        "as jax.jit; needed concrete arrays, whose values Python can read. Use distances and "
        "last_edges inside of it, paths outside.",
    ),
    (
        "a matrix times a vector",
        lambda: sparse_matvec(np.eye(3), MINUTES, MINUTES),
        "InvalidConfig: sparse_matvec, graph: given an array float64[3,3]; needed an "
        "EdgeGraph. Make it by EdgeGraph(senders, receivers, n). EdgeGraph.from_matrix makes "
        "one of a sparse matrix, and returns the weights, too.",
    ),
    (
        "a traced number of segments",
        in_jit(lambda n: segment_max(MINUTES, [0, 1, 1], n), np.int32(2)),
        "InvalidConfig: segment_max, num_segments: given a traced int32[]; needed an integer "
        "of at least 0. Sizes and counts are part of the program: in jax.jit mark them "
        "static (static_argnames).",
    ),
    (
        "segments that are floats",
        lambda: segment_max(MINUTES, np.float32([0, 1, 1]), 2),
        "DTypeError: segment_max, segment_ids: given float32; needed integers.",
    ),
    (
        "two words",
        lambda: align("GATTACA", "GTTA"),
        "InvalidConfig: align: given 2 arguments; needed (scores, *, gap=None, "
        "gap_open=None, mode='global', ends=(), band=None, lengths=None, semiring=max_plus). "
        "Compare the elements of both sequences first, as jnp.where(first[:, None] == second, "
        "1.0, -1.0).",
    ),
    (
        "a word",
        lambda: align("GATTACA"),
        "DTypeError: align, scores: given 'GATTACA'; needed the scores of all pairs of "
        "elements, (m, n). Compare the elements of both sequences first, as "
        "jnp.where(first[:, None] == second, 1.0, -1.0).",
    ),
    (
        "a vector of scores",
        lambda: align(MINUTES, gap=-1),
        "ShapeError: align, scores: given shape (3,); needed (m, n), m and n at least 1. One "
        "row for each element of the first sequence; for many use jax.vmap.",
    ),
    (
        "local without gaps",
        lambda: align(A, mode="local"),
        "InvalidConfig: align: given mode='local' without gap; needed gap, the score of an "
        "element in a gap. Without gaps there is only global warping.",
    ),
    (
        "a mode that is none",
        lambda: align(A, gap=-1, mode="Global"),
        "InvalidConfig: align, mode: given 'Global'; needed 'global' or 'local'.",
    ),
    (
        "a band that is too narrow",
        lambda: align(np.zeros((2, 5), np.float32), gap=-1, band=1),
        "InvalidConfig: align, band: given 1 for 2 and 5 elements; needed at least 3, their "
        "difference: the band has no global alignment.",
    ),
    (
        "one length",
        lambda: align(A, gap=-1, lengths=3),
        "ShapeError: align, lengths: given shape (); needed (2,): the number of elements of "
        "the first and of the second sequence. For a batch use jax.vmap.",
    ),
    (
        "a gap beyond the dtype",
        lambda: align(A, gap=-1e300),
        "DTypeError: align, gap: given -1e+300; needed a number of float32, "
        "the dtype of the scores.",
    ),
    (
        "labels that are floats",
        lambda: ctc_loss(FRAMES, np.float32([1, 2])),
        "DTypeError: ctc_loss: given logits of float32, labels and lengths of float32; "
        "needed floating logits, integer labels and lengths.",
    ),
    (
        "a blank that is no symbol",
        lambda: ctc_loss(FRAMES, [1, 2], blank=-1),
        "InvalidConfig: ctc_loss, blank: given -1; needed an integer from 0 to 3.",
    ),
    (
        "lengths by position",
        lambda: ctc_loss(FRAMES, [1, 2], [3], [2]),
        "InvalidConfig: ctc_loss: given 4 arguments; needed (logits, labels, *, "
        "logit_lengths=None, label_lengths=None, blank=0).",
    ),
    (
        "batches that differ",
        lambda: ctc_loss(np.stack([FRAMES] * 2), np.ones((3, 1), np.int32)),
        "ShapeError: ctc_loss: given (2,) of logits (..., T, V), (3,) of labels (..., L); "
        "needed leading axes that broadcast.",
    ),
    (
        "a closure that is no square",
        lambda: closure(A),
        "ShapeError: closure: given shape (2, 3); needed a square matrix. Correct the array; "
        "for many use jax.vmap.",
    ),
    (
        "a closure of a graph",
        lambda: closure(GRAPH),
        "InvalidConfig: closure: given EdgeGraph; needed a dense matrix, with the semiring's "
        "zero where there is no edge. For sparse graphs use "
        "ext_tropical.shortest_paths.",
    ),
    (
        "a walk to no node",
        lambda: closure(PAIR).walk(0, 5),
        "InvalidConfig: ClosureResult.walk, target: given 5; needed nodes from 0 to 1.",
    ),
    (
        "a semiring by position",
        lambda: closure(PAIR, min_plus),
        "InvalidConfig: closure: given 2 arguments; needed (a, *, semiring=min_plus).",
    ),
    (
        "sizes that differ",
        lambda: tropical_einsum("ij,jk->ik", A, A),
        "ShapeError: tropical_einsum 'ij,jk->ik', operand 1, axis 0: given label 'j' of size "
        "2, and of size 3 before, in operand 0; needed one size for each label.",
    ),
    (
        "the equation last",
        lambda: tropical_einsum(A, B, "ij,jk->ik"),
        "InvalidConfig: tropical_einsum: given an array float32[2,3] first; needed an "
        "equation such as 'ij,jk->ik', or labels behind each operand. Pass the equation "
        "first; labels are integers or letters.",
    ),
    (
        "an operand too few",
        lambda: tropical_einsum("ij,jk->ik", A),
        "InvalidConfig: tropical_einsum 'ij,jk->ik': given 1 operand; needed 2, one for each "
        "comma-separated term.",
    ),
    (
        "an operand of None",
        lambda: tropical_einsum("ij,jk->ik", A, None),
        "DTypeError: tropical_einsum 'ij,jk->ik', operand 1: given NoneType: None is not a "
        "valid value for jnp.array; needed an array, a number or a list of numbers. Convert "
        "with jax.numpy.asarray first.",
    ),
    (
        "a semiring as an operand",
        lambda: tropical_einsum("ij,jk->ik", A, B, min_plus),
        "InvalidConfig: tropical_einsum 'ij,jk->ik', operand 2: given min_plus; needed an "
        "array. Write semiring=min_plus.",
    ),
    (
        "two dtypes",
        lambda: tropical_einsum("ij,jk->ik", A, B.astype(np.int32)),
        "DTypeError: tropical_einsum 'ij,jk->ik': given operands of dtype float32 and int32; "
        "needed one dtype for all. Convert with .astype; there is no promotion, also not of "
        "Python numbers.",
    ),
    (
        "a keyword of jnp.einsum",
        lambda: tropical_einsum("ij,jk->ik", A, B, precision="high"),
        "InvalidConfig: tropical_einsum 'ij,jk->ik': given 3 arguments, precision=; needed "
        "(equation, *operands, semiring=max_plus, ties='first', optimize='auto', "
        "memory_limit=None, over=None).",
    ),
    (
        "a traced temperature",
        in_jit(log_sum_exp, np.float32(1)),
        "InvalidConfig: log_sum_exp, temperature: given a traced float32[]; needed a "
        "positive finite number of Python or NumPy: it is part of the op. For the limit at 0 "
        "use max_plus; for a minimum negate the operands.",
    ),
    (
        "axes as numbers",
        lambda: tropical_dot_general(A, B, ((1, 0), ((), ()))),
        "ShapeError: tropical_dot_general: given shapes (2, 3) and (3, 4), dimension_numbers "
        "((1, 0), ((), ())); needed what jax.lax.dot_general takes; tropical_einsum also "
        "broadcasts. 'int' object is not iterable",
    ),
    (
        "an axis beyond the last",
        lambda: tropical_reduce_sum(A, axis=2),
        "ShapeError: tropical_reduce_sum, axis: given 2 for an array of rank 2; needed an "
        "axis of the array, or a sequence of different ones. axis 2 is out of bounds for "
        "array of dimension 2",
    ),
    (
        "a semiring in the place of keepdims",
        lambda: tropical_reduce_sum(A, 0, "min_plus"),
        "InvalidConfig: tropical_reduce_sum, keepdims: given 'min_plus'; needed True or False.",
    ),
]


@pytest.mark.parametrize(
    ("call", "text"), [row[1:] for row in MISTAKES], ids=[row[0] for row in MISTAKES]
)
def test_a_first_mistake_is_told_in_the_words_of_its_author(call, text):
    with pytest.raises(TenferroError) as error:
        call()
    assert f"{type(error.value).__name__}: {error.value}" == text
