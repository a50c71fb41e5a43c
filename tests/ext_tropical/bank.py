"""The equation bank: opt_einsum's list, seeded random equations, and every pattern of repeated
labels, with sizes.

Sizes are 2 and 3 in turn, by first appearance of the labels: few shapes are compiled, and axes that
are mixed up show.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import NamedTuple

from opt_einsum.testing import rand_equation

LETTERS = "abcdefghijklmnopqrstuvwxyz"

# The list `tests` of opt_einsum 3.4.0, opt_einsum/tests/test_contract.py, without its one
# duplicate.
OPT_EINSUM = (
    "a,->a", "ab,->ab", ",ab,->ab", ",,->",
    "a,ab,abc->abc", "a,b,ab->ab",
    "ea,fb,gc,hd,abcd->efgh", "ea,fb,abcd,gc,hd->efgh", "abcd,ea,fb,gc,hd->efgh",
    "acdf,jbje,gihb,hfac,gfac,gifabc,hfac", "cd,bdhe,aidb,hgca,gc,hgibcd,hgac",
    "abhe,hidj,jgba,hiab,gab",
    "bde,cdh,agdb,hica,ibd,hgicd,hiac", "chd,bde,agbc,hiad,hgc,hgi,hiad",
    "chd,bde,agbc,hiad,bdi,cgh,agdb",
    "bdhe,acad,hiab,agac,hibd",
    "ab,ab,c->", "ab,ab,c->c", "ab,ab,cd,cd->", "ab,ab,cd,cd->ac", "ab,ab,cd,cd->cd",
    "ab,ab,cd,cd,ef,ef->",
    "ab,cd,ef->abcdef", "ab,cd,ef->acdf", "ab,cd,de->abcde", "ab,cd,de->be", "ab,bcd,cd->abcd",
    "ab,bcd,cd->abd",
    "eb,cb,fb->cef", "dd,fb,be,cdb->cef", "bca,cdb,dbf,afc->", "dcc,fce,ea,dbf->ab",
    "fdf,cdd,ccd,afe->ae", "abcd,ad",
    "ed,fcd,ff,bcf->be", "baa,dcf,af,cde->be", "bd,db,eac->ace", "fff,fae,bef,def->abd",
    "efc,dbc,acf,fd->abe",
    "ab,ab", "ab,ba", "abc,abc", "abc,bac", "abc,cba",
    "ab,bc", "ab,cb", "ba,bc", "ba,cb", "abcd,cd", "abcd,ab", "abcd,cdef", "abcd,cdef->feba",
    "abcd,efdc",
    "aab,bc->ac", "ab,bcc->ac", "aab,bcc->ac", "baa,bcc->ac", "aab,ccb->ac",
    "aab,fa,df,ecc->bde", "ecb,fef,bad,ed->ac", "bcf,bbb,fbf,fc->", "bb,ff,be->e",
    "bcb,bb,fc,fff->",
    "fbb,dfd,fc,fc->", "afd,ba,cc,dc->bf", "adb,bc,fa,cfc->d", "bbd,bda,fc,db->acf",
    "dba,ead,cad->bce", "aef,fbc,dca->bde",
)  # fmt: skip


class Case(NamedTuple):
    """An equation and the sizes of its labels."""

    equation: str
    sizes: dict[str, int]

    @property
    def terms(self) -> list[str]:
        """The labels of each operand."""
        return self.equation.split("->")[0].split(",")

    @property
    def output(self) -> str:
        """The labels of the output; without an arrow those that appear once, in
        alphabetical order.
        """
        inputs, arrow, output = self.equation.partition("->")
        return (
            output
            if arrow
            else "".join(label for label in sorted(self.sizes) if inputs.count(label) == 1)
        )

    @property
    def shapes(self) -> list[tuple[int, ...]]:
        """The shape of each operand."""
        return [tuple(self.sizes[label] for label in term) for term in self.terms]


def sized(equation: str) -> Case:
    """The equation with sizes 2, 3, 2, 3, ... for its labels in order of first appearance."""
    labels = dict.fromkeys(equation.split("->")[0].replace(",", ""))
    return Case(equation, dict(zip(labels, itertools.cycle((2, 3)))))


def random_cases(count: int) -> list[Case]:
    """Networks of 2 to 6 operands with up to 3 output labels, every third with a label that all
    operands have; sizes 1 to 3.
    """
    cases = []
    for seed in range(count):
        shape = {
            "n": 2 + seed % 5,
            "regularity": 2 + seed % 2,
            "n_out": seed % 4,
            "global_dim": seed % 3 == 0,
        }
        equation, _, sizes = rand_equation(
            **shape, d_min=1, d_max=3, seed=seed, return_size_dict=True
        )
        cases.append(Case(equation, {label: int(size) for label, size in sizes.items()}))
    return cases


def partitions(count: int) -> Iterator[str]:
    """Labels for `count` places, up to renaming: "", then "a", then "aa" and "ab", ...: a new label
    is the next letter.

    There are Bell(count) of them.
    """
    if count == 0:
        yield ""
        return
    for head in partitions(count - 1):
        for label in LETTERS[: len(set(head)) + 1]:
            yield head + label


def patterns(operands: int, most: int) -> Iterator[str]:
    """Every equation of so many operands of ranks 0 to `most`, up to renaming of labels, with every
    set of output labels.

    The output labels stand in order of first appearance; every seventh output is reversed.
    """
    found = 0
    for ranks in itertools.product(range(most + 1), repeat=operands):
        for places in partitions(sum(ranks)):
            rest = iter(places)
            inputs = ",".join("".join(itertools.islice(rest, rank)) for rank in ranks)
            labels = "".join(dict.fromkeys(places))
            for size in range(len(labels) + 1):
                for output in map("".join, itertools.combinations(labels, size)):
                    found += 1
                    yield f"{inputs}->{output if found % 7 else output[::-1]}"


# One and two operands of ranks 0 to 3, three of ranks 0 to 2: 31 + 3,731 + 4,553 equations.
PATTERNS = (*patterns(1, 3), *patterns(2, 3), *patterns(3, 2))
