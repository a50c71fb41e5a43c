"""Exported files made to harm, each under a digest that matches: name -> content."""

import hashlib
import json
import struct

import jax.numpy as jnp

import tenferro_jax as tj

MAGIC = b"tenferro-export1"
PROGRAM = tj.export(jnp.sin, jnp.zeros(2, jnp.float32), platforms=("cpu",))
BODY = bytes(PROGRAM.exported.serialize())
HONEST = {
    "body_bytes": len(BODY),
    "custom_calls": [],
    "extensions": [[]],
    "format": 1,
    "jax": PROGRAM.manifest.jax,
    "platforms": ["cpu"],
    "unguaranteed": [],
}


def signed(manifest, length=None, body=BODY):
    """A file with this manifest, of this claimed length, and a digest that matches."""
    content = body + manifest + struct.pack("<Q", len(manifest) if length is None else length)
    return content + hashlib.sha256(content).digest() + MAGIC


def written(**changes):
    found = {key: value for key, value in (HONEST | changes).items() if value is not ...}
    return json.dumps(found, sort_keys=True, separators=(",", ":")).encode()


def call(**changes):
    return [[{"family_id": "my-package.gone.v1", "payload": "{}", "batching": "[]"} | changes]]


def cases():
    """Every name with its content; the first is not hostile."""
    honest = written()
    return {
        "honest": signed(honest),
        **{
            f"length {length}": signed(honest, length)
            for length in (
                0,
                1,
                len(honest) - 1,
                len(honest) + 1,
                len(BODY) + len(honest) + 1,
                2**31,
                2**63,
                2**64 - 1,
            )
        },
        **{
            f"text {text[:12]!r}": signed(text)
            for text in (
                b"",
                b"null",
                b"[]",
                b"{}",
                b"1",
                b'"text"',
                b"\xff\xfe",
                b"\xef\xbb\xbf" + honest,
                b" " + honest,
                honest + b"\n",
                honest + honest,
            )
        },
        **{
            f"{depth} of {bracket!r}": signed(bracket * depth)
            for depth in (1_000, 100_000)
            for bracket in (b"[", b'{"a":')
        },
        **{f"{depth} closed": signed(b"[" * depth + b"]" * depth) for depth in (1_000, 100_000)},
        **{
            f"{depth} in a field": signed(
                honest[:-1] + b',"z":' + b"[" * depth + b"]" * depth + b"}"
            )
            for depth in (1_000, 100_000)
        },
        **{
            f"number {number[:8]!r}": signed(honest.replace(b'"format":1', b'"format":' + number))
            for number in (
                b"NaN",
                b"Infinity",
                b"1e999",
                b"-0",
                b"1.0",
                b"9" * 100_000,
                b"1E400",
                b"01",
            )
        },
        "a key twice": signed(b'{"body_bytes":%d,' % len(BODY) + honest[1:]),
        "keys in another order": signed(
            json.dumps(dict(reversed(HONEST.items())), separators=(",", ":")).encode()
        ),
        **{
            f"{key} {value!r}{' (harmless)' * ((key, value) == ('jax', 'text'))}": signed(
                written(**{key: value})
            )
            for key in HONEST
            for value in (
                ...,
                None,
                True,
                0,
                -1,
                1.5,
                "text",
                [],
                [[]],
                [[[]]],
                {},
                [1],
                ["a", 1],
                {"a": "b"},
                2**70,
            )
            if value != HONEST[key] or type(value) is not type(HONEST[key])
        },
        "format 2": signed(written(format=2)),
        **{
            f"family {family[:20]!r}": signed(written(extensions=call(family_id=family)))
            for family in (
                "",
                "gone",
                "my-package.gone.v",
                "my-package.g\u043ene.v1",
                "my-package.gone.v1\n",
                "../x.y.v1",
                "a.b.v" + "9" * 10_000,
                "A" * 2**17,
            )
        },
        "an extension that is not there": signed(written(extensions=call())),
        "payload of 32 MB": signed(written(extensions=call(payload="x" * 2**25))),
        "batching of 1 MB": signed(written(extensions=call(batching="x" * 2**20))),
        "extension of numbers": signed(written(extensions=call(payload=1))),
        "extension without payload": signed(
            written(extensions=[[{"family_id": "my-package.gone.v1"}]])
        ),
        "extensions beyond the limit": signed(written(extensions=call() * 100_001)),
        "a derivative that is not there": signed(written(extensions=[[], []])),
        "a version of a million letters (harmless)": signed(written(jax="0" * 10**6)),
        **{
            f"body {name}": signed(written(body_bytes=len(body)), body=body)
            for name, body in (
                ("empty", b""),
                ("text", b"A" * 1000),
                ("zeros", bytes(1000)),
                ("zip", b"PK\x03\x04" + bytes(60)),
                ("half", BODY[:600]),
            )
        },
    }


def ended(content):
    """How the reading of a case ended."""
    try:
        out = tj.load_exported(content).call(jnp.zeros(2, jnp.float32)).tolist()
        return "ok" if out == [0.0, 0.0] else f"read as {out}"
    except tj.TenferroError as error:
        return type(error).__name__ + ": limits" * ("limits=Limits(" in error.fix)
