"""The former name of `tenferro_jax.testing`, for one release."""

from .testing import ConformanceReport as ConformanceReport
from .testing import Finding as Finding
from .testing import Verdict as Verdict
from .testing import check as check
from .testing import conformance_tests as conformance_tests
