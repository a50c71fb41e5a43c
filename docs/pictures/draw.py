"""Draw the pictures of the docs: python -m docs.pictures.draw."""

import pathlib

import jax
import jax.numpy as jnp

import tenferro_jax as tj
from ext_tropical import tropical_einsum


def loss(params, x, y):
    """Squared error of a network whose second layer is max-plus."""
    hidden = jax.nn.sigmoid(x @ params["w1"] + params["b1"][None])
    return ((tropical_einsum("bi,io->bo", hidden, params["w2"]) - y) ** 2).mean()


def mlp_gradient() -> tj.Graph:
    """The gradient of that loss with respect to the parameters."""
    spec = lambda *shape: jax.ShapeDtypeStruct(shape, jnp.float32)  # noqa: E731
    params = {"w1": spec(4, 8), "b1": spec(8), "w2": spec(8, 2)}
    return tj.grad(tj.trace(loss, params, spec(16, 4), spec(16, 2)))


if __name__ == "__main__":
    pathlib.Path(__file__).with_name("mlp_gradient.svg").write_text(mlp_gradient().svg())
