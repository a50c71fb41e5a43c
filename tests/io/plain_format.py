"""The format of graph bytes a second time, from docs/spec/wire_format.md alone: nothing is imported
from the library.
"""

import hashlib
import json
import struct

MAGIC = b"tenferro-graph\r\n"


def sealed(text, tensors=b"", version=1, text_bytes=None, length=None, magic=MAGIC):
    """Bytes with a header that is right but for what is given; `tensors` follow the text after
    zeros up to a multiple of 64.
    """
    if isinstance(text, str):
        text = text.encode()
    body = text
    if tensors:
        body += bytes(-(64 + len(body)) % 64) + tensors
    head = magic + struct.pack(
        "<IIQ",
        version,
        len(text) if text_bytes is None else text_bytes,
        64 + len(body) if length is None else length,
    )
    return head + hashlib.sha256(head + body).digest() + body


def opened(content, versions=(1, 2)):
    """(records, tensors) of bytes: each record a list, each tensor (dtype name, shape, bytes)."""
    magic, (version, text_bytes, length) = content[:16], struct.unpack("<IIQ", content[16:32])
    assert (magic, length) == (MAGIC, len(content))
    assert version in versions
    assert hashlib.sha256(content[:32] + content[64:]).digest() == content[32:64]
    records = [
        json.loads(line) for line in content[64 : 64 + text_bytes].decode("ascii").splitlines()
    ]
    place, tensors = 64 + text_bytes, []
    for kind, *parts in records:
        if kind == "tensor":
            name, shape = parts
            size = bytes_of(name)
            for n in shape:
                size *= n
            place += -place % 64
            tensors.append((name, tuple(shape), content[place : place + size]))
            place += size
    assert place == len(content)
    return records, tensors


def bytes_of(name):
    """The size of an element: a whole byte for those of fewer bits."""
    digits = "".join(c for c in name.split("_")[0] if c.isdigit())
    return 0 if name == "float0" else max(1, int(digits or 8) // 8)


def resealed(content):
    """The bytes under a header digest that fits them again, as a forger would write it."""
    return content[:32] + hashlib.sha256(content[:32] + content[64:]).digest() + content[64:]
