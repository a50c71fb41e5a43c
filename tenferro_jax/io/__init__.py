"""Programs and graphs as files: what a reader allows. Re-exports only."""

from .container import Limits

__all__ = ["Limits"]
