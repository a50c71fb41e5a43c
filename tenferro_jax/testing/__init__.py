"""Checks of any function, and of extension ops against the contract.

`checking`
    `check`, `conformance_tests`, and how checks run. `checks`: the lists of them.
`functions`, `ops_given`
    What is checked: a function, or an op. `examples`: its inputs.
`declared`
    What an op says of its dtypes, shapes and identity.
`derivatives`, `precisions`
    Rules against finite differences (`finite_differences`), and in each dtype.
`maps`, `values_agree`, `numpy_arrays`
    vmap and devices; routes and transforms; arrays that a function closes over.
`plain`
    What JAX itself cannot do, which is no fault of what is checked.
`report`
    The findings.
"""

from .checking import check, conformance_tests
from .report import ConformanceReport, Finding, Verdict

__all__ = ["ConformanceReport", "Finding", "Verdict", "check", "conformance_tests"]
