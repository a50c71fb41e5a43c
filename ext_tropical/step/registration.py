"""The families of this package, made known to a process that reads them from bytes."""

from __future__ import annotations

from tenferro_jax.extension import lookup_extension_factory, register_extension
from tenferro_jax.extension.registry import ExtensionFactory

from ..algebra.selective import max_plus
from ..algebra.semiring import SemiringKey
from .einsum_op import TropicalEinsum
from .log_einsum import LogEinsum
from .weighted_sum import WeightedSum

_MAX_PLUS = SemiringKey.of(max_plus)


def register() -> None:
    """Register every family of this package, once: to read graphs and payloads from bytes.

    It is the package's entry point in the group "tenferro_jax.extensions".

    Example:
      >>> from tenferro_jax.extension import lookup_extension_factory
      >>> register()
      >>> lookup_extension_factory("tenferro-ext-tropical.einsum.v1").version
      1
    """
    equation = "ij,jk->ik"
    for default in (
        TropicalEinsum(_MAX_PLUS, equation),
        LogEinsum(1.0, equation),
        WeightedSum(_MAX_PLUS, equation),
    ):
        if lookup_extension_factory(default.family_id) is None:
            register_extension(ExtensionFactory(type(default), default))
