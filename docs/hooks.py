"""What mkdocs does not do by itself: formulas as MathML, a page for each example, notebooks to
download, and pages that lie outside docs/.
"""

from __future__ import annotations

import ast
import html
import json
import pathlib
import posixpath
import re
from typing import Any

import griffe
import latex2mathml.converter
from mkdocs.structure.files import File

ROOT = pathlib.Path(__file__).parent.parent
OUTSIDE = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "benchmarks/README.md": "benchmarks.md",
    **{
        path: path
        for path in sorted(
            f"benchmarks/results/{p.name}" for p in ROOT.glob("benchmarks/results/*")
        )
    },
}
"""Files of the site that are not in docs/."""
EXAMPLES = sorted(ROOT.glob("docs/examples/*.py"))
FORMULA = re.compile(r'<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>', re.DOTALL)
PART = re.compile(r"^```(\w+)\n(.*?)^```$|^!\[.*?\]\((.*?)\)$", re.MULTILINE | re.DOTALL)


class Docstrings(griffe.Extension):
    """A section `Example:` is shown as `Examples:`; the pages introduce modules themselves."""

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        """Called by griffe for a package with all that is in it."""
        pkg.docstring = None

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Called by griffe for each class, function and module."""
        if obj.is_module:
            obj.docstring = None
        if obj.docstring:
            obj.docstring.value = re.sub(r"(?m)^Example:$", "Examples:", obj.docstring.value)


def on_files(files: Any, config: Any) -> Any:
    """Add the pages that are not written in docs/."""
    made = {uri: (ROOT / path).read_text() for path, uri in OUTSIDE.items()}
    made |= {f"examples/{path.stem}.md": example_page(path) for path in EXAMPLES}
    for page in ROOT.glob("docs/notebooks/*.md"):
        made[f"notebooks/{page.stem}.ipynb"] = json.dumps(notebook(page), indent=1)
    made["index.md"] = f"---\nhide: [navigation]\n---\n\n{made['index.md']}"  # it has tabs
    made["llms.txt"] = for_language_models(config, made)
    for uri, text in made.items():
        files.append(File.generated(config, uri, content=text))
    return files


def for_language_models(config: Any, made: dict[str, str]) -> str:
    """The pages of the navigation with the first sentence of each, as llmstxt.org describes it."""
    lines = [f"# {config['site_name']}", "", f"> {config['site_description']}"]

    def add(entry: Any, title: str, level: int) -> None:
        if isinstance(entry, list):
            if title:
                lines.extend(["", f"{'#' * level} {title}", ""])
            for part in entry:
                for name, below in part.items() if isinstance(part, dict) else [("", part)]:
                    add(below, name, level + 1)
            return
        page = ROOT / "docs" / entry
        text = made.get(entry) or page.read_text()
        target = f"{entry.removesuffix('.md')}.html".replace("README.html", "index.html")
        lines.append(f"- [{title or 'Overview'}]({target}): {opening(text)}")

    add(config["nav"], "", 1)
    return "\n".join(lines) + "\n"


def opening(text: str) -> str:
    """The first sentence of a page."""
    words = PART.sub("", re.sub(r"\A---.*?---", "", text, flags=re.DOTALL))
    paragraphs = (part.strip() for part in words.split("\n\n"))
    first = next((part for part in paragraphs if re.match(r"[\w*`\[-]", part)), "")
    plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", " ".join(first.split()))
    return re.split(r"(?<=[.!?:]) ", plain)[0].lstrip("- ")


def on_page_markdown(text: str, page: Any, **_: Any) -> str:
    """Links lead to pages of the site; a notebook can be downloaded."""
    uri = page.file.src_uri
    paths = {uri: path for path, uri in OUTSIDE.items()}
    source = posixpath.dirname(paths.get(uri, f"docs/{uri}"))

    def link(found: re.Match[str]) -> str:
        target, anchor = found[1], found[2] or ""
        path = posixpath.normpath(posixpath.join(source, target))
        to = OUTSIDE.get(path, path.removeprefix("docs/"))
        if ROOT / path in EXAMPLES:
            to = to.removesuffix(".py") + ".md"
        return f"]({posixpath.relpath(to, posixpath.dirname(uri) or '.')}{anchor})"

    if uri in {f"examples/{path.stem}.md" for path in EXAMPLES}:
        text = f"# {page.title}\n\n{text}"  # as the navigation says
    text = re.sub(r"\]\((?![a-z]+:)([^)#\s]+)(#[^)\s]*)?\)", link, text)
    if uri.startswith("notebooks/"):
        title, rest = text.split("\n", 1)
        text = f"{title}\n\n[Download as a notebook]({page.file.name}.ipynb)\n{rest}"
    return text


def on_page_content(text: str, **_: Any) -> str:
    """Formulas as MathML, which browsers draw without a script."""

    def formula(found: re.Match[str]) -> str:
        display = "block" if found[1] == "div" else "inline"
        return latex2mathml.converter.convert(html.unescape(found[2]), display=display)

    return FORMULA.sub(formula, text)


def example_page(path: pathlib.Path) -> str:
    """Description, picture, one line of output and code of an example."""
    source = path.read_text()
    described = ast.get_docstring(ast.parse(source)) or ""
    readme = (path.parent / "README.md").read_text()
    row = re.search(rf"^\| \[{path.name}\].*\| (.*?) \| `(.*)` \|$", readme, re.MULTILINE)
    told = f"Judged by {row[1]}. One line of its output:\n\n```text\n{row[2]}\n```\n" if row else ""
    pictures = [f"pictures/{path.stem}.svg", f"images/{path.stem}.png"]
    there = [picture for picture in pictures if (ROOT / "docs" / picture).exists()]
    shown = "".join(f"![what it computes](../{picture})\n" for picture in there)
    code = source.split('"""\n', 1)[1].strip()
    return f"{described}\n\n{shown}\n{told}\n```python\n{code}\n```\n"


def notebook(page: pathlib.Path) -> dict[str, Any]:
    """A page as a Jupyter notebook: blocks of Python are cells, and what follows them in a text
    block or a picture is their output.
    """
    text, cells, end = page.read_text(), list[dict[str, Any]](), 0

    def write(kind: str, source: str, **more: Any) -> None:
        lines = source.strip("\n").splitlines(keepends=True)
        cell = {"cell_type": kind, "id": f"cell-{len(cells)}", "metadata": {}, "source": lines}
        cells.append(cell | more)

    for part in PART.finditer(text):
        kind, body, picture = part.groups()
        if between := text[end : part.start()].strip():
            write("markdown", between)
        end = part.end()
        outputs = cells[-1].get("outputs") if cells else None
        if kind == "python":
            write("code", body, execution_count=None, outputs=[])
        elif kind == "text" and outputs is not None:
            lines = body.splitlines(keepends=True)
            outputs.append({"output_type": "stream", "name": "stdout", "text": lines})
        elif kind == "mermaid" and outputs is not None:
            data = {"text/vnd.mermaid": body}
            outputs.append({"output_type": "display_data", "metadata": {}, "data": data})
        elif picture and outputs is not None:
            data = {"image/svg+xml": (page.parent / picture).read_text()}
            outputs.append({"output_type": "display_data", "metadata": {}, "data": data})
        else:
            write("markdown", part[0])
    if rest := text[end:].strip():
        write("markdown", rest)
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    return {"cells": cells, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5}
