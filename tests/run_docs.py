"""Run every example of the docs and docstrings in a process with JAX's default configuration; print
what fails.

python -m tests.run_docs [pages | docstrings | guides]

"guides" runs every guide twice, as cells of a notebook that run again.
"""

import contextlib
import doctest
import importlib
import io
import pathlib
import pkgutil
import re
import shutil
import sys
import traceback

import jax
import numpy as np

import ext_tropical
import tenferro_jax
from tenferro_jax.extension.routes import current_platform

ROOT = pathlib.Path(__file__).parent.parent
NUMBER = re.compile(r"-?\d+\.?\d*(?:e[+-]?\d+)?")
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def pages():
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def same(printed, page):
    """To the letter on a CPU. Elsewhere the name of the platform, blanks and the last digits may
    differ.
    """
    if jax.default_backend() == "cpu":
        return printed.strip() == page.strip()
    here = re.compile(f" on (cpu|{current_platform()}):")
    words, numbers = (
        [use(here.sub(" on #:", text)) for text in (printed, page)]
        for use in (lambda text: "".join(NUMBER.sub("#", text).split()), NUMBER.findall)
    )
    return words[0] == words[1] and np.allclose(*np.array(numbers, float), rtol=1e-5, atol=0)


def run_page(path):
    """Execute the python blocks of a page in order; a text block that follows one is what it
    prints, a mermaid block is the picture of the graph in its last line. Returns problems.
    """
    problems, space, printed, count, last = [], {"__name__": path.stem}, None, 0, ""
    for kind, body in BLOCK.findall(path.read_text()):
        if kind == "python":
            count += 1
            out = io.StringIO()
            try:
                with contextlib.redirect_stdout(out):
                    exec(compile(body, str(path), "exec"), space)
            except Exception:
                return [f"{path}: {traceback.format_exc()}"], count
            printed, last = out.getvalue(), body.rstrip().rpartition("\n")[2]
        elif kind == "text" and printed is not None:
            if not same(printed, body):
                problems.append(f"{path}: printed\n{printed}\nthe page says\n{body}")
            printed = None
        elif kind == "mermaid" and (drawn := eval(last, space).mermaid()) != body:
            problems.append(f"{path}: drawn\n{drawn}\nthe page says\n{body}")
    return problems, count


def modules():
    for package in (tenferro_jax, ext_tropical):
        for info in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
            yield importlib.import_module(info.name)


def chosen(parts):
    guides = sorted((ROOT / "docs/guides").glob("*.md"))
    twice = [path for guide in guides for path in (guide, guide)]
    return (pages() if "pages" in parts else []) + (twice if "guides" in parts else [])


def main(parts):
    problems, blocks, examples, skipped = [], 0, 0, []
    for path in chosen(parts):
        native = '"c++"' in path.read_text()
        if native and (shutil.which("c++") is None or jax.default_backend() != "cpu"):
            skipped.append(f"skipped {path}: it needs a C++ compiler and runs on a CPU")
            continue
        if "device_count=8" in path.read_text() and jax.device_count() < 8:
            skipped.append(f"skipped {path}: it needs eight devices")
            continue
        found, count = run_page(path)
        problems += found
        blocks += count
    finder = doctest.DocTestFinder(exclude_empty=True)
    for module in modules() if "docstrings" in parts else ():
        for test in finder.find(module, module.__name__):
            out = io.StringIO()
            runner = doctest.DocTestRunner(verbose=False)
            examples += len(test.examples)
            if runner.run(test, out=out.write).failed:
                problems.append(out.getvalue())
    print(f"{blocks} blocks, {examples} examples, {len(problems)} problems")
    print("\n".join(skipped + problems))
    sys.exit(bool(problems))


if __name__ == "__main__":
    main(sys.argv[1:] or ("pages", "docstrings"))
