"""Programs as portable StableHLO files, and back.

File layout: the untouched bytes of `jax.export.Exported.serialize()`, so that `jax.export.deserialize` of a process that
has only JAX reads the whole file; then a footer: manifest (JSON), its length, SHA-256 of all before, magic.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import pathlib
import struct
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.export

from .. import jax_seam
from ..errors import ArityError, ArtifactError, InvalidConfig, TenferroError, UnboundPlaceholder, UnexpectedBinding, Unsupported
from ..extension import ExtensionOp
from ..extension.registry import require_extension_factory, require_known_version
from ..graph.graph import Graph
from ..graph.guards import Guard
from ..meta import as_operand, meta_of, require_x64_leaves, solve_sizes, undecided

MAGIC = b"tenferro-export1"
_LENGTH = struct.Struct("<Q")
_TAIL = struct.Struct(f"<32s{len(MAGIC)}s")


@dataclasses.dataclass(frozen=True)
class ExportedProgram:
    """A lowered program for one or more platforms, with the extensions it came from.

    Attributes:
      exported: the jax.export.Exported.
      extensions: for each extension call its family_id, payload and batching as text.
    """

    exported: Any
    extensions: tuple[dict[str, str], ...]

    @property
    def families(self) -> tuple[str, ...]:
        """The extension families in the program, sorted, each once."""
        return tuple(sorted({e["family_id"] for e in self.extensions}))

    def ops(self) -> tuple[ExtensionOp, ...]:
        """The extension ops that the program was lowered from, in order, read back by their registered factories.

        Raises:
          Unsupported: a family is not registered in this process, or under another major version.
          PayloadError: a payload that is none of its family.

        Example:
          >>> import jax.numpy as jnp
          >>> from tenferro_jax import export
          >>> export(jnp.sin, jnp.zeros(2)).ops()
          ()
        """
        return tuple(require_extension_factory(e["family_id"]).decode(e["payload"]) for e in self.extensions)

    @property
    def platforms(self) -> tuple[str, ...]:
        """Platforms that the program runs on."""
        return tuple(self.exported.platforms)

    @property
    def text(self) -> str:
        """The StableHLO module."""
        return self.exported.mlir_module()

    def __call__(self, *args: Any) -> Any:
        """Run on the current platform; symbolic dimensions take the sizes of the arguments.

        Raises:
          X64Error: a 64-bit array while 64-bit types are off.
          UnboundPlaceholder, UnexpectedBinding: the arguments are nested in another way.
          PlaceholderRankMismatch, PlaceholderShapeMismatch, PlaceholderDtypeMismatch: an argument is not what was exported.
        """
        require_x64_leaves(args, "exported program")
        leaves, tree = jax.tree.flatten((args, {}))
        if tree != self.exported.in_tree:
            kind = UnexpectedBinding if len(leaves) > len(self.exported.in_avals) else UnboundPlaceholder
            needed = f"{self.exported.in_tree}"
            raise kind(where="exported program", given=f"arguments {tree}", needed=needed, fix="Pass them nested as they were exported.")
        declared, given = (list(map(meta_of, xs)) for xs in (self.exported.in_avals, (as_operand(x, "exported program") for x in leaves)))
        if declared != given:
            solve_sizes(declared, given, [f"exported program, input {i}" for i in range(len(leaves))])
        return self.exported.call(*args)

    def __repr__(self) -> str:
        inputs = ", ".join(map(str, self.exported.in_avals))
        outs = ", ".join(map(str, self.exported.out_avals))
        families = ", ".join(self.families) or "none"
        return f"ExportedProgram(({inputs}) -> ({outs}); platforms {', '.join(self.platforms)}; extensions {families})"

    def to_bytes(self) -> bytes:
        """The file content."""
        body = bytes(self.exported.serialize())
        manifest = json.dumps(
            {"format": 1, "jax": jax.__version__, "platforms": self.platforms, "extensions": self.extensions, "body_bytes": len(body)},
            sort_keys=True,
        ).encode()
        content = body + manifest + _LENGTH.pack(len(manifest))
        return content + _TAIL.pack(hashlib.sha256(content).digest(), MAGIC)

    def save(self, path: str | pathlib.Path) -> int:
        """Write the file; returns its size in bytes."""
        return pathlib.Path(path).write_bytes(self.to_bytes())


def export(
    fn: Callable[..., Any] | Graph,
    *specs: Any,
    platforms: Sequence[str] = ("cpu", "cuda", "tpu"),
    compatibility: str | None = "WEEK_12",
) -> ExportedProgram:
    """Lower a function or a graph to a portable program.

    Extensions are lowered to standard ops; each stays one named call that carries its family_id and payload.

    Args:
      fn: a JAX-traceable function, or a Graph. Sizes that guards of the graph demand to be equal are one symbol in the program,
        which refuses arguments where they differ.
      *specs: the arguments as pytrees of arrays or jax.ShapeDtypeStruct, dimensions may be symbolic; none for a graph.
      platforms: platforms the file is for; none of them needs to be present.
      compatibility: StableHLO requirement that the program is rewritten for ("WEEK_4", "WEEK_12"), so that an older JAX
        reads it; source locations, which name files of this machine, are dropped then. None keeps what this JAX writes.

    Raises:
      Unsupported: an extension has no lowering; kernels and host code are not portable.
      UndecidedDimensionError: an extension needs two symbolic dimensions to be equal; the text says which constraint to add.
      X64Error: a 64-bit spec while 64-bit types are off.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from tenferro_jax import export
      >>> (b,) = jax.export.symbolic_shape("b")
      >>> program = export(lambda x: x.sum(1), jax.ShapeDtypeStruct((b, 3), jnp.float32))
      >>> program(jnp.ones((2, 3))).tolist()
      [3.0, 3.0]
    """
    if not callable(fn):
        raise InvalidConfig(where="export", given=repr(fn), needed="a function or a Graph", fix="Pass one first, then its specs.")
    guards: tuple[Guard, ...] = ()
    if isinstance(fn, Graph):
        if specs:
            raise ArityError(where="export", given="a graph and specs", needed="a graph alone, which has its specs", fix="Drop the specs.")
        graph, guards = fn.unified(), fn.guards
        specs, fn = graph.input_specs, graph.to_jax()
    jax_seam.require_platforms(platforms, "export")
    if compatibility not in (None, *jax_seam.COMPATIBILITY):
        raise InvalidConfig(
            where="export",
            given=f"compatibility={compatibility!r}",
            needed=f"None or one of {', '.join(jax_seam.COMPATIBILITY)}",
            fix="Leave it out for WEEK_12.",
        )
    require_x64_leaves(specs, "export")
    try:
        exported = jax.export.export(jax.jit(fn), platforms=tuple(platforms))(*specs)
    except TenferroError:
        raise
    except NotImplementedError as error:  # what JAX says of host callbacks
        raise Unsupported(
            where="export",
            given=str(error).splitlines()[0],
            needed="operations that JAX can write into a file for these platforms",
            fix="Take host callbacks out, or export for one platform to see more.",
        ) from error
    except Exception as error:
        if not guards:
            raise
        # JAX: a symbol that a guard took away is left in a constraint
        raise undecided(guards[0].lhs, guards[0].rhs, f"export, of symbols with guards {', '.join(map(str, guards))}") from error
    if compatibility is not None:
        portable = jax_seam.rewrite_portable(exported.mlir_module_serialized, compatibility)
        exported = dataclasses.replace(exported, mlir_module_serialized=portable)
    return ExportedProgram(exported, tuple(jax_seam.tagged_calls(exported.mlir_module())))


def load(source: bytes | bytearray | memoryview | str | pathlib.Path) -> ExportedProgram:
    """Read an exported program from a file or its bytes; the digest is checked before anything is parsed.

    Raises:
      ArtifactError: the content is truncated, changed, or was not written by `ExportedProgram.save`.
      Unsupported: an extension inside is registered in this process under another major version. A family that is not
        registered at all is no obstacle: the program holds what it was lowered to.

    Example:
      >>> import jax.numpy as jnp
      >>> from tenferro_jax import export, load
      >>> load(export(jnp.sin, jnp.zeros(2)).to_bytes()).families
      ()
    """
    if isinstance(source, str | pathlib.Path):
        where, content = f"exported program {source}", pathlib.Path(source).read_bytes()
    elif isinstance(source, bytes | bytearray | memoryview):
        where, content = "exported program", bytes(source)
    else:
        raise InvalidConfig(where="load", given=repr(source), needed="a path or bytes", fix="Pass what ExportedProgram.save wrote.")
    if len(content) < _LENGTH.size + _TAIL.size:
        raise _damaged(where, f"{len(content)} bytes")
    hashed, (digest, magic) = content[: -_TAIL.size], _TAIL.unpack(content[-_TAIL.size :])
    if magic != MAGIC:
        raise _damaged(where, "no footer of this format at the end")
    if hashlib.sha256(hashed).digest() != digest:
        raise _damaged(where, "content that does not match its digest")
    end = len(hashed) - _LENGTH.size
    split = end - _LENGTH.unpack(hashed[end:])[0]
    try:
        manifest = json.loads(hashed[split:end])
    except ValueError as error:
        raise _damaged(where, "a manifest that cannot be read, under a digest that matches") from error
    for extension in manifest["extensions"]:
        require_known_version(extension["family_id"])
    exported = jax.export.deserialize(bytearray(hashed[:split]))
    return ExportedProgram(exported, tuple(manifest["extensions"]))


def _damaged(where: str, given: str) -> ArtifactError:
    needed = "a complete file as ExportedProgram.save writes it"
    return ArtifactError(where=where, given=given, needed=needed, fix="Export again, or copy the file again.")
