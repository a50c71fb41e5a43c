"""The families of this package, made known to a process that reads them from bytes."""

from __future__ import annotations

from tenferro_jax.extension import ExtensionRuleSet, lookup_extension_factory, register_extension

from .einsum_op import TropicalEinsumFactory
from .log_einsum import LogEinsumFactory
from .rules import TROPICAL_RULES
from .weighted_sum import WeightedSumFactory


def register() -> ExtensionRuleSet:
    """Register the factories of every family of this package, once: to read graphs and payloads from bytes.

    It is the package's entry point in the group "tenferro_jax.extensions".

    Returns:
      TROPICAL_RULES, the AD rules of these families.

    Example:
      >>> from tenferro_jax.extension import lookup_extension_factory
      >>> rules = register()
      >>> lookup_extension_factory("tenferro-ext-tropical.einsum.v1").version
      1
    """
    for factory in (TropicalEinsumFactory(), LogEinsumFactory(), WeightedSumFactory()):
        if lookup_extension_factory(factory.family_id) is None:
            register_extension(factory)
    return TROPICAL_RULES
