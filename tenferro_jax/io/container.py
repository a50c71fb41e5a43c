"""The outside of graph bytes: a header that is checked before anything is parsed, text, tensors.

magic (16 bytes), version and length of the text (two uint32), length of everything (uint64), SHA-256 of everything else (32
bytes); then the text; then each tensor, begun at a multiple of 64 bytes. Numbers are little-endian.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from typing import Any, NamedTuple

from ..errors import ArtifactError, Unsupported
from .limits import Limits

MAGIC = b"tenferro-graph\r\n"
VERSION = 2
"""The last version of the format; a file has the first one that can say what is in it."""
ALIGNMENT = 64
_HEADER = struct.Struct(f"<{len(MAGIC)}sIIQ")
_DIGEST_BYTES = 32
HEADER_BYTES = _HEADER.size + _DIGEST_BYTES


class Content(NamedTuple):
    """What passed the checks of the header.

    Attributes:
      everything: all bytes.
      text: the place of the text.
      version: of the format.
    """

    everything: memoryview
    text: slice
    version: int


def aligned(place: int) -> int:
    """The next place, or this one, where a tensor may begin."""
    return -(-place // ALIGNMENT) * ALIGNMENT


def pack(version: int, text: bytes, tensors: Sequence[Any]) -> bytes:
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
    """Of which version of the format, and how long, a file says it is in its first bytes.

    Raises:
      ArtifactError: these bytes begin no graph.
    """
    if len(head) < HEADER_BYTES:
        raise damaged(where, f"{len(head)} bytes")
    magic, version, _, length = _HEADER.unpack_from(head)
    if magic != MAGIC:
        fix = "Read an exported program with load_exported; else write the graph again, or copy the file again."
        raise damaged(where, f"bytes that begin with {magic!r}", fix)
    return version, length


def unpack(content: bytes | memoryview, limits: Limits, where: str) -> Content:
    """The parts of graph bytes, after their length and digest were found right.

    Raises:
      ArtifactError: the bytes are truncated, changed, or none of a graph.
      LimitExceeded: there are more of them than the limits allow.
      Unsupported: a later release wrote them.
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
            needed=f"version 1 to {VERSION}, which this release reads",
            fix="Read it with the release that wrote it, or a later one.",
        )
    if text_bytes > len(body):
        raise damaged(where, f"a text of {text_bytes} bytes among {len(body)}")
    return Content(everything, slice(HEADER_BYTES, HEADER_BYTES + text_bytes), version)


def damaged(where: str, given: str, fix: str = "Write the graph again, or copy the file again.") -> ArtifactError:
    """The error for bytes that are not what they should be."""
    needed = "bytes as to_wire and save_graph write them"
    return ArtifactError(where=where, given=given, needed=needed, fix=fix)


def _digest(head: bytes | memoryview, parts: Sequence[Any]) -> bytes:
    sha = hashlib.sha256(head)
    for part in parts:
        sha.update(part)
    return sha.digest()
