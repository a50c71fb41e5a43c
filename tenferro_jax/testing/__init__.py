"""Checks of extension ops against the contract. Re-exports only."""

from .checking import check, conformance_tests
from .report import ConformanceReport, Finding, Verdict

__all__ = ["ConformanceReport", "Finding", "Verdict", "check", "conformance_tests"]
