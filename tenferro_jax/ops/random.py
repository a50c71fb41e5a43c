"""Random bits as a function of a key, without state."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax

from ..errors import DTypeError, InvalidConfig
from ..shapes import Shaped, x64_enabled
from .fields import DType, Size
from .op import INTEGER, Binary, StdTensorOp, op


def _for_each(fn: Callable[..., jax.Array], ndim: int) -> Callable[..., jax.Array]:
    """A function of one key, mapped over all axes of an array of keys."""
    for _ in range(ndim):
        fn = jax.vmap(fn)
    return fn


@op
class RandomSeed(StdTensorOp, takes=INTEGER):
    """A typed key from each integer seed, for a named generator.

    C1: an integer dtype.
    Gradient: none.
    Example: RandomUnwrap().apply(RandomSeed("threefry2x32").apply(np.int32(7))) = [0, 7]
    """

    generator: str

    def apply(self, seed: jax.Array) -> jax.Array:
        seeds = jnp.asarray(seed)
        return _for_each(lambda s: jax.random.key(s, impl=self.generator), seeds.ndim)(seeds)


@op
class RandomWrap(StdTensorOp):
    """Raw uint32 key data, on the last axis, as typed keys.

    C1: uint32, the last axis of the generator's key size.
    Gradient: none.
    Example: RandomUnwrap().apply(RandomWrap("threefry2x32").apply(np.uint32([0, 7]))) = [0, 7]
    """

    generator: str

    def apply(self, data: jax.Array) -> jax.Array:
        return jax.random.wrap_key_data(data, impl=self.generator)


@op
class RandomUnwrap(StdTensorOp, function=jax.random.key_data):
    """The raw uint32 data of typed keys, on a new last axis.

    C1: a key dtype.
    Gradient: none.
    Example: RandomUnwrap().apply(jax.random.key(7)) = [0, 7]
    """


@op
class RandomBits(StdTensorOp):
    """Uniform bits as unsigned integers: for each key an array of the given shape.

    C1: bit_width 8, 16, 32 or 64. C2: a key dtype.
    Gradient: none.
    Example: RandomBits(32, (2,)).apply(jax.random.key(0)) = jax.random.bits(jax.random.key(0),
    (2,), "uint32")
    """

    bit_width: int
    shape: tuple[Size, ...]

    def check(self, *operands: Shaped) -> None:
        """C1."""
        if self.bit_width == 64 and not x64_enabled():
            raise DTypeError(
                where="RandomBits",
                given="64 bits while 64-bit types are off",
                needed="64-bit types on",
                fix="Run under jax.enable_x64(True), or draw 32 bits.",
            )

    def apply(self, key: jax.Array) -> jax.Array:
        return _for_each(
            lambda k: jax.random.bits(k, self.shape, f"uint{self.bit_width}"), key.ndim
        )(key)


@op
class RandomSplit(StdTensorOp):
    """New keys of the given shape from each key.

    C1: a key dtype.
    Gradient: none.
    Example: RandomUnwrap().apply(RandomSplit((2,)).apply(jax.random.key(0))) =
    jax.random.key_data(jax.random.split(jax.random.key(0)))
    """

    shape: tuple[Size, ...]

    def apply(self, key: jax.Array) -> jax.Array:
        return _for_each(lambda k: jax.random.split(k, self.shape), key.ndim)(key)


@op
class RandomFoldIn(Binary):
    """A new key from each key and uint32 number.

    C1: keys and uint32 numbers of one shape.
    Gradient: none.
    Example: RandomUnwrap().apply(RandomFoldIn().apply(jax.random.key(0), np.uint32(0))) =
    [1797259609, 2579123966]
    """

    equal_dtypes = False

    def apply(self, key: jax.Array, number: jax.Array) -> jax.Array:
        return _for_each(jax.random.fold_in, key.ndim)(key, number)


@op
class RandomGamma(StdTensorOp):
    """Samples of gamma(a), or their logarithms: for each key those of the last axes of a.

    C1: the shape of a begins with the shape of the keys. C2: floating a.
    Gradient: the implicit derivative in a.
    Example: RandomGamma().apply(jax.random.split(jax.random.key(0)), np.ones(2)) > 0
    """

    input_count = 2
    log_space: bool = False

    def apply(self, key: jax.Array, a: jax.Array) -> jax.Array:
        draw = jax.random.loggamma if self.log_space else jax.random.gamma
        return _for_each(lambda k, alpha: draw(k, alpha, alpha.shape, alpha.dtype), key.ndim)(
            key, a
        )


_STATES = {"uint32": {(2,), (4,)}, "uint64": {(2,), (3,), (4,)}}
"""What XLA takes; its algorithms differ."""


@op
class RngBitGenerator(StdTensorOp):
    """The next raw key state and uniform bits, by an algorithm of XLA.

    C1: uint32 or uint64 state of the algorithm's size; unsigned bits.
    Gradient: none.
    Example: RngBitGenerator((2,), np.dtype("uint32"), "RNG_THREE_FRY").apply(np.uint64([0,
    7]))[0].shape = (2,)
    """

    output_count = 2
    shape: tuple[int, ...]
    dtype: DType
    algorithm: str

    def check(self, *operands: Shaped) -> None:
        """C1."""
        (state,) = operands
        if tuple(state.shape) not in _STATES.get(str(state.dtype), ()):
            raise InvalidConfig(
                where="RngBitGenerator",
                given=f"state {state.dtype}{list(state.shape)}",
                needed="uint32[4] or uint64[2] state",
                fix="Use a key of jax.random.",
            )

    def apply(self, key: jax.Array) -> tuple[jax.Array, jax.Array]:
        return lax.rng_bit_generator(
            key, self.shape, self.dtype, lax.RandomAlgorithm[self.algorithm]
        )
