"""Files and variables that a kernel file's code reads, apart from its modules: workers report each in the phase that
shows it.
"""

from __future__ import annotations

import hashlib
import os
import platform
import py_compile
import re
import subprocess
import zipfile
from collections.abc import Iterable
from py_compile import PycInvalidationMode
from typing import Any

import anyio
import pytest

from ktuned.fleet.process import StartProcess, WorkerProcess
from ktuned.ipc import LISTING, replies, requests
from ktuned.model.device import Device
from ktuned.model.kernel import KernelInfo
from ktuned.model.keys import DeviceModel, DeviceName, Target
from ktuned.model.plan import Plan
from ktuned.model.trace import Observation
from tests.fleet.conftest import StartWorker
from tests.fleet.playground import DEADLINE_S, DEADLINES, PROJECT, Playground

pytestmark = pytest.mark.anyio

_MODULE_NAME = re.compile(r"(^|/)[^./]*(\.py|\.pyc|\.[-\w.]*so)?$")
"""A name under which an import looks for a module."""

CPU = Device(DeviceName("cpu:0"), DeviceModel("a CPU"), Target("native"), {})

KERNEL = """
import ctypes, glob, json, os, pathlib, subprocess
from ktuned import kernel, space, tensor
from ktuned_fake import Build

HERE = pathlib.Path(__file__).parent
{before}

def rows(p):
    {inputs}
    return 4

def configs(p):
    {space}
    return [dict(tag="x")]

@kernel(backend="fake", space=space(configs), problems=[dict(n=1)], check=None, depends={depends},
        inputs=lambda p: dict(x=tensor(rows(p))))
def it(p, c):
    return Build(tag=c.tag)
"""


class ObservedProject:
    """A kernel file, its data and a worker that inspects it."""

    def __init__(self, playground: Playground, worker: WorkerProcess) -> None:
        self.root = playground.root
        self._worker = worker
        (self.root / "data").mkdir()
        self.write_file("data/one.bin", "1")
        self._always: set[str] = set()

    async def warm_up(self, *, opens: bool = False) -> None:
        """Let the worker load everything that all kernel files here load: libraries read variables once per process."""
        for _ in range(2):
            kernel = await self.inspect_kernel()
            self._always |= kernel.learned.keys()
        if opens:
            self._always |= {entry.name for entry in (await self.open_problem(kernel)).observed}

    def select_new(self, learned: Iterable[Observation]) -> dict[str, Observation]:
        """Return what was learned beyond what every kernel file here depends on: modules that could shadow others."""
        return {
            entry.name: entry
            for entry in learned
            if entry.name not in self._always
            and (entry.digest or entry.name.startswith("env:") or not _MODULE_NAME.search(entry.name))
        }

    def write_file(self, name: str, text: str) -> str:
        """Write a file and return the digest of its bytes."""
        (self.root / name).write_text(text)
        return hashlib.sha256(text.encode()).hexdigest()

    async def inspect_kernel(
        self,
        before: str = "",
        *,
        inputs: str = "pass",
        space: str = "pass",
        depends: str = "()",
        learned: tuple[Observation, ...] = (),
    ) -> KernelInfo:
        """Write the kernel file and return its kernel."""
        self.write_file("tune_it.py", KERNEL.format(before=before, inputs=inputs, space=space, depends=depends))
        items: list[replies.InspectedFile] = []
        request = requests.Inspect(PROJECT, ("tune_it.py",), {"it": learned})
        await self._worker.send_request(request, DEADLINES, on_item=items.append)
        assert items[0].errors == ()
        return items[0].kernels[0]

    async def send_request(self, request: requests.Request[Any, Any]) -> Any:
        """Return the worker's reply."""
        reply, _ = await self._worker.send_request(request, {**DEADLINES, "reference": DEADLINE_S})
        return reply

    def make_ref(self, kernel: KernelInfo) -> requests.KernelRef:
        """Return the reference of a kernel for a request."""
        return requests.KernelRef(PROJECT, "tune_it.py", "it", "fake", (), kernel.stamps, version=kernel.version)

    async def open_problem(self, kernel: KernelInfo) -> replies.Opened:
        """Let the worker make a problem's data."""
        reply: replies.Opened = await self.send_request(
            requests.Open(self.make_ref(kernel), {"n": 1}, Target("native"), CPU, "expected")
        )
        return reply


@pytest.fixture
def start_process() -> StartProcess:
    """Start workers as a daemon does: no loader preloads the observer into a forked worker."""
    return subprocess.Popen


@pytest.fixture
async def project(playground: Playground, start_worker: StartWorker) -> ObservedProject:
    """A project with one data file, and a worker that has loaded what its kernel files import."""
    project = ObservedProject(playground, await start_worker(FAST="1"))
    await project.warm_up()
    return project


async def test_data_that_an_import_reads_is_part_of_the_kernel(project: ObservedProject) -> None:
    """A file that is read during the import counts for digest, artifacts and data, and it is watched."""
    code = "ROWS = json.loads((HERE / 'data/one.bin').read_text())"
    before = await project.inspect_kernel(code)
    assert before.learned["data/one.bin"].digest == project.write_file("data/one.bin", "1")
    assert "data/one.bin" in before.stamps
    project.write_file("data/one.bin", "2")
    after = await project.inspect_kernel(code)
    assert after.digest != before.digest
    assert after.source_digest != before.source_digest
    assert after.data_read == before.data_read == {}


async def test_files_that_the_code_does_not_read_are_no_input(project: ObservedProject) -> None:
    """Files of the system and of packages, and files that the code itself writes, are no data."""
    code = "open('/proc/version').close(); open(HERE / 'new.txt', 'w').close(); open(HERE / 'new.txt').close()\n"
    code += "import email.mime.text, msgspec; open(os.devnull).close()"
    kernel = await project.inspect_kernel(code)
    assert project.select_new(kernel.learned.values()) == {}
    assert kernel.unobserved == ""


async def test_a_plugins_source_is_no_data(project: ObservedProject) -> None:
    """A library that shows a line of a plugin reads it once in a worker's life, so the digest would vary."""
    digests = set()
    for _ in range(2):
        kernel = await project.inspect_kernel(
            "import linecache, ktuned_command; linecache.getlines(ktuned_command.__file__)"
        )
        assert project.select_new(kernel.learned.values()) == {}
        digests.add(kernel.digest)
    assert len(digests) == 1


async def test_a_missing_file_that_was_looked_for_counts_as_absent(project: ObservedProject) -> None:
    """Code may fall back if a file is missing, so its appearance is a change."""
    code = "try:\n    open(HERE / 'data/two.bin')\nexcept OSError:\n    pass"
    before = await project.inspect_kernel(code)
    assert before.learned["data/two.bin"].digest == ""
    project.write_file("data/two.bin", "2")
    assert (await project.inspect_kernel(code)).digest != before.digest


@pytest.mark.parametrize(
    "asking",
    [
        "(HERE / 'data/two.bin').exists()",
        "os.path.isfile(HERE / 'data/two.bin')",
        "os.path.exists(str(HERE / 'data/two.bin'))",
        "next((one for one in ['two', 'one'] if (HERE / f'data/{one}.bin').is_file()), None)",
    ],
)
async def test_a_file_that_code_asks_for_and_that_is_missing_counts_as_absent(
    project: ObservedProject, asking: str
) -> None:
    """Its appearance decides what the code does next, although nothing was opened."""
    before = await project.inspect_kernel(asking)
    assert before.learned["data/two.bin"].digest == ""
    project.write_file("data/two.bin", "2")
    assert (await project.inspect_kernel(asking)).digest != before.digest


async def test_a_missing_file_that_the_code_makes_itself_is_no_input(project: ObservedProject) -> None:
    """An example is a cache that is filled on demand."""
    code = "CACHE = HERE / 'kept.txt'\nif not CACHE.exists():\n    CACHE.write_text('1')"
    kernel = await project.inspect_kernel(code)
    assert "kept.txt" not in kernel.learned


async def test_a_listed_directory_counts_by_its_names(project: ObservedProject) -> None:
    """A new file in a directory that the code lists is a change, a hidden one too, and so is another kind of file."""
    code = "FILES = sorted(glob.glob(str(HERE / 'data/*.bin')))"
    before = await project.inspect_kernel(code)
    assert before.stamps["data"].startswith(LISTING)
    digests = {before.digest}
    for name in ("data/.one.bin.swp", "data/two.bin~", "data/two.bin"):
        project.write_file(name, "")
        digests.add((await project.inspect_kernel(code)).digest)
    (project.root / "data/two.bin").unlink()
    (project.root / "data/two.bin").symlink_to("one.bin")
    digests.add((await project.inspect_kernel(code)).digest)
    assert len(digests) == 5


async def test_data_that_inputs_read_is_reported_when_a_problem_is_opened(project: ObservedProject) -> None:
    """It is reported once, as data; what has changed since is an error."""
    pytest.importorskip("torch")
    await project.warm_up(opens=True)
    digest = project.write_file("late.py", "ROWS = 3\n")
    code = "open(HERE / 'data/one.bin').close(); __import__('la' + 'te')"
    kernel = await project.inspect_kernel(inputs=code)
    assert project.select_new(kernel.learned.values()) == {}
    observed = (await project.open_problem(kernel)).observed
    new = project.select_new(observed)
    assert new.keys() == {"data/one.bin", "late.py"}
    assert all(entry.is_data and not entry.is_source for entry in new.values())
    assert new["late.py"].digest == digest
    assert project.select_new((await project.open_problem(kernel.with_observed(observed))).observed) == {}


async def test_data_that_a_space_reads_is_reported_by_its_exploration(project: ObservedProject) -> None:
    """It does not affect artifacts."""
    kernel = await project.inspect_kernel("READS = []", space="open(HERE / 'data/one.bin').close()")
    assert kernel.learned["data/one.bin"].digest


async def test_a_variable_that_is_read_counts_by_its_value(project: ObservedProject) -> None:
    """The value is the worker's, whether it is read as text or as bytes."""
    kernel = await project.inspect_kernel("F = os.environ.get('FAST'), os.getenv('SLOW'); G = os.getenvb(b'FAST')")
    entries = {name: entry.digest for name, entry in project.select_new(kernel.learned.values()).items()}
    assert entries == {"env:FAST": hashlib.sha256(b"1").hexdigest(), "env:SLOW": ""}


@pytest.mark.parametrize(
    "asking",
    [
        "(HERE / 'data/one.bin').exists()",
        "os.path.getsize(HERE / 'data/one.bin')",
        "os.access(HERE / 'data/one.bin', os.R_OK)",
        "os.path.lexists(HERE / 'data/one.bin')",
    ],
)
async def test_a_file_that_is_looked_at_and_not_opened_counts(project: ObservedProject, asking: str) -> None:
    """Its presence and size decide what the code does, so its removal counts, too."""
    before = await project.inspect_kernel(f"F = {asking}")
    assert before.learned["data/one.bin"].digest == hashlib.sha256(b"1").hexdigest()
    assert before.unobserved == ""


async def test_a_file_that_is_opened_for_both_was_read(project: ObservedProject) -> None:
    """So is a file that the code makes, because another process may have made it first."""
    kernel = await project.inspect_kernel(
        "F = open(HERE / 'data/one.bin', 'a+'); G = open(HERE / 'data/new.bin', 'a+')"
    )
    assert project.select_new(kernel.learned.values()).keys() == {"data/one.bin", "data/new.bin"}


async def test_a_file_that_is_looked_at_and_then_written_is_no_input(project: ObservedProject) -> None:
    """Its earlier content is gone."""
    kernel = await project.inspect_kernel("P = HERE / 'data/one.bin'\nif P.exists(): P.write_text('2')")
    assert project.select_new(kernel.learned.values()) == {}


async def test_the_way_to_the_project_is_no_input_and_a_link_in_it_is(project: ObservedProject) -> None:
    """Code that finds its own directory asks for every parent; where a link leads decides what it finds."""
    (project.root / "link").symlink_to(project.root / "data")
    code = "D = pathlib.Path(__file__).resolve(), (HERE / 'link').resolve()"
    kernel = await project.inspect_kernel(code)
    assert (project.select_new(kernel.learned.values()).keys(), kernel.unobserved) == ({"data/", "link/"}, "")
    (project.root / "other").mkdir()
    (project.root / "link").unlink()
    (project.root / "link").symlink_to(project.root / "other")
    assert (await project.inspect_kernel(code)).learned["link/"].digest != kernel.learned["link/"].digest


async def test_a_variable_that_the_standard_library_reads_for_the_project_counts(project: ObservedProject) -> None:
    """Variables by which it finds files count, too, because their other uses are unknown."""
    code = "os.path.expandvars('$FAST'), os.path.expanduser('~'), shutil.which('no such program')"
    kernel = await project.inspect_kernel(f"import shutil; F = {code}")
    assert [name for name in project.select_new(kernel.learned.values()) if name.startswith("env:")] == [
        "env:FAST",
        "env:HOME",
        "env:PATH",
    ]


@pytest.mark.parametrize("kind", ["an archive", "bytecode"])
async def test_a_module_without_a_source_of_its_own_counts(project: ObservedProject, kind: str) -> None:
    """A module in an archive counts by the archive, a compiled module by its bytes."""

    def write(value: int) -> None:
        (project.root / "sent.py").write_text(f"V = {value}")
        if kind == "bytecode":
            compiled = project.root / "sent.pyc"
            py_compile.compile(
                str(project.root / "sent.py"), str(compiled), invalidation_mode=PycInvalidationMode.UNCHECKED_HASH
            )
        else:
            with zipfile.ZipFile(project.root / "lib.zip", "w") as archive:
                archive.write(project.root / "sent.py", "sent.py")
        (project.root / "sent.py").unlink()

    write(1)
    code = "import sys; sys.path.insert(0, str(HERE / 'lib.zip')); import sent\nF = sent.V"
    before = await project.inspect_kernel(code)
    write(2)
    after = await project.inspect_kernel(code)
    assert before.digest != after.digest or before.learned != after.learned
    assert "sent.pyc" in str(before.stamps) or before.learned["lib.zip"].digest != after.learned["lib.zip"].digest


async def test_what_the_project_reads_of_installed_packages_counts(project: ObservedProject) -> None:
    """A version that the code reads matters, although the package is not imported."""
    kernel = await project.inspect_kernel("from importlib import metadata; V = metadata.version('msgpack')")
    assert kernel.learned["dist:msgpack"].digest


@pytest.mark.parametrize(
    "walking",
    ["dict(os.environ)['FAST']", "{**os.environ}", "os.environ.copy()", "[*os.environ.items()]", "dict(os.environb)"],
)
async def test_a_copy_of_all_variables_counts_each_of_them(project: ObservedProject, walking: str) -> None:
    """The copy is a plain dict whose use cannot be observed."""
    kernel = await project.inspect_kernel(f"F = {walking}")
    assert kernel.learned["env:*"].digest


async def test_a_variable_that_the_file_sets_counts_as_it_was(project: ObservedProject) -> None:
    """The code's own value is in its text; the entry has the environment's value."""
    kernel = await project.inspect_kernel("os.environ['FAST'] = '2'; F = os.environ['FAST']")
    assert kernel.learned["env:FAST"].digest == hashlib.sha256(b"1").hexdigest()


@pytest.mark.parametrize("code", ["import platform; platform.processor()", "ctypes.CDLL(None)", "import uuid"])
async def test_questions_to_the_system_leave_code_fully_observed(project: ObservedProject, code: str) -> None:
    """The standard library's own accesses and already loaded libraries hide nothing."""
    assert (await project.inspect_kernel(code)).unobserved == ""


READS_RAW = """
#include <sys/syscall.h>
long look(const char *name) {
    long result;
    __asm__ volatile("syscall" : "=a"(result) : "a"(SYS_openat), "D"(-100), "S"(name), "d"(0) : "rcx", "r11", "memory");
    return result;
}
int main(int count, char **names) { return count > 1 && look(names[1]) < 0; }
"""

READS_BY_LIBC = """
#include <fcntl.h>
int look(const char *name) { return open(name, 0); }
int main(int count, char **names) { return count > 1 && look(names[1]) < 0; }
"""


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the system call is written for x86-64")
@pytest.mark.parametrize(
    ("flags", "code", "reason"),
    [
        (["-fPIC", "-shared"], "ctypes.CDLL(HERE / 'raw').look(b'data/one.bin')", "raw reads files past libc"),
        ([], "subprocess.run([HERE / 'raw', 'data/one.bin'])", "raw reads files past libc"),
        (["-static"], "subprocess.run([HERE / 'raw', 'data/one.bin'])", "raw is linked statically"),
    ],
    ids=["a library that asks the kernel", "a program that asks the kernel", "a program without a loader"],
)
async def test_code_that_reads_past_libc_is_not_fully_observed(
    project: ObservedProject, flags: list[str], code: str, reason: str
) -> None:
    """The observer cannot see such reads and says so; the same code with libc calls is fully observed."""
    await build_raw(project, READS_RAW, flags)
    assert (await project.inspect_kernel(code)).unobserved.startswith(reason)
    await build_raw(project, READS_BY_LIBC, [flag for flag in flags if flag != "-static"])
    assert (await project.inspect_kernel(f"{code}  # through libc")).unobserved == ""


async def build_raw(project: ObservedProject, source: str, flags: list[str]) -> None:
    """Compile a C source to the file ``raw``."""
    project.write_file("raw.c", source)
    await anyio.run_process(["gcc", *flags, "-O1", "-o", str(project.root / "raw"), str(project.root / "raw.c")])


ASSEMBLED = """
import mmap
made = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
made.write(bytes.fromhex("4889f8 4889f7 4889d6 4889ca 0f05 c3"))
call = ctypes.CFUNCTYPE(ctypes.c_long, *[ctypes.c_long] * 4)(ctypes.addressof(ctypes.c_char.from_buffer(made)))
name = ctypes.create_string_buffer(bytes(HERE / "data/one.bin"))
descriptor = call({open}, ctypes.addressof(name), 0, 0)
assert os.read(descriptor, 1) == b"1"
"""
"""Code that writes a function which makes a system call, and opens a file by it."""


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the system call is written for x86-64")
async def test_system_calls_that_code_assembles_are_never_seen(project: ObservedProject) -> None:
    kernel = await project.inspect_kernel(ASSEMBLED.format(open=2))
    assert (kernel.learned.get("data/one.bin"), kernel.unobserved) == (None, "")


async def test_times_that_only_a_child_asks_for_are_never_seen(project: ObservedProject) -> None:
    code = "A = subprocess.run(['/usr/bin/stat', '-c', '%Y', HERE / 'data/one.bin'], capture_output=True).stdout"
    before = await project.inspect_kernel(code)
    os.utime(project.root / "data/one.bin", (1, 1))
    assert (await project.inspect_kernel(code)).digest == before.digest


async def test_declared_files_count(project: ObservedProject) -> None:
    """Files that match ``depends=`` count by content, new and removed ones included; other files do not."""
    digests = {(await project.inspect_kernel(depends="['data/*.bin', 'more.txt']")).digest}
    for name, text in (("data/one.bin", "2"), ("data/two.bin", ""), ("more.txt", "")):
        project.write_file(name, text)
        kernel = await project.inspect_kernel(depends="['data/*.bin', 'more.txt']")
        assert kernel.digest not in digests
        digests.add(kernel.digest)
    project.write_file("data/three.txt", "")
    assert (await project.inspect_kernel(depends="['data/*.bin', 'more.txt']")).digest in digests
    assert {"data/one.bin", "data", "more.txt"} <= kernel.stamps.keys()


async def test_an_exploration_of_held_code_reports_nothing_known(project: ObservedProject) -> None:
    """The request's kernel already names everything that is read."""
    kernel = await project.inspect_kernel("json.loads((HERE / 'data/one.bin').read_text())")
    explored = await project.send_request(requests.Explore(project.make_ref(kernel), {"n": 1}, Plan()))
    assert project.select_new(explored.observed) == {}


async def test_a_variable_that_the_code_sets_is_the_same_in_all_phases(project: ObservedProject) -> None:
    """An import sets the variable and the inputs read it, which contradicts no inspection."""
    setting_code, code = "os.environ['WIDTH'] = '1'", "os.environ['WIDTH']"
    observed = await project.open_problem(await project.inspect_kernel(setting_code, inputs=code))
    entry = {entry.name: entry for entry in observed.observed}["env:WIDTH"]
    assert entry.digest == ""
    second = await project.inspect_kernel(setting_code, inputs=code, learned=(entry,))
    assert second.learned["env:WIDTH"].digest == entry.digest
    assert second.find_contradiction(observed.observed) is None
