"""The layout: packages with faces, imports that point down, workers and clients that import little."""

import ast
import json
import subprocess
import sys
from collections.abc import Container, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parent.parent
PLUGINS = {
    "ktuned_command": ROOT / "plugins/command",
    "ktuned_cutedsl": ROOT / "plugins/cutedsl",
    "ktuned_inductor": ROOT / "plugins/inductor",
    "ktuned_mcp": ROOT / "plugins/mcp",
    "ktuned_nvrtc": ROOT / "plugins/nvrtc",
    "ktuned_optuna": ROOT / "plugins/optuna",
    "ktuned_ray": ROOT / "plugins/ray",
    "ktuned_team": ROOT / "plugins/team",
    "ktuned_tilelang": ROOT / "plugins/tilelang",
    "ktuned_torch": ROOT / "plugins/torch",
    "ktuned_triton": ROOT / "plugins/triton",
    "ktuned_tvm_ffi": ROOT / "plugins/tvm_ffi",
}
STRATEGIES = {"ktuned_optuna"}
"""Plugins without a backend: one is imported when a job names its strategy, and imports the rooms that it extends."""

PROGRAMS = {"ktuned_team"}
"""Plugins that the daemon only starts as a program: they import nothing of ktuned."""

SERVICES = {"ktuned_mcp", "ktuned_ray"}
"""Plugins that run in processes of their own; on other hosts, one runs workers with the fleet's own parts."""

SERVICES_MAY_IMPORT = {"backends", "declaration", "fleet", "ipc", "model"}

SOURCES = {"ktuned": ROOT, "ktuned_client": ROOT / "client", **PLUGINS}

ORDER = (
    "__main__",
    "__init__",
    "python",
    "cli",
    "report",
    "daemon",
    "serve",
    "adoption",
    "lookup",
    "scheduling",
    "answers",
    "devices",
    "watch",
    "tuning",
    "catalog",
    "fleet",
    "store",
    "worker",
    "judging",
    "measuring",
    "checking",
    "search",
    "dropin",
    "declaration",
    "dependencies",
    "backends",
    "spool",
    "observer",
    "ipc",
    "protocol",
    "model",
    "user_directories",
)
"""The packages of ktuned, highest first: each imports those below it alone."""

LEVEL = {package: level for level, package in enumerate(ORDER)}
TEST_KIT = "testing"
"""Imported by no one's code but tests."""

WORKER_MAY_IMPORT = {
    "search",
    "declaration",
    "dependencies",
    "backends",
    "observer",
    "ipc",
    "model",
    "user_directories",
}
WORKER = {"worker", "judging", "measuring", "checking"}
"""The inside of a worker process."""

PLUGINS_MAY_IMPORT = {"dropin", "declaration", "dependencies", "backends", "model"}
LIGHT = WORKER | WORKER_MAY_IMPORT | {"__init__", "dropin", "spool"}
"""Imported in a project's own interpreter: the standard library and msgspec, and nothing else eagerly."""

LAZILY_IN_WORKERS = {"cuda", "torch", "safetensors", "numpy", "pynvml"}
BY_NAME_ALONE = {
    "ktuned.search.convergence",
    "ktuned.search.guided",
    "ktuned.search.features",
    "ktuned.search.gaussian_process",
}
"""Modules that need NumPy; an entry point imports them, and no other module does."""

HEAVY = LAZILY_IN_WORKERS | {"ray", "cloudpickle", "obstore", "tvm_ffi", "cutlass", "tilelang", "tvm", "triton"}
"""Packages that the daemon must never have imported."""

AT_REST = {
    "adoption",
    "answers",
    "backends",
    "catalog",
    "cli",
    "daemon",
    "devices",
    "fleet",
    "ipc",
    "lookup",
    "model",
    "observer",
    "protocol",
    "scheduling",
    "serve",
    "spool",
    "store",
    "tuning",
    "user_directories",
    "watch",
}
"""The rooms of ktuned that a daemon has imported when it is ready."""

LIBRARIES_AT_REST = {
    "anyio",
    "click",
    "idna",
    "msgpack",
    "msgspec",
    "sniffio",
    "structlog",
    "typing_extensions",
    "uvloop",
}
UNWANTED_AT_REST = {
    "difflib",
    "email",
    "http",
    "importlib.metadata",
    "ktuned_client.client",
    "multiprocessing",
    "statistics",
    "unittest",
    "xml",
    "zipfile",
    "ktuned.backends.cubin",
    "ktuned.backends.nvml",
}
"""Modules that a daemon at rest makes no use of; each was once imported by something that it does use."""

DAEMON_IMPORTS = """
import json, sys
before = set(sys.modules)
from ktuned.cli import program
from ktuned.cli.commands import start
with start.skip_unused_imports():
    from ktuned.daemon import run
import anyio._backends._asyncio
print(json.dumps(sorted(sys.modules.keys() - before)))
"""

DRAWERS = {"utils", "util", "helpers", "helper", "common", "misc", "shared", "tools", "base"}


@dataclass(frozen=True)
class Import:
    """An import: the module that it needs, its place, and whether importing the file runs it."""

    target: str
    where: str
    is_eager: bool


def list_module_files() -> list[Path]:
    return sorted(path for name, base in SOURCES.items() for path in (base / name).rglob("*.py"))


def make_dotted_name(path: Path) -> str:
    (base,) = [base for name, base in SOURCES.items() if path.is_relative_to(base / name)]
    parts = path.relative_to(base).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {make_dotted_name(path): path for path in list_module_files()}


def find_part(module: str) -> str:
    """Return the part of ``ktuned`` that contains a module; ``__init__`` is the façade."""
    return module.split(".")[1] if "." in module else "__init__"


@cache
def parse_module(module: str) -> ast.Module:
    return ast.parse(MODULES[module].read_text())


@cache
def list_imports(module: str) -> list[Import]:
    return list(walk_imports(parse_module(module), MODULES[module], is_eager=True))


def walk_imports(node: ast.AST, path: Path, *, is_eager: bool) -> Iterator[Import]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.expr):
            # None holds a statement.
            continue
        if isinstance(child, ast.Import):
            yield from (Import(alias.name, describe_place(path, child), is_eager) for alias in child.names)
        elif isinstance(child, ast.ImportFrom):
            where = describe_place(path, child)
            assert child.level == 0, f"{where}: a relative import"
            origin = child.module or ""
            for alias in child.names:
                full = f"{origin}.{alias.name}"
                yield Import(full if full in MODULES else origin, where, is_eager)
        else:
            is_deferred = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef) or (
                isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test)
            )
            yield from walk_imports(child, path, is_eager=is_eager and not is_deferred)


def describe_place(path: Path, node: ast.Import | ast.ImportFrom) -> str:
    return f"{path.relative_to(ROOT)}:{node.lineno}"


def list_modules(package: str, parts: Container[str] | None = None) -> list[str]:
    """Return the modules of a package, or those of some of its parts."""
    found = [module for module in MODULES if module.split(".")[0] == package]
    return [module for module in found if parts is None or find_part(module) in parts]


def list_own_imports(module: str) -> list[tuple[str, Import]]:
    return [
        (find_part(found.target), found) for found in list_imports(module) if found.target.split(".")[0] == "ktuned"
    ]


def list_foreign_imports(module: str) -> Iterator[tuple[str, Import]]:
    for found in list_imports(module):
        top = found.target.split(".")[0]
        if top not in SOURCES and top not in sys.stdlib_module_names:
            yield top, found


def find_package(module: str) -> str:
    """Return the package that a module is in: a part of ktuned, a plugin or the client."""
    distribution = module.split(".", maxsplit=1)[0]
    return f"ktuned.{find_part(module)}" if distribution == "ktuned" else distribution


def test_every_package_has_its_level() -> None:
    """A new package needs a place in the order; the root contains no other modules."""
    assert {find_part(module) for module in list_modules("ktuned")} <= LEVEL.keys() | {TEST_KIT}
    loose = {path.name for path in (ROOT / "ktuned").glob("*.py")}
    assert loose == {"__init__.py", "__main__.py", "user_directories.py"}


def test_imports_point_down() -> None:
    """Nothing imports a package above it, or the test kit."""
    upward = [
        f"{found.where}: {find_part(module)} imports {part}"
        for module in list_modules("ktuned", LEVEL)
        for part, found in list_own_imports(module)
        if LEVEL.get(part, -1) < LEVEL[find_part(module)]
    ]
    assert upward == []


def test_modules_import_in_no_circle() -> None:
    """Neither for types nor inside functions."""
    assert _find_circle({module: find_needed_modules(module) for module in MODULES}) == set()


def test_packages_import_in_no_circle() -> None:
    """Neither ktuned's packages, nor the plugins, nor the client."""
    needs: dict[str, set[str]] = {find_package(module): set() for module in MODULES}
    for module in MODULES:
        needs[find_package(module)] |= {find_package(target) for target in find_needed_modules(module)} - {
            find_package(module)
        }
    assert _find_circle(needs) == set()


def find_needed_modules(module: str) -> set[str]:
    """Return the modules of all distributions that a module imports, lazily or not."""
    return {found.target for found in list_imports(module)} & MODULES.keys() - {module}


def _find_circle(needs: dict[str, set[str]]) -> set[str]:
    """Return the nodes of a graph that are on circles, or between two."""
    rest = set(needs)
    while free := {node for node in rest if not needs[node] & rest or not any(node in needs[one] for one in rest)}:
        rest -= free
    return rest


def read_face(package: str) -> set[str]:
    """Return the names that a package's ``__init__`` imports from the package or defines."""
    names: set[str] = set()
    for node in ast.walk(parse_module(package)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("ktuned"):
            names |= {alias.asname or alias.name for alias in node.names}
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Assign):
            names |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    return names


def test_no_import_goes_around_a_face() -> None:
    """Outside its package, a name is imported from the package."""
    packages = [f"ktuned.{part}" for part in (*ORDER, TEST_KIT)]
    faces = {package: read_face(package) for package in packages if MODULES.get(package, ROOT).name == "__init__.py"}
    around = []
    for module, path in MODULES.items():
        for node in ast.walk(parse_module(module)):
            if not isinstance(node, ast.ImportFrom) or not (node.module or "").startswith("ktuned."):
                continue
            room = ".".join((node.module or "").split(".")[:2])
            if module == room or module.startswith(f"{room}.") or room not in faces:
                continue
            strange = {alias.name for alias in node.names} - faces[room]
            if node.module != room or strange:
                around.append(f"{path.relative_to(ROOT)}:{node.lineno}: {node.module}: {sorted(strange)}")
    assert around == []


def test_workers_import_nothing_of_the_daemon() -> None:
    allowed = WORKER | WORKER_MAY_IMPORT | {"__init__"}
    foreign = [
        f"{found.where}: imports {part}"
        for module in list_modules("ktuned", WORKER)
        for part, found in list_own_imports(module)
        if part not in allowed
    ]
    assert foreign == []


def test_workers_import_little() -> None:
    """A project's interpreter imports the standard library and msgspec; torch only inside functions."""
    heavy = [
        f"{found.where}: imports {top}"
        for module in list_modules("ktuned", LIGHT)
        for top, found in list_foreign_imports(module)
        if top not in {"msgpack", "msgspec"} and (top not in LAZILY_IN_WORKERS or found.is_eager)
        if not (top == "numpy" and module in BY_NAME_ALONE)
    ]
    assert heavy == []


def test_modules_that_need_numpy_are_imported_by_name() -> None:
    """Nothing that a worker imports at its start imports them."""
    importers = [
        found.where
        for module in MODULES
        for found in list_imports(module)
        if found.target in BY_NAME_ALONE and found.is_eager and module not in BY_NAME_ALONE
    ]
    assert importers == []


def test_the_daemon_imports_nothing_heavy() -> None:
    """No module of the daemon or the CLI imports torch, CUDA or a compiler's library."""
    heavy = [
        f"{found.where}: imports {top}"
        for module in list_modules("ktuned", LEVEL.keys() - LIGHT)
        for top, found in list_foreign_imports(module)
        if top in HEAVY
    ]
    assert heavy == []


def test_the_client_needs_msgpack_alone() -> None:
    """An application imports nothing of the daemon."""
    found = [
        f"{entry.where}: {part}" for module in list_modules("ktuned_client") for part, entry in list_own_imports(module)
    ]
    found += [
        f"{entry.where}: {top}"
        for module in list_modules("ktuned_client")
        for top, entry in list_foreign_imports(module)
        if top != "msgpack"
    ]
    assert found == []


def test_plugins_import_the_contract_alone() -> None:
    """A backend imports its own toolchain only when it needs it."""
    backends = [plugin for plugin in PLUGINS if plugin not in STRATEGIES | SERVICES | PROGRAMS]
    found = [
        f"{entry.where}: {part}"
        for plugin in backends
        for module in list_modules(plugin)
        for part, entry in list_own_imports(module)
        if part not in PLUGINS_MAY_IMPORT
    ]
    found += [
        f"{entry.where}: {top} on import"
        for plugin in backends
        for module in list_modules(plugin)
        for top, entry in list_foreign_imports(module)
        if entry.is_eager
    ]
    assert found == []


def test_services_import_nothing_with_the_daemon_s_state() -> None:
    """A service runs in a process of its own."""
    found = [
        f"{entry.where}: {part}"
        for plugin in SERVICES
        for module in list_modules(plugin)
        for part, entry in list_own_imports(module)
        if part not in SERVICES_MAY_IMPORT
    ]
    assert found == []


def test_programs_import_nothing_of_ktuned() -> None:
    """The daemon starts them for a moment."""
    assert [
        entry.where for plugin in PROGRAMS for module in list_modules(plugin) for _, entry in list_own_imports(module)
    ] == []


def test_no_module_is_a_drawer() -> None:
    assert [name for name, path in MODULES.items() if path.stem.lstrip("_") in DRAWERS] == []


def test_a_daemon_at_rest_has_imported_known_modules_only() -> None:
    """Each further library costs every start time and memory."""
    shown = subprocess.run([sys.executable, "-c", DAEMON_IMPORTS], check=True, capture_output=True, timeout=60)
    loaded: set[str] = set(json.loads(shown.stdout))
    assert {module.split(".")[1] for module in loaded if module.startswith("ktuned.")} == AT_REST
    foreign = {module.split(".")[0] for module in loaded} - SOURCES.keys() - sys.stdlib_module_names
    assert {name for name in foreign if not name.startswith(("_", "cython"))} <= LIBRARIES_AT_REST
    assert loaded & UNWANTED_AT_REST == set()


def test_the_daemon_defines_no_dataclasses() -> None:
    """A dataclass costs 0.5 ms of each start and 7 KiB, a msgspec Struct less."""
    slow = [
        f"{path.relative_to(ROOT)}:{node.lineno}: {node.name}"
        for module, path in MODULES.items()
        if module.startswith("ktuned.") and find_part(module) in AT_REST - LIGHT - {"cli"}
        for node in ast.walk(parse_module(module))
        if isinstance(node, ast.ClassDef) and any("dataclass" in ast.unparse(one) for one in node.decorator_list)
    ]
    assert slow == []
