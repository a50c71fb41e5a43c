"""The footer of an exported file: manifest (JSON), its length, SHA-256 of all bytes before, magic.

It comes last, as in zip files, so that `jax.export.deserialize` can read the whole file in a
process that has only JAX.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
import struct
from collections.abc import Sequence

import jax.export

from ..errors import ArtifactError, TenferroError, Unsupported
from ..jax_seam import Module
from .container import Limits

FORMAT = 1
MAGIC = b"tenferro-export1"
_LENGTH = struct.Struct("<Q")
_TAIL = struct.Struct(f"<32s{len(MAGIC)}s")
_TAGS = {"family_id", "payload", "batching"}


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


_KEYS = {"format", "body_bytes", *(field.name for field in dataclasses.fields(Manifest))}


def with_footer(body: bytes | bytearray, manifest: Manifest) -> bytes:
    """The content of a file: the unchanged bytes of the program, and the footer."""
    text = _canonical({"format": FORMAT, "body_bytes": len(body), **dataclasses.asdict(manifest)})
    digest = hashlib.sha256(body)
    rest = text + _LENGTH.pack(len(text))
    digest.update(rest)
    return b"".join((body, rest, _TAIL.pack(digest.digest(), MAGIC)))


def read_footer(content: bytearray, where: str, limits: Limits) -> Manifest:
    """The manifest of a file's content; nothing is parsed before the digest is checked.

    Raises:
      ArtifactError: no footer, a wrong digest, an invalid manifest, or more than the limits.
      Unsupported: a later format; the text names both.
    """
    if len(content) < _LENGTH.size + _TAIL.size:
        raise damaged(where, f"{len(content)} bytes")
    digest, magic = _TAIL.unpack_from(content, len(content) - _TAIL.size)
    if magic != MAGIC:
        raise damaged(
            where,
            "no footer of this format at the end",
            "Export again, copy the file again, or pass trusted=True for plain bytes.",
        )
    end = len(content) - _TAIL.size
    with memoryview(content)[:end] as hashed:
        if hashlib.sha256(hashed).digest() != digest:
            raise damaged(where, "content that does not match its digest")
    end -= _LENGTH.size
    (length,) = _LENGTH.unpack_from(content, end)
    limits.require("record_bytes", length, f"{where}, manifest")
    if length > end:
        raise damaged(where, f"a manifest of {length} bytes in a file of {len(content)}")
    return _read(bytes(content[end - length : end]), end - length, where, limits)


def damaged(
    where: str, given: str, fix: str = "Export again, or copy the file again."
) -> ArtifactError:
    """The error for a damaged file."""
    return ArtifactError(
        where=where,
        given=given,
        needed="a complete file as ExportedProgram.save writes it",
        fix=fix,
    )


def _canonical(found: object) -> bytes:
    return json.dumps(found, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def _read(text: bytes, body_bytes: int, where: str, limits: Limits) -> Manifest:
    try:
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
        calls = [call for calls in found["extensions"] for call in calls]
        names = {key: tuple(found[key]) for key in ("platforms", "custom_calls", "unguaranteed")}
        texts = [
            found["jax"],
            *itertools.chain(*names.values()),
            *(call[key] for call in calls for key in _TAGS - {"payload"}),
        ]
        payloads = [call["payload"] for call in calls]
        # One text for each manifest: no key twice, no other keys, no invalid numbers.
        right = (
            _canonical(found) == text
            and found.keys() == _KEYS
            and all(call.keys() == _TAGS for call in calls)
        )
        right = (
            right
            and found["extensions"]
            and (type(version), version, found["body_bytes"]) == (int, FORMAT, body_bytes)
        )
        lists = [found["extensions"], *found["extensions"], *(found[key] for key in names)]
        right = (
            right
            and all(isinstance(x, str) for x in (*texts, *payloads))
            and all(isinstance(x, list) for x in lists)
        )
        limits.require("nodes", len(calls), f"{where}, extension calls")
        limits.require("payload_bytes", max(map(len, payloads), default=0), where)
        limits.require("text_bytes", max(map(len, texts)), where)
    except TenferroError:
        raise
    except Exception as error:  # any exception of the JSON parser
        raise _no_manifest(where, f"text that cannot be read ({type(error).__name__})") from error
    if not right:
        raise _no_manifest(where, "text that is not written as a manifest is")
    return Manifest(found["jax"], extensions=tuple(map(tuple, found["extensions"])), **names)


def _no_manifest(where: str, given: str) -> ArtifactError:
    return damaged(
        where,
        f"{given} instead of a manifest, with a correct digest",
        "Get the file again from its source.",
    )


def described(
    exported: jax.export.Exported, modules: Sequence[Module], jax_version: str
) -> Manifest:
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
