"""Files that are there whole or not at all."""

from __future__ import annotations

import os
import pathlib
import secrets


def replace_file(path: str | os.PathLike[str], content: bytes | memoryview) -> int:
    """Write a file under another name in its folder, then give it its name; returns its size in bytes.

    Whoever reads meanwhile, and whoever comes after a full disk, finds the file that was there before.
    """
    place = pathlib.Path(os.path.realpath(path))  # a link stays, what it leads to is replaced
    if place.exists() and not place.is_file():  # a pipe or a device cannot be replaced
        return place.write_bytes(content)
    part = place.with_name(f".{secrets.token_hex(8)}.part")
    try:
        part.write_bytes(content)
        os.replace(part, place)
    except OSError as error:  # of a name that nobody gave
        raise type(error)(error.errno, error.strerror, os.fspath(path)) from error
    finally:
        part.unlink(missing_ok=True)
    return len(content)
