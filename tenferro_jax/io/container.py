"""The files of graphs and of exported programs, and the limits of a reader; nothing is parsed
before length and digest are checked.

A graph: magic (16 bytes), version and length of the text (two uint32), total length (uint64),
SHA-256 of everything else (32 bytes); then the text; then the tensors, each at a multiple of 64
bytes. Numbers are little-endian.

An exported program: what jax.export writes, then a footer: manifest (JSON), its length, SHA-256 of
all bytes before, magic. It comes last, as in zip files, so that `jax.export.deserialize` can read
the whole file in a process that has only JAX.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import pathlib
import secrets
import struct
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax

from ..errors import ArtifactError, TenferroError, Unsupported
from ..jax_seam import Module


@dataclasses.dataclass(frozen=True)
class Limits:
    """The limits of a reader; each is checked before the memory that it bounds is taken.

    Attributes:
      file_bytes: the whole file.
      text_bytes: the records of a graph, or the manifest of an exported program.
      nodes: of a graph; a body of control flow counts each time it is used.
      nesting: graphs in graphs.

    Example:
      >>> Limits(nodes=1_000_000).nodes
      1000000
    """

    file_bytes: int = 2**31
    text_bytes: int = 2**25
    nodes: int = 100_000
    nesting: int = 64

    def require(self, name: str, size: int, where: str) -> None:
        """Refuse a size above a limit.

        Raises:
          ArtifactError: the text gives the size, the limit, and the argument that allows more.
        """
        most = getattr(self, name)
        if size > most:
            raise ArtifactError(
                where=where,
                given=f"{size} for {name}",
                needed=f"at most {most}",
                fix=f"If you trust these bytes, pass limits=Limits({name}=...).",
            )


USUAL_LIMITS = Limits()

GRAPH_MAGIC = b"tenferro-graph\r\n"
VERSION = 2
"""The last version of the format; a file has the lowest version that supports its content."""
ALIGNMENT = 64
_HEADER = struct.Struct(f"<{len(GRAPH_MAGIC)}sIIQ")
_DIGEST_BYTES = 32
HEADER_BYTES = _HEADER.size + _DIGEST_BYTES


class Content(NamedTuple):
    """Content that passed the checks of the header.

    Attributes:
      everything: all bytes.
      text: the position of the text.
      version: of the format.
    """

    everything: memoryview
    text: slice
    version: int


def aligned(place: int) -> int:
    """The next position, from this one on, where a tensor may begin."""
    return -(-place // ALIGNMENT) * ALIGNMENT


def pack(version: int, text: bytes, tensors: Sequence[bytes | memoryview]) -> bytes:
    """The bytes of a text and of buffers, under a version of the format."""
    place = HEADER_BYTES + len(text)
    parts: list[Any] = [text]
    for tensor in tensors:
        start = aligned(place)
        parts += [bytes(start - place), tensor]
        place = start + len(tensor)
    head = _HEADER.pack(GRAPH_MAGIC, version, len(text), place)
    return b"".join((head, _digest(head, parts), *parts))


def unpack(content: bytes | bytearray, limits: Limits, where: str) -> Content:
    """The parts of graph bytes, after a check of length and digest.

    Raises:
      ArtifactError: the bytes are truncated, changed, or not a graph; or there are more bytes
        than the limits allow.
      Unsupported: a later release wrote the bytes.
    """
    everything = memoryview(content).toreadonly()
    if len(everything) < HEADER_BYTES:
        raise ArtifactError(where=where, given=f"{len(everything)} bytes")
    magic, version, text_bytes, length = _HEADER.unpack_from(everything)
    if magic != GRAPH_MAGIC:
        fix = "Read an exported program with load_exported."
        raise ArtifactError(where=where, given=f"bytes that begin with {magic!r}", fix=fix)
    if length != len(everything):
        raise ArtifactError(where=where, given=f"{len(everything)} bytes of {length}")
    limits.require("file_bytes", length, where)
    head, body = everything[: _HEADER.size], everything[HEADER_BYTES:]
    if _digest(head, [body]) != everything[_HEADER.size : HEADER_BYTES]:
        raise ArtifactError(where=where, given="content that does not match its digest")
    if not 1 <= version <= VERSION:
        raise Unsupported(
            where=where,
            given=f"format version {version}",
            needed=f"version 1 to {VERSION}",
            fix="Use the release that wrote the file, or a later one.",
        )
    return Content(everything, slice(HEADER_BYTES, HEADER_BYTES + text_bytes), version)


def _digest(head: bytes | bytearray | memoryview, parts: Sequence[bytes | memoryview]) -> bytes:
    sha = hashlib.sha256(head)
    for part in parts:
        sha.update(part)
    return sha.digest()


_PART_BYTES = 2**20


def read_file(path: str | os.PathLike[str], where: str, limits: Limits) -> bytearray:
    """The content of a file, a pipe or a device; no more is read than the limits allow."""
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        limits.require("file_bytes", size, where)
        content = bytearray(size)
        del content[file.readinto(content) :]
        # A pipe tells no size, and a device may never end.
        while part := file.read(_PART_BYTES):
            content += part
            limits.require("file_bytes", len(content), where)
    return content


def replace_file(path: str | os.PathLike[str], content: bytes | memoryview) -> int:
    """Write a file under a temporary name in its folder, then rename it; returns its size in bytes.

    Until then, or if the disk is full, readers find the old file.
    """
    place = pathlib.Path(os.path.realpath(path))  # a link stays, and its target is replaced
    if place.exists() and not place.is_file():  # a pipe or a device cannot be replaced
        return place.write_bytes(content)
    part = place.with_name(f".{secrets.token_hex(8)}.part")
    try:
        part.write_bytes(content)
        os.replace(part, place)
    except OSError as error:  # of a temporary name that the user did not give
        raise type(error)(error.errno, error.strerror, os.fspath(path)) from error
    finally:
        part.unlink(missing_ok=True)
    return len(content)


FORMAT = 1
PROGRAM_MAGIC = b"tenferro-export1"
_LENGTH = struct.Struct("<Q")
_TAIL = struct.Struct(f"<32s{len(PROGRAM_MAGIC)}s")


@dataclasses.dataclass(frozen=True)
class Manifest:
    """The description of a program in its file.

    Attributes:
      jax: the version of JAX that wrote it.
      platforms: the platforms of the program.
      extensions: for the program and then each derivative, family_id, payload and batching of every
        extension call.
      custom_calls: targets of its custom calls.
      unguaranteed: those of them that JAX does not keep stable.
    """

    jax: str
    platforms: tuple[str, ...]
    extensions: tuple[tuple[dict[str, str], ...], ...]
    custom_calls: tuple[str, ...]
    unguaranteed: tuple[str, ...]


def with_footer(body: bytes | bytearray, manifest: Manifest) -> bytes:
    """The content of a file: the unchanged bytes of the program, and the footer."""
    text = _manifest_text(manifest, len(body))
    rest = text + _LENGTH.pack(len(text))
    return b"".join((body, rest, _TAIL.pack(_digest(body, [rest]), PROGRAM_MAGIC)))


def _manifest_text(manifest: Manifest, body_bytes: int) -> bytes:
    found = {"format": FORMAT, "body_bytes": body_bytes, **dataclasses.asdict(manifest)}
    return json.dumps(found, sort_keys=True, separators=(",", ":")).encode()


def read_footer(content: bytearray, where: str, limits: Limits) -> Manifest:
    """The manifest of a file's content; nothing is parsed before the digest is checked.

    Raises:
      ArtifactError: no footer, a wrong digest, an invalid manifest, or more than the limits.
      Unsupported: a later format; the text names both.
    """
    if len(content) < _LENGTH.size + _TAIL.size:
        raise ArtifactError(where=where, given=f"{len(content)} bytes")
    end = len(content) - _TAIL.size
    digest, magic = _TAIL.unpack_from(content, end)
    if magic != PROGRAM_MAGIC:
        raise ArtifactError(
            where=where,
            given="no footer of this format at the end",
            fix="Read what jax.export alone wrote with jax.export.deserialize.",
        )
    with memoryview(content)[:end] as hashed:
        if hashlib.sha256(hashed).digest() != digest:
            raise ArtifactError(where=where, given="content that does not match its digest")
    end -= _LENGTH.size
    (length,) = _LENGTH.unpack_from(content, end)
    limits.require("text_bytes", length, f"{where}, manifest")
    try:
        return _read(bytes(content[end - length : end]), end - length, where)
    except TenferroError:
        raise
    except Exception as error:  # any exception of the JSON parser
        raise ArtifactError(
            where=where,
            given=f"with a correct digest no manifest ({type(error).__name__}: {error!s:.200})",
            fix="Get the file again from its source.",
        ) from error


def _read(text: bytes, body_bytes: int, where: str) -> Manifest:
    """The manifest of a text; that it tells of its program is checked when the program was read."""
    found = json.loads(text.decode("ascii"))
    version = found["format"]
    if type(version) is int and version > FORMAT:
        raise Unsupported(
            where=where,
            given=f"format {version} of exported programs",
            needed=f"format {FORMAT}, which this release reads",
            fix="Read the file with a later release of tenferro_jax, or with "
            "jax.export.deserialize.",
        )
    extensions = tuple(map(tuple, found["extensions"]))
    texts = {name: tuple(found[name]) for name in ("platforms", "custom_calls", "unguaranteed")}
    manifest = Manifest(jax=found["jax"], extensions=extensions, **texts)
    # One text for each manifest: no key twice, no other keys.
    if _manifest_text(manifest, body_bytes) != text or not isinstance(manifest.jax, str):
        raise ValueError("another text than a writer writes")
    return manifest


def described(
    exported: jax.export.Exported, modules: Sequence[Module], jax_version: str
) -> Manifest:
    """The manifest of a program whose modules, the derivatives' after its own, were read."""
    allowed = {check.is_custom_call() for check in exported.disabled_safety_checks}
    inside = {target for module in modules for target in module.custom_calls}
    extensions = tuple(module.extensions for module in modules)
    return Manifest(
        jax=jax_version,
        platforms=tuple(exported.platforms),
        extensions=extensions,
        custom_calls=tuple(sorted(inside)),
        unguaranteed=tuple(sorted(inside & allowed)),
    )
