"""A job's walk through a space, and the stamps that report that files are still what was inspected."""

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
from ktuned.worker.reply import Reply
from tests.worker.declaring import Build, declare

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


class KeptReply(Reply):
    """A reply that keeps its phases and items."""

    def __init__(self) -> None:
        self.phases: list[Phase] = []
        self.items: list[replies.InspectedFile] = []

    def begin_phase(self, phase: Phase) -> None:
        self.phases.append(phase)

    def send_item(self, value: replies.InspectedFile, *, hold_s: float = 0.0) -> None:
        self.items.append(value)


def walk(exploration: Exploration, n: int = 2) -> list[replies.Proposal]:
    """Ask until it is finished and return all proposals."""
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
    """What the job wants first leads, also when it is wanted twice or not admitted; then the rest, each once."""
    first: list[dict[str, Any]] = [{"n": 3}, {"n": 9}, {"n": 2}, {"n": 3}]
    exploration = Exploration(declare(), {"M": 1}, Plan(strategy=strategy), first)
    configs = [proposal.config["n"] for proposal in walk(exploration, n)]
    assert configs[:2] == [3, 2]
    assert sorted(configs) == [1, 2, 3, 4]
    assert exploration.size == 4


def test_a_proposal_holds_the_build() -> None:
    """A config that can be built comes with its Build as plain data, and no outcome."""
    (proposal, *_) = walk(Exploration(declare(), {"M": 1}, IN_ORDER, []))
    assert proposal == replies.Proposal({"n": 1}, {"n": 1})


def refuse(p: Any, c: Any) -> Build:
    """Build n = 1 alone."""
    if c.n == 2:
        raise Unsupported("n=2 needs another device")
    if c.n == 3:
        raise ZeroDivisionError("n=3 divides")
    return Build(n=object() if c.n == 4 else c.n)  # type: ignore[arg-type]


def test_a_config_without_a_build_says_why() -> None:
    """A kernel function that refuses, raises or returns what cannot travel ends that config and no other."""
    proposals = {proposal.config["n"]: proposal for proposal in walk(Exploration(declare(refuse), {}, IN_ORDER, []))}
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

    found = {proposal.config["n"]: proposal for proposal in walk(Exploration(declare(build), {}, IN_ORDER, []))}
    assert [found[n].outcome for n in (1, 2, 3)] == ["compile_error", "unsupported", None]
    assert found[1].message == r"the Build has text with a lone surrogate: \ud800"
    assert found[2].message == r"\ud800"


def test_outcomes_reach_the_strategy(monkeypatch: pytest.MonkeyPatch) -> None:
    """What became of a config is passed on as it is."""
    exploration = Exploration(declare(), {}, IN_ORDER, [])
    told: list[tuple[object, ...]] = []
    monkeypatch.setattr(exploration._strategy, "tell", lambda *values: told.append(values))
    monkeypatch.setattr(exploration._strategy, "doubt", lambda *values: told.append(values))
    exploration.tell_outcomes([requests.TriedConfig({"n": 1}, Outcome.MEASURED, 2.5, 0.1)])
    exploration.tell_outcomes([requests.TriedConfig({"n": 2}, Outcome.HUNG)])
    assert told == [({"n": 1}, 0.1), ({"n": 1}, "measured", 2.5), ({"n": 2}, "hung", None)]


def test_a_constrained_space_is_counted_when_that_is_cheap() -> None:
    """The size is the number of valid configs of a small space, of the candidates of a large one, else unknown."""
    small = space(n=range(100), where=lambda p, c: c.n < p.M)
    large = space(n=range(COUNTED_SPACE + 1), where=lambda p, c: c.n < 3)
    assert Exploration(declare(space=small), {"M": 7}, IN_ORDER, []).size == 7
    assert Exploration(declare(space=large), {"M": 7}, IN_ORDER, []).size == COUNTED_SPACE + 1
    assert Exploration(declare(space=space(lambda p: [dict(n=1)])), {"M": 7}, IN_ORDER, []).size is None


def test_a_huge_space_starts_at_once() -> None:
    """A billion configs are neither walked nor held: the first ones come, and only those."""
    huge = space(n=range(1000), b=range(1000), c=range(1000))
    exploration = Exploration(declare(space=huge), {}, Plan(), [])
    assert exploration.size == 10**9
    assert len({proposal.config["n"] for proposal in exploration.propose_configs(50).proposals}) > 25


@pytest.fixture
def root(tmp_path: Path) -> Any:
    """A project with one kernel file, forgotten afterwards."""
    root = tmp_path.resolve()
    (root / "tune_it.py").write_text(KERNEL_FILE)
    yield root
    forget_modules()


def kernel_ref(root: Path, name: str = "it") -> requests.KernelRef:
    """Return the kernel as requests name it, with its file's digest of now."""
    digests = {"tune_it.py": digest_file(root / "tune_it.py")}
    return requests.KernelRef("proj", "tune_it.py", name, "fake", (), digests)


def places(root: Path) -> Places:
    """Return the places of a worker that has the project alone."""
    return Places({"proj": str(root)}, "", "")


def test_the_kernel_of_a_request_is_loaded(root: Path) -> None:
    """It is the one that the request names, from the file's bytes of now."""
    assert load_kernel(kernel_ref(root), places(root)).name == "it"
    with pytest.raises(NotFound, match="declares no kernel 'other'"):
        load_kernel(kernel_ref(root, "other"), places(root))


def test_a_file_that_changed_since_is_refused(root: Path) -> None:
    """New bytes, a lost file, or one that appeared where a missing one was inspected: the request is out of date."""
    file, extra = root / "tune_it.py", root / "extra.h"
    inspected = replace(kernel_ref(root), digests={"tune_it.py": digest_file(file), "extra.h": ""})
    check_digests(inspected, places(root))
    extra.write_text("now here")
    with pytest.raises(SourceChanged, match=r"extra\.h changed after it was inspected"):
        check_digests(inspected, places(root))
    extra.unlink()
    old = kernel_ref(root)
    file.write_text(KERNEL_FILE + "\n# later\n")
    with pytest.raises(SourceChanged) as caught:
        load_kernel(old, places(root))
    assert caught.value.code == "source_changed"
    file.unlink()
    with pytest.raises(SourceChanged):
        check_digests(inspected, places(root))


def test_a_file_that_no_longer_loads_says_why(root: Path) -> None:
    """When the inspected bytes themselves cannot be imported the error is the file's own."""
    (root / "tune_it.py").write_text("import there_is_no_such_module\n")
    with pytest.raises(KernelFileError, match=r"tune_it\.py:1: ModuleNotFoundError"):
        load_kernel(kernel_ref(root), places(root))


def inspected(root: Path, *names: str) -> list[replies.InspectedFile]:
    """Inspect files as the daemon requests it and return an item for each."""
    reply = KeptReply()
    Inspector(Registry([]), places(root)).inspect_files(requests.Inspect("proj", names), reply)
    assert [item.file for item in reply.items] == list(names)
    assert reply.phases == [Phase.INSPECT]
    return reply.items


def test_each_file_is_an_item_of_its_own(root: Path) -> None:
    """A broken file hides no other, and every file says which bytes it was read from."""
    (root / "tune_bad.py").write_text("1 / 0\n")
    bad, good = inspected(root, "tune_bad.py", "tune_it.py")
    assert bad.kernels == ()
    assert bad.errors[0].message.endswith("tune_bad.py:1: ZeroDivisionError: division by zero")
    assert (bad.errors[0].line, Path(bad.errors[0].path).name) == (1, "tune_bad.py")
    assert bad.digests == {"tune_bad.py": digest_file(root / "tune_bad.py")}
    assert "there is no backend 'fake'" in good.errors[0].message


def test_an_empty_space_is_found_when_the_file_is_saved(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A space with no valid config for a declared problem is the file's error, not a job's."""
    monkeypatch.setattr(Registry, "names", ["fake"])
    assert [(kernel.kernel, kernel.file) for kernel in inspected(root, "tune_it.py")[0].kernels] == [
        ("it", "tune_it.py")
    ]
    (root / "tune_it.py").write_text(KERNEL_FILE.replace("dict(M=2)", "dict(M=0)"))
    (item,) = inspected(root, "tune_it.py")
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
    """A default that is not in the space of every declared problem is found at the save, at the kernel's line."""
    declared = "space(n=[1, 2, 3], where=lambda p, c: c.n <= p.M)"
    text = KERNEL_FILE.replace(declared, space).replace("dict(M=2)]", "dict(M=9), dict(M=2)], default=dict(n=3)")
    (root / "tune_it.py").write_text(text)
    monkeypatch.setattr(Registry, "names", ["fake"])
    (item,) = inspected(root, "tune_it.py")
    assert item.kernels == ()
    (error,) = item.errors
    assert error.message.startswith(f"{root}/tune_it.py:5: it: ")
    assert error.message.endswith('the default {"n":3} is not in the space for the problem {"M":2}')


def test_admitted_configs_are_those_in_the_space(root: Path) -> None:
    """``admits`` judges configs for another problem than the one they were tuned for."""
    inspector = Inspector(Registry([]), places(root))
    configs: tuple[Config, ...] = ({"n": 1}, {"n": 2}, {"n": 3}, {"n": 4}, {"m": 1})
    answer = inspector.find_admitted_configs(requests.Admits(kernel_ref(root), {"M": 2}, configs), KeptReply())
    assert answer.admitted == (True, True, False, False, False)


def test_ask_comes_after_explore(root: Path) -> None:
    """A space must be opened before it is walked; opened again, it begins again."""
    explorer, reply = Explorer(places(root)), KeptReply()
    with pytest.raises(UsageError, match="ask comes after explore"):
        explorer.propose_configs(requests.Ask(1), reply)
    for _ in range(2):
        wanted = requests.Explore(kernel_ref(root), {"M": 2}, IN_ORDER, ({"n": 2},))
        assert explorer.open_space(wanted, reply) == replies.Explored(2, "exhaustive", learns=False)
        answer = explorer.propose_configs(requests.Ask(9), reply)
        assert [proposal.config["n"] for proposal in answer.proposals] == [2, 1]
