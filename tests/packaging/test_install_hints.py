"""Install commands in messages and documents name distributions and extras that exist."""

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from ktuned.backends import install_hint
from ktuned.declaration.loader import suggest_distribution
from tests.packaging.distributions import PROJECTS, ROOT

_PROJECTS = {
    name: tomllib.loads((directory / "pyproject.toml").read_text())["project"]
    for name, (directory, _) in PROJECTS.items()
}
_OPTIONAL = {name: project.get("optional-dependencies", {}) for name, project in _PROJECTS.items()}
_REQUIRED = [
    Requirement(text)
    for name, project in _PROJECTS.items()
    for texts in (project["dependencies"], *_OPTIONAL[name].values())
    for text in texts
]
_OTHERS = {"nvidia-ml-py", "pandas"}
"""Distributions that no plugin requires: NVML's bindings are only looked for, and pandas takes tables of results."""

KNOWN = {*PROJECTS, *_OTHERS, *(canonicalize_name(requirement.name) for requirement in _REQUIRED)}

_COMMAND = re.compile(r"pip install ([^\n`]*)")
_REQUIREMENT = re.compile(r"'([^']+)'|([A-Za-z][\w.-]*(?:\[[^]]*\])?)(?=[\s\"')]|$)")
_EXTRAS = re.compile(r"\b(ktuned[a-z-]*)\[([a-z0-9_, -]+)\]")
_OPTIONS = re.compile(r"(?:^| )--?[a-z-]+(?: (?:dist|https?:\S+))?")
_PROSE = re.compile(r"(?: {2,}#| &&| \(| into |, | to | for |\"\)? | until| brings).*")


def list_sources() -> Iterator[Path]:
    yield from (ROOT / name for name in ("README.md", "CONTRIBUTING.md"))
    for name in ("ktuned", "client", "plugins", "docs", "examples"):
        yield from (path for path in sorted((ROOT / name).rglob("*.*")) if path.suffix in (".py", ".md"))


def list_requirements(command: str) -> list[str]:
    """Return the requirements of a command; placeholders stand in braces."""
    words = _OPTIONS.sub("", _PROSE.sub("", command))
    return [] if "{" in words else [quoted or plain for quoted, plain in _REQUIREMENT.findall(words)]


def test_install_commands_name_existing_distributions_and_extras() -> None:
    wrong = [f"{path.relative_to(ROOT)}: {fault}" for path in list_sources() for fault in find_faults(path.read_text())]
    assert wrong == []


def find_faults(text: str) -> Iterator[str]:
    for command in _COMMAND.findall(text):
        for requirement in map(Requirement, list_requirements(command)):
            name = canonicalize_name(requirement.name)
            if name not in KNOWN or not requirement.extras <= {*_OPTIONAL.get(name, ())}:
                yield f"pip install {command}"
    for name, extras in _EXTRAS.findall(text):
        if not {extra.strip() for extra in extras.split(",")} <= {*_OPTIONAL.get(name, ())}:
            yield f"{name}[{extras}]"


@pytest.mark.parametrize("text", ["pip install 'ktuned[gpu]'", "needs `ktuned[tvm_ffi]`", "pip install nvidia-nvml"])
def test_unknown_distributions_and_extras_are_found(text: str) -> None:
    assert list(find_faults(text))


@pytest.mark.parametrize(
    ("command", "named"),
    [
        ("'ktuned-nvrtc[cu13]' (or [cu12]), or install the CUDA Toolkit\"", ["ktuned-nvrtc[cu13]"]),
        ("--find-links dist 'ktuned[tvm-ffi]'    # the daemon and one backend", ["ktuned[tvm-ffi]"]),
        ('torch --index-url https://download.pytorch.org/whl/cpu"', ["torch"]),
        ('nvidia-cutlass-dsl apache-tvm-ffi"', ["nvidia-cutlass-dsl", "apache-tvm-ffi"]),
        ('{distribution} into {sys.executable}"', []),
    ],
)
def test_options_comments_and_placeholders_are_no_requirements(command: str, named: list[str]) -> None:
    assert list_requirements(command) == named


@pytest.mark.parametrize("name", [name for name in PROJECTS if name not in ("ktuned", "ktuned-client")])
def test_each_plugin_has_an_extra_that_hints_name(name: str) -> None:
    """Hints for a missing plugin name that extra."""
    extra = name.removeprefix("ktuned-")
    assert [Requirement(text).name for text in _OPTIONAL["ktuned"][extra]] == [name]
    assert suggest_distribution(name.replace("-", "_")) == f"'ktuned[{extra}]'"
    for backend in _PROJECTS[name].get("entry-points", {}).get("ktuned.backends", {}):
        assert install_hint(backend) == f"pip install 'ktuned[{extra}]'"


def test_packages_of_the_field_are_named_by_their_distribution() -> None:
    """The hint for a missing import in a kernel file has the name that pip needs."""
    for package in ("cutlass", "numpy", "tilelang", "torch", "triton", "tvm_ffi"):
        assert suggest_distribution(package) in KNOWN
