"""How much of a sweep runs: a fixed sample, or ten times that under `make test-all`."""

import os

ALL = os.environ.get("TENFERRO_SWEEP") == "all"


def times(sample: int) -> int:
    """The number of cases to run where the fixed sample has `sample`."""
    return 10 * sample if ALL else sample
