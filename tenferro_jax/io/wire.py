"""Graphs as bytes and back, in memory and in files; docs/spec/wire_format.md says what is in them."""

from __future__ import annotations

import os

from ..errors import require_kind
from ..graph.graph import Graph, require_graph
from .container import HEADER_BYTES, USUAL_LIMITS, Limits, damaged, declared, pack, replace_file, unpack
from .graph_reader import GraphReader
from .graph_writer import GraphWriter


def to_wire(graph: Graph) -> bytes:
    """A graph as bytes that another process, on another machine, reads with `from_wire`.

    Equal graphs give equal bytes, but for the names of lost derivatives, which are written too. AD rules and kernels stay behind:
    they are code, to be given again with `graph.with_rules(...)` and `graph.with_runtimes(...)`.

    Args:
      graph: any graph, of standard ops and extensions.

    Raises:
      InvalidConfig: no graph, or one in which two nodes differ in their runtimes alone.
      Unsupported: a pytree class without a name (`register_pytree_name`); symbols of two scopes, or dimensions or constraints of
        them beyond what a reader takes.
      PayloadError: an extension's payload, or static data of a pytree class, that has no text.

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
    source: bytes | bytearray | memoryview, *, skip_missing_extensions: bool = False, trusted: bool = False, limits: Limits = USUAL_LIMITS
) -> Graph:
    """The graph that `to_wire` wrote; length and digest are checked first, then every record, then the graph by `verify`.

    Args:
      source: the bytes.
      skip_missing_extensions: put a placeholder where an extension's family is not registered: the graph can be looked at
        and written again without loss, and running it is `Unsupported`. Pytree classes without a name here get one too.
      trusted: have installed packages register the extensions that are inside, and take their AD rules. A package is imported
        where it has an entry point in the group "tenferro_jax.extensions" under the name that a family_id begins with. Without it
        nothing is imported, whatever the bytes name.
      limits: what the bytes may ask for; a graph beyond the defaults is written, and read where they are raised.

    Raises:
      ArtifactError: the bytes are truncated, changed, or not what `to_wire` writes.
      LimitExceeded: they ask for more than the limits allow.
      MalformedGraph: they hold a graph that breaks a rule.
      MalformedFamilyId: an extension's family_id cannot be read.
      Unsupported: an extension's family is not registered here, or under another major version; a pytree class is not
        registered; an op or a version of the format that a later release brought.
      PayloadError: a payload that is none of its family.
      X64Error: the graph has 64-bit values and 64-bit types are off.
      InvalidConfig: no bytes, or no limits.

    Example:
      >>> import jax.numpy as jnp
      >>> from tenferro_jax import trace
      >>> from_wire(to_wire(trace(jnp.sin, jnp.zeros(2)))).to_jax()(jnp.zeros(2)).tolist()
      [0.0, 0.0]
    """
    require_kind(source, bytes | bytearray | memoryview, "from_wire", "bytes", "Read a file with load_graph.")
    require_kind(limits, Limits, "from_wire", "Limits", "Leave it out for the usual.", "limits")
    return _read(bytes(source), skip_missing_extensions, trusted, limits, "graph bytes")


def save_graph(graph: Graph, path: str | os.PathLike[str]) -> int:
    """Write what `to_wire` gives to a file; returns its size in bytes.

    Args:
      graph: any graph that `to_wire` takes.
      path: the file; one that is there is replaced when all is written.

    Raises:
      InvalidConfig, Unsupported, PayloadError: as `to_wire`; no path.
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
    path: str | os.PathLike[str], *, skip_missing_extensions: bool = False, trusted: bool = False, limits: Limits = USUAL_LIMITS
) -> Graph:
    """The graph in a file that `save_graph` wrote; no more is read of a file than its first bytes promise.

    Args:
      path: the file.
      skip_missing_extensions, trusted: as for `from_wire`.
      limits: as for `from_wire`.

    Raises:
      ArtifactError, LimitExceeded, MalformedGraph, MalformedFamilyId, Unsupported, PayloadError, X64Error: as `from_wire`; the
        text names the file.
      InvalidConfig: no path, or no limits.
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
    with open(path, "rb") as file:
        _, length = declared(file.peek(HEADER_BYTES)[:HEADER_BYTES], where)
        limits.require("file_bytes", length, where)
        size = os.fstat(file.fileno()).st_size
        if size != length:
            raise damaged(where, f"{size} bytes of {length}")
        content = file.read(length)
    return _read(content, skip_missing_extensions, trusted, limits, where)


def _read(content: bytes, skip_missing: bool, trusted: bool, limits: Limits, where: str) -> Graph:
    return GraphReader(unpack(content, limits, where), limits, skip_missing, trusted, where).read()
