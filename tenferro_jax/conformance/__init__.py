"""The conformance kit: does an extension op keep the contract? Re-exports only."""

from .check import check_extension
from .report import ConformanceReport, Finding, Verdict
from .testing import conformance_tests

__all__ = ["ConformanceReport", "Finding", "Verdict", "check_extension", "conformance_tests"]
