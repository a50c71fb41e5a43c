"""The native kernels: compiled if there is a C++ compiler, otherwise left out. Everything else is
in pyproject.toml.
"""

import importlib.util
import os
import pathlib

import setuptools
from setuptools.command.build_ext import build_ext

FOLDER = pathlib.Path("ext_tropical/step/native")


def library() -> list[setuptools.Extension]:
    """A shared library without Python, built with the headers of the oldest supported JAX, which
    newer versions can load.
    """
    jaxlib = importlib.util.find_spec("jaxlib")
    if jaxlib is None or not jaxlib.submodule_search_locations or os.name == "nt":
        return []
    sources = sorted(map(str, FOLDER.glob("*.cc")))
    headers = str(pathlib.Path(jaxlib.submodule_search_locations[0], "include"))
    flags = ["-std=c++17", "-O3", "-fwrapv", "-ffp-contract=off", "-fvisibility=hidden", "-pthread"]
    name = ".".join((*FOLDER.parts, "kernels"))
    depends = [str(path) for pattern in ("*.h", "*.inc") for path in FOLDER.glob(pattern)]
    return [
        setuptools.Extension(
            name,
            sources,
            include_dirs=[headers],
            extra_compile_args=flags,
            extra_link_args=["-pthread"],
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


setuptools.setup(ext_modules=library(), cmdclass={"build_ext": Build})
