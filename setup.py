"""What pyproject.toml cannot say: the native kernels, the tag of the wheel, and the page of a
package index. The kernels are compiled if there is a C++ compiler, otherwise left out.
"""

import os
import pathlib
import re
import sys

import setuptools
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext

FOLDER = pathlib.Path("ext_tropical/native")
ADDRESS = os.environ.get("PROJECT_URL", "").rstrip("/")
"""Of the repository; the release workflow gives its own."""
LINK = re.compile(r"(!?)\[([^\]]*)\]\((?!\w+:|#)([^)]+)\)")


def library() -> list[setuptools.Extension]:
    """A shared library without Python, built with the headers of the oldest supported JAX in
    FOLDER/xla, which newer versions can load.
    """
    if os.name == "nt":
        return []
    sources = sorted(map(str, FOLDER.glob("*.cc")))
    flags = ["-std=c++17", "-O3", "-fwrapv", "-ffp-contract=off", "-fvisibility=hidden", "-pthread"]
    # Python's own flags ask for debug information: 4.2 MB instead of 0.5.
    # libstdc++ is not linked in: that makes it 1 MB, and needs a newer glibc than the kernels do.
    flags.append("-g0")
    name = ".".join((*FOLDER.parts, "kernels"))
    depends = [str(path) for pattern in ("*.h", "*.inc") for path in FOLDER.rglob(pattern)]
    return [
        setuptools.Extension(
            name,
            sources,
            include_dirs=[str(FOLDER)],
            extra_compile_args=flags,
            extra_link_args=["-pthread", *(["-Wl,-s"] if sys.platform == "linux" else [])],
            depends=depends,
            language="c++",
            optional=True,
        )
    ]


class Build(build_ext):
    """Names the library so that Python does not take it for a module."""

    def get_ext_filename(self, ext_name: str) -> str:
        """The path of what is built."""
        return f"{os.path.join(*ext_name.split('.'))}.shared"


class Wheel(bdist_wheel):
    """One wheel for all Pythons of a platform, and one for all platforms if nothing was built."""

    def run(self) -> None:
        """Look at what was built before the wheel gets its tag."""
        self.run_command("build")
        if not all(map(os.path.exists, self.get_finalized_command("build_ext").get_outputs())):
            self.distribution.ext_modules, self.root_is_pure = [], True
        super().run()

    def get_tag(self) -> tuple[str, str, str]:
        """The library holds no Python symbol."""
        return "py3", "none", super().get_tag()[2]


def page() -> str:
    """README.md with links into the repository, as relative links lead nowhere on an index. If its
    address is not given, the text of a link stays, and a picture is left out.
    """
    source = pathlib.Path("tenferro_jax/version.py").read_text(encoding="utf-8")
    release = re.search(r'__version__ = "(.+)"', source)[1]

    def absolute(link: re.Match[str]) -> str:
        picture, text, path = link.groups()
        if not ADDRESS:
            return "" if picture else text
        return f"{picture}[{text}]({ADDRESS}/{'raw' if picture else 'blob'}/v{release}/{path})"

    return LINK.sub(absolute, pathlib.Path("README.md").read_text(encoding="utf-8"))


setuptools.setup(
    ext_modules=library(),
    cmdclass={"build_ext": Build, "bdist_wheel": Wheel},
    long_description=page(),
    long_description_content_type="text/markdown",
    project_urls={"Repository": ADDRESS, "Changelog": f"{ADDRESS}/blob/HEAD/CHANGELOG.md"}
    if ADDRESS
    else {},
)
