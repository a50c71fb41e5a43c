"""Refusals, what is compared, and processes, in one statement each."""

from __future__ import annotations

import itertools
import math
import os
import pathlib
import re
import subprocess
import sys
from collections.abc import Callable, Iterable
from typing import Any

import jax
import numpy as np
import pytest

import tenferro_jax as tj

from .house import ROOT

NUMBERS = itertools.count()


def ends_in(
    calls: Callable[[], Any] | Iterable[Callable[[], Any]],
    kind: type[BaseException] | tuple[type[BaseException], ...],
    match: str | None = None,
) -> Any:
    """Each call ends in an error of this kind, with `match` in its text; what pytest knows of the
    last one.
    """
    for call in [calls] if callable(calls) else calls:
        with pytest.raises(kind, match=match) as error:
            call()
    return error


def each_ends_in(*refusals: tuple[Any, ...]) -> None:
    """Every refusal, a tuple of what `ends_in` takes."""
    for refusal in refusals:
        ends_in(*refusal)


def equal(*pairs: tuple[Any, Any]) -> None:
    """The arrays of each pair, (found, wanted), have the same entries."""
    for found, wanted in pairs:
        np.testing.assert_array_equal(found, wanted)


def close(*pairs: tuple[Any, Any], rtol: float = 1e-7, atol: float = 0) -> None:
    """As `equal`, within a tolerance."""
    for found, wanted in pairs:
        np.testing.assert_allclose(found, wanted, rtol=rtol, atol=atol)


def near(found: Any, wanted: Any, tolerance: float = 2e-5) -> None:
    """The leaves of two nests are close."""
    leaves = zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True)
    close(*leaves, rtol=tolerance, atol=tolerance)


def passes(*subject: Any, **options: Any) -> Any:
    """The report of a check, which finds no failure."""
    report = tj.check(*subject, **options)
    assert report.ok, str(report)
    return report


def python(
    *arguments: Any,
    folder: pathlib.Path = ROOT,
    code: int = 0,
    is_silent: bool = False,
    **environment: str,
) -> str:
    """What a process of its own prints, Python with these arguments, that ends with this code; a
    silent one writes no errors.
    """
    done = subprocess.run(
        [sys.executable, *map(str, arguments)],
        cwd=folder,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=1200,
        check=False,
    )
    assert done.returncode == code, done.stdout + done.stderr
    assert not (is_silent and done.stderr), done.stderr
    return done.stdout


def mesh(shape: tuple[int, ...] = (8,), kind: Any = jax.sharding.AxisType.Auto) -> Any:
    """A mesh of the first devices, with the axes d and e."""
    devices = jax.devices()[: math.prod(shape)]
    kinds = (kind,) * len(shape)
    return jax.make_mesh(shape, ("d", "e")[: len(shape)], axis_types=kinds, devices=devices)


def collectives(function: Callable[..., Any], *arguments: Any) -> dict[str, int]:
    """How many of each kind there are in the program that XLA runs."""
    text = jax.jit(function).lower(*arguments).compile().as_text()
    kinds = ("all-gather", "all-reduce", "all-to-all", "collective-permute", "reduce-scatter")
    found = {kind: len(re.findall(rf" {kind}(?:-start)?\(", text)) for kind in kinds}
    return {kind: count for kind, count in found.items() if count}


def fresh(function: Callable[..., Any], **options: Any) -> Any:
    """The function as an op of a family that no other test has."""
    return tj.op(f"test-package.op_{next(NUMBERS)}.v1", **options)(function)


def throw(error: BaseException) -> Any:
    """Raises it, where a lambda is needed."""
    raise error
