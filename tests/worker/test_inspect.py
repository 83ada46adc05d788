"""A job's walk through a space, and the digests that show that files are still as inspected."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from ktuned import Unsupported, space
from ktuned.backends.registry import Registry
from ktuned.declaration.loader import forget_modules
from ktuned.ipc import Places, replies, requests
from ktuned.ipc.manifest import digest_file
from ktuned.model.errors import KernelFileError, NotFound, UsageError
from ktuned.model.keys import Phase
from ktuned.model.plan import Plan
from ktuned.model.values import Config, Outcome
from ktuned.worker.explore import Exploration, Explorer
from ktuned.worker.inspect import COUNTED_SPACE, Inspector, check_digests, load_kernel
from ktuned.worker.observations import SourceChanged
from tests.worker.declaring import Build, declare_kernel
from tests.worker.reply_collector import ReplyCollector

IN_ORDER = Plan(strategy="exhaustive")
KERNEL_FILE = """\
from ktuned import kernel, space, tensor
from ktuned.backends import Build
from tests.worker.declaring import Build

@kernel(backend="fake", space=space(n=[1, 2, 3], where=lambda p, c: c.n <= p.M), inputs=lambda p: dict(x=tensor(1)),
        problems=[dict(M=2)], check=None)
def it(p, c):
    return Build(c.n)
"""


def collect_proposals(exploration: Exploration, n: int = 2) -> list[replies.Proposal]:
    """Ask for configs until the space is finished; return all proposals."""
    proposals: list[replies.Proposal] = []
    while True:
        answer = exploration.propose_configs(n)
        assert len(answer.proposals) <= n
        proposals += answer.proposals
        if answer.finished:
            return proposals


@pytest.mark.parametrize("n", [1, 2, 3, 100])
@pytest.mark.parametrize("strategy", ["exhaustive", "random"])
def test_every_config_comes_once_and_the_first_ones_first(strategy: str, n: int) -> None:
    """The job's first configs lead, even if one is repeated or outside the space; then each other config follows
    once.
    """
    first: list[dict[str, Any]] = [{"n": 3}, {"n": 9}, {"n": 2}, {"n": 3}]
    exploration = Exploration(declare_kernel(), {"M": 1}, Plan(strategy=strategy), first)
    configs = [proposal.config["n"] for proposal in collect_proposals(exploration, n)]
    assert configs[:2] == [3, 2]
    assert sorted(configs) == [1, 2, 3, 4]
    assert exploration.size == 4


def test_a_proposal_holds_the_build() -> None:
    """The Build is plain data, and there is no outcome yet."""
    (proposal, *_) = collect_proposals(Exploration(declare_kernel(), {"M": 1}, IN_ORDER, []))
    assert proposal == replies.Proposal({"n": 1}, {"n": 1})


def build_only_n_1(p: Any, c: Any) -> Build:
    """Return a Build for n = 1 only."""
    if c.n == 2:
        raise Unsupported("n=2 needs another device")
    if c.n == 3:
        raise ZeroDivisionError("n=3 divides")
    return Build(n=object() if c.n == 4 else c.n)  # type: ignore[arg-type]


def test_a_config_without_a_build_says_why() -> None:
    """A kernel function that refuses, raises or returns unsendable values ends that config only."""
    proposals = {
        proposal.config["n"]: proposal
        for proposal in collect_proposals(Exploration(declare_kernel(build_only_n_1), {}, IN_ORDER, []))
    }
    assert {n: proposal.outcome for n, proposal in proposals.items()} == {
        1: None,
        2: "unsupported",
        3: "compile_error",
        4: "compile_error",
    }
    assert proposals[2].message == "n=2 needs another device"
    assert "test_inspect.py" in proposals[3].message
    assert proposals[3].message.endswith("it: it(p, c): ZeroDivisionError: n=3 divides")
    assert proposals[4].message.endswith("TypeError: n is a value of the type object, not an int")
    assert all(proposal.build is None for proposal in proposals.values() if proposal.outcome)


@dataclass(frozen=True)
class TextBuild(Build):
    """A Build with a text."""

    word: str = ""


def test_text_that_cannot_be_sent_ends_its_config_alone() -> None:
    """A Build or a message with a lone surrogate would otherwise make the whole answer unsendable."""

    def build(p: Any, c: Any) -> TextBuild:
        if c.n == 2:
            raise Unsupported("\ud800")
        return TextBuild(n=c.n, word="\ud800" if c.n == 1 else "plain")

    proposals = collect_proposals(Exploration(declare_kernel(build), {}, IN_ORDER, []))
    found = {proposal.config["n"]: proposal for proposal in proposals}
    assert [found[n].outcome for n in (1, 2, 3)] == ["compile_error", "unsupported", None]
    assert found[1].message == r"the Build has text with a lone surrogate: \ud800"
    assert found[2].message == r"\ud800"


def test_outcomes_reach_the_strategy(monkeypatch: pytest.MonkeyPatch) -> None:
    exploration = Exploration(declare_kernel(), {}, IN_ORDER, [])
    calls: list[tuple[object, ...]] = []
    monkeypatch.setattr(exploration._strategy, "tell", lambda *values: calls.append(values))
    monkeypatch.setattr(exploration._strategy, "doubt", lambda *values: calls.append(values))
    exploration.tell_outcomes([requests.TriedConfig({"n": 1}, Outcome.MEASURED, 2.5, 0.1)])
    exploration.tell_outcomes([requests.TriedConfig({"n": 2}, Outcome.HUNG)])
    assert calls == [({"n": 1}, 0.1), ({"n": 1}, "measured", 2.5), ({"n": 2}, "hung", None)]


def test_a_constrained_space_is_counted_when_that_is_cheap() -> None:
    """The size is the number of valid configs of a small space, of candidates of a large one, or unknown."""
    small = space(n=range(100), where=lambda p, c: c.n < p.M)
    large = space(n=range(COUNTED_SPACE + 1), where=lambda p, c: c.n < 3)
    assert Exploration(declare_kernel(space=small), {"M": 7}, IN_ORDER, []).size == 7
    assert Exploration(declare_kernel(space=large), {"M": 7}, IN_ORDER, []).size == COUNTED_SPACE + 1
    assert Exploration(declare_kernel(space=space(lambda p: [dict(n=1)])), {"M": 7}, IN_ORDER, []).size is None


@pytest.fixture
def root(tmp_path: Path) -> Any:
    """A project with one kernel file; its modules are forgotten after the test."""
    root = tmp_path.resolve()
    (root / "tune_it.py").write_text(KERNEL_FILE)
    yield root
    forget_modules()


def make_kernel_ref(root: Path, name: str = "it") -> requests.KernelRef:
    """Return the kernel as requests name it, with the present digest of its file."""
    digests = {"tune_it.py": digest_file(root / "tune_it.py")}
    return requests.KernelRef("proj", "tune_it.py", name, "fake", (), digests)


def make_places(root: Path) -> Places:
    """Return the directories of a worker that knows this project only."""
    return Places({"proj": str(root)}, "", "")


def test_the_kernel_of_a_request_is_loaded(root: Path) -> None:
    assert load_kernel(make_kernel_ref(root), make_places(root)).name == "it"
    with pytest.raises(NotFound, match="declares no kernel 'other'"):
        load_kernel(make_kernel_ref(root, "other"), make_places(root))


def test_a_file_that_changed_since_is_refused(root: Path) -> None:
    """The request is outdated if a file changed, vanished, or appeared where none was."""
    file, header = root / "tune_it.py", root / "extra.h"
    inspected_ref = replace(make_kernel_ref(root), digests={"tune_it.py": digest_file(file), "extra.h": ""})
    check_digests(inspected_ref, make_places(root))
    header.write_text("now here")
    with pytest.raises(SourceChanged, match=r"extra\.h changed after it was inspected"):
        check_digests(inspected_ref, make_places(root))
    header.unlink()
    old_ref = make_kernel_ref(root)
    file.write_text(KERNEL_FILE + "\n# later\n")
    with pytest.raises(SourceChanged) as caught:
        load_kernel(old_ref, make_places(root))
    assert caught.value.code == "source_changed"
    file.unlink()
    with pytest.raises(SourceChanged):
        check_digests(inspected_ref, make_places(root))


def test_a_file_that_no_longer_loads_says_why(root: Path) -> None:
    """If the inspected bytes cannot be imported, the error is the file's own."""
    (root / "tune_it.py").write_text("import there_is_no_such_module\n")
    with pytest.raises(KernelFileError, match=r"tune_it\.py:1: ModuleNotFoundError"):
        load_kernel(make_kernel_ref(root), make_places(root))


def inspect_files(root: Path, *names: str) -> list[replies.InspectedFile]:
    """Inspect files as the daemon requests it and return an item for each."""
    reply = ReplyCollector()
    Inspector(Registry([]), make_places(root)).inspect_files(requests.Inspect("proj", names), reply)
    assert [item.file for item in reply.items] == list(names)
    assert reply.phases == [Phase.INSPECT]
    return reply.items


def test_each_file_is_an_item_of_its_own(root: Path) -> None:
    """A broken file hides no other, and every item says which bytes were read."""
    (root / "tune_bad.py").write_text("1 / 0\n")
    bad, good = inspect_files(root, "tune_bad.py", "tune_it.py")
    assert bad.kernels == ()
    assert bad.errors[0].message.endswith("tune_bad.py:1: ZeroDivisionError: division by zero")
    assert (bad.errors[0].line, Path(bad.errors[0].path).name) == (1, "tune_bad.py")
    assert bad.digests == {"tune_bad.py": digest_file(root / "tune_bad.py")}
    assert "there is no backend 'fake'" in good.errors[0].message


def test_an_empty_space_is_found_when_the_file_is_saved(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A space without a valid config for a declared problem is an error of the file, not of a job."""
    monkeypatch.setattr(Registry, "names", ["fake"])
    assert [(kernel.kernel, kernel.file) for kernel in inspect_files(root, "tune_it.py")[0].kernels] == [
        ("it", "tune_it.py")
    ]
    (root / "tune_it.py").write_text(KERNEL_FILE.replace("dict(M=2)", "dict(M=0)"))
    (item,) = inspect_files(root, "tune_it.py")
    assert item.kernels == ()
    assert "tune_it.py:5: it: " in item.errors[0].message


@pytest.mark.parametrize(
    "space",
    [
        "space(n=[1, 2, 3], where=lambda p, c: c.n <= p.M)",
        "space([dict(n=1), dict(n=3)], where=lambda p, c: c.n <= p.M)",
        "space(lambda p: (dict(n=n) for n in range(p.M)))",
    ],
)
def test_a_default_outside_the_space_is_an_error_of_the_file(
    root: Path, monkeypatch: pytest.MonkeyPatch, space: str
) -> None:
    """The default must be in the space of every declared problem; the error names the kernel's line."""
    declared = "space(n=[1, 2, 3], where=lambda p, c: c.n <= p.M)"
    text = KERNEL_FILE.replace(declared, space).replace("dict(M=2)]", "dict(M=9), dict(M=2)], default=dict(n=3)")
    (root / "tune_it.py").write_text(text)
    monkeypatch.setattr(Registry, "names", ["fake"])
    (item,) = inspect_files(root, "tune_it.py")
    assert item.kernels == ()
    (error,) = item.errors
    assert error.message.startswith(f"{root}/tune_it.py:5: it: ")
    assert error.message.endswith("the default n=3 is not in the space for the problem M=2")


@pytest.mark.parametrize(
    ("inputs", "is_refused"),
    [
        ("lambda p: dict(x=tensor(p.M), y=tensor(p.M, output=True))", True),
        ("lambda p: dict(x=tensor(p.M), z=tensor(p.M), y=tensor(p.M, output=True))", False),
        ("lambda p: dict(x=make(p), y=tensor(p.M, output=True))", False),
        ("lambda p: {name: tensor(p.M, output=name == 'y') for name in 'xy'}", False),
    ],
    ids=["a wrong name", "a right name", "makes a tensor", "names that are computed"],
)
def test_a_wrong_name_in_args_is_an_error_of_the_file(
    root: Path, monkeypatch: pytest.MonkeyPatch, inputs: str, is_refused: bool
) -> None:
    """Nothing is compiled for it. Inputs that may take long to make are left to the job."""
    (root / "tune_it.py").write_text(
        f"""
from dataclasses import dataclass
from ktuned import kernel, space, tensor
from ktuned.backends import Build as AnyBuild

@dataclass(frozen=True)
class Build(AnyBuild):
    backend = "fake"
    args: tuple = ()

def make(p):
    raise ValueError("it takes long")

@kernel(backend="fake", space=space(n=[1, 2]), problems=[dict(M=2)], inputs={inputs}, check=None)
def it(p, c):
    return Build(("x", "z", "y"))
"""
    )
    monkeypatch.setattr(Registry, "names", ["fake"])
    (item,) = inspect_files(root, "tune_it.py")
    messages = [error.message.partition("it: ")[2] for error in item.errors]
    wrong = "args names the tensor 'z', which inputs(p) does not make (there are: x, y)"
    assert messages == ([wrong] if is_refused else [])


def test_admitted_configs_are_those_in_the_space(root: Path) -> None:
    """The problem need not be the one for which the configs were tuned."""
    inspector = Inspector(Registry([]), make_places(root))
    configs: tuple[Config, ...] = ({"n": 1}, {"n": 2}, {"n": 3}, {"n": 4}, {"m": 1})
    answer = inspector.find_admitted_configs(
        requests.Admits(make_kernel_ref(root), {"M": 2}, configs), ReplyCollector()
    )
    assert answer.admitted == (True, True, False, False, False)


def test_ask_comes_after_explore(root: Path) -> None:
    """A space must be opened before it is walked; a reopened space starts over."""
    explorer, reply = Explorer(make_places(root)), ReplyCollector()
    with pytest.raises(UsageError, match="ask comes after explore"):
        explorer.propose_configs(requests.Ask(1), reply)
    for _ in range(2):
        request = requests.Explore(make_kernel_ref(root), {"M": 2}, IN_ORDER, ({"n": 2},))
        assert explorer.open_space(request, reply) == replies.Explored(2, "exhaustive", learns=False)
        answer = explorer.propose_configs(requests.Ask(9), reply)
        assert [proposal.config["n"] for proposal in answer.proposals] == [2, 1]
