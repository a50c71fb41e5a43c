"""The questions of the ops of paths."""

import pathlib
import re

import pytest

from ext_tropical.graphs.path_op import PathAsked
from ext_tropical.native import library

pytestmark = pytest.mark.cpu


def test_questions_are_those_of_the_native_library():
    """The header has what each takes, in its order, and what it gives."""
    header = (pathlib.Path(library.__file__).parent / "paths.h").read_text()
    theirs = {}
    for name, body in re.findall(r"struct (Paths|TreeSums) \{(.*?)\n\};", header, re.DOTALL):
        (inputs,) = re.findall(r"enum Input \{ (.*), kInputs \};", body)
        takes = tuple(entry.removeprefix("k").lower() for entry in inputs.split(", "))
        gives = tuple(re.findall(r"^  (?:void|int32_t)\* (\w+);", body, re.MULTILINE))
        theirs[name] = takes, gives
    ours = {"Paths": PathAsked.PATHS, "TreeSums": PathAsked.TREE_SUMS}
    assert theirs == {name: (asked.takes, asked.gives) for name, asked in ours.items()}
    assert {asked.call for asked in PathAsked} <= set(library.NAMES)
