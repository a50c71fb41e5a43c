"""Each broken op is found, with the clause that it breaks; its repaired twin passes the
same check.
"""

import pytest

from tenferro_jax.conformance import conformance_tests
from tenferro_jax.errors import ConformanceError

from ..helpers import ends_in
from .broken_ops import DEFECTS, arguments


@pytest.mark.few(14)
@pytest.mark.parametrize("name", DEFECTS)
def test_a_defect_is_found_and_its_repair_accepted(name):
    defect = DEFECTS[name]
    (op, inputs), keywords = arguments(defect, broken=True)
    ends_in(
        lambda: conformance_tests(op, *inputs, **keywords)(defect.check),
        ConformanceError,
        rf"FAILED L\d {defect.check}: clause {defect.clause.replace('.', '[.]')}\n",
    )
    (op, inputs), keywords = arguments(defect, broken=False)
    try:
        conformance_tests(op, *inputs, **keywords)(defect.check)
    except pytest.skip.Exception as reason:
        pytest.fail(f"not applicable to the twin: {reason}")
