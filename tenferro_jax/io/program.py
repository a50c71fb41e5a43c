"""A program for other processes: what was lowered, what it came from, and its bytes."""

from __future__ import annotations

import dataclasses
import itertools
import pathlib
import re
from collections.abc import Sequence
from typing import Any

import jax
import jax.export

from ..dimensions import require_constraints
from ..errors import PlaceholderShapeMismatch, UnboundPlaceholder, UnexpectedBinding, Unsupported, first_line
from ..extension.op import ExtensionOp
from ..extension.registry import require_extension_factory
from ..jax_seam import Module
from ..shapes import as_operand, meta_of, require_x64_leaves, solve_sizes
from .footer import Manifest, with_footer
from .replacing import replace_file


@dataclasses.dataclass(frozen=True, repr=False)
class ExportedProgram:
    """A lowered program for one or more platforms, its derivatives, and the extensions that they came from.

    It is immutable: a copy is the object itself. In a pickle it is its bytes, which `load_exported` reads.

    Attributes:
      exported: the jax.export.Exported, derivatives included.
      manifest: what the file says of it.
      constraints: what the symbols of its inputs must fulfil beside being 1 or more.
    """

    exported: Any
    manifest: Manifest
    constraints: tuple[str, ...] = ()

    @property
    def extensions(self) -> tuple[dict[str, str], ...]:
        """For each extension call of the program, in order: its family_id, payload and batching as text."""
        return self.manifest.extensions[0]

    @property
    def families(self) -> tuple[str, ...]:
        """The extension families in the program and its derivatives, sorted, each once."""
        return tuple(sorted({call["family_id"] for call in itertools.chain(*self.manifest.extensions)}))

    @property
    def vjp_order(self) -> int:
        """How many times the program can be differentiated in reverse mode."""
        return len(self.manifest.extensions) - 1

    @property
    def platforms(self) -> tuple[str, ...]:
        """Platforms that the program runs on."""
        return tuple(self.exported.platforms)

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

    def stablehlo(self) -> str:
        """The StableHLO module as text."""
        return self.exported.mlir_module()

    def call(self, *args: Any) -> Any:
        """Run on the current platform; symbolic dimensions take the sizes of the arguments.

        Under jit it becomes a part of the caller's program; under grad it takes its own derivative, `vjp_order` times.

        Raises:
          X64Error: a 64-bit array while 64-bit types are off.
          UnboundPlaceholder, UnexpectedBinding: the arguments are nested in another way.
          PlaceholderRankMismatch, PlaceholderShapeMismatch, PlaceholderDtypeMismatch: an argument is not what was exported.
          ShapeConstraintViolation: a constraint of the symbols does not hold.
          Unsupported: differentiated more often than `vjp_order` says, or run on a platform or a number of devices that it is not for.

        Example:
          >>> import jax, jax.numpy as jnp
          >>> from tenferro_jax import export
          >>> program = export(lambda x: {"sum": x.sum()}, jnp.zeros(2), vjp_order=1)
          >>> program.call(jnp.ones(2))["sum"].item(), jax.grad(lambda x: program.call(x)["sum"])(jnp.ones(2)).tolist()
          (2.0, [1.0, 1.0])
        """
        require_x64_leaves(args, "exported program")
        leaves, tree = jax.tree.flatten((args, {}))
        if tree != self.exported.in_tree:
            kind = UnexpectedBinding if len(leaves) > len(self.exported.in_avals) else UnboundPlaceholder
            needed = f"{self.exported.in_tree}"
            raise kind(where="exported program", given=f"arguments {tree}", needed=needed, fix="Pass them nested as they were exported.")
        declared, given = (list(map(meta_of, xs)) for xs in (self.exported.in_avals, (as_operand(x, "exported program") for x in leaves)))
        if declared != given:
            sizes = solve_sizes(declared, given, [f"exported program, input {i}" for i in range(len(leaves))])
            require_constraints(self.constraints, sizes)
        try:
            return self.exported.call(*args)
        except ValueError as error:
            if "polymorphic shapes specification" in str(error) or "Error refining shapes" in str(error):  # of symbols that JAX solves for
                raise PlaceholderShapeMismatch(
                    where="exported program",
                    given=", ".join(map(str, given)),
                    needed=f"{', '.join(map(str, declared))}, each symbol 1 or more{''.join(f', {text}' for text in self.constraints)}",
                    fix="Pass arrays of such sizes, or export again for others.",
                ) from error
            if there := _DEVICES.search(str(error)):
                needed = f"{_devices(self.exported.nr_devices)}, as it was exported for"
                fix = "Put the arguments on a mesh of so many, with jax.device_put(x, jax.NamedSharding(mesh, spec))."
                raise Unsupported(where="exported program", given=f"a call on {_devices(int(there[1]))}", needed=needed, fix=fix) from error
            if "was exported for platforms" not in str(error):
                raise
            raise Unsupported(
                where="exported program",
                given=first_line(error),
                needed="one of its platforms",
                fix="Move the arguments to a device of such a platform, or export with platforms=(...).",
            ) from error

    def __repr__(self) -> str:
        inputs = ", ".join(map(str, self.exported.in_avals))
        outs = ", ".join(map(str, self.exported.out_avals))
        families = ", ".join(self.families) or "none"
        gradients = f"; gradients of order {self.vjp_order}" if self.vjp_order else ""
        devices = f"; {_devices(self.exported.nr_devices)}" if self.exported.nr_devices > 1 else ""
        return f"ExportedProgram(({inputs}) -> ({outs}); platforms {', '.join(self.platforms)}{devices}; extensions {families}{gradients})"

    def __copy__(self) -> ExportedProgram:
        return self

    def __deepcopy__(self, memo: object) -> ExportedProgram:
        return self

    def to_bytes(self) -> bytes:
        """The file content.

        Raises:
          Unsupported: JAX has no bytes for an input or output, such as a pytree class that is not registered for them; or
            flatbuffers, which JAX writes them with, is not installed.
        """
        try:
            body = self.exported.serialize(vjp_order=self.vjp_order)
        except Exception as error:  # of JAX: each kind of thing that it cannot write has another
            raise Unsupported(
                where="exported program",
                given=f"{type(error).__name__}: {first_line(error)}",
                needed="inputs and outputs that jax.export writes",
                fix="Install tenferro-jax[export]."
                if isinstance(error, ImportError)
                else "Use dicts, lists, tuples and arrays, or call register_pytree_name(cls, name).",
            ) from error
        return with_footer(body, self.manifest)

    def save(self, path: str | pathlib.Path) -> int:
        """Write the file; returns its size in bytes. One that is there is replaced when all is written."""
        return replace_file(path, self.to_bytes())


_DEVICES = re.compile(r"(?:in a context with|device assignment) (\d+)")  # how many a call is on, in what JAX says of another number


def _devices(count: int) -> str:
    return f"{count} device{'s' * (count != 1)}"


def described(exported: jax.export.Exported, modules: Sequence[Module], jax_version: str) -> Manifest:
    """The manifest of a program whose modules, the derivatives' after its own, were read."""
    allowed = (check.is_custom_call() for check in exported.disabled_safety_checks)
    inside = sorted({target for module in modules for target in module.custom_calls})
    return Manifest(
        jax_version,
        tuple(exported.platforms),
        tuple(module.extensions for module in modules),
        tuple(inside),
        tuple(sorted(set(inside).intersection(filter(None, allowed)))),
    )
