"""The parts of a function that its ops may be."""

import pytest

from tenferro_jax.extension import function_parts
from tenferro_jax.extension.contract import Can, ExtensionOp
from tenferro_jax.extension.function_parts import PARTS, VALUE, Part

METHODS = {Can.INFER: "metas", Can.LOWER: "lower", Can.LINEARIZE: "linearize"}
METHODS |= {Can.TRANSPOSE: "transpose", Can.RUN_ON_HOST: "run_on_host"}


def overrides(part: Part, method: str) -> bool:
    return getattr(type(part), method) is not getattr(Part, method)


@pytest.mark.parametrize("stage", [stage for stage in PARTS if stage != VALUE])
def test_a_part_of_a_reverse_rule_has_the_methods_of_its_abilities(stage):
    part = PARTS[stage]
    assert part.abilities == {can for can, name in METHODS.items() if overrides(part, name)}


def test_the_value_has_a_method_for_all_that_an_author_may_write():
    assert PARTS[VALUE].abilities is None
    assert all(overrides(PARTS[VALUE], name) for name in METHODS.values())
    assert set(Can) == {*METHODS, Can.SHARD}


def test_each_ability_is_a_method_of_ops():
    assert all(callable(getattr(ExtensionOp, can.value)) for can in Can)


def test_the_head_of_the_module_names_each_part():
    head = function_parts.__doc__
    assert [line.split('"')[1] for line in head.splitlines() if line.startswith('- "')] == [*PARTS]
