"""Exported programs from files: first the limits and the digest, then the parsers of JAX."""

from __future__ import annotations

import copyreg
import os
import pathlib

import jax
import jax.export

from .. import jax_seam
from ..errors import InvalidConfig, TenferroError, Unsupported, first_line
from ..extension.registry import require_extension_factory, require_known_version
from .container import MAGIC as GRAPH_MAGIC
from .footer import Manifest, damaged, read_footer
from .limits import Limits
from .program import ExportedProgram, described

_LIMITS = Limits()


def load_exported(
    source: bytes | bytearray | memoryview | str | os.PathLike[str],
    *,
    check_extensions: bool = False,
    trusted: bool = False,
    limits: Limits = _LIMITS,
) -> ExportedProgram:
    """Read an exported program from a file or its bytes.

    Size and digest are checked before anything is parsed. A digest notices damage; who wrote the file it cannot tell.

    Args:
      source: a path, or the content.
      check_extensions: whether every extension family inside must be registered in this process and read its payloads.
        Without it a family that is not registered is no obstacle: the program holds what it was lowered to.
      trusted: read content without a footer or with a damaged one too, such as plain `jax.export.Exported.serialize()`.
        JAX's parsers trust their input: damaged bytes can give wrong numbers or end the process.
      limits: the most that is read: `file_bytes`; of the manifest `record_bytes`, `nodes` (extension calls), `payload_bytes`, `text_bytes`.

    Raises:
      ArtifactError: the content is truncated, changed, or was not written by `ExportedProgram.save`.
      LimitExceeded: the content is beyond the limits.
      Unsupported: this JAX cannot read what another JAX wrote, both are named; an extension inside is registered in this
        process under another major version; with `check_extensions`, or not at all.
      MalformedFamilyId: a family_id inside cannot be read.
      PayloadError: with `check_extensions`, a payload that is none of its family.
      OSError: the file cannot be read.

    Example:
      >>> import jax.numpy as jnp
      >>> from tenferro_jax import export, load_exported
      >>> load_exported(export(jnp.sin, jnp.zeros(2)).to_bytes()).families
      ()
    """
    where, content = _content(source, Limits.given(limits, "load_exported"))
    if content.startswith(GRAPH_MAGIC):
        raise damaged(where, "a graph", "Read it with load_graph or from_wire.")
    try:
        manifest = read_footer(content, where, limits)
    except TenferroError:
        if not trusted:
            raise
        manifest = None  # what the program holds is found out instead
    for call in () if manifest is None else (call for calls in manifest.extensions for call in calls):
        require_known_version(call["family_id"])
    program = _program(content, where, manifest)
    if check_extensions:
        for call in (call for calls in program.manifest.extensions for call in calls):
            require_extension_factory(call["family_id"]).decode(call["payload"])
    return program


def _content(source: bytes | bytearray | memoryview | str | os.PathLike[str], limits: Limits) -> tuple[str, bytearray]:
    """What errors call the source, and its bytes, once their number is known to be within the limits."""
    if isinstance(source, bytes | bytearray | memoryview):
        size = source.nbytes if isinstance(source, memoryview) else len(source)
        limits.require("file_bytes", size, "exported program")
        return "exported program", source if isinstance(source, bytearray) else bytearray(source)
    if not isinstance(source, str | os.PathLike):
        raise InvalidConfig(
            where="load_exported", given=repr(source), needed="a path or bytes", fix="Pass what ExportedProgram.save wrote."
        )
    where = f"exported program {os.fspath(source)}"
    with pathlib.Path(source).open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        limits.require("file_bytes", size, where)
        content = bytearray(size)
        del content[file.readinto(content) :]
    return where, content


def _program(content: bytearray, where: str, manifest: Manifest | None) -> ExportedProgram:
    try:
        exported = jax.export.deserialize(content)  # reads from the front, and so not the footer
        found = jax_seam.orders(exported)
        low, high = jax.export.minimum_supported_calling_convention_version, jax.export.maximum_supported_calling_convention_version
        for program in found:
            if not low <= program.calling_convention_version <= high:
                raise ValueError(f"calling convention {program.calling_convention_version}, of which this JAX reads {low} to {high}")
        modules = [jax_seam.read_module(program.mlir_module_serialized) for program in found]
    except TenferroError:  # of a pytree class
        raise
    except Exception as error:  # JAX's readers raise as many kinds as there are ways to be unreadable
        if manifest is None:
            raise damaged(where, f"what JAX {jax.__version__} cannot read ({type(error).__name__}: {first_line(error)})") from error
        if "unregistered type" in str(error):
            raise Unsupported(
                where=where,
                given=first_line(error),
                needed="a class of this name in this process",
                fix="Import the package that defines it and call register_pytree_name(cls, name).",
            ) from error
        raise Unsupported(
            where=where,
            given=f"a program that JAX {manifest.jax} wrote ({type(error).__name__}: {first_line(error)})",
            needed=f"one that JAX {jax.__version__}, which is here, can read",
            fix=f"Read it with JAX {manifest.jax}, or export it there again with compatibility='WEEK_12'; register pytree classes before.",
        ) from error
    held = described(exported, modules, "unknown" if manifest is None else manifest.jax)
    if manifest not in (None, held):
        raise damaged(where, "a manifest that tells of another program than the file holds")
    return ExportedProgram(jax_seam.with_derivatives(exported, len(found) - 1, bytes), held, modules[0].constraints)


copyreg.pickle(ExportedProgram, lambda program: (load_exported, (program.to_bytes(),)))  # in a pickle it is its file's content
