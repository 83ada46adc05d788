"""Word list for documents and code: plain English, as CONTRIBUTING.md asks for."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

DOCUMENTS = sorted(
    path
    for pattern in ("*.md", "docs/*.md", "client/*.md", "plugins/*/*.md", "examples/*/*.md", "systemd/*", "Makefile")
    for path in ROOT.glob(pattern)
)

CODE = sorted(
    path
    for pattern in ("ktuned/*", "plugins/*", "benchmarks", "client", "docs/images", "examples")
    for path in ROOT.glob(pattern)
    if path.name != "__pycache__" and (path.is_dir() or path.suffix == ".py")
)
"""Directories of code, and modules beside them."""

TESTS = sorted(
    path
    for path in (ROOT / "tests").iterdir()
    if path.name not in ("__pycache__", "fixtures", "test_plain_english.py") and (path.is_dir() or path.suffix == ".py")
)

WORDS = re.compile(
    r"\b(tells?|told|telling|somebody|nobody|anybody|everybody|whoever|whomever|anew|lest|all the same"
    r"|seats?|seated|grounds?)\b(?!\()",
    re.IGNORECASE,
)
"""Words that plain English does without. A method named ``tell`` is the term of optimisers, so calls are allowed."""

ROUGHLY = re.compile(
    r"(?:\b|\\[nt])(tell|told|somebody|nobody|anybody|everybody|who[a-z]*ever|anew|lest|all\W+the\W+same|seat|ground)",
    re.IGNORECASE,
)
"""A beginning of each: to take a module's texts apart takes a hundred times as long as to find none of these in it."""

TERMS = re.compile(r"\bask[ -]and[ -]tell\b|`+tell`+|\bon the grounds? (that|of)\b", re.IGNORECASE)

SENTENCE = re.compile(r"(?:^|[.!]\s+|^[-*#|>\s]+)((?:What|Who|Whose|Whether|Why)\b[^?.|]*)(?=[.|\n]|$)", re.MULTILINE)
"""A sentence or heading that names a thing by a clause; a question is none."""

CLAUSE = re.compile(r"(Wh\w+|How)\b")
"""A docstring's first word that names a thing by a clause."""

GERUNDS = frozenset(
    {"annealing", "lowering", "opening", "racing", "testing", "scheduling", "tuning", "timing", "string"}
)
"""Names in -ing that are nouns, or packages of the public layout."""


def _faults(text: str) -> list[str]:
    return [match[0] for match in WORDS.finditer(TERMS.sub("", text))]


@cache
def _tree(module: Path) -> ast.Module:
    return ast.parse(module.read_text())


def _comments(module: Path) -> Iterator[tuple[int, str]]:
    for token in tokenize.generate_tokens(io.StringIO(module.read_text()).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string


def _prose(module: Path) -> Iterator[tuple[int, str]]:
    """Yield the comments and the string literals of a module with their lines."""
    yield from _comments(module)
    for node in ast.walk(_tree(module)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.lineno, node.value


def _docstrings(module: Path) -> Iterator[tuple[int, str]]:
    """Yield every string that stands as a statement: docstrings of modules, classes, functions and attributes."""
    for node in ast.walk(_tree(module)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.lineno, node.value.value


def _modules(place: Path) -> list[Path]:
    return sorted(place.rglob("*.py")) if place.is_dir() else [place]


def _name(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("document", DOCUMENTS, ids=_name)
def test_documents_avoid_the_words(document: Path) -> None:
    """No document has a word of the list."""
    lines = enumerate(document.read_text().splitlines(), 1)
    assert {number: found for number, line in lines if (found := _faults(line))} == {}


@pytest.mark.parametrize("document", DOCUMENTS, ids=_name)
def test_documents_name_things_by_nouns(document: Path) -> None:
    """No sentence or heading of a document begins with a clause such as "What somebody sees"."""
    prose = re.sub(r"^```.*?^```$", "", document.read_text(), flags=re.DOTALL | re.MULTILINE)
    assert [match[1] for match in SENTENCE.finditer(prose)] == []


@pytest.mark.parametrize("place", CODE, ids=_name)
def test_code_avoids_the_words(place: Path) -> None:
    """No comment, docstring or message has a word of the list."""
    assert _found(place, _prose) == []


@pytest.mark.parametrize("place", TESTS, ids=_name)
def test_tests_avoid_the_words(place: Path) -> None:
    """No comment or docstring of a test has a word of the list; other texts are data."""
    assert _found(place, _comments) + _found(place, _docstrings) == []


def _found(place: Path, texts: Callable[[Path], Iterable[tuple[int, str]]]) -> list[str]:
    return [
        f"{_name(module)}:{line}: {word}"
        for module in _modules(place)
        if ROUGHLY.search(module.read_text())
        for line, text in texts(module)
        for word in _faults(text)
    ]


@pytest.mark.parametrize("place", CODE, ids=_name)
def test_docstrings_name_things_by_nouns(place: Path) -> None:
    """No docstring begins with a clause: it says what the thing is."""
    found = [
        f"{_name(module)}:{line}: {text.splitlines()[0]}"
        for module in _modules(place)
        if re.search(rf"[\"']{CLAUSE.pattern}", module.read_text())
        for line, text in _docstrings(module)
        if CLAUSE.match(text)
    ]
    assert found == []


def test_modules_are_named_by_nouns() -> None:
    """No module is named by a gerund: it is a thing, not an activity."""
    modules = [module for place in CODE for module in _modules(place)]
    names = {module.parent.name if module.stem == "__init__" else module.stem for module in modules}
    assert {name for name in names if name.endswith("ing")} - GERUNDS == set()
