"""``ktuned.tune`` in real programs with a real daemon."""

from __future__ import annotations

import json
import os
import pty
import re
import shutil
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.daemon_parts import PATIENCE_S
from tests.e2e.harness import UNHURRIED, Daemon

ROOT = Path(__file__).parent.parent.parent

KERNEL = f"""
@kernel(
    backend="fake", space=space([dict(us=300.0, tag="slow"), dict(us=60.0, tag="quick")]), problems=PROBLEMS,
    inputs=lambda p: dict(x=tensor((p.n,)), y=tensor((p.n,), output=True)), reference=lambda x: dict(y=2 * x),
    default=dict(us=300.0, tag="slow"), deadlines={UNHURRIED}, preset="fast",
)
def NAME(p, c):
    return Build(**c)
"""
HEAD = "import json, sys\nimport ktuned\nfrom ktuned import kernel, space, tensor\nfrom ktuned_fake import Build\n"


def write_program(daemon: Daemon, name: str, body: str, *, problems: str = "[dict(n=64)]", file: str = "") -> Path:
    """Write a program that declares the kernel ``name`` and continues with ``body``."""
    text = HEAD + KERNEL.replace("NAME", name).replace("PROBLEMS", problems) + textwrap.dedent(body)
    return daemon.write_kernel(text, file or f"{name}.py")


def run_program(daemon: Daemon, *words: str | Path, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run a Python program to its end."""
    return subprocess.run(
        [sys.executable, *map(str, words)],
        env=daemon.env,
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )


def read_last_json(done: subprocess.CompletedProcess[str]) -> dict[str, object]:
    """Return the JSON object that a program printed last."""
    assert done.returncode == 0, done.stderr
    printed: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
    return printed


def test_a_program_tunes_the_kernel_that_it_declares(daemon: Daemon) -> None:
    """No guard of ``__main__`` is needed: the program gets config, latency, trials and the callable winner.

    The workers' import ends at the call, so that the code behind it runs in the program alone.
    """
    script = write_program(
        daemon,
        "twice",
        """
        result = ktuned.tune(twice)
        with open("runs.log", "a") as log:
            log.write("on\\n")
        import numpy
        x, y = numpy.ones(64, "float32"), numpy.zeros(64, "float32")
        call = result.load()
        call(x=x, y=y)
        z = numpy.zeros(64, "float32")
        call.bind(x, z)()
        print(json.dumps(dict(
            config=dict(result.config), us=result.latency_us, s=result.latency, speedup=result.speedup,
            trials=[(trial.config["tag"], trial.outcome, trial.winner) for trial in result.trials],
            y=float(y.sum()), z=float(z.sum()), text=str(result), html=result._repr_html_(),
        )))
        """,
    )
    done = run_program(daemon, script, cwd=script.parent)
    printed = read_last_json(done)
    assert printed["config"] == {"us": 60.0, "tag": "quick"}
    us, speedup = printed["us"], printed["speedup"]
    assert isinstance(us, float)
    assert isinstance(speedup, float)
    assert 60 <= us < 300
    assert printed["s"] == us / 1e6
    assert speedup > 1
    assert printed["trials"] == [["quick", "measured", True], ["slow", "measured", False]]
    assert (printed["y"], printed["z"]) == (128.0, 128.0)
    assert "on Fake CPU" in str(printed["text"])
    assert "<td>quick</td>" in str(printed["html"])
    assert (script.parent / "runs.log").read_text() == "on\n"
    # The fake backend itself says what it loads.
    assert (done.stdout.splitlines()[:-1], done.stderr) == (["loaded quick"], "")


def test_edits_behind_the_call_of_tune_retune_nothing(daemon: Daemon) -> None:
    """The same call measures nothing, and other arguments of the call change no digest."""
    body = "result = ktuned.tune(steady, trials={n})\nprint(json.dumps(dict(job=result.job['id'], {more})))\n"
    script = write_program(daemon, "steady", body.format(n=10, more=""))
    read_last_json(run_program(daemon, script))
    digest = daemon.client.call("kernels", kernel="steady")["kernels"][0]["digest"]
    write_program(daemon, "steady", body.format(n=20, more="n=1"))
    read_last_json(run_program(daemon, script))
    compiles = daemon.compile_log.read_text()
    read_last_json(run_program(daemon, script))
    assert daemon.client.call("kernels", kernel="steady")["kernels"][0]["digest"] == digest
    assert daemon.compile_log.read_text() == compiles


def test_a_pytest_test_tunes_the_kernel_of_its_module(daemon: Daemon) -> None:
    """Pytest and the workers import the module in different ways."""
    body = """
        import pytest

        @pytest.fixture
        def problem():
            return dict(n=64)

        def test_quick_wins(problem):
            result = ktuned.tune(tested, problem)
            assert result.config["tag"] == "quick"
        """
    script = write_program(daemon, "tested", body, file="test_tested.py")
    done = run_program(daemon, "-m", "pytest", "-q", "-p", "no:cacheprovider", script, cwd=script.parent)
    assert done.returncode == 0, done.stdout
    assert "1 passed" in done.stdout


def test_progress_is_drawn_in_terminals_only(daemon: Daemon) -> None:
    """``progress=True`` prints lines elsewhere."""
    script = write_program(daemon, "shown", "ktuned.tune(shown, progress=True if sys.argv[1:] else None)\n")
    assert "job " in run_program(daemon, script, "lines").stdout
    write_program(daemon, "drawn", "ktuned.tune(drawn)\n", file="shown.py")
    terminal, slave = pty.openpty()
    try:
        done = subprocess.run(
            [sys.executable, script],
            env={**daemon.env, "TERM": "xterm"},
            stdin=slave,
            stdout=slave,
            stderr=slave,
            timeout=PATIENCE_S,
        )
        drawn = os.read(terminal, 1 << 16).decode(errors="replace")
    finally:
        os.close(slave)
        os.close(terminal)
    assert done.returncode == 0, drawn
    assert "drawn [n=64] on Fake CPU" in drawn


def test_ctrl_c_detaches_from_the_job(daemon: Daemon) -> None:
    """The program ends with KeyboardInterrupt and one line; the job goes on."""
    gated = HEAD + KERNEL.replace("NAME", "long").replace("PROBLEMS", "[dict(n=64)]").replace(
        'dict(us=60.0, tag="quick")', 'dict(us=60.0, tag="quick", gate="long")'
    ).replace('dict(us=300.0, tag="slow")', 'dict(us=300.0, tag="slow", gate="")')
    script = daemon.write_kernel(gated + "\nktuned.tune(long)\n", "long.py")
    gate = daemon.make_gate("long")
    process = subprocess.Popen([sys.executable, script], env=daemon.env, stderr=subprocess.PIPE, text=True)
    gate.wait_until_reached()
    process.send_signal(signal.SIGINT)
    _, complaint = process.communicate(timeout=PATIENCE_S)
    assert "detached; job" in complaint
    assert "KeyboardInterrupt" in complaint
    gate.open()
    daemon.wait_until(lambda: daemon.look_up("long").status == "fresh", "the job to go on")


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("ktuned.tune(NAME)", 'declares 2 problems ({"n":64}, {"n":128} …)\nname the one to tune: '),
        ("ktuned.tune('no_such_kernel', dict(n=1))", "no_such_kernel"),
        ("ktuned.tune(NAME, dict(n=64), configs=[dict(us=1.0, tag='none')])", "is not in the space"),
        ("ktuned.tune(NAME, dict(n=64), configs=[dict(us=60.0)])", "it lacks tag"),
        ("ktuned.tune(3)", "not a value of type int"),
    ],
)
def test_wrong_arguments_are_one_line(daemon: Daemon, body: str, words: str, request: pytest.FixtureRequest) -> None:
    """Cases: an open problem, an unknown name, a config outside the space, a value that is no kernel."""
    name = f"misused{request.node.callspec.indices['body']}"
    script = write_program(daemon, name, body.replace("NAME", name), problems="[dict(n=64), dict(n=128)]")
    done = run_program(daemon, script)
    assert done.returncode == 1
    assert words in "\n".join(done.stderr.splitlines()[-2:])


def test_a_kernel_that_the_import_does_not_declare_is_refused(daemon: Daemon) -> None:
    """The error says where to declare it."""
    inner = textwrap.indent(KERNEL.replace("NAME", "inner").replace("PROBLEMS", "[dict(n=64)]"), "    ")
    body = f"if __name__ == '__main__':{inner}\n    ktuned.tune(inner)\n"
    done = run_program(daemon, write_program(daemon, "outer", body))
    assert "declares no kernel 'inner' when it is imported; declare it at the top level" in done.stderr.splitlines()[-1]
    assert done.returncode == 1


def test_a_kernel_file_must_not_import_a_program_that_tunes(daemon: Daemon) -> None:
    """The error names the program's line."""
    write_program(daemon, "imported", "ktuned.tune(imported)")
    importing = write_program(daemon, "importing", "")
    importing.write_text("import imported\n" + importing.read_text())
    (error,) = daemon.client.tune(path=importing).errors
    assert error["message"].endswith(f"ktuned.tune is called while {importing} imports this module")
    assert error["path"] == str(importing.with_name("imported.py"))


def test_configs_limits_the_tuning_and_again_repeats_it(daemon: Daemon) -> None:
    body = """
        first = ktuned.tune(some, configs=[dict(us=300.0, tag="slow")])
        tried = [trial.config["tag"] for trial in first.trials]
        other = ktuned.tune(some)
        before = {trial.config["tag"]: trial.latency_us for trial in other.trials}
        again = ktuned.tune(some, configs=[dict(us=300.0, tag="slow")], again=True)
        after = {trial.config["tag"]: trial.latency_us for trial in again.trials}
        print(json.dumps(dict(tried=tried, before=before, after=after, winner=again.config["tag"])))
        """
    printed = read_last_json(run_program(daemon, write_program(daemon, "some", body)))
    before, after = printed["before"], printed["after"]
    assert isinstance(before, dict)
    assert isinstance(after, dict)
    assert printed["tried"] == ["slow"]
    assert before.keys() == after.keys() == {"slow", "quick"}
    assert before["slow"] != after["slow"]
    assert printed["winner"] == "quick"


NOTEBOOK = """
import json, os, sys
from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell.instance()
for cell in json.load(sys.stdin):
    done = shell.run_cell(cell, store_history=True)
    done.raise_error()
"""


def test_a_kernel_of_a_notebook_is_written_to_a_file(daemon: Daemon, tmp_path: Path) -> None:
    """Real IPython: the file has the kernel's cell and everything it uses."""
    pytest.importorskip("IPython", reason="pip install ipython")
    cells = [
        HEAD,
        "%precision 3\nSIZES = [dict(n=64)]\nopened = open('opened.log', 'a').write('x')",
        KERNEL.replace("NAME", "noted").replace("PROBLEMS", "SIZES"),
        "result = ktuned.tune(noted)",
        "print(json.dumps(dict(config=dict(result.config), html='<table>' in result._repr_html_())))",
    ]
    project = daemon.directory / "project"
    done = subprocess.run(
        [sys.executable, "-c", NOTEBOOK],
        input=json.dumps(cells),
        env={**daemon.env, "IPYTHONDIR": str(tmp_path)},
        cwd=project,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert read_last_json(done) == {"config": {"us": 60.0, "tag": "quick"}, "html": True}
    text = (project / "tune_noted_notebook.py").read_text()
    assert "SIZES = [dict(n=64)]" in text
    assert "opened" not in text
    assert (project / "opened.log").read_text() == "x"
    (kernel,) = daemon.client.call("kernels", kernel="noted")["kernels"]
    assert kernel["file"] == str(project / "tune_noted_notebook.py")


def test_the_example_prints_what_its_page_shows(daemon: Daemon) -> None:
    copy = daemon.directory / "from_python"
    shutil.copytree(ROOT / "examples/from_python", copy, ignore=shutil.ignore_patterns("__pycache__"))
    program = copy / "tune_dot.py"
    # NumPy is all that it needs, and the backend would import torch where it finds it.
    program.write_text(f"import without_torch\n{program.read_text()}")
    done = run_program(daemon, program)
    assert done.returncode == 0, done.stderr
    (expected,) = re.findall(r"^```\n(.*?)^```$", (copy / "README.md").read_text(), re.DOTALL | re.MULTILINE)
    varying = r"\d+\.\d times|'LANES': \d+"
    assert re.sub(varying, "…", done.stdout) == re.sub(varying, "…", expected)
