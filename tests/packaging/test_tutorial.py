"""The guide's first page, and then what README and the page for agents run without a GPU.

All of it runs in one environment with the wheels and NumPy, without torch.
"""

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.packaging.distributions import ROOT

pytestmark = pytest.mark.timeout(240)

BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
MARK = "@@ command "


@pytest.fixture
def tutorial_home(wheel_of: Callable[[str], Path], tmp_path: Path) -> Path:
    """Return a home directory with the wheels of a checkout, the tutorial's starting point."""
    links = tmp_path / "ktuned/dist"
    links.mkdir(parents=True)
    for wheel in map(wheel_of, ("ktuned", "ktuned-client", "ktuned-tvm-ffi")):
        (links / wheel.name).symlink_to(wheel)
    state = tmp_path / "state"
    state.mkdir(mode=0o700)
    # On a busy machine disturbed timings would be repeated, and could leave the tutorial without figures.
    (state / "config.toml").write_text("contention = false\n")
    return tmp_path


@pytest.fixture
def shell_environment(tutorial_home: Path) -> Iterator[dict[str, str]]:
    """Yield the environment of the tutorial's shell; its daemon is stopped afterwards."""
    dropped = ("PYTHON", "VIRTUAL_ENV", "PIP_FIND_LINKS", "KTUNED")
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(dropped)}
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    yield {
        **inherited,
        "HOME": str(tutorial_home),
        "XDG_CACHE_HOME": cache,
        # Most modules of what it installs are never imported.
        "PIP_NO_COMPILE": "1",
        "KTUNED_HOME": str(tutorial_home / "state"),
        "KTUNED_SOCKET": str(tutorial_home / "run/ktuned.sock"),
        "PATH": f"{tutorial_home / 'bin'}{os.pathsep}{os.environ['PATH']}",
    }
    ktuned = tutorial_home / "tutorial/.venv/bin/ktuned"
    if ktuned.exists():
        own = {
            **inherited,
            "KTUNED_HOME": str(tutorial_home / "state"),
            "KTUNED_SOCKET": str(tutorial_home / "run/ktuned.sock"),
        }
        subprocess.run([ktuned, "stop"], env=own, capture_output=True, timeout=60)


def make_script(page: str) -> tuple[str, list[tuple[str, list[str]]]]:
    """Return a page as a bash script, and its commands with the shown output of each.

    A block of code is the content of the file that the text before it names last.
    """
    lines: list[str] = ["set -e"]
    commands: list[tuple[str, list[str]]] = []
    for block in BLOCK.finditer(page):
        language, content = block.groups()
        if language != "console":
            name = re.findall(r"`([\w.]+\.\w+)`", page[: block.start()].rpartition("```")[2])[-1]
            lines.append(f"printf %s {shlex.quote(content)} > {name}")
            continue
        for line in content.splitlines():
            if line.startswith("$ "):
                lines += [f"echo {shlex.quote(MARK + str(len(commands)))}", line.removeprefix("$ ")]
                commands.append((line.removeprefix("$ "), []))
            else:
                commands[-1][1].append(line)
    return "\n".join(lines), commands


VIEW = "ktuned watch ."
"""The command that shows a directory until it is interrupted."""


def make_script_of_readme(page: str) -> str:
    """Return README's commands that need no GPU, and its lookup, as a bash script."""
    lines = ["set -e"]
    for language, content in BLOCK.findall(page):
        if language == "python":
            lines.append(f"python -c {shlex.quote(content)}")
        elif language == "console" and "infer.py" not in content:
            lines += [line.removeprefix("$ ") for line in content.splitlines()]
    interrupted = f"timeout --preserve-status --signal=INT 2 {VIEW} || test $? -eq 130"
    return "\n".join(interrupted if line == VIEW else line for line in lines)


def split_outputs(text: str) -> dict[int, str]:
    """Return the output of each command by its number."""
    parts = re.split(rf"^{MARK}(\d+)\n", text, flags=re.MULTILINE)[1:]
    return {int(number): output for number, output in zip(parts[::2], parts[1::2], strict=True)}


def keep_common_words(line: str) -> list[str]:
    """Return what is equal on every machine: words in lower case, and names of knobs."""
    return re.findall(r"\b(?:[a-z]{4,}|[A-Z]+(?==))\b", line)


def test_the_tutorial_s_commands_print_what_it_shows(tutorial_home: Path, shell_environment: dict[str, str]) -> None:
    """The environment has no torch. README's commands and those of the page for agents run in the same shell."""
    index = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--retries=0", "--timeout=10", "msgspec"]
    download = subprocess.run([*index, "--dest", str(tutorial_home / "asked")], capture_output=True, text=True)
    if download.returncode:
        pytest.skip(f"pip's package index does not answer: {download.stderr.strip().splitlines()[-1:]}")
    (tutorial_home / "bin").mkdir()
    (tutorial_home / "bin/python3").symlink_to(Path(sys.executable).resolve())

    steps, commands = make_script((ROOT / "docs/guide/first-kernel.md").read_text())
    readme = make_script_of_readme((ROOT / "README.md").read_text())
    scoring, _ = make_script((ROOT / "docs/guide/agents.md").read_text())
    # They run while the tutorial's daemon does, so that nothing is started or tuned again.
    steps = steps.replace("\nktuned stop", f"\n({readme}) >&2\n({scoring}) > scores\nktuned stop")
    done = subprocess.run(
        ["bash", "-c", steps], cwd=tutorial_home, env=shell_environment, capture_output=True, text=True, timeout=200
    )

    printed = split_outputs(done.stdout)
    last, _ = commands[max(printed, default=0)]
    assert done.returncode == 0, f"`{last}` failed\n{done.stdout}\n{done.stderr}"
    for number, (command, shown) in enumerate(commands):
        for line in shown:
            assert [word for word in keep_common_words(line) if word not in printed[number]] == [], (
                f"{command}: {printed[number]}"
            )
    assert not list((tutorial_home / "tutorial/.venv").glob("lib/python*/site-packages/torch"))
    answers = (tutorial_home / "tutorial/scores").read_text().splitlines()
    (verdict,) = (json.loads(line) for line in answers if line.startswith("{"))
    assert [candidate["verdict"] for candidate in verdict["candidates"]] == ["right"], verdict
