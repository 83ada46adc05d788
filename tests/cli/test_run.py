"""``ktuned run``: an unmodified program gets the drop-ins, its own exit status and a summary."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from ktuned.cli.commands.run import HOOK, hook_environment, run_program, summarise_account, summarise_fixed
from ktuned.dropin import FIXED, RECORDED, TUNED, Account, WinnersFile
from ktuned.model import UsageError


def run_hooked(code: str, summary: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run code in an interpreter as ``ktuned run`` starts it."""
    paths = os.pathsep.join([str(HOOK), *filter(None, sys.path)])
    everything = {**os.environ, "PYTHONPATH": paths, "KTUNED_RUN_MODE": "wait", "KTUNED_RUN_SUMMARY": str(summary)}
    return subprocess.run(
        [sys.executable, "-c", code], env={**everything, **environment}, capture_output=True, text=True, timeout=120
    )


class TestHook:
    def test_triton_s_class_is_replaced_under_every_name(self, tmp_path: Path) -> None:
        """The program does not see the hook's directory in ``sys.path``."""
        code = """if True:
            import sys, triton, triton.runtime
            from triton.runtime.autotuner import autotune
            assert triton.autotune is triton.runtime.autotune is autotune
            import triton.language as tl
            configs = [triton.Config({"BLOCK": 64}), triton.Config({"BLOCK": 128})]
            from tests.plugins.triton_app import kernels
            function = triton.autotune(configs, key=["size"])(kernels.plain)
            from ktuned_triton import autotuner
            mode = autotuner._process_policy.mode
            print(type(function).__name__, mode, [path for path in sys.path if "run_hook" in path])
        """
        done = run_hooked(code, tmp_path)
        assert done.stdout.strip() == "Autotuner wait []", done.stderr

    def test_a_program_without_triton_imports_nothing_of_ktuned(self, tmp_path: Path) -> None:
        """Programs start many interpreters: each pays for the hook's own modules alone."""
        code = "import sys; print({name for name in sys.modules if name.startswith(('ktuned', 'triton', 'torch'))})"
        done = run_hooked(code, tmp_path)
        assert (done.stdout.strip(), done.stderr) == ("set()", "")
        names = "import sys; print(*sorted(sys.modules))"
        unhooked = subprocess.run([sys.executable, "-c", names], capture_output=True, text=True, check=True)
        hooked = run_hooked(names, tmp_path)
        assert {*hooked.stdout.split()} - {*unhooked.stdout.split()} <= {"sitecustomize", "__future__"}
        account = Account.from_directory(tmp_path)
        assert "ktuned_triton" in account.drop_ins
        assert summarise_account(account) == ["no autotuned function was called"]

    def test_an_interpreter_without_a_plugin_is_named(self, tmp_path: Path) -> None:
        """The summary says what to install."""
        bare = [sys.executable, "-I", "-S", "-c", "import runpy, sys; runpy.run_path(sys.argv[1])"]
        environment = {"KTUNED_RUN_MODE": "wait", "KTUNED_RUN_SUMMARY": str(tmp_path)}
        hook = str(HOOK / "sitecustomize.py")
        subprocess.run([*bare, hook], env=environment, capture_output=True, text=True, timeout=60)
        (line,) = summarise_account(Account.from_directory(tmp_path))
        assert "no interpreter of the program has ktuned-triton or ktuned-tilelang" in line
        assert "pip install 'ktuned[triton]'" in line

    def test_a_failed_import_of_the_drop_in_leaves_triton_alone(self, tmp_path: Path) -> None:
        """The summary has the reason."""
        code = """if True:
            import sys
            sys.modules["ktuned_triton.autotuner"] = None
            import triton, triton.runtime
            configs = [triton.Config({"BLOCK": 64}), triton.Config({"BLOCK": 128})]
            function = triton.autotune(configs, key=[])(triton.jit(triton.language.core._unwrap_if_constexpr))
            print(type(function).__name__)
        """
        (tmp_path / "summary").mkdir()
        done = run_hooked(code, tmp_path / "summary")
        assert done.stdout.strip() == "Autotuner", done.stderr
        ((name, reason),) = Account.from_directory(tmp_path / "summary").left_alone.items()
        assert name == "triton.autotune"
        assert "import of ktuned_triton.autotuner halted" in reason

    def test_the_user_s_sitecustomize_is_imported(self, tmp_path: Path) -> None:
        (tmp_path / "sitecustomize.py").write_text("import builtins; builtins.theirs = True")
        paths = os.pathsep.join([str(HOOK), str(tmp_path), *filter(None, sys.path)])
        done = run_hooked("print(theirs)", tmp_path, PYTHONPATH=paths)
        assert (done.stdout.strip(), done.stderr) == ("True", "")

    def test_functions_that_were_left_alone_have_a_reason(self, tmp_path: Path) -> None:
        code = """if True:
            import torch
            from tests.plugins.triton_app import kernels
            try:
                kernels.benched[(1,)](torch.ones(128))
            except RuntimeError:
                pass  # there is no driver
        """
        summary = tmp_path / "summary"
        summary.mkdir()
        done = run_hooked(code, summary)
        ((key, reason),) = Account.from_directory(summary).left_alone.items()
        assert key.startswith("tests.plugins.triton_app.kernels.benched {"), done.stderr
        assert reason == "no daemon runs"


PROGRAM = """\
import sys

def work():
    import triton
    from tests.plugins.triton_app import kernels
    configs = [triton.Config({"BLOCK": 64}), triton.Config({"BLOCK": 128})]
    print(type(triton.autotune(configs, key=["size"])(kernels.plain)).__name__, flush=True)

def main():
    if "spawn" not in sys.argv:
        return work()
    import multiprocessing
    child = multiprocessing.get_context("spawn").Process(target=work)
    child.start()
    child.join()

if __name__ == "__main__":
    main()
"""


@pytest.mark.parametrize(
    "words",
    [
        ["{python}", "program.py"],
        ["{python}", "-m", "package"],
        ["{script}"],
        ["{python}", "program.py", "spawn"],
        ["{python}", "-m", "torch.distributed.run", "--nproc-per-node", "1", "--standalone", "program.py"],
    ],
    ids=["script", "module", "console-script", "spawned-child", "torchrun"],
)
def test_every_way_to_start_a_program_gets_the_drop_in(words: list[str], tmp_path: Path) -> None:
    """Interpreters that the program starts get it as well."""
    (tmp_path / "package").mkdir()
    (tmp_path / "package/__init__.py").touch()
    script = tmp_path / "console"
    script.write_text(f"#!{sys.executable}\n{PROGRAM}")
    script.chmod(0o755)
    for name in ("program.py", "package/__main__.py"):
        (tmp_path / name).write_text(PROGRAM)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *filter(None, sys.path)])}
    command = [word.format(python=sys.executable, script=script) for word in words]
    done = subprocess.run(
        command,
        env={**environment, **hook_environment("wait", "tolerance", str(tmp_path / "summary"), environment)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.stdout.splitlines()[-1:] == ["Autotuner"], done.stderr


class TestSummary:
    def make_account(self) -> Account:
        """Return the account of a program with two functions, one of whose keys was tuned before."""
        account = Account()
        account.record_drop_in("ktuned_triton")
        account.record_adopted("fla.ops.f")
        account.record_adopted("fla.ops.g")
        account.record_left_alone("p.h", "a reason")
        account.record_key("fla.ops.f M=1", TUNED)
        account.record_key("fla.ops.f M=2", RECORDED)
        account.record_key("fla.ops.g M=3", "not tuned: another reason")
        account.record_note("p.f has a do_bench of its own; ktuned times it in its own way")
        return account

    def test_it_says_what_was_adopted_tuned_recorded_and_left_alone(self) -> None:
        assert summarise_account(self.make_account()) == [
            "p.f has a do_bench of its own; ktuned times it in its own way",
            "adopted 2 functions: fla: f, g",
            "3 tuning keys: 1 tuned, 1 recorded now",
            "fla.ops.g M=3: not tuned: another reason",
            "left alone: p.h: a reason",
            "next: `ktuned watch` shows the tuning; run the program again when it is over to have the winners",
        ]

    def test_it_counts_configs_that_are_compiled_later(self, tmp_path: Path) -> None:
        account = Account({"ktuned_triton"}, {"fla.ops.f"}, directory=tmp_path)
        for key, given_up in enumerate((2, 0, 1)):
            account.record_tuned(f"fla.ops.f M={key}", 30, given_up)
        read = Account.from_directory(tmp_path)
        read.record_adopted("fla.ops.f")
        assert "57 of 60 configs; 3 are compiled later" in summarise_account(read)

    def test_with_winners_it_lists_missing_keys_and_unused_files(self) -> None:
        account = Account({"ktuned_triton"})
        account.record_adopted("fla.ops.f")
        account.record_winners_file("w/a.json")
        account.record_key("fla.ops.f M=1", FIXED)
        account.record_key("fla.ops.f M=2", "w lacks it: the first config is launched")
        winners = WinnersFile("w", [(f"w/{name}.json", {"kernel": name, "device": "d"}) for name in "abcde"])
        assert summarise_fixed(account, winners) == [
            "adopted 1 function: fla: f",
            "2 tuning keys: 1 as in w",
            "fla.ops.f M=2: w lacks it: the first config is launched",
            "no call launched a winner of w/b.json, w/c.json, w/d.json, … (4)",
        ]

    def test_a_key_is_fixed_if_all_processes_launched_its_winner(self, tmp_path: Path) -> None:
        for number, states in enumerate([(FIXED, "lacking"), ("lacking", FIXED)]):
            entries = [["key", f"k{index}", state] for index, state in enumerate(states)]
            (tmp_path / f"{number}.jsonl").write_text("".join(f"{json.dumps(entry)}\n" for entry in entries))
        assert Account.from_directory(tmp_path).keys == {"k0": "lacking", "k1": "lacking"}

    def test_without_a_gpu_it_promises_no_tuning(self) -> None:
        assert summarise_account(self.make_account(), has_device=False)[-1].startswith(
            "no GPU is found here, so nothing is measured"
        )
        account = Account({"ktuned_triton"})
        account.record_left_alone("tri.add1", "a call cannot be evaluated")
        assert "no GPU is found here" in summarise_account(account, has_device=False)[-1]

    def test_many_functions_of_a_library_are_counted_and_some_named(self) -> None:
        account = Account({"ktuned_triton"})
        for number in range(9):
            account.record_adopted(f"fla.ops.f{number}")
        assert summarise_account(account) == ["adopted 9 functions: fla: f0, f1, f2, … (9)"]


SIGNALLED = """\
import os, signal, sys
from ktuned.cli.commands.run import run_program
signal.signal(signal.SIGHUP, signal.SIG_IGN)
sys.exit(run_program((sys.executable, "-c", sys.argv[1]), dict(os.environ)))
"""

WAITS = """\
import os, signal, sys
def end(number, frame):
    sys.exit(number)
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
    signal.signal(number, end)
print(signal.getsignal(signal.SIGHUP) is signal.SIG_IGN, flush=True)
signal.pause()
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1])
def test_a_signal_is_passed_to_the_program(number: int) -> None:
    """A signal that is ignored, as under nohup, stays ignored."""
    command = [sys.executable, "-c", SIGNALLED, WAITS]
    # In a session of its own: a terminal's group gets SIGINT from its terminal.
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as run:
        assert run.stdout is not None
        assert run.stdout.readline() == "True\n"
        run.send_signal(number)
        assert run.wait(60) == number


def test_a_program_that_cannot_be_started_is_one_line(tmp_path: Path) -> None:
    """A program that a signal ended has the shell's exit status."""
    script = tmp_path / "script"
    script.write_text("echo")
    script.chmod(0o755)
    with pytest.raises(UsageError, match=r"script cannot be started: Exec format error"):
        run_program((str(script),), dict(os.environ))
    assert run_program(("sh", "-c", "kill -9 $$"), dict(os.environ)) == 137


def test_run_exits_with_the_program_s_status(tmp_path: Path) -> None:
    """The daemon that was started for the program stays."""
    environment = {**os.environ, "KTUNED_HOME": str(tmp_path / "home"), "KTUNED_SOCKET": str(tmp_path / "run" / "s")}
    command = [sys.executable, "-m", "ktuned"]
    try:
        done = subprocess.run(
            [*command, "run", "sh", "-c", "exit 7"], env=environment, capture_output=True, text=True, timeout=120
        )
        assert done.returncode == 7, done.stderr
        assert "started a daemon" in done.stderr
    finally:
        subprocess.run([*command, "stop"], env=environment, capture_output=True, timeout=60)


def test_a_missing_program_is_one_line_and_starts_no_daemon(tmp_path: Path) -> None:
    environment = {**os.environ, "KTUNED_HOME": str(tmp_path / "home"), "KTUNED_SOCKET": str(tmp_path / "run" / "s")}
    done = subprocess.run(
        [sys.executable, "-m", "ktuned", "run", "no-such-program"], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 2
    assert done.stderr.startswith("ktuned: there is no program 'no-such-program'")
    assert not (tmp_path / "home").exists()
