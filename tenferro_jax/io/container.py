"""The container of graph bytes: a header that is checked before parsing, text, tensors; and the
limits of a reader.

magic (16 bytes), version and length of the text (two uint32), total length (uint64), SHA-256 of
everything else (32 bytes); then the text; then the tensors, each at a multiple of 64 bytes. Numbers
are little-endian.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
import pathlib
import secrets
import struct
from collections.abc import Sequence
from typing import Any, NamedTuple

from ..errors import ArtifactError, InvalidConfig, Unsupported


@dataclasses.dataclass(frozen=True)
class Limits:
    """The limits of a reader; each is checked before the memory that it bounds is taken.

    For an exported program `load_exported` checks `file_bytes`, and in its manifest `record_bytes`
    (all of it), `nodes` (extension calls), `payload_bytes` and `text_bytes`; for graph bytes all
    limits are checked.

    Attributes:
      file_bytes: the whole file.
      nodes: nodes; a body of control flow counts each time it is used.
      values: inputs and outputs of nodes.
      records: lines with definitions: types, tensors, ops.
      record_bytes: one line.
      payload_bytes: the payload of one extension.
      text_bytes: any other text: a name, a dimension, a guard.
      rank: axes of a value.
      elements: the product of the sizes of a value, without symbolic ones.
      nesting: graphs in graphs, and brackets in one line.

    Raises:
      InvalidConfig: a limit that is not a non-negative integer.

    Example:
      >>> Limits(nodes=1_000_000).nodes
      1000000
    """

    file_bytes: int = 2**31
    nodes: int = 100_000
    values: int = 1_000_000
    records: int = 200_000
    record_bytes: int = 2**25
    payload_bytes: int = 2**24
    text_bytes: int = 2**16
    rank: int = 64
    elements: int = 2**48
    nesting: int = 64

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if type(value) is not int or value < 0:
                raise InvalidConfig(
                    where="Limits",
                    given=f"{field.name}={value!r}",
                    needed="a non-negative integer",
                )

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

MAGIC = b"tenferro-graph\r\n"
VERSION = 2
"""The last version of the format; a file has the lowest version that supports its content."""
ALIGNMENT = 64
_HEADER = struct.Struct(f"<{len(MAGIC)}sIIQ")
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
    head = _HEADER.pack(MAGIC, version, len(text), place)
    return b"".join((head, _digest(head, parts), *parts))


def declared(head: bytes, where: str) -> tuple[int, int]:
    """The version of the format and the length in the first bytes of a file.

    Raises:
      ArtifactError: these are not the first bytes of a graph.
    """
    if len(head) < HEADER_BYTES:
        raise damaged(where, f"{len(head)} bytes")
    magic, version, _, length = _HEADER.unpack_from(head)
    if magic != MAGIC:
        fix = (
            "Read an exported program with load_exported; else write the graph again, or copy "
            "the file again."
        )
        raise damaged(where, f"bytes that begin with {magic!r}", fix)
    return version, length


def unpack(content: bytes | memoryview, limits: Limits, where: str) -> Content:
    """The parts of graph bytes, after a check of length and digest.

    Raises:
      ArtifactError: the bytes are truncated, changed, or not a graph; or there are more bytes
        than the limits allow.
      Unsupported: a later release wrote the bytes.
    """
    everything = memoryview(content)
    version, length = declared(bytes(everything[:HEADER_BYTES]), where)
    if length != len(everything):
        raise damaged(where, f"{len(everything)} bytes of {length}")
    limits.require("file_bytes", length, where)
    head, body = everything[: _HEADER.size], everything[HEADER_BYTES:]
    if _digest(head, [body]) != everything[_HEADER.size : HEADER_BYTES]:
        raise damaged(where, "content that does not match its digest")
    _, _, text_bytes, _ = _HEADER.unpack(head)
    if not 1 <= version <= VERSION:
        raise Unsupported(
            where=where,
            given=f"format version {version}",
            needed=f"version 1 to {VERSION}",
            fix="Use the release that wrote the file, or a later one.",
        )
    return Content(everything, slice(HEADER_BYTES, HEADER_BYTES + text_bytes), version)


def damaged(
    where: str, given: str, fix: str = "Write the graph again, or copy the file again."
) -> ArtifactError:
    """The error for damaged bytes."""
    return ArtifactError(
        where=where,
        given=given,
        needed="bytes as to_wire and save_graph write them",
        fix=fix,
    )


def _digest(head: bytes | memoryview, parts: Sequence[bytes | memoryview]) -> bytes:
    sha = hashlib.sha256(head)
    for part in parts:
        sha.update(part)
    return sha.digest()


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
