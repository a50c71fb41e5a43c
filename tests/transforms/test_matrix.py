"""No pair of a transform and a kind of op is left out: it runs, or its refusal is a stated
limitation.
"""

import importlib
import pathlib

from .. import transform_page
from ..cases import CASES, KINDS
from .limitations import LIMITATIONS
from .matrix import REFUSALS, SWEPT, TRANSFORMS, refusal_of


def test_every_transform_is_swept_over_every_case():
    for path in pathlib.Path(__file__).parent.glob("test_*.py"):
        importlib.import_module(f".{path.stem}", __package__)
    assert set(TRANSFORMS) == SWEPT
    assert len(TRANSFORMS) == len(SWEPT)


def test_every_pair_runs_or_has_its_limitation():
    refused = [(t, kind) for t in TRANSFORMS for kind in KINDS if refusal_of(t, kind)]
    ran = len(TRANSFORMS) * len(KINDS) - len(refused)
    print(
        f"{len(TRANSFORMS)} transforms, {len(KINDS)} kinds, {len(CASES)} cases: {ran} pairs run, "
        f"{len(refused)} are refused"
    )
    assert {refusal_of(*pair).limitation for pair in refused} == set(LIMITATIONS)
    assert ran > 5 * len(refused)


def test_no_refusal_is_idle():
    assert {refusal_of(t, kind) for t in TRANSFORMS for kind in KINDS} == {None, *REFUSALS}


def test_the_page_says_what_the_matrix_says():
    assert transform_page.PAGE.read_text() == transform_page.page(), (
        "run python -m tests.transform_page"
    )
