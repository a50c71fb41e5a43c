"""Bytes that nobody's writer wrote, read in a process with limits of its own.

python -m tests.io.hostile SUITE prints each case before it is read, then how it ended: a crash
names its case.
"""

import functools
import json
import pathlib
import random
import resource
import signal
import sys

import jax

from tenferro_jax import TenferroError, from_wire, to_wire

from ..extension.payload_ops import Holder
from ..sweep import times
from . import hostile_exported
from .graph_bank import register_families
from .plain_format import resealed, sealed

GOLDEN = sorted((pathlib.Path(__file__).parents[1] / "golden").rglob("*.graph"))
SECONDS = 20  # a case
MEGABYTES = 1500  # above what the process has when all is imported

F, B = '["type","float64",[2]]', '["type","bool",[]]'
S = '["type","float64",[]]'
ONE = ['["graph",[0],["tuple",0]]', '["node",0,[0],[0]]', '["return",[1],0,[],[]]']
NEG = '["op","Neg",{}]'
SCAN = '["op","Scan",{"body":{"graph":%d},"carry_count":1,"constant_count":0,"length":2,"reverse":false,"unroll":1}]'
EXTENSION = '["extension",%s,%s,%s,%s]'
SQUARE = "test-package.scaled_square.v1"
GOOD_PAYLOAD = '{"factor":{"float":"0x1.8000000000000p+0"}}'


def text(*lines):
    return "".join(f"{line}\n" for line in lines)


def replaced(old, new):
    """The good file with a piece of text replaced."""
    good = text(F, NEG, *ONE)
    assert old in good
    return sealed(good.replace(old, new))


def of_type(record, *rest):
    return sealed(text(record, NEG, *ONE, *rest))


def doubling(depth):
    """Each graph uses the one before twice: 2**depth nodes in a few lines."""
    lines = [S, NEG, *ONE]
    for i in range(depth):
        lines += [
            SCAN % i,
            ONE[0],
            f'["node",{i + 1},[0],[0]]',
            f'["node",{i + 1},[1],[0]]',
            '["return",[2],0,[],[]]',
        ]
    return sealed(text(*lines))


def chain(depth):
    """Each graph uses the one before."""
    lines = [S, NEG, *ONE]
    for i in range(depth):
        lines += [SCAN % i, ONE[0], f'["node",{i + 1},[0],[0]]', ONE[2]]
    return sealed(text(*lines))


def array_of(record, data=b""):
    constant = '["op","Constant",{"value":{"tensor":0}}]'
    return sealed(
        text(
            record,
            constant,
            '["type","bool",[2]]',
            '["graph",[],["tuple"]]',
            '["node",0,[],[0]]',
            '["return",[0],0,[],[]]',
        ),
        data,
    )


def extension(family_id, payload="{}", levels="[]", outputs="1"):
    return sealed(
        text(F, EXTENSION % (json.dumps(family_id), json.dumps(payload), levels, outputs), *ONE)
    )


def small():
    """name -> bytes of files made to break a reader; few of them are larger than 20 kB."""
    good = sealed(text(F, NEG, *ONE))
    deep = 100_000
    lies = (0, 1, 63, len(good) - 65, 2**31, 2**32 - 1)
    return {
        **{f"text of {n} bytes": sealed(text(F, NEG, *ONE), text_bytes=n) for n in lies},
        **{
            f"length {n}": sealed(text(F, NEG, *ONE), length=n)
            for n in (0, 63, 64, len(good) - 1, 2**40, 2**64 - 1)
        },
        **{f"version {n}": sealed(text(F, NEG, *ONE), version=n) for n in (0, 2, 2**32 - 1)},
        **{
            f"magic {m!r}": sealed(text(F, NEG, *ONE), magic=m)
            for m in (b"\0" * 16, b"tenferro-graph\n\n", b"PK\3\4" + bytes(12))
        },
        "header alone": sealed(""),
        "trailing bytes": resealed(
            good[:24] + (len(good) + 1).to_bytes(8, "little") + good[32:] + b"\0"
        ),
        "no final line end": sealed(text(F, NEG, *ONE)[:-1]),
        "not ascii": sealed(text(F, NEG, *ONE).replace("Neg", "N\u00e9g")),
        "zero bytes": sealed(bytes(1000)),
        **{
            f"type: {name}": of_type(record)
            for name, record in {
                "not JSON": "nonsense",
                "a number": "3",
                "null": "null",
                "an object": "{}",
                "no kind": "[]",
                "unknown kind": '["import","os"]',
                "kind that is no text": "[[],1]",
                "kind of an attribute": '["__class__"]',
                "NaN": '["type","float64",[NaN]]',
                "Infinity": '["type","float64",[Infinity]]',
                "a float": '["type","float64",[2.0]]',
                "exponent": '["type","float64",[1e400]]',
                "negative": '["type","float64",[-1]]',
                "boolean size": '["type","float64",[true]]',
                "null size": '["type","float64",[null]]',
                "long number": '["type","float64",[' + "9" * 5000 + "]]",
                "large product": '["type","float64",[4294967296,4294967296]]',
                "rank": '["type","float64",[' + ",".join("1" * 1000) + "]]",
                "no shape": '["type","float64"]',
                "shape": '["type","float64",2]',
                "dtype": '["type","object",[2]]',
                "dtype of records": '["type","f8,f8",[2]]',
                "dtype spelled": '["type","f8",[2]]',
                "dtype of dates": '["type","datetime64",[2]]',
                "dtype of text": '["type","U1000000000",[2]]',
                "big endian": '["type",">f8",[2]]',
                "dtype number": '["type",3,[2]]',
                "dtype null": '["type",null,[2]]',
                "unknown key": '["type","key<other>",[2]]',
                "space": '["type", "float64",[2]]',
                "escape": '["type","float\\u0036\\u0034",[2]]',
                "two lines in one": F + F,
                "brackets": "[" * deep + "]" * deep,
                "open brackets": "[" * deep,
                "braces": '{"a":' * deep,
                "deep": '["type",' + "[" * 500 + "]" * 500 + "]",
                "symbol of code": '["type","float64",["__import__(\'os\')"]]',
                "power": '["type","float64",["a^99999999"]]',
                "power of a sum": '["type","float64",["max(a+b+c+d, a+b+c+d+1)^99"]]',
                "power of powers": '["type","float64",["9^99^99^99"]]',
                "dimension not as printed": '["type","float64",["b + 1 + b"]]',
                "deep dimension": '["type","float64",["' + "max(" * 240 + '"]]',
                "signs": '["type","float64",["' + "-" * 990 + 'a"]]',
                "dimension by zero": '["type","float64",["floordiv(a, 0)"]]',
                "dimension that is a number": '["type","float64",["4"]]',
                "comma": '["type","float64",["a, b"]]',
                "dots": '["type","float64",["..."]]',
                "look-alike symbol": '["type","float64",["\\uff41"]]',
            }.items()
        },
        **{
            f"constraints: {name}{used}": sealed(text(record, kind, NEG, *ONE))
            for used, kind in (("", F), (", used", '["type","float64",["a"]]'))
            for name, record in {
                "text": '["constraints",3]',
                "no comparison": '["constraints","a"]',
                "false": '["constraints","1 >= 2"]',
                "many": '["constraints",' + ",".join(f'"a >= {i}"' for i in range(1000)) + "]",
                "circle": '["constraints","a == b + 1","b == a + 1"]',
                "power": '["constraints","a^99999999 >= 1"]',
                "sum": '["constraints","a == b + c + d + e","a^99 >= 0"]',
                "unused": '["constraints","a >= 3"]',
            }.items()
        },
        "constraints later": sealed(
            text('["type","float64",["a"]]', '["constraints","a >= 3"]', NEG, *ONE)
        ),
        **{
            f"op: {name}": replaced(NEG, new)
            for name, new in {
                "unknown": '["op","Import",{}]',
                "private": '["op","_Carrying",{}]',
                "base": '["op","StdTensorOp",{}]',
                "no text": '["op",3,{}]',
                "path": '["op","os.system",{}]',
                "no fields": '["op","Neg"]',
                "list": '["op","Neg",[]]',
                "a field too many": '["op","Neg",{"a":1}]',
                "a field missing": '["op","Sin",{}]',
                "a key twice": '["op","Sin",{"accuracy":3,"accuracy":null}]',
                "odd accuracy": '["op","Sin",{"accuracy":{"enum":["AccuracyMode","mro"]}}]',
                "other enum": '["op","Sin",{"accuracy":{"enum":["Enum","a"]}}]',
                "odd tag": '["op","Sin",{"accuracy":{"pickle":"gASVAAAA"}}]',
                "two tags": '["op","Sin",{"accuracy":{"int":"0x1","float":"1"}}]',
                "float": '["op","Sin",{"accuracy":1.5}]',
                "negative zero": '["op","IntegerPow",{"exponent":-0}]',
                "long exponent": '["op","IntegerPow",{"exponent":99999999999999999999999}]',
                "text for a number": '["op","IntegerPow",{"exponent":"3"}]',
                "array in the text": '["op","Constant",{"value":{"array":["float64",[],"AAAAAAAAAAA="]}}]',
                "no such tensor": '["op","Constant",{"value":{"tensor":0}}]',
                "no such graph": SCAN % 0,
                "graph -1": SCAN % -1,
                "graph true": SCAN.replace("%d", "true"),
                "branches": '["op","Cond",{"branches":[]}]',
                "no branches": '["op","Cond",{"branches":null}]',
                "axes": '["op","ReduceSum",{"axes":[0,0]}]',
                "huge axis": '["op","ReduceSum",{"axes":[99999999999999999999]}]',
                "huge shape": '["op","BroadcastInDim",{"dims":[0],"shape":[1000000000000000,2]}]',
                "other result": '["op","ReduceSum",{"axes":[0]}]',
                "arity": '["op","Add",{}]',
                "nested tuples": '["op","ReduceSum",{"axes":' + "[" * 60 + "]" * 60 + "}]",
            }.items()
        },
        **{
            f"{old[2:7]}: {line[:70]!r}": replaced(f"{old}\n", f"{line}\n" if line else "")
            for old, new in {
                '["node",0,[0],[0]]': [
                    '["node",1,[0],[0]]',
                    '["node",-1,[0],[0]]',
                    '["node",0,[1],[0]]',
                    '["node",0,[2],[0]]',
                    '["node",0,[-1],[0]]',
                    '["node",0,[true],[0]]',
                    '["node",0,[0],[1]]',
                    '["node",0,[0],[]]',
                    '["node",0,[0],[0,0]]',
                    '["node",0,[],[0]]',
                    '["node",0,[0,0],[0]]',
                    '["node",0,0,[0]]',
                    '["node",0,[0]]',
                    '["node",0,[0],[0],[]]',
                    '["node",0,[0],[0]]\n["node",0,[0],[0]]',
                    '["node",0,[0],[0]]\n["node",0,[1],[0]]',
                    '["node",99999999999999999999999,[0],[0]]',
                    '["node",0,[0],"0"]',
                    "",
                ],
                '["graph",[0],["tuple",0]]': [
                    '["graph",[1],["tuple",0]]',
                    '["graph",[0],["tuple"]]',
                    '["graph",[0],0]',
                    '["graph",[0],["list",0]]',
                    '["graph",[0],["tuple",1]]',
                    '["graph",[0],["set",0]]',
                    '["graph",[0],["dict",["a"],0]]',
                    '["graph",[0],["tuple",["dict",["a","a"],0,0]]]',
                    '["graph",[0],["tuple",true]]',
                    '["graph",[0],["tuple",["dict",["b","a"],0,null]]]',
                    '["graph",[0],["tuple",["dict",[0,"a"],0,null]]]',
                    '["graph",[0],["tuple",["dict",[[]],0]]]',
                    '["graph",[],["tuple"]]',
                    '["graph",[0,0],["tuple",0,0]]',
                    '["graph",[0],["tuple",' + '["tuple",' * 70 + "0" + "]" * 72,
                    "",
                    '["graph",[0],["tuple",0]]\n["graph",[0],["tuple",0]]',
                    '["graph",["0"],["tuple",0]]',
                ],
                '["return",[1],0,[],[]]': [
                    '["return",[2],0,[],[]]',
                    '["return",[-1],0,[],[]]',
                    '["return",[],0,[],[]]',
                    '["return",[1],["tuple",0,0],[],[]]',
                    '["return",[1],0,[[1,2]],[]]',
                    '["return",[1],0,[["a","b"]],[]]',
                    '["return",[1],0,[[1,1]],[]]',
                    '["return",[1],0,[3],[]]',
                    '["return",[1],0,[],[3]]',
                    '["return",[1],0,[]]',
                    "",
                    '["return",[1],0,[],[]]\n["return",[1],0,[],[]]',
                    '["return",[0],0,[],[]]',
                    '["return",[1],0,[["b","a"],["a","b"]],[]]',
                    '["return",["1"],0,[],[]]',
                ],
            }.items()
            for line in new
        },
        "types unused": sealed(text(F, S, NEG, *ONE)),
        "types out of order": sealed(
            text(S, F, NEG, '["graph",[1],["tuple",0]]', '["node",0,[0],[1]]', ONE[2])
        ),
        "a type twice": sealed(text(F, F, NEG, *ONE)),
        "an op twice": sealed(text(F, NEG, NEG, *ONE)),
        "no graph": sealed(text(F, NEG)),
        "graph unused": sealed(
            text(
                F,
                NEG,
                *ONE,
                '["op","Sin",{"accuracy":null}]',
                '["graph",[0],["tuple",0]]',
                '["node",1,[0],[0]]',
                ONE[2],
            )
        ),
        "body of another type": sealed(
            text(
                S,
                NEG,
                *ONE,
                SCAN % 0,
                F,
                '["graph",[1],["tuple",0]]',
                '["node",1,[0],[1]]',
                ONE[2],
            )
        ),
        "graphs that double": doubling(40),
        "graphs that double, to the limit of nesting": doubling(62),
        "graphs in graphs": chain(63),
        "tensor": array_of('["tensor","bool",[2]]', b"\1\0"),
        "tensor that is not there": array_of('["tensor","bool",[2]]'),
        "tensor of the whole memory": array_of('["tensor","bool",[1099511627776]]', b"\1\0"),
        "tensor of no bytes and any size": array_of('["tensor","bool",[0,281474976710656]]'),
        "tensor of numbers beyond": array_of('["tensor","bool",[0,99999999999999999999999]]'),
        "boolean of 2": array_of('["tensor","bool",[2]]', b"\2\0"),
        "bytes after the tensor": array_of('["tensor","bool",[2]]', b"\1\0\0"),
        "padding that holds something": padded(),
        "tensor twice": array_of(
            '["tensor","bool",[2]]\n["tensor","bool",[2]]', b"\1\0" + bytes(62) + b"\1\0"
        ),
        **{
            f"family {family[:40]!r}": extension(family)
            for family in (
                "",
                "x",
                "a.b.v",
                "a.b.1",
                ".b.v1",
                "a b.c.v1",
                "tenferro-ext-tropical.einsum.v\uff11",
                "tenferro-ext-tropic\u0430l.einsum.v1",
                "a.b.v" + "9" * 5000,
                "a" * 100_000 + ".b.v1",
                "__builtins__.eval.v1",
                "os.system.v1",
                "a.b.v1\0",
                "tenferro-ext-tropical.einsum.v2",
            )
        },
        **{
            f"payload {payload[:40]!r}": extension(SQUARE, payload)
            for payload in (
                "",
                "{}",
                "NaN",
                "[" * deep,
                '{"a":' * deep,
                '{"factor":' + "[" * deep,
                '{"factor":NaN}',
                '{"factor":1e999}',
                '{"factor":{"float":"0x1p99999999999"}}',
                '{"factor":{"int":"0x' + "f" * 1_000_000 + '"}}',
                '{"factor":{"dimension":"a^99999999"}}',
                '{"factor":{"array":["float64",[9999999999],""]}}',
            )
        },
        **{
            f"array {array} in a payload": extension(
                Holder.family_id, f'{{"value":{{"array":{array}}}}}'
            )
            for array in (
                '["bool",[1],"Ag=="]',
                '["int4",[1],"/w=="]',
                '["float64",[1],"AA=="]',
                '["bool",[-1],""]',
            )
        },
        **{
            f"levels {levels[:40]}": extension(SQUARE, GOOD_PAYLOAD, levels)
            for levels in (
                "[[]]",
                "[3]",
                "[[[null],null,null]]",
                "[[[-1],null,null]]",
                "[[[5],null,null]]",
                "[[[99999999999],null,null]]",
                "[[[0,0],null,null]]",
                "[[[0],3,null]]",
                "[[[0],null,[3]]]",
                "[[[true],null,null]]",
                "null",
                "[" * deep,
                "[" + ",".join(["[[0],null,null]"] * 1000) + "]",
            )
        },
        **{
            f"outputs {outputs}": extension(SQUARE, GOOD_PAYLOAD, outputs=outputs)
            for outputs in ("0", "2", "-1", "true", "null", "99999999999", '"1"')
        },
        **{
            f"outputs {outputs} of an unknown family": extension(
                "test-package.nobody.v1", outputs=outputs
            )
            for outputs in ("0", "2", "-1", "true", "null", "99999999999", '"1"')
        },
    }


def hostile():
    """name -> bytes of all files made to break a reader."""
    return {
        **small(),
        "100000 graphs in graphs": chain(100_000),
        "250,000 types": sealed(text(*(f'["type","float64",[{i}]]' for i in range(250_000)))),
        "a million nodes": sealed(
            text(
                F,
                NEG,
                ONE[0],
                *(f'["node",0,[{i}],[0]]' for i in range(1_000_000)),
                '["return",[1000000],0,[],[]]',
            )
        ),
        "a long line": of_type('["type","' + "a" * 2**26 + '"]'),
        "a node of many inputs": replaced(
            '["node",0,[0],[0]]', '["node",0,[' + ",".join("0" * 2_000_000) + "],[0]]"
        ),
        "a line of empty lists": sealed("[" + ",".join(["[]"] * 2_000_000) + "]\n"),
        "a line of empty objects": sealed("[" + ",".join(["{}"] * 2_000_000) + "]\n"),
    }


def padded():
    content = array_of('["tensor","bool",[2]]', b"\1\0")
    place = 64 + int.from_bytes(content[20:24], "little")
    return resealed(content[:place] + b"x" + content[place + 1 :])


def forged():
    """Golden files with text changed here and there, under a digest that fits again."""
    generator = random.Random(1)
    for i in range(times(2000)):
        path = generator.choice(GOLDEN)
        content = bytearray(path.read_bytes())
        start, stop = (
            64,
            min(
                len(content),
                64 + int.from_bytes(content[20:24], "little") + generator.choice([0, 0, 0, 64]),
            ),
        )
        for _ in range(generator.choice([1, 1, 1, 2, 5])):
            place = generator.randrange(start, stop)
            content[place] = (
                generator.choice(
                    [content[place] ^ 1 << generator.randrange(8), *b'0123456789[]{},"-ab']
                )
                & 255
            )
        yield f"{i}: {path.stem}", resealed(bytes(content))


SUITES = {
    "hostile": lambda: hostile().items(),
    "forged": forged,
    "exported": lambda: hostile_exported.cases().items(),
}


def limit_memory():
    """Refuse memory beyond what there is already and some more, whatever is asked for."""
    here = int(pathlib.Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (here + MEGABYTES * 2**20,) * 2)


def ended(name, content):
    """How the reading of a case ended: "read" if these are the bytes that a writer writes."""
    try:
        graph = from_wire(content, skip_missing_extensions=name.endswith("unknown family"))
        return "read" if to_wire(graph) == content else "read as something else"
    except TenferroError as error:
        return type(error).__name__
    except BaseException as error:
        return f"untyped {type(error).__name__}: {error}"


def main(suite):
    jax.config.update("jax_enable_x64", True)
    register_families()
    for path in GOLDEN:  # what JAX keeps is there before memory is limited
        from_wire(path.read_bytes())
    limit_memory()
    for name, content in SUITES[suite]():
        print(json.dumps(name), end=" ", flush=True)
        signal.alarm(SECONDS)
        read = hostile_exported.ended if suite == "exported" else functools.partial(ended, name)
        end = read(content)
        signal.alarm(0)
        print(json.dumps(end), flush=True)
    print(json.dumps("done"), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
