"""The former place of `ext_tropical.semirings`, for one release."""

import sys

from ..semirings import laws

sys.modules[f"{__name__}.laws"] = laws
