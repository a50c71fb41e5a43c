"""Run every example of the docs and docstrings in a process with JAX's default configuration; print
what fails.

python -m tests.run_docs [pages | docstrings]
"""

import contextlib
import doctest
import importlib
import io
import pathlib
import pkgutil
import re
import sys
import traceback

import ext_tropical
import tenferro_jax

ROOT = pathlib.Path(__file__).parent.parent
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def pages():
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def run_page(path):
    """Execute the python blocks of a page in order; a text block that follows one is what it
    prints. Returns problems.
    """
    problems, space, printed, count = [], {"__name__": path.stem}, None, 0
    for kind, body in BLOCK.findall(path.read_text()):
        if kind == "python":
            count += 1
            out = io.StringIO()
            try:
                with contextlib.redirect_stdout(out):
                    exec(compile(body, str(path), "exec"), space)
            except Exception:
                return [f"{path}: {traceback.format_exc()}"], count
            printed = out.getvalue()
        elif kind == "text" and printed is not None:
            if printed.strip() != body.strip():
                problems.append(f"{path}: printed\n{printed}\nthe page says\n{body}")
            printed = None
    return problems, count


def modules():
    for package in (tenferro_jax, ext_tropical):
        for info in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
            if not info.name.endswith(".demo"):
                yield importlib.import_module(info.name)


def main(parts):
    problems, blocks, examples = [], 0, 0
    for path in pages() if "pages" in parts else ():
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
    print("\n".join(problems))
    sys.exit(bool(problems))


if __name__ == "__main__":
    main(sys.argv[1:] or ("pages", "docstrings"))
