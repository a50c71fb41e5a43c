"""python -m tenferro_jax new NAME"""

from __future__ import annotations

import argparse
import keyword
import pathlib
import re

from ..errors import InvalidConfig
from .shared import OK, show

TEMPLATE = pathlib.Path(__file__).parent / "template"
"""The files of a package called my-package, with .txt after their names."""


def add(parser: argparse.ArgumentParser) -> None:
    """Options."""
    parser.description = (
        "Make a package in the folder NAME: a function as an extension op with its derivative, the "
        "tests of the contract, and a workflow that runs them. Nothing that exists is changed."
    )
    parser.add_argument("name", metavar="NAME", help="the name of the package, such as my-package")
    parser.set_defaults(run=new)


def new(chosen: argparse.Namespace) -> int:
    """Make a package.

    Raises:
      InvalidConfig: the name cannot be that of a distribution and of a module, or the folder
        exists.
    """
    name, folder = chosen.name, pathlib.Path(chosen.name)
    module = name.replace("-", "_").lower()
    if not re.fullmatch("[A-Za-z]([A-Za-z0-9_-]*[A-Za-z0-9])?", name) or keyword.iskeyword(module):
        raise InvalidConfig(
            where="new",
            given=repr(name),
            needed="letters, digits, - and _, a letter first and a letter or digit last, and no "
            "keyword of Python",
        )
    if folder.exists():
        raise InvalidConfig(where="new", given=f"{name}, which exists", needed="a new folder")
    for path in sorted(TEMPLATE.rglob("*.txt")):
        target = folder / _named(str(path.relative_to(TEMPLATE).with_suffix("")), name, module)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(_named(path.read_text("utf-8"), name, module), "utf-8")
    show(f"made {name}; next:\n  cd {name} && pip install -e '.[test]'\n  pytest")
    return OK


def _named(text: str, name: str, module: str) -> str:
    return re.sub("my([-_])package", lambda found: name if found[1] == "-" else module, text)
