"""Graphs as bytes and back, in memory and in files; docs/spec/wire_format.md defines the format."""

from __future__ import annotations

import os

from ..errors import require_kind
from ..graph.graph import Graph, require_graph
from .container import USUAL_LIMITS, Limits, pack, read_file, replace_file, unpack
from .graph_reader import GraphReader
from .graph_writer import GraphWriter


def to_wire(graph: Graph) -> bytes:
    """A graph as bytes, which another process or machine can read with `from_wire`.

    Equal graphs give equal bytes. AD rules and kernels are code and are not written; add them again
    with `graph.with_rules(...)` and `graph.with_runtimes(...)`.

    Args:
      graph: any graph, of standard ops and extensions.

    Raises:
      InvalidConfig: not a graph, or two nodes that differ only in their runtimes; or an
        extension's payload, or static data of a pytree class, has no text.
      Unsupported: a pytree class without a name (`register_pytree_name`); symbols of two scopes, or
        dimensions or constraints beyond the bounds of a reader.

    Example:
      >>> import jax.numpy as jnp
      >>> from tenferro_jax import trace
      >>> graph = trace(jnp.sin, jnp.zeros(2))
      >>> from_wire(to_wire(graph)) == graph
      True
    """
    writer = GraphWriter().write(require_graph(graph, "to_wire"))
    return pack(writer.version, writer.text.encode(), writer.tensors)


def from_wire(
    source: bytes | bytearray | memoryview,
    *,
    skip_missing_extensions: bool = False,
    trusted: bool = False,
    limits: Limits = USUAL_LIMITS,
) -> Graph:
    """Read a graph from the bytes of `to_wire`: length and digest are checked first, then every
    record, then the graph by `verify`.

    Args:
      source: the bytes.
      skip_missing_extensions: replace extensions of unregistered families by placeholders: the
        graph can be inspected and written again without loss, but running it raises `Unsupported`.
      trusted: let installed packages register the extensions of the graph, and use their AD rules.
        A package is imported if it has an entry point in the group "tenferro_jax.extensions" with
        the name that a family_id begins with. Otherwise nothing is imported.
      limits: the limits of the reader; `to_wire` also writes graphs beyond the defaults, which need
        higher limits here.

    Raises:
      ArtifactError: the bytes are truncated, changed, or not written by `to_wire`; or the bytes
        exceed the limits.
      InvalidConfig: the graph breaks a rule; a payload does not belong to its family; or no
        bytes, or no limits.
      MalformedFamilyId: an extension's family_id cannot be read.
      Unsupported: an extension's family is not registered, or only under another major version; a
        pytree class is not registered; an op or a version of the format of a later release.
      DTypeError: the graph has 64-bit values and 64-bit types are off.

    Example:
      >>> import jax.numpy as jnp
      >>> from tenferro_jax import trace
      >>> from_wire(to_wire(trace(jnp.sin, jnp.zeros(2)))).to_jax()(jnp.zeros(2)).tolist()
      [0.0, 0.0]
    """
    require_kind(
        source, bytes | bytearray | memoryview, "from_wire", "bytes", "Read a file with load_graph."
    )
    require_kind(limits, Limits, "from_wire", "Limits", "Leave it out for the usual.", "limits")
    where = "graph bytes"
    limits.require("file_bytes", memoryview(source).nbytes, where)
    content = unpack(bytes(source), limits, where)
    reader = GraphReader(
        content, limits, where, skip_missing=skip_missing_extensions, trusted=trusted
    )
    return reader.read()


def save_graph(graph: Graph, path: str | os.PathLike[str]) -> int:
    """Write the bytes of `to_wire` to a file; returns its size in bytes.

    Args:
      graph: any graph that `to_wire` takes.
      path: the file; an existing file is replaced after everything is written.

    Raises:
      InvalidConfig, Unsupported: as `to_wire`; or not a path.
      OSError: the file cannot be written.

    Example:
      >>> import pathlib, tempfile
      >>> import jax.numpy as jnp
      >>> from tenferro_jax import trace
      >>> graph = trace(jnp.sin, jnp.zeros(2))
      >>> with tempfile.TemporaryDirectory() as folder:
      ...     size = save_graph(graph, pathlib.Path(folder, "sine.tenferro"))
      ...     load_graph(pathlib.Path(folder, "sine.tenferro")) == graph
      True
    """
    require_kind(path, str | os.PathLike, "save_graph", "a path", "Take the bytes from to_wire.")
    return replace_file(path, to_wire(graph))


def load_graph(
    path: str | os.PathLike[str],
    *,
    skip_missing_extensions: bool = False,
    trusted: bool = False,
    limits: Limits = USUAL_LIMITS,
) -> Graph:
    """Read a graph from a file of `save_graph`; its size is checked before it is read.

    Args:
      path: the file.
      skip_missing_extensions: as for `from_wire`.
      trusted: as for `from_wire`.
      limits: as for `from_wire`.

    Raises:
      ArtifactError, InvalidConfig, MalformedFamilyId, Unsupported, DTypeError: as `from_wire`; the
        text names the file.
      InvalidConfig: not a path, or not limits.
      OSError: the file cannot be read.

    Example:
      >>> import pathlib, tempfile
      >>> with tempfile.TemporaryDirectory() as folder:
      ...     path = pathlib.Path(folder, "no.graph")
      ...     _ = path.write_bytes(bytes(100))
      ...     load_graph(path)  # doctest: +ELLIPSIS
      Traceback (most recent call last):
      ...
      tenferro_jax.errors.ArtifactError: graph ...no.graph: given bytes that begin with ...
    """
    require_kind(path, str | os.PathLike, "load_graph", "a path", "Read bytes with from_wire.")
    require_kind(limits, Limits, "load_graph", "Limits", "Leave it out for the usual.", "limits")
    where = f"graph {os.fspath(path)}"
    content = unpack(read_file(path, where, limits), limits, where)
    reader = GraphReader(
        content, limits, where, skip_missing=skip_missing_extensions, trusted=trusted
    )
    return reader.read()
