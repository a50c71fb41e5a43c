"""Graphs and exported programs as files: the limits of readers, and names of pytree classes.
Re-exports only.
"""

from .container import Limits
from .trees import register_pytree_name

__all__ = ["Limits", "register_pytree_name"]
