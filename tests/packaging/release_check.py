"""Builds all distributions, installs each alone, and tries it: the last step of preparing a release.

``make release-check`` runs this program. It builds a wheel and an sdist of each distribution into ``dist/``, the wheel
from the sdist. It installs each wheel with its dependencies into a new virtual environment, as ``pipx`` would, and runs
a smoke test there: importing its packages, loading its entry points, and for ``ktuned`` a start, a check of the
installation and a stop. Distributions whose dependencies take gigabytes are installed without them unless ``--all``
is given.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import venv
from collections.abc import Sequence
from pathlib import Path

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.packaging.distributions import PROJECTS, ROOT

HEAVY = frozenset(
    {"ktuned-cutedsl", "ktuned-inductor", "ktuned-nvrtc", "ktuned-tilelang", "ktuned-torch", "ktuned-triton"}
)
"""Distributions that require torch, or CUDA's compilers in Python: gigabytes."""

DEADLINE_S = 900.0
"""Deadline of one installation: a slow network, and NumPy, SciPy or torch at the other end."""

ENDINGS = (".tar.gz", ".whl")

SMOKE = """\
import importlib, importlib.util, sys
from importlib.metadata import distribution
package, name, loads = sys.argv[1], sys.argv[2], sys.argv[3] == "1"
found = distribution(name)
assert found.version, name
needs = set()
if loads:
    importlib.import_module(package)
    for point in found.entry_points:
        try:
            point.load()
        except ModuleNotFoundError as error:
            # An extra's, or one of the project's interpreter, where strategies and backends run.
            assert not (error.name or "ktuned").startswith("ktuned"), error
            needs.add(error.name)
else:
    assert importlib.util.find_spec(package) is not None, package
print(name, found.version, len(found.entry_points), "entry points", *(f"needs {one}" for one in sorted(needs)))
"""


def build_distributions(names: Sequence[str], into: Path) -> dict[str, Path]:
    """Build the sdist and the wheel of each distribution, and return the wheels."""
    wheels = {}
    for name in names:
        run_command([sys.executable, "-m", "build", "--no-isolation", "--outdir", str(into), str(PROJECTS[name][0])])
        (sdist, wheel) = (max(into.glob(f"{name.replace('-', '_')}-*{end}"), key=_written_at) for end in ENDINGS)
        assert sdist.name.startswith(wheel.name.partition("-py3")[0]), f"{name} has no sdist of the wheel's version"
        wheels[name] = wheel
    return wheels


def try_wheel(name: str, wheels: dict[str, Path], directory: Path, *, with_dependencies: bool) -> None:
    """Install a wheel into a new environment and run its smoke test."""
    environment = directory / f"env-{name}"
    venv.create(environment, with_pip=False)
    python = environment / "bin/python"
    links = str(wheels[name].parent)
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "-q", "--find-links", links]
    run_command([*pip, *([] if with_dependencies else ["--no-deps"]), str(wheels[name])])
    run_command([str(python), "-I", "-c", SMOKE, PROJECTS[name][1], name, "1" if with_dependencies else "0"])
    if name == "ktuned":
        home = directory / "home"
        variables = {"KTUNED_HOME": str(home), "KTUNED_SOCKET": str(directory / "run/k.sock")}
        for words in (["--version"], ["--help"], ["start"], ["status"], ["stop"]):
            run_command([str(environment / "bin/ktuned"), *words], {**os.environ, **variables})
    shutil.rmtree(environment)


def _written_at(path: Path) -> float:
    return path.stat().st_mtime


def run_command(command: Sequence[str], env: dict[str, str] | None = None) -> None:
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=DEADLINE_S)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} exited with {done.returncode}:\n{done.stdout}{done.stderr}")
    if done.stdout.strip():
        sys.stdout.write(f"  {done.stdout.strip().splitlines()[0]}\n")


def main() -> None:
    """Build and try the given distributions, or all."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("names", nargs="*", default=[], help="default: all")
    parser.add_argument("--all", action="store_true", help="install the dependencies of heavy ones, too")
    parser.add_argument("--dist", type=Path, default=ROOT / "dist", help="where they are built")
    options = parser.parse_args()
    wheels = build_distributions(list(PROJECTS), options.dist)
    with tempfile.TemporaryDirectory(prefix="ktuned-release-") as directory:
        for name in options.names or PROJECTS:
            sys.stdout.write(f"{name}\n")
            try_wheel(name, wheels, Path(directory), with_dependencies=options.all or name not in HEAVY)
    sys.stdout.write(f"{len(options.names or PROJECTS)} distributions can be released; they are in {options.dist}\n")


if __name__ == "__main__":
    main()
