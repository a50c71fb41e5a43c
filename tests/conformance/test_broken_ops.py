"""Each broken op is found, with the clause that it breaks; its repaired twin passes the same check."""

import pytest

from tenferro_jax import check_extension
from tenferro_jax.conformance import Verdict

from .broken_ops import DEFECTS, arguments


@pytest.mark.parametrize("name", DEFECTS)
def test_a_defect_is_found_and_its_repair_accepted(name):
    defect = DEFECTS[name]
    args, keywords = arguments(defect, broken=True)
    report = check_extension(*args, **keywords)
    found = {f.check: f.clause for f in report.failures}
    assert found.get(defect.check) == defect.clause, f"{found}\n{report}"
    args, keywords = arguments(defect, broken=False)
    twin = check_extension(*args, **keywords)
    assert {f.check: f.verdict for f in twin.findings}[defect.check] is Verdict.PASSED, str(twin)
    assert twin.ok, str(twin)
