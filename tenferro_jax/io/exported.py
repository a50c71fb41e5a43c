"""Exported programs: the lowered program, its origin, its bytes, and how they are read.

Limits and digest of a file are checked before JAX's parsers read it.
"""

from __future__ import annotations

import copyreg
import dataclasses
import itertools
import os
import pathlib
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax

from .. import jax_seam
from ..dimensions import require_constraints
from ..errors import (
    ArtifactError,
    InvalidConfig,
    ShapeError,
    TenferroError,
    Unsupported,
    counted,
    first_line,
    reason_of,
    require_kind,
)
from ..extension.contract import ExtensionOp
from ..extension.registry import require_extension_factory, require_known_version
from ..shapes import PyTree, as_operand, meta_of, require_x64_leaves, solve_sizes
from .container import (
    GRAPH_MAGIC,
    USUAL_LIMITS,
    Limits,
    Manifest,
    described,
    read_file,
    read_footer,
    replace_file,
    with_footer,
)
from .trees import as_jax_writes


class _Refusal(NamedTuple):
    """Our error for a call that JAX refuses. Texts have places for the facts of the call: sizes,
    needed_sizes, devices, needed_devices and said, JAX's own words.
    """

    kind: type[TenferroError]
    given: str
    needed: str
    fix: str


_OTHER_TRANSFORM = _Refusal(
    Unsupported,
    "a call under vmap",
    "jit, or reverse mode: jax.export has no other transforms",
    "Export with a symbolic batch size, or the transformed function. A graph has every transform: "
    "save_graph(trace(f, ...)).",
)
_REFUSALS: Mapping[str, _Refusal] = {
    "vmap": _OTHER_TRANSFORM,
    "forward": _OTHER_TRANSFORM._replace(given="a call under forward mode (jvp, jacfwd, hessian)"),
    "sizes": _Refusal(  # of symbols that JAX solves for
        ShapeError,
        "{sizes}",
        "{needed_sizes}",
        "Pass arrays of such sizes, or export again for others.",
    ),
    "devices": _Refusal(
        Unsupported,
        "a call on {devices}",
        "{needed_devices}, the number that it was exported for",
        "Put the arguments on a mesh of that many devices, with jax.device_put(x, "
        "jax.NamedSharding(mesh, spec)).",
    ),
    "platforms": _Refusal(
        Unsupported,
        "{said}",
        "one of its platforms",
        "Move the arguments to a device of such a platform, or export with platforms=(...).",
    ),
}
"""By what `refused_for` finds in JAX's error."""


@dataclasses.dataclass(frozen=True, repr=False)
class ExportedProgram:
    """A lowered program for one or more platforms, its derivatives, and the extensions that they
    came from.

    It is immutable, and is pickled and copied as its bytes, which `load_exported` reads.

    Attributes:
      exported: the jax.export.Exported, derivatives included.
      manifest: its description in the file.
      constraints: constraints of the symbols of its inputs, beside being 1 or more.
    """

    exported: jax.export.Exported
    manifest: Manifest
    constraints: tuple[str, ...] = ()

    @property
    def extensions(self) -> tuple[dict[str, str], ...]:
        """For each extension call of the program, in order: its family_id, payload and batching as
        text.
        """
        return self.manifest.extensions[0]

    @property
    def families(self) -> tuple[str, ...]:
        """The extension families in the program and its derivatives, sorted, each once."""
        return tuple(
            sorted({call["family_id"] for call in itertools.chain(*self.manifest.extensions)})
        )

    @property
    def vjp_order(self) -> int:
        """How many times the program can be differentiated in reverse mode."""
        return len(self.manifest.extensions) - 1

    def ops(self) -> tuple[ExtensionOp, ...]:
        """The extension ops that the program was lowered from, in order, read back by their
        registered factories.

        Raises:
          Unsupported: a family is not registered in this process, or under another major version.
          InvalidConfig: a payload does not belong to its family.

        Example:
          >>> import jax.numpy as jnp
          >>> from tenferro_jax import export
          >>> export(jnp.sin, jnp.zeros(2)).ops()
          ()
        """
        return tuple(
            require_extension_factory(e["family_id"]).decode(e["payload"]) for e in self.extensions
        )

    def stablehlo(self) -> str:
        """The StableHLO module as text."""
        return jax_seam.text_of(self.exported.mlir_module_serialized)

    def call(self, *args: PyTree) -> Any:
        """Run on the current platform; symbolic dimensions take the sizes of the arguments.

        Under jit it becomes a part of the caller's program; under grad its exported derivative is
        used, up to `vjp_order` times. vmap and forward mode are refused, of its gradient by JAX's
        own error: export with a symbolic batch size.

        Raises:
          DTypeError: a 64-bit array while 64-bit types are off.
          InvalidConfig: the arguments have another nesting.
          ShapeError, DTypeError: an argument does not fit its input.
          ShapeError: a constraint of the symbols does not hold.
          Unsupported: differentiated more than `vjp_order` times, or called under vmap or forward
            mode, or on another platform or number of devices than exported for.

        Example:
          >>> import jax, jax.numpy as jnp
          >>> from tenferro_jax import export
          >>> program = export(lambda x: {"sum": x.sum()}, jnp.zeros(2), vjp_order=1)
          >>> total = lambda x: program.call(x)["sum"]
          >>> total(jnp.ones(2)).item(), jax.grad(total)(jnp.ones(2)).tolist()
          (2.0, [1.0, 1.0])
        """
        where = "exported program"
        require_x64_leaves(args, where)
        leaves, tree = jax.tree.flatten((args, {}))
        expected: Any = self.exported.in_tree
        if tree != expected:
            raise InvalidConfig(
                where=where,
                given=f"arguments {tree}",
                needed=str(expected),
                fix="Nest the arguments as in the export."
                if str(tree) != str(expected)
                else "Export the function again: a class among its arguments was defined again.",
            )
        declared = list(map(meta_of, self.exported.in_avals))
        given = [meta_of(as_operand(leaf, where)) for leaf in leaves]
        if declared != given:
            places = [f"{where}, input {i}" for i in range(len(leaves))]
            require_constraints(self.constraints, solve_sizes(declared, given, places))
        try:
            return self.exported.call(*args)
        except (ValueError, NotImplementedError, TypeError) as error:
            why, devices = jax_seam.refused_for(error)
            if why not in _REFUSALS:
                raise
            limits = ["each symbol 1 or more", *self.constraints]
            sizes = ", ".join(map(str, given))
            needed_sizes = ", ".join([*map(str, declared), *limits])
            facts = {
                "sizes": sizes,
                "needed_sizes": needed_sizes,
                "devices": counted(devices, "device"),
                "needed_devices": counted(self.exported.nr_devices, "device"),
                "said": first_line(error).rstrip("."),
            }
            kind, found, needed, fix = _REFUSALS[why]
            raise kind(
                where=where,
                given=found.format_map(facts),
                needed=needed.format_map(facts),
                fix=fix,
            ) from error

    def __repr__(self) -> str:
        inputs = ", ".join(map(str, self.exported.in_avals))
        outs = ", ".join(map(str, self.exported.out_avals))
        families = ", ".join(self.families) or "none"
        gradients = f"; gradients of order {self.vjp_order}" if self.vjp_order else ""
        count = self.exported.nr_devices
        devices = f"; {counted(count, 'device')}" if count > 1 else ""
        return (
            f"ExportedProgram(({inputs}) -> ({outs}); platforms "
            f"{', '.join(self.manifest.platforms)}{devices}; extensions {families}{gradients})"
        )

    def to_bytes(self) -> bytes:
        """The file content.

        Raises:
          Unsupported: JAX cannot write an input or output, such as a pytree class that is not
            registered, as `jnp.linalg.qr` returns; or flatbuffers, which JAX needs to write, is not
            installed.
        """
        try:
            body = _as_jax_writes(self.exported).serialize(vjp_order=self.vjp_order)
        except TenferroError:  # of a pytree class
            raise
        except ImportError as error:
            raise _without_flatbuffers("exported program") from error
        except Exception as error:  # JAX raises another type for each kind of value
            raise Unsupported(
                where="exported program",
                given=reason_of(error),
                needed="inputs and outputs that jax.export writes",
                fix="Use dicts, lists, tuples and arrays, or call register_pytree_name(cls, name).",
            ) from error
        return with_footer(body, self.manifest)

    def save(self, path: str | pathlib.Path) -> int:
        """Write the file; returns its size in bytes. An existing file is replaced after everything
        is written.
        """
        return replace_file(path, self.to_bytes())


@dataclasses.dataclass(frozen=True)
class DerivedExported(jax.export.Exported):
    """An Exported with its derivatives; a further derivative raises an error."""

    derivative: jax.export.Exported | None

    def has_vjp(self) -> bool:
        """Whether there is a derivative."""
        return self.derivative is not None

    def vjp(self) -> jax.export.Exported:
        """The derivative."""
        if self.derivative is None:
            raise Unsupported(
                where="gradient of an exported program",
                given="a program without a derivative of this order",
                needed="a program exported with a higher vjp_order",
                fix="Export with vjp_order=1 for gradients, 2 for gradients of gradients.",
            )
        return self.derivative


def with_derivatives(
    exported: jax.export.Exported, order: int, change: Callable[[bytes], bytes]
) -> DerivedExported:
    """An Exported with `order` derivatives made now, the module of each passed through `change`."""
    derivative = with_derivatives(exported.vjp(), order - 1, change) if order else None
    fields = {field.name: getattr(exported, field.name) for field in dataclasses.fields(exported)}
    fields["mlir_module_serialized"] = change(exported.mlir_module_serialized)
    return DerivedExported(**fields, derivative=derivative)


def _as_jax_writes(exported: jax.export.Exported) -> jax.export.Exported:
    """An Exported whose trees have the classes that JAX knows by their names."""
    changed = {name: as_jax_writes(getattr(exported, name)) for name in ("in_tree", "out_tree")}
    derivative = getattr(exported, "derivative", None)
    if derivative is not None:
        changed["derivative"] = _as_jax_writes(derivative)
    return dataclasses.replace(exported, **changed)


def orders(exported: jax.export.Exported) -> list[jax.export.Exported]:
    """A program that was read from bytes or made by `with_derivatives`, then its derivatives."""
    found = [exported]
    while found[-1].has_vjp():
        found.append(found[-1].vjp())
    return found


def _without_flatbuffers(where: str) -> Unsupported:
    return Unsupported(
        where=where,
        given="a process without flatbuffers",
        needed="the package flatbuffers, with which JAX writes and reads exported programs",
        fix="Install tenferro-jax[export].",
    )


def load_exported(
    source: bytes | bytearray | memoryview | str | os.PathLike[str],
    *,
    limits: Limits = USUAL_LIMITS,
) -> ExportedProgram:
    """Read an exported program from a file or its bytes.

    Size and digest are checked before anything is parsed. A digest detects damage, but does not
    prove who wrote the file.

    Args:
      source: a path, or the content.
      limits: `file_bytes`, and `text_bytes` for the manifest.

    Raises:
      ArtifactError: the content is truncated, changed, or was not written by
        `ExportedProgram.save`; or the content exceeds the limits.
      Unsupported: this JAX cannot read a program of another JAX, both are named; or flatbuffers,
        which JAX needs, is not installed; or an extension is registered in this process under
        another major version. A family may be unregistered,
        because the program holds its lowering; `ops` asks for all of them.
      MalformedFamilyId: a family_id in the program cannot be read.
      OSError: the file cannot be read.

    Example:
      >>> import jax.numpy as jnp
      >>> from tenferro_jax import export, load_exported
      >>> load_exported(export(jnp.sin, jnp.zeros(2)).to_bytes()).families
      ()
    """
    require_kind(limits, Limits, "load_exported", "Limits", "Leave it out for the usual.", "limits")
    where = "exported program"
    if isinstance(source, bytes | bytearray | memoryview):
        limits.require("file_bytes", memoryview(source).nbytes, where)
        content = source if isinstance(source, bytearray) else bytearray(source)
    else:
        needed, fix = "a path or bytes", "Pass what ExportedProgram.save wrote."
        require_kind(source, str | os.PathLike, "load_exported", needed, fix)
        where = f"exported program {os.fspath(source)}"
        content = read_file(source, where, limits)
    return read_program(content, where, limits)


def read_program(content: bytearray, where: str, limits: Limits) -> ExportedProgram:
    """The program of a file's content; raises as `load_exported`."""
    if content.startswith(GRAPH_MAGIC):
        fix = "Read it with load_graph or from_wire."
        raise ArtifactError(where=where, given="a graph", fix=fix)
    program = _program(content, where, read_footer(content, where, limits))
    for call in itertools.chain(*program.manifest.extensions):
        require_known_version(call["family_id"])
    return program


def _program(content: bytearray, where: str, manifest: Manifest) -> ExportedProgram:
    try:
        exported = jax.export.deserialize(content)  # reads from the front, without the footer
        found = orders(exported)
        low = jax.export.minimum_supported_calling_convention_version
        high = jax.export.maximum_supported_calling_convention_version
        for program in found:
            if not low <= program.calling_convention_version <= high:
                raise ValueError(
                    f"calling convention {program.calling_convention_version}, of which this JAX "
                    f"reads {low} to {high}"
                )
        modules = [jax_seam.read_module(program.mlir_module_serialized) for program in found]
    except TenferroError:  # of a pytree class
        raise
    except ImportError as error:
        raise _without_flatbuffers(where) from error
    except Exception as error:  # JAX's readers raise many types
        if jax_seam.refused_for(error)[0] == "class":
            raise Unsupported(
                where=where,
                given=first_line(error),
                needed="a class of this name in this process",
                fix="Import the package that defines it and call register_pytree_name(cls, name).",
            ) from error
        raise Unsupported(
            where=where,
            given=f"a program that JAX {manifest.jax} wrote ({reason_of(error)})",
            needed=f"a program that JAX {jax.__version__}, the one in this process, can read",
            fix=f"Register pytree classes first; read it with JAX {manifest.jax}, or export it "
            f"there with compatibility='WEEK_12'.",
        ) from error
    held = described(exported, modules, manifest.jax)
    if manifest != held:
        raise ArtifactError(where=where, given="a manifest of another program")
    return ExportedProgram(
        with_derivatives(exported, len(found) - 1, bytes), held, modules[0].constraints
    )


copyreg.pickle(
    ExportedProgram, lambda program: (load_exported, (program.to_bytes(),))
)  # it is pickled as its file content
