"""The former place of `ext_tropical.graphs` and `ext_tropical.sequences`, for one release."""

import sys

from ..graphs import all_pairs, paths, segments
from ..sequences import ctc

for _name, _module in {
    "closure": all_pairs,
    "ctc": ctc,
    "paths": paths,
    "segments": segments,
}.items():
    sys.modules[f"{__name__}.{_name}"] = _module
