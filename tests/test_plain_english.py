"""Word list for documents and code: plain English, as CONTRIBUTING.md asks for."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

DOCUMENTS = sorted(
    path
    for pattern in ("*.md", "docs/*.md", "client/*.md", "plugins/*/*.md", "examples/*/*.md", "systemd/*", "Makefile")
    for path in ROOT.glob(pattern)
)

CLEAN = (
    "benchmarks",
    "client",
    "docs/images",
    "examples",
    "ktuned/backends",
    "ktuned/catalog",
    "ktuned/cli",
    "ktuned/daemon",
    "ktuned/devices",
    "ktuned/fleet",
    "ktuned/ipc",
    "ktuned/lookup",
    "ktuned/model",
    "ktuned/report",
    "ktuned/scheduling",
    "ktuned/search",
    "ktuned/serve",
    "ktuned/spec",
    "ktuned/store",
    "ktuned/testing",
    "ktuned/tuning",
    "ktuned/watch",
    "ktuned/worker",
    "plugins/cutedsl",
    "plugins/nvrtc",
    "plugins/command",
    "plugins/torch",
    "plugins/triton",
    "plugins/tvm_ffi",
)
"""Directories of code that keep to the rules; to be extended until every package is here."""

MODULES = sorted(path for place in CLEAN for path in (ROOT / place).rglob("*.py"))

WORDS = re.compile(
    r"\b(tells?|told|telling|somebody|nobody|anybody|everybody|whoever|whomever|anew|lest|all the same"
    r"|seats?|seated|grounds?)\b(?!\()",
    re.IGNORECASE,
)
"""Words that plain English does without. A method named ``tell`` is the term of optimisers, so calls are allowed."""

TERMS = re.compile(r"\bask[ -]and[ -]tell\b|`+tell`+|\bon the grounds? (that|of)\b", re.IGNORECASE)

SENTENCE = re.compile(r"(?:^|[.!]\s+|^[-*#|>\s]+)((?:What|Who|Whose|Whether|Why)\b[^?.|]*)(?=[.|\n]|$)", re.MULTILINE)
"""A sentence or heading that names a thing by a clause; a question is none."""

CLAUSE = re.compile(r"(Wh\w+|How)\b")
"""A docstring's first word that names a thing by a clause."""

GERUNDS = frozenset({"annealing", "opening", "racing", "testing", "scheduling", "tuning", "timing", "string"})
"""Names in -ing that are nouns, or packages of the public layout."""


def _faults(text: str) -> list[str]:
    return [match[0] for match in WORDS.finditer(TERMS.sub("", text))]


def _prose(module: Path) -> Iterator[tuple[int, str]]:
    """Yield the comments and the string literals of a module with their lines."""
    source = module.read_text()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.lineno, node.value


def _docstrings(module: Path) -> Iterator[tuple[int, str]]:
    """Yield every string that stands as a statement: docstrings of modules, classes, functions and attributes."""
    for node in ast.walk(ast.parse(module.read_text())):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.lineno, node.value.value


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


@pytest.mark.parametrize("module", MODULES, ids=_name)
def test_modules_avoid_the_words(module: Path) -> None:
    """No comment, docstring or message of a clean package has a word of the list."""
    assert {(line, word) for line, text in _prose(module) for word in _faults(text)} == set()


@pytest.mark.parametrize("module", MODULES, ids=_name)
def test_docstrings_name_things_by_nouns(module: Path) -> None:
    """No docstring begins with a clause: it says what the thing is."""
    assert [(line, text.splitlines()[0]) for line, text in _docstrings(module) if CLAUSE.match(text)] == []


@pytest.mark.parametrize("module", MODULES, ids=_name)
def test_modules_are_named_by_nouns(module: Path) -> None:
    """No module is named by a gerund: it is a thing, not an activity."""
    name = module.parent.name if module.stem == "__init__" else module.stem
    assert not name.endswith("ing") or name in GERUNDS
