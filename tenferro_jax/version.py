"""The version of this distribution, of both packages in it, and the versions of JAX that it is
tested with: the one place that says them.
"""

import re
import warnings

import jax

from .errors import Unsupported

__version__ = "0.1.0"

TESTED_JAX = ("0.10.2", "0.11.2", "0.12.0.1")
"""In order. The first is the oldest that works, and the one that the native kernels are built for.
"""


class UntestedJaxWarning(UserWarning):
    """JAX is newer than the newest version that this release was tested with."""


def check_jax(version: str) -> None:
    """Called once, at import. docs/jax_versions.md says what may go wrong.

    Raises:
      Unsupported: JAX is older than the oldest version that works.
    """
    oldest, newest = TESTED_JAX[0], TESTED_JAX[-1]
    if _release(version) < _release(oldest):
        raise Unsupported(
            where="import tenferro_jax",
            given=f"JAX {version}",
            needed=f"JAX {oldest} or newer",
            fix=f"Install one: pip install 'jax>={oldest}'.",
        )
    if _release(version) > _release(newest):
        warnings.warn(
            f"tenferro_jax {__version__} was tested with JAX {oldest} to {newest}, and this is JAX "
            f"{version}: it may fail where JAX has changed. See docs/jax_versions.md.",
            UntestedJaxWarning,
            stacklevel=4,  # the line that imports tenferro_jax
        )


def _release(version: str) -> tuple[int, ...]:
    """The numbers of a version, without a suffix such as rc1 or .dev20270101."""
    return tuple(map(int, re.findall(r"\d+", re.findall(r"^[\d.]*\d", version)[0])))


check_jax(jax.__version__)
