"""The layout: imports point one way, modules stay small, workers and clients stay light."""

import ast
import sys
from collections.abc import Container, Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
PLUGINS = {
    "ktuned_cutedsl": ROOT / "plugins/cutedsl",
    "ktuned_nvrtc": ROOT / "plugins/nvrtc",
    "ktuned_torch": ROOT / "plugins/torch",
    "ktuned_triton": ROOT / "plugins/triton",
    "ktuned_tvm_ffi": ROOT / "plugins/tvm_ffi",
}
SOURCES = {"ktuned": ROOT, "ktuned_client": ROOT / "client", **PLUGINS}

LAYERS = (
    {"errors"},
    {"model"},
    {
        "lifecycle",
        "frames",
        "manifest",
        "stamps",
        "dependents",
        "backends",
        "cpu",
        "cuda",
        "ptxas",
        "spec",
        "strategies",
    },
    {"fleet", "store"},
    {
        "tuning",
        "catalog",
        "staleness",
        "machine",
        "home",
        "trust",
        "watching",
        "intake",
        "reverifying",
        "observing",
        "preparing",
        "probing",
        "config",
    },
    {"serve"},
    {"daemon"},
    {"cli"},
    {"__main__"},
)
"""The daemon's side, lowest first: a part may import its own layer, without cycles, and those below."""

LEVEL = {part: level for level, layer in enumerate(LAYERS) for part in layer}

WORKER_MAY_IMPORT = {
    "errors",
    "model",
    "frames",
    "manifest",
    "stamps",
    "lifecycle",
    "backends",
    "cpu",
    "cuda",
    "ptxas",
    "spec",
    "strategies",
}
PLUGINS_MAY_IMPORT = {"errors", "model", "backends", "cpu", "cuda", "ptxas", "spec"}
LIGHT = WORKER_MAY_IMPORT | {"__init__", "worker"}
"""What is imported in a project's own interpreter: the standard library and msgpack, and nothing else eagerly."""

LAZILY_IN_WORKERS = {"torch", "safetensors", "numpy", "pynvml"}
HEAVY = LAZILY_IN_WORKERS | {"tvm_ffi", "cuda", "cutlass", "triton"}
"""What the daemon must never have imported."""

DRAWERS = {"utils", "util", "helpers", "helper", "common", "misc", "shared", "tools", "base"}
MAX_LINES = 400


@dataclass(frozen=True)
class Import:
    """One import: the module that it needs, where it stands, whether importing the file runs it."""

    target: str
    where: str
    is_eager: bool


def _modules() -> list[Path]:
    return sorted(path for name, base in SOURCES.items() for path in (base / name).rglob("*.py"))


def _dotted(path: Path) -> str:
    (base,) = [base for name, base in SOURCES.items() if path.is_relative_to(base / name)]
    parts = path.relative_to(base).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {_dotted(path): path for path in _modules()}


def _part(module: str) -> str:
    """Return the part of ``ktuned`` that a dotted name is in; ``__init__`` is the façade itself."""
    return module.split(".")[1] if "." in module else "__init__"


def _imports(module: str) -> list[Import]:
    path = MODULES[module]
    return list(_walk(ast.parse(path.read_text()), path, is_eager=True))


def _walk(node: ast.AST, path: Path, *, is_eager: bool) -> Iterator[Import]:
    for child in ast.iter_child_nodes(node):
        where = f"{path.relative_to(ROOT)}:{getattr(child, 'lineno', 0)}"
        if isinstance(child, ast.Import):
            yield from (Import(alias.name, where, is_eager) for alias in child.names)
        elif isinstance(child, ast.ImportFrom):
            assert child.level == 0, f"{where}: a relative import"
            origin = child.module or ""
            for alias in child.names:
                full = f"{origin}.{alias.name}"
                yield Import(full if full in MODULES else origin, where, is_eager)
        else:
            is_deferred = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) or (
                isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test)
            )
            yield from _walk(child, path, is_eager=is_eager and not is_deferred)


def _of(package: str, parts: Container[str] | None = None) -> list[str]:
    """Return the modules of a package, or those of some of its parts."""
    found = [module for module in MODULES if module.split(".")[0] == package]
    return [module for module in found if parts is None or _part(module) in parts]


def _ours(module: str) -> list[tuple[str, Import]]:
    return [(_part(found.target), found) for found in _imports(module) if found.target.split(".")[0] == "ktuned"]


def _foreign(module: str) -> Iterator[tuple[str, Import]]:
    for found in _imports(module):
        top = found.target.split(".")[0]
        if top not in SOURCES and top not in sys.stdlib_module_names:
            yield top, found


def test_every_part_has_its_place() -> None:
    """A new part of ktuned is given a layer before anything imports it."""
    known = LEVEL.keys() | {"__init__", "worker", "testing"}
    assert {_part(module) for module in _of("ktuned")} <= known


def test_imports_point_down() -> None:
    """On the daemon's side nothing imports what stands above it, nor ``worker`` or ``testing``."""
    levels = {**LEVEL, "__init__": LEVEL["spec"]}
    upward = [
        f"{found.where}: {_part(module)} imports {part}"
        for module in _of("ktuned", LEVEL)
        for part, found in _ours(module)
        if levels.get(part, len(LAYERS)) > LEVEL[_part(module)]
    ]
    assert upward == []


def test_parts_import_in_no_circle() -> None:
    """Parts of one layer do not need each other both ways."""
    needs: dict[str, set[str]] = {}
    for module in _of("ktuned"):
        own = _part(module)
        needs.setdefault(own, set()).update(part for part, _ in _ours(module) if part != own)
    while needs:
        free = {part for part, wanted in needs.items() if not wanted & needs.keys()}
        assert free, f"these import each other: {sorted(needs)}"
        needs = {part: wanted for part, wanted in needs.items() if part not in free}


def test_workers_import_no_daemon() -> None:
    """What runs in a worker imports the vocabulary and nothing of the daemon."""
    allowed = WORKER_MAY_IMPORT | {"worker", "__init__"}
    foreign = [
        f"{found.where}: imports {part}"
        for module in _of("ktuned", {"worker"})
        for part, found in _ours(module)
        if part not in allowed
    ]
    assert foreign == []


def test_workers_stay_light() -> None:
    """What a project's interpreter imports is the standard library and msgpack; torch only inside functions."""
    heavy = [
        f"{found.where}: imports {top}"
        for module in _of("ktuned", LIGHT)
        for top, found in _foreign(module)
        if top != "msgpack" and (top not in LAZILY_IN_WORKERS or found.is_eager)
    ]
    assert heavy == []


def test_the_daemon_imports_nothing_heavy() -> None:
    """No module of the daemon or the CLI names torch, CUDA or a compiler's library."""
    heavy = [
        f"{found.where}: imports {top}"
        for module in _of("ktuned", LEVEL.keys() - LIGHT)
        for top, found in _foreign(module)
        if top in HEAVY
    ]
    assert heavy == []


def test_the_client_needs_msgpack_alone() -> None:
    """Applications get the standard library and msgpack, and no part of the daemon."""
    found = [f"{entry.where}: {part}" for module in _of("ktuned_client") for part, entry in _ours(module)]
    found += [
        f"{entry.where}: {top}"
        for module in _of("ktuned_client")
        for top, entry in _foreign(module)
        if top != "msgpack"
    ]
    assert found == []


def test_plugins_know_the_contract_alone() -> None:
    """A plugin imports the contract and its own toolchain, the latter not before it is needed."""
    found = [
        f"{entry.where}: {part}"
        for plugin in PLUGINS
        for module in _of(plugin)
        for part, entry in _ours(module)
        if part not in PLUGINS_MAY_IMPORT
    ]
    found += [
        f"{entry.where}: {top} on import"
        for plugin in PLUGINS
        for module in _of(plugin)
        for top, entry in _foreign(module)
        if entry.is_eager
    ]
    assert found == []


def test_modules_stay_small() -> None:
    """A module has one thing to say, says it within the limit, and is called by it."""
    assert {name: n for name, path in MODULES.items() if (n := len(path.read_text().splitlines())) > MAX_LINES} == {}
    assert [name for name, path in MODULES.items() if path.stem.lstrip("_") in DRAWERS] == []
