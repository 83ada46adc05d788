"""Inductor's max-autotune under ``ktuned run``, without a GPU: graphs are compiled for a made-up one."""

import inspect
import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch._dynamo.utils import counters

from ktuned.adoption import AdoptedDirectory
from ktuned.backends import cpu
from ktuned.cli.commands.run import NO_DROP_IN, summarise_account
from ktuned.declaration.loader import load_file
from ktuned.dropin import Account, Answer
from ktuned.dropin import account as process_account
from ktuned.ipc import decoding
from ktuned.model import canonical
from ktuned.search import choose_strategy
from ktuned.spool import CALL_KEY, RECORD_SUFFIX, CallRecord
from ktuned.worker.prior import ask_prior
from ktuned_inductor import hooks, seams, self_test, takeover
from ktuned_inductor.decisions import LEAST_GAIN, PATIENCE_S, RETRY_S, Decisions, Origin, decisions
from ktuned_inductor.generated import (
    KERNEL,
    MAX_CANDIDATES,
    describe_launch,
    list_candidates,
    list_first,
    locate_origin,
    make_plain_source,
)
from ktuned_inductor.seams import SEAMS, Seam
from ktuned_triton.call import Call
from ktuned_triton.compiler import _redirect_triton
from ktuned_triton.library import find_function
from ktuned_triton.lowering import run_front_end
from ktuned_triton.signature import make_call_arguments

DEADLINE_S = 400.0
"""The suite's other processes may have the processors."""


@dataclass
class Place:
    """The directories of a process that compiles graphs."""

    directory: Path

    @property
    def environment(self) -> dict[str, str]:
        """Its environment."""
        return {
            **os.environ,
            "KTUNED_HOME": str(self.directory / "home"),
            "KTUNED_SOCKET": str(self.directory / "no.sock"),
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
            "TORCHINDUCTOR_CACHE_DIR": str(self.directory / "torch"),
            "TRITON_CACHE_DIR": str(self.directory / "triton"),
            "TORCHINDUCTOR_COMPILE_THREADS": "1",
        }

    def start(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run a stage of the graphs' module to its end."""
        return subprocess.run(
            [sys.executable, "-m", "tests.plugins.inductor_graphs", *words],
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            check=False,
        )

    def run(self, *words: str) -> Any:
        """Run a stage, and return what it prints."""
        done = self.start(*words)
        assert done.returncode == 0, done.stdout + done.stderr[-3000:]
        return json.loads(done.stdout.splitlines()[-1])

    def read_records(self) -> list[CallRecord]:
        """Return the records that were left."""
        return [
            CallRecord.from_bytes(path.read_bytes())
            for path in sorted((self.directory / "home/spool").glob(f"*{RECORD_SUFFIX}"))
        ]

    def list_saved(self, kind: str) -> list[Path]:
        """Return the files of one of Inductor's caches."""
        return [path for path in (self.directory / "torch").glob(kind) if path.is_file()]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> tuple[Place, Any]:
    """Return a place where a graph was compiled and its kernels were launched without a daemon, and what it printed."""
    place = Place(tmp_path_factory.mktemp("recorded"))
    return place, place.run("record")


def test_self_test_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Real compile workers take one config on a miss and the winner on a hit; an unsettled graph misses, then hits."""
    monkeypatch.setattr(self_test, "LIMIT_S", DEADLINE_S)
    assert self_test.run_self_test() == ""


def test_first_start_compiles_one_config_and_leaves_records(recorded: tuple[Place, Any]) -> None:
    """Each kernel and each operator leaves one record, at its first launch or when it is lowered."""
    place, found = recorded
    assert set(found["compiled"]) == {1}
    assert not found["armed"]
    assert not found["left_alone"]
    assert set(found["keys"].values()) == {"recorded"}
    records = place.read_records()
    assert len(records) == len(found["keys"])
    operators = {record.declaration["qualname"] for record in records}
    assert operators == {"triton_kernel", "mm", "bmm", "convolution"}


def test_unsettled_graph_is_in_no_cache(recorded: tuple[Place, Any]) -> None:
    """Neither the graph nor a config is kept by Inductor."""
    place, _ = recorded
    assert not place.list_saved("fxgraph/**/*")
    assert not place.list_saved("**/*.best_config")


@pytest.mark.parametrize("stage", ["define", "compile", "precompile", "end"])
def test_killed_program_leaves_no_untuned_choice(tmp_path: Path, stage: str) -> None:
    """SIGKILL leaves no graph and no config, at whatever point it comes."""
    place = Place(tmp_path)
    assert place.start("kill", stage).returncode == -signal.SIGKILL
    assert not place.list_saved("fxgraph/**/*")
    assert not place.list_saved("**/*.best_config")


def test_record_of_generated_kernel_is_a_plain_triton_file(recorded: tuple[Place, Any], tmp_path: Path) -> None:
    """A record declares a kernel whose configs differ in blocks, with a grid for each."""
    place, _ = recorded
    kernels = [record for record in place.read_records() if record.declaration["module"] != "aten"]
    for record in kernels:
        file, call_name = AdoptedDirectory(tmp_path).write_record(record)
        assert "adopt" in file.read_text()
        call = decoding.convert(json.loads((file.parent / "calls" / f"{call_name}.call.json").read_text()), Call)
        source = (file.parent / "calls" / f"{record.declaration['module']}.py").read_text()
        assert "triton_heuristics." not in source
        assert "def triton_kernel(" in source
        grids = {recipe.grid for recipe in call.recipes.values()}
        # One number is computed by one program.
        assert len(grids) > 1 or call.recipes[canonical(record.configs[0])].constants["xnumel"] == 1
        assert len(record.configs) == len(call.recipes)


def test_records_declare_kernels(recorded: tuple[Place, Any], tmp_path: Path) -> None:
    """Generated kernels begin with Inductor's list and go on near the best; operators have the library as default."""
    place, _ = recorded
    for record in place.read_records():
        file, call_name = AdoptedDirectory(tmp_path).write_record(record)
        loaded = load_file(file, file.parent)
        assert not loaded.errors
        (kernel,) = loaded.kernels
        space = kernel.bind_space({**record.problem, CALL_KEY: call_name})
        if record.declaration["module"] == "aten":
            assert kernel.default in space
        else:
            assert choose_strategy(space, kernel.plan).name == "guided"
            assert 0 < len(ask_prior(kernel, space, cpu.device()).configs) < kernel.plan.trials < len(record.configs)


def test_records_are_built_by_one_front_end(recorded: tuple[Place, Any], tmp_path: Path) -> None:
    """Generated kernels and rendered templates become machine code; the library's own kernel is a call."""
    place, _ = recorded
    found = place.run("build", str(tmp_path / "state"))
    assert len(found["libraries"]) == 1
    assert len(found["built"]) >= 3 * 3
    compiled = ["kernel.cubin", "kernel.ptx", "launch.json", "metadata.json"]
    for name, files in found["built"].items():
        assert files == (["launch.json"] if "aten::" in name else compiled), name


def test_cpu_product_with_one_choice_is_not_timed(tmp_path: Path) -> None:
    """The seam of the choices leaves Inductor nothing to time."""
    assert Place(tmp_path).run("cpu") == {"timed": 0, "is_right": True}


@pytest.mark.parametrize(("where", "decided"), [("always", 0), ("second", 1)])
def test_error_in_hook_leaves_inductor_as_it_is(where: str, decided: int, tmp_path: Path) -> None:
    """One line names the error, and the kernel has all its configs again; what was decided before leaves its record."""
    place = Place(tmp_path)
    found = place.run("fail", where)
    assert found["left_alone"] == {"torch.compile": "RuntimeError: a hook fails"}
    assert max(found["compiled"]) > 1
    assert len(place.read_records()) == decided


def test_error_in_worker_gives_kernels_up(tmp_path: Path) -> None:
    """The kernels have all their configs, each has a line, and no later start waits for them."""
    place = Place(tmp_path)
    for _ in range(2):
        found = place.run("fail", "worker")
        assert max(found["compiled"]) > 1
        assert {line.rpartition(": ")[2] for line in found["left_alone"].values()} == {"a hook fails"}
    assert place.list_saved("fxgraph/**/*")


def test_unusual_operators_take_the_library_s_kernel(tmp_path: Path) -> None:
    """A call that cannot be repeated has a line of its own; symbolic sizes are recorded with their hints."""
    found = Place(tmp_path).run("odd")
    assert found["keys"] == {"graph convolution 4x64x32x32x64x64x3x3 bf16": "recorded"}
    left = {label.split()[1]: reason for label, reason in found["left_alone"].items()}
    # Torch 2.10 has no template for it.
    expected = "its output has the dtype float32, and its input bfloat16"
    assert left.pop("bmm", expected) == expected
    assert left == {"addmm": "it has a symbolic scalar"}


def test_each_kernel_is_recorded_once(tmp_path: Path) -> None:
    """Kernels of several graphs may have one name, and several threads may make a kernel's first launch."""
    place = Place(tmp_path)
    found = place.run("names")
    assert len(found["names"]) == 2
    assert len(set(found["names"])) == 1
    assert sorted(record.problem["size"] for record in place.read_records()) == ["262144", "524288"]


def test_start_that_nobody_tunes_keeps_its_graphs_apart(tmp_path: Path) -> None:
    """Without a daemon the graph is saved and found again; a start that a daemon serves lowers it again."""
    place = Place(tmp_path)
    assert [place.run("untuned")["hits"] for _ in range(2)] == [0, 1]
    assert place.list_saved("fxgraph/**/*")
    assert place.run("untuned", "served")["hits"] == 0


# Seams


@pytest.fixture
def account(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Account:
    """Return the account that a takeover writes."""
    made = Account()
    monkeypatch.setattr(takeover, "account", made)
    monkeypatch.setattr(hooks, "account", made)
    monkeypatch.setattr(self_test, "find_failure", lambda: "")
    return made


@pytest.fixture
def originals() -> Iterator[dict[Seam, Any]]:
    """Yield Inductor's own functions, and put them back."""
    found = {seam: seam.find_owner() for seam in SEAMS}
    kept = {seam: vars(owner)[name] for seam, (owner, name) in found.items()}
    yield kept
    for seam, (owner, name) in found.items():
        setattr(owner, name, kept[seam])


def adopt(tmp_path: Path, numerics: str = "tolerance") -> None:
    """Take torch.compile over in this process, as ``ktuned run`` does."""
    takeover.adopt(None, "background", numerics, "", str(tmp_path))


def list_hooked(originals: dict[Seam, Any]) -> list[Seam]:
    """Return the seams that are not Inductor's own."""
    return [seam for seam, kept in originals.items() if inspect.getattr_static(*seam.find_owner()) is not kept]


def test_known_inductor_is_taken_over(tmp_path: Path, account: Account, originals: dict[Seam, Any]) -> None:
    """All seams of the program are hooked."""
    adopt(tmp_path)
    assert not account.left_alone
    assert {seam.name for seam in list_hooked(originals)} >= {"AsyncCompile.triton", "FxGraphCache._save_graph"}


def test_graphs_from_the_cache_are_named(account: Account, monkeypatch: pytest.MonkeyPatch) -> None:
    """A start that finds all its graphs asks for nothing, and its summary says so."""
    monkeypatch.setitem(counters, "inductor", Counter())
    hooks._note_cached_graphs()
    assert summarise_account(account)[-1] == NO_DROP_IN
    account.record_drop_in("ktuned_inductor")
    counters["inductor"]["fxgraph_cache_hit"] = 2
    hooks._note_cached_graphs()
    assert summarise_account(account) == ["torch.compile loaded 2 graphs from its cache"]


@pytest.mark.parametrize("seam", SEAMS, ids=lambda seam: seam.name)
def test_renamed_seam_leaves_inductor_as_it_is(
    seam: Seam, tmp_path: Path, account: Account, originals: dict[Seam, Any]
) -> None:
    """One line names the seam, and nothing is hooked."""
    owner, name = seam.find_owner()
    delattr(owner, name)
    adopt(tmp_path)
    assert account.left_alone == {"torch.compile": f"it has no {seam.module}.{seam.name}"}
    setattr(owner, name, originals[seam])
    assert not list_hooked(originals)


@pytest.mark.parametrize("seam", SEAMS, ids=lambda seam: seam.name)
def test_other_signature_leaves_inductor_as_it_is(
    seam: Seam, tmp_path: Path, account: Account, originals: dict[Seam, Any]
) -> None:
    """One line has the parameters, and nothing is hooked."""
    owner, name = seam.find_owner()
    setattr(owner, name, lambda self, other: None)
    adopt(tmp_path)
    assert account.left_alone == {"torch.compile": f"its {seam.name} has the parameters self, other"}
    setattr(owner, name, originals[seam])
    assert not list_hooked(originals)


@pytest.mark.parametrize("version", ["2.9.1", "2.16.0", "3.0.0"])
def test_unknown_version_is_left_alone(
    version: str, tmp_path: Path, account: Account, originals: dict[Seam, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One line names the versions."""
    monkeypatch.setattr("torch.__version__", version)
    adopt(tmp_path)
    assert account.left_alone == {"torch.compile": f"torch {version} is not one of the versions 2.10 to 2.15"}
    assert not list_hooked(originals)


def test_failed_self_test_leaves_inductor_as_it_is(
    tmp_path: Path, account: Account, originals: dict[Seam, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first decision is not made, its failure is the reason, and no later decision is made either."""
    reason = "its self-test failed: AssertionError: a graph was saved"
    monkeypatch.setattr(self_test, "find_failure", lambda: reason)
    monkeypatch.setattr(hooks.switch, "reason", "")
    adopt(tmp_path)
    assert not account.left_alone
    origin, problem = Origin("model.py", "48", "Head"), {"shape": "8x64x64x64"}
    fields = {"module": "aten", "qualname": "bmm", "source": ""}
    for _ in range(2):
        assert (
            hooks.switch.attempt(None, lambda: decisions.make_decision(origin, "bmm", problem, None, **fields)) is None
        )
    assert account.left_alone == {"torch.compile": reason}


def test_exact_numerics_leave_inductor_as_it_is(tmp_path: Path, account: Account, originals: dict[Seam, Any]) -> None:
    """Its choices differ in bits."""
    adopt(tmp_path, "exact")
    assert "exact" in account.left_alone["torch.compile"]
    assert not list_hooked(originals)


def test_self_test_that_takes_too_long_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine was too busy: the next program tries again."""
    monkeypatch.setenv("KTUNED_HOME", str(tmp_path))
    monkeypatch.setattr(self_test, "LIMIT_S", 0.01)
    assert self_test.find_failure() == "its self-test took longer than 0 s"
    monkeypatch.setattr(self_test, "run_self_test", lambda: "")
    assert self_test.find_failure() == ""


def test_result_of_self_test_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It runs once for a build of torch and Triton."""
    runs: list[int] = []

    def count_run() -> str:
        runs.append(1)
        return "its self-test failed: it is simulated"

    monkeypatch.setenv("KTUNED_HOME", str(tmp_path))
    monkeypatch.setattr(self_test, "run_self_test", count_run)
    assert {self_test.find_failure(), self_test.find_failure()} == {"its self-test failed: it is simulated"}
    assert runs == [1]


def test_switch_turns_all_hooks_off_at_the_first_error() -> None:
    """Later hooks do nothing, and one line is reported."""
    reports: list[str] = []
    switch = seams.Switch(reports.append)
    assert switch.attempt(0, lambda: 1) == 1
    assert switch.attempt(0, lambda: 1 // 0) == 0
    assert switch.attempt(0, lambda: 1) == 0
    assert reports == ["ZeroDivisionError: integer division or modulo by zero"]


@pytest.mark.parametrize("setting", ["cpp_wrapper", "deterministic"])
def test_graph_with_other_settings_is_left_to_inductor(
    setting: str, account: Account, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is asked, and the graph is saved as without ktuned."""
    monkeypatch.setattr(hooks, "explain_setting", lambda: setting)
    source = (
        "@triton_heuristics.pointwise(\n    size_hints={'x': 2},\n    triton_meta={'device': "
        "DeviceProperties(type='cuda', index=0)},\n    inductor_meta={'max_autotune': True}\n)\n@triton.jit\n"
    )
    assert hooks._decide_kernel("triton_poi_fused_0", source) is None
    assert hooks._decide_operator(lambda choices: choices[:1], [1, 2]) == [1, 2]
    assert account.left_alone == {"torch.compile": f"{setting} is set"}
    assert not decisions.take_unsettled()


# Records


def test_names_fit_the_daemon_s_files() -> None:
    """A name has the file, the line and the module that the user wrote; other characters are replaced."""
    origin = Origin("model.py", "48", "Head")
    assert origin.name_function("bmm").full == "model.py.L48.Head.bmm"
    assert origin.describe_operation("bmm", {"shape": "8x64x256x128", "dtype": "bf16"}) == (
        "model.py:48 Head bmm 8x64x256x128 bf16"
    )
    name = Origin("my modèle.py", "48", "Head<T>", "backward").name_function("bmm")
    assert (name.package, name.function) == ("my_mod_le.py", "L48.Head_T_.bmm.backward")


def make_node(name: str, modules: dict[str, tuple[str, Any]], *frames: str) -> Any:
    """Return an FX node as Inductor sees it."""
    trace = "".join(f'  File "{frame}, in forward\n    x\n' for frame in frames)
    return SimpleNamespace(name=name, meta={"stack_trace": trace, "fwd_nn_module_stack": modules})


def test_origin_is_what_the_user_wrote() -> None:
    """The innermost frame and module that are not torch's count; without a frame, the file of the module's class."""
    torch_file = f'{Path(torch.__file__).parent}/nn/modules/linear.py", line 134'
    modules = {"a": ("a", "app.model.Head"), "b": ("a.b", torch.nn.Linear)}
    node = make_node("mm", modules, '/home/me/train.py", line 9', '/home/me/model.py", line 48', torch_file)
    assert locate_origin([node]) == Origin("model.py", "48", "Head")
    assert locate_origin([make_node("mm", modules)]) == Origin("model.py", "", "Head")
    assert locate_origin([make_node("mm", {})]) == Origin()


def decide_once(link: Any, *origin: str) -> Any:
    """Return the decision of a new process about a product."""
    return Decisions(lambda: link).make_decision(
        Origin(*origin), "mm", {"shape": "64x64x64", "dtype": "bf16"}, None, module="aten", qualname="mm", source=""
    )


def answer_with(answer: Answer | None) -> Any:
    """Return the link to a daemon that always gives one answer."""
    return SimpleNamespace(ask_about=lambda key, deadline_s: answer)


@pytest.mark.parametrize(("default_us", "wins"), [(100 * LEAST_GAIN, True), (102.0, False), (None, True)])
def test_template_must_beat_the_library(
    default_us: float | None, wins: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A template that gains less than 3 % is not taken, and the decision is settled all the same."""
    monkeypatch.setenv("KTUNED_HOME", str(tmp_path))
    answer = Answer('{"choice": "triton::mm"}', is_final=True, latency_us=100.0, default_us=default_us)
    decision = decide_once(answer_with(answer))
    assert decision.is_settled
    assert decision.winner == ({"choice": "triton::mm"} if wins else {})


@pytest.mark.parametrize("answer", [None, Answer()])
def test_daemon_that_does_not_answer_costs_a_program_seconds(
    answer: Answer | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A daemon that was killed or stopped is asked all the same, but not waited for each time."""
    monkeypatch.setenv("KTUNED_HOME", str(tmp_path))
    now = [0.0]

    def wait(key: Any, deadline_s: float) -> Answer | None:
        now[0] += deadline_s if answer is not None else 0.01
        return answer

    monkeypatch.setattr("ktuned_inductor.decisions.monotonic", lambda: now[0])
    found = Decisions(lambda: SimpleNamespace(ask_about=wait))
    monkeypatch.setattr(found, "_pause", SimpleNamespace(wait=lambda pause_s: now.__setitem__(0, now[0] + pause_s)))
    for number in range(100):
        decision = found.make_decision(
            Origin(), "mm", {"shape": str(number), "dtype": "bf16"}, None, module="aten", qualname="mm", source=""
        )
        assert not decision.is_settled
    assert now[0] < PATIENCE_S + 1.0 + 100 * RETRY_S


def test_processes_of_a_program_share_one_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rank that asks later takes the first rank's answer, though the tuning has ended meanwhile."""
    monkeypatch.setenv("KTUNED_HOME", str(tmp_path))
    late = answer_with(Answer('{"choice": "triton::mm"}', is_final=True))
    monkeypatch.setattr(process_account, "directory", tmp_path)
    assert not decide_once(answer_with(Answer())).winner
    assert not decide_once(late).winner
    monkeypatch.setattr(process_account, "directory", None)
    assert decide_once(late).winner


def test_forked_process_waits_for_no_thread_of_its_parent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Locks that another thread holds during a fork are free in the child."""
    monkeypatch.setenv("KTUNED_HOME", str(tmp_path))
    with decisions._lock, hooks._loading:
        child = os.fork()
        if not child:
            signal.alarm(20)
            with decisions._lock, hooks._loading:
                os._exit(0)
    assert os.waitpid(child, 0)[1] == 0


def test_start_from_the_graph_cache_knows_the_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The start that lowered the graph has noted what the user wrote."""
    monkeypatch.setenv("KTUNED_HOME", str(tmp_path))
    link = answer_with(None)
    assert decide_once(link).label == "graph mm 64x64x64 bf16"
    assert decide_once(link, "model.py", "48", "Head", "backward").label.endswith("bf16 backward")
    assert decide_once(link).label == "model.py:48 Head mm 64x64x64 bf16 backward"


def test_candidates_hold_the_default_the_list_and_neighbours() -> None:
    """The config that is launched comes first, the list follows; there are few enough."""
    default = {"XBLOCK": 8, "R0_BLOCK": 64, "num_warps": 4, "num_stages": 1}
    listed = [{**default, "XBLOCK": 1 << place} for place in range(12)] + [
        {"XBLOCK": 1, "num_warps": 4, "num_stages": 1}
    ]
    first = list_first(default, listed)
    found = list_candidates(first)
    assert first[0] == default
    assert len(first) == 12
    assert found[:12] == first
    assert {**default, "R0_BLOCK": 128} in found
    assert all(knobs.keys() == default.keys() for knobs in found)
    assert len(found) <= MAX_CANDIDATES


def test_plain_source_has_no_decorator() -> None:
    """What generated files do for Inductor is left out, but for the parameters' types; helpers stay."""
    source = (
        "triton_helpers.set_driver_to_gpu()\n\n@triton.jit\ndef _add(a, b):\n    return a + b\n\n"
        "@triton_heuristics.reduction(\n    size_hints={'x': 2},\n    triton_meta={'signature': {'x': 'i64', "
        "'y': 'constexpr'}, 'constants': {}, 'configs': [{}]},\n    inductor_meta={'a': (1)}\n)\n@triton.jit\n"
        "def triton_red_fused_3(x, y : tl.constexpr):\n    pass\n"
    )
    assert make_plain_source("triton_red_fused_3", source) == (
        "\n\n@triton.jit\ndef _add(a, b):\n    return a + b\n\n"
        "@triton.jit(do_not_specialize=['x'])\ndef triton_kernel(x: 'i64', y: 'constexpr'):\n    pass\n"
    )


PARAMETERS: dict[str, tuple[str, Any, bool]] = {
    "in_ptr0": ("*fp32", torch.zeros(64), True),
    "in_ptr1": ("*bf16", torch.zeros(64, dtype=torch.bfloat16), False),
    # Tensors of the host without dimensions, whose value is passed.
    "in_ptr2": ("i64", 1, False),
    "in_ptr3": ("fp64", 0.5, False),
    "in_ptr4": ("u1", True, False),
    "in_ptr5": ("constexpr", None, False),
    "ks0": ("i64", 1, False),
    "ks1": ("i64", 4096, False),
    "ks2": ("i64", 64, True),
    "xnumel": ("constexpr", 1, False),
    "r0_numel": ("i32", 4096, True),
}
"""The parameters of a generated kernel: their types, values of a launch, and whether all values are multiples of 16."""


@pytest.mark.filterwarnings("ignore:TRITON_DEFAULT_FP_FUSION")
def test_kernel_is_compiled_for_the_types_that_inductor_gives(tmp_path: Path) -> None:
    """Signature, constants and attributes are those that Inductor gives to Triton, whatever the values of a launch."""
    knobs = {"XBLOCK": 64, "num_warps": 4, "num_stages": 1}
    places = {name: (place,) for place, name in enumerate([*PARAMETERS, "XBLOCK"])}
    signature = {name: kind for name, (kind, _, _) in PARAMETERS.items()} | {"XBLOCK": "constexpr"}
    constants = {name: value for name, (kind, value, _) in PARAMETERS.items() if kind == "constexpr"}
    attributes = {places[name]: [["tt.divisibility", 16]] for name, (_, _, is_known) in PARAMETERS.items() if is_known}
    meta = {"signature": signature, "constants": constants, "configs": [attributes]}
    source = (
        "import triton\nimport triton.language as tl\n\n"
        f"@triton_heuristics.reduction(\n    triton_meta={meta!r},\n    inductor_meta={{}}\n)\n@triton.jit\n"
        f"def triton_red_fused_0({', '.join(PARAMETERS)}, XBLOCK : tl.constexpr):\n"
        "    xnumel = 1\n    tl.store(in_ptr0, (ks0).to(tl.float32) + (in_ptr2).to(tl.float32))\n"
    )
    file = tmp_path / "plain.py"
    file.write_text(make_plain_source("triton_red_fused_0", source))
    values = [value for _, value, _ in PARAMETERS.values()]
    call, _ = describe_launch(meta, {"grid_type": "Grid1D"}, [knobs], values)
    build = call.make_build(canonical(knobs), KERNEL)
    with _redirect_triton(90, tmp_path):
        function = find_function(KERNEL, build, file)
        arguments = make_call_arguments(function, build, file)
        found = run_front_end(function, arguments, grid=build.grid, **build.compiler_options).source
    assert found.signature == signature
    assert found.constants == {places[name]: value for name, value in {**constants, "XBLOCK": 64}.items()}
    # Triton 3.7 and later also lists parameters of which nothing is known.
    assert {place: known for place, known in found.attrs.items() if known} == attributes
