"""The site: it is built without a warning, every link in it leads somewhere, every public name has
an entry, and nothing is fetched from elsewhere, but the script of the theme that draws Mermaid.
"""

import html.parser
import importlib
import inspect
import json
import os
import pathlib
import re
import urllib.parse

import pytest

import ext_tropical

from .helpers import python
from .house import ROOT
from .run_docs import BLOCK

PACKAGES = {
    "tenferro_jax": "tenferro_jax",
    "tenferro_jax.extension": "extension",
    "tenferro_jax.graph": "parts",
    "tenferro_jax.io": "parts",
    "tenferro_jax.plans": "parts",
    "tenferro_jax.testing": "parts",
    **{f"ext_tropical.{room}": f"tropical_{room}" for room in ext_tropical.ROOMS},
}


class Page(html.parser.HTMLParser):
    """The anchors of a page, what it links to, and what it loads."""

    def __init__(self, path):
        super().__init__()
        self.ids, self.links, self.loaded = set(), [], []
        self.feed(path.read_text())

    def handle_starttag(self, tag, attrs):
        given = dict(attrs)
        self.ids |= {given[name] for name in ("id", "name") if given.get(name)}
        for name in ("href", "src"):
            if given.get(name):
                self.links.append(given[name])
                if tag != "a" and given.get("rel") != "canonical":
                    self.loaded.append(given[name])


def dead_links(site, pages):
    """(page, link) of every link within the site that leads nowhere."""
    for path, page in pages.items():
        for link in page.links:
            parts = urllib.parse.urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = path.parent / urllib.parse.unquote(parts.path) if parts.path else path
            target = pathlib.Path(os.path.normpath(target))
            if parts.path.startswith("/") or path.name == "404.html":
                continue
            anchor = urllib.parse.unquote(parts.fragment)
            known = pages[target].ids if target in pages else set()
            if not target.exists() or (anchor and target in pages and anchor not in known):
                yield path.relative_to(site).as_posix(), link


@pytest.mark.slow
def test_the_site(tmp_path):
    pytest.importorskip("mkdocs", reason="the extra docs is not installed")
    python("-m", "mkdocs", "build", "--site-dir", tmp_path, NO_MKDOCS_2_WARNING="1")
    pages = {path: Page(path) for path in tmp_path.rglob("*.html")}
    assert len(pages) > 40
    assert list(dead_links(tmp_path, pages)) == []
    listed = re.findall(
        r"^- \[.+\]\((.+)\): .{10}", (tmp_path / "llms.txt").read_text(), re.MULTILINE
    )
    assert len(listed) > 40
    assert all((tmp_path / page).exists() for page in listed)
    foreign = {url for page in pages.values() for url in page.loaded if url.startswith("http")}
    assert foreign == set()
    for package, page in PACKAGES.items():
        ids = pages[tmp_path / f"reference/{page}.html"].ids
        door = importlib.import_module(package)
        for name in door.__all__:
            # A function with the name of a package has its entry under the name of its module.
            thing = getattr(door, name)
            module = getattr(thing, "__module__", package)
            known = ids & {f"{package}.{name}", f"{module}.{name}"}
            assert known or (inspect.ismodule(thing) and name in ids), name
    rooms = [importlib.import_module(f"ext_tropical.{room}") for room in ext_tropical.ROOMS]
    described = {name for room in rooms for name in room.__all__} | {"register"}
    assert set(ext_tropical.__all__) <= described
    formulas = re.findall("<math.*?</math>", (tmp_path / "maths/tropical.html").read_text())
    assert len(formulas) > 30
    assert not [formula for formula in formulas if "\\" in formula]
    assert not [id for id in ids if "._" in id and "__call__" not in id]
    for page in sorted((ROOT / "docs/notebooks").glob("*.md")):
        made = json.loads((tmp_path / f"notebooks/{page.stem}.ipynb").read_text())
        code = [cell for cell in made["cells"] if cell["cell_type"] == "code"]
        blocks = [body for kind, body in BLOCK.findall(page.read_text()) if kind == "python"]
        assert ["".join(cell["source"]) for cell in code] == [body.rstrip("\n") for body in blocks]
        shown = [output for cell in code for output in cell["outputs"]]
        drawn = {"image/svg+xml", "text/vnd.mermaid"}
        pictures = [out for out in shown if drawn & set(out.get("data", {}))]
        assert len(pictures) >= 3
        assert len(shown) > len(pictures)
    found = json.loads((tmp_path / "search/search_index.json").read_text())["docs"]
    assert [entry for entry in found if "custom_vjp" in entry["text"]]


def test_every_page_is_in_the_navigation():
    listed = re.findall(
        r"^ +- (?:.*: )?(\S+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE
    )
    made = {"index.md", "benchmarks.md", "changelog.md"}
    made |= {f"examples/{path.stem}.md" for path in ROOT.glob("docs/examples/*.py")}
    written = {path.relative_to(ROOT / "docs").as_posix() for path in ROOT.glob("docs/**/*.md")}
    assert sorted(listed) == sorted(written | made)
