"""Every clause of the extension contract is named by a test; every test names clauses
that exist.
"""

import ast
import collections
import pathlib
import re

import pytest

TESTS = pathlib.Path(__file__).parent
PAGE = TESTS.parent / "docs/spec/extension_op.md"
CLAUSE = re.compile(r"^- \*\*(X\d+\.\d+)\*\*(.*?)(?=^- |^$|\Z)", re.MULTILINE | re.DOTALL)
SECTIONS = range(4, 14)


def clauses(page):
    """(number, text) of every clause of a page, in order."""
    return [(number, " ".join(text.split())) for number, text in CLAUSE.findall(page)]


def cited(source):
    """(clause number, test function, line) for every clause in a `pytest.mark.clause(...)`
    decorator of a module.
    """
    for function in ast.walk(ast.parse(source)):
        for mark in getattr(function, "decorator_list", []):
            if isinstance(mark, ast.Call) and ast.unparse(mark.func) == "pytest.mark.clause":
                yield from (
                    (ast.literal_eval(number), function.name, mark.lineno) for number in mark.args
                )


def problems(page, tests):
    """What is wrong with a page of clauses and the (number, test, place) citations of it,
    as text.
    """
    numbers = [number for number, _ in clauses(page)]
    by_section = collections.defaultdict(list)
    for number in numbers:
        section, position = map(int, number[1:].split("."))
        by_section[section].append(position)
    named = {number for number, _, _ in tests}
    return [
        *(
            f"{number}: no MUST, SHOULD or MAY"
            for number, text in clauses(page)
            if not re.search(r"\b(MUST|SHOULD|MAY)\b", text)
        ),
        *(
            f"section {s}: numbers {have}"
            for s, have in by_section.items()
            if have != list(range(1, len(have) + 1))
        ),
        *(["sections out of order"] if list(by_section) != sorted(by_section) else []),
        *(f"{number}: no test" for number in numbers if number not in named),
        *(
            f"{place} {test}: there is no {number}"
            for number, test, place in tests
            if number not in numbers
        ),
        *(
            f"{place} {test}: no test function, so never run"
            for _, test, place in tests
            if not test.startswith("test_")
        ),
    ]


def test_clauses_and_tests_belong_together():
    tests = [
        (number, test, f"{path.relative_to(TESTS)}:{line}")
        for path in sorted(TESTS.rglob("test_*.py"))
        for number, test, line in cited(path.read_text())
    ]
    page = PAGE.read_text()
    assert not problems(page, tests)
    assert {int(number[1:].split(".")[0]) for number, _ in clauses(page)} == set(SECTIONS)


def test_the_page_has_no_number_that_is_no_clause():
    page = PAGE.read_text()
    assert set(re.findall(r"\bX\d+\.\d+\b", page)) == {number for number, _ in clauses(page)}
    assert page.count("**X") == len(clauses(page))


PAGE_OF_TWO = "- **X4.1** The op MUST be so:\n  always.\n- **X4.2** It MAY be.\n"


@pytest.mark.parametrize(
    ("page", "tests", "problem"),
    [
        (PAGE_OF_TWO, [("X4.1", "test_a", ""), ("X4.2", "test_a", "")], None),
        (PAGE_OF_TWO, [("X4.1", "test_a", "")], "X4.2: no test"),
        (
            PAGE_OF_TWO,
            [("X4.1", "test_a", ""), ("X4.2", "test_a", ""), ("X4.9", "test_b", "f:1")],
            "f:1 test_b: there is no X4.9",
        ),
        (
            PAGE_OF_TWO,
            [("X4.1", "test_a", ""), ("X4.2", "helper", "f:1")],
            "f:1 helper: no test function, so never run",
        ),
        (
            "- **X4.1** It MUST.\n- **X4.1** It MUST.\n",
            [("X4.1", "test_a", "")],
            "section 4: numbers [1, 1]",
        ),
        (
            "- **X4.2** It MUST.\n- **X4.1** It MUST.\n",
            [("X4.1", "test_a", ""), ("X4.2", "test_a", "")],
            "section 4: numbers [2, 1]",
        ),
        (
            "- **X5.1** It MUST.\n- **X4.1** It MUST.\n",
            [("X4.1", "test_a", ""), ("X5.1", "test_a", "")],
            "sections out of order",
        ),
        ("- **X4.1** It is.\n\nMUST", [("X4.1", "test_a", "")], "X4.1: no MUST, SHOULD or MAY"),
    ],
)
def test_what_is_wrong_is_told(page, tests, problem):
    assert problems(page, tests) == ([] if problem is None else [problem])


def test_citations_are_read_from_the_source():
    source = (
        '@pytest.mark.clause("X4.1", "X4.2")\n@sweep\ndef test_a(): '
        "...\n\n@pytest.mark.slow\ndef test_b(): ...\n"
    )
    assert list(cited(source)) == [("X4.1", "test_a", 1), ("X4.2", "test_a", 1)]
