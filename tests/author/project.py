"""The scripted author's project: its files as text, and the ways in which they are edited and saved.

The mix of edits is fixed. Each kind is drawn as often as its weight says:

| kind | weight | what it changes |
| --- | --- | --- |
| source, header, common header | 2, 2, 1 | a number in C that decides the bytes of some kernels |
| include by macro, forced include | 2, 2 | a header that only `#include HEADER` names; one that `-include` names |
| shadowing header | 2 | a header of the same name comes, changes or goes in a directory that is searched first |
| scale, space, constraint | 2, 2, 1 | a kernel's Build and reference; its axis; what `where` forbids |
| helper, star import, registry, class attribute, beside the root, late import | 2 each | Python that sizes the inputs |
| module setting, wrapper | 2, 1 | a variable that a module sets when it is imported; a decorator around a function |
| site header | 1 | a header that only `CPATH` leads to |
| wrong later, outside | 1, 1 | one config's launches after its first; whether it writes beside its output |
| data file | 2 | what the inputs' function reads |
| environment | 1 | a variable in the root's settings, which is part of every kernel |
| compiler | 1 | the compiler itself: all is compiled otherwise |
| native read, loaded library | 2, 2 | what a library's own `fopen` reads; which of two libraries the loader finds |
| shadowing package | 2 | a package of the same name that comes before a module, changes or goes |
| listed directory, dict order | 2, 1 | a name in a directory that is listed; the order of a dict's entries |
| line number, text of a macro | 1, 1 | a line above `__LINE__`; blanks inside what `#x` makes a string of |
| hidden name, editor's copy, hidden directory | 1 each | names that tools like to skip |
| appended file | 1 | what code reads that it also appends to |
| dangling link, behind a link | 1 each | a link's target; a file behind a link of the code's own |
| mode bits, modification time, entry's kind | 1 each | what ``stat`` and ``scandir`` show |
| standard name | 1 | a module of a name that the standard library has |
| customized start | 1 | what the interpreter runs first |
| late launch | 2 | what a kernel's third launch reads |
| read in vain, listed in vain | 2, 1 | a file and a directory that code reads and does not use |
| unused macro, unreached helper, unreached star, comment, docstring, format, nothing | 1 each | nothing that decides |
| checkout | 2 | everything, back to an earlier state |
| broken | 1 | a source that does not compile, which the next edit mends |
| all at once | 1 | every file, by a new line at its end |

One edit in :data:`DOWN_EVERY`, on average, is made while no daemon runs; it is stopped before, or killed, and of two
such edits one starts the next daemon with another ``CPATH``. One in :data:`HASTY_EVERY` is several in quick
succession, before the daemon has taken in the first.
"""

from __future__ import annotations

import os
import random
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

KERNEL = """
@kernel(
    backend="cc",
    sources=["{source}"],
    space=space(step={steps}, where="step != 0"),
    problems=[dict(n=256)],
    inputs=lambda p: dict(x=tensor((p.n * {rows}(),)), y=tensor((p.n * {rows}(),), output=True)),
    reference=lambda x: dict(y={scale} * x),
    rtol=1e-3, preset="fast",
)
def {name}(p, c):
    return Build(dict(STEP=c.step, SCALE={scale}), flags={flags})
"""

DOWN_EVERY = 40
"""Edits for each that is made while the daemon is down: its start costs the time of some others."""

HASTY_EVERY = 20

FILES = {
    "tune_a.py": [("a1", "a.c"), ("a2", "b.c")],
    "tune_b.py": [("b1", "b.c"), ("b2", "c.c")],
    "tune_c.py": [("c1", "c.c")],
    "tune_d.py": [("d1", "a.c")],
    "tune_e.py": [("e1", "a.c")],
    "tune_f.py": [("f1", "f.c")],
}
"""The kernels of each kernel file, with their sources: ``e1`` reaches all kinds of Python, ``f1`` of includes."""

IMPORTS = """\
from ktuned import kernel, space, tensor
from ktuned_cc import Build
"""

SHAPED = IMPORTS + "from shape import rows\n"

REACHING = (
    IMPORTS
    + '''\
import importlib
import json
import os
from pathlib import Path

import beside
import entries
import native
import settings
import shadowed
import tweaks
import skipped
from plates import Plate
from registry import TABLE
from stars import *
from wrapped import wide_rows


ORDER = {"one": 1, "two": 2}


def first_of(order):
    return next(iter(order.values()))


def rows():
    """Return how many there are."""
    data = json.loads((Path(__file__).parent / "data.json").read_text())
    parts = star_rows(), TABLE["rows"](), Plate.PAD, beside.rows(), data["rows"], int(os.environ.get("ROWS", "1"))
    parts += int(os.environ["WIDTH"]), wide_rows(), shadowed.rows(), native.rows(), first_of(ORDER)
    parts += (skipped.rows(),)
    parts += (len(os.listdir(Path(__file__).parent / "listed")),)
    assert os.listdir(Path(__file__).parent / "vain") and (Path(__file__).parent / "vain.txt").read_text()
    return sum(parts) + importlib.import_module("late" + "comer").rows()
'''
)

SKIPPED = """\
import builtins
import os
import pathlib
import tempfile

try:
    from tabnanny import ROWS
except ImportError:
    ROWS = 0

HERE = pathlib.Path(__file__).parent


def behind_link():
    with tempfile.TemporaryDirectory() as place:
        link = pathlib.Path(place, "link")
        link.symlink_to(HERE / "behind.txt")
        return int(link.read_text())


def rows():
    with open(HERE / "journal.txt", "a"):
        pass
    parts = int((HERE / "journal.txt").read_text()), int((HERE / ".github/rows.txt").read_text()), behind_link(), ROWS
    parts += os.path.exists(HERE / "dangling"), bool(os.stat(HERE / "mode").st_mode & 0o100)
    parts += int(os.path.getmtime(HERE / "aged")) % 5, sum(entry.is_file() for entry in os.scandir(HERE / "kinds"))
    return sum(parts) + getattr(builtins, "AUTHORS_ROWS", 0)
"""

NATIVE = """\
import ctypes
import os
import pathlib

HERE = pathlib.Path(__file__).parent
READER = ctypes.CDLL(os.environ["AUTHOR_NATIVE"])


def rows():
    return READER.rows(str(HERE / "native.txt").encode())
"""

READER = """\
#include <stdio.h>

int chosen(void);

int rows(const char* name) {
  FILE* file = fopen(name, "r");
  int found = file ? fgetc(file) - '0' : 0;
  if (file) fclose(file);
  return found + chosen();
}
"""
"""A library that reads a file by itself, and calls what the loader finds in :data:`CHOICES`."""

CHOICES = "first_libs", "libs"
"""Directories in which the loader looks for ``libchosen.so``, in their order: the first has none in the beginning."""

WRAPPING = """\
import functools


def widened(function):
    @functools.wraps(function)
    def wider():
        return function() + 1

    return wider
"""

LATE = "late.txt"
"""What the third launch of ``f1`` reads: no byte of the artifact depends on it."""

PYTHON: dict[str, str | None] = {
    "shape.py": "def rows():\n    return 1\n\n\ndef nobodys():\n    return 1\n",
    "stars.py": 'def star_rows():\n    """Return some."""\n    return 1\n\n\ndef unreached_star():\n    return 1\n',
    "registry.py": "TABLE = {}\n\n\ndef register(name):\n    return lambda entry: TABLE.setdefault(name, entry)\n",
    "entries.py": 'from registry import register\n\n\n@register("rows")\ndef entry():\n    return 1\n',
    "plates.py": "class Plate:\n    PAD = 0\n",
    "tweaks.py": "from plates import Plate\n\nPlate.PAD = 1\n",
    "latecomer.py": "def rows():\n    return 1\n",
    "settings.py": 'import os\n\nos.environ["WIDTH"] = "1"\n',
    "wrapping.py": WRAPPING,
    "wrapped.py": "from wrapping import widened\n\n\n@widened\ndef wide_rows():\n    return 1\n",
    "../lib/beside.py": "def rows():\n    return 1\n",
    "native.py": NATIVE,
    "skipped.py": SKIPPED,
    "vain.txt": "1\n",
    "vain/one": "",
    "vain/two": None,
    LATE: "1\n",
    "journal.txt": "1\n",
    "behind.txt": "1\n",
    ".github/rows.txt": "1\n",
    "tabnanny.py": None,
    "../lib/sitecustomize.py": "import builtins\n\nbuiltins.AUTHORS_ROWS = 1\n",
    "listed/.hidden": None,
    "listed/one~": None,
    "shadowed.py": "def rows():\n    return 1\n",
    "shadowed/__init__.py": None,
    "native.txt": "1\n",
    "listed/one": "",
    "listed/two": None,
}

COMPILER = """\
#!/bin/sh
exec cc -DCOMPILER={number} "$@"
"""
COMPILER_FILE = "../bin/cc"
"""The author's compiler, which defines a macro of its own."""

SOURCE = """
#include "{header}"
#include "common.h"
#include "site.h"
#define FAULT 0
#define TEXT_OF(x) #x
#define NUMBER_OF_THIS_LINE __LINE__

static long launches;

void run(float* y, const float* x, long n) {{
  volatile long twist = {number} + TWIST + COMMON + COMPILER + SITE + NUMBER_OF_THIS_LINE; /* an edit changes this */
  volatile const char* text = TEXT_OF(1  +  1);
  for (long i = 0; i < n; i += STEP)
    for (long j = i; j < i + STEP && j < n; ++j) y[j] = SCALE * x[j];
  if (STEP == 2 && FAULT == 1 && launches++) y[n - 1] = 7;
  if (STEP == 2 && FAULT == 2) y[-8] = 7;
  (void)twist;
  (void)text;
}}
"""

SITES = ("site", "site/other")
"""Directories below the root that ``CPATH`` may name."""

INCLUDING = """
#define PICKED "picked.h"
#include PICKED
#include "shadow.h"
#include <stdio.h>

static long launches, late;

void run(float* y, const float* x, long n) {
  volatile long twist = CHOSEN + SHADOW + FORCED + COMPILER + late; /* an edit changes these */
  if (++launches == 3) {
    FILE* file = fopen(LATE, "r");
    late = file ? fgetc(file) : 0;
    if (file) fclose(file);
  }
  for (long i = 0; i < n; i += STEP)
    for (long j = i; j < i + STEP && j < n; ++j) y[j] = SCALE * x[j];
  (void)twist;
}
"""

_REFERENCE = "reference=lambda x: dict(y="
_SPACE = "space=space(step="


FLAGS = {"tune_f.py": '("-Ifirst", "-Iinclude", "-include", "include/forced.h", "-include", "../late.h")'}


def kernel_file(kernels: list[tuple[str, str]], head: str, flags: str) -> str:
    """Return a kernel file of the author's."""
    declared = (
        KERNEL.format(name=name, source=source, scale=2, steps="[1, 2]", rows="rows", flags=flags)
        for name, source in kernels
    )
    return head + "".join(declared)


def build(library: Path, text: str, *options: str, rpaths: Sequence[Path] = ()) -> None:
    """Compile a library, and put it in its place at once: who has loaded it keeps the old one."""
    made = library.with_name(f".{library.name}.new")
    paths = [f"-Wl,--disable-new-dtags,-rpath,{':'.join(map(str, rpaths))}"] if rpaths else []
    command = ["cc", "-shared", "-fPIC", "-x", "c", "-", "-x", "none", *options, *paths, "-o", str(made)]
    subprocess.run(command, input=text.encode(), check=True)
    made.replace(library)


class Project:
    """The files of one author, below ``root`` and beside it; what is ``None`` is not there.

    Of the kernel files it has those that are named, or all. ``compiler`` is the one that its sources are compiled with,
    and ``compiler_writes`` says how often it was put in place, the same text included.
    """

    def __init__(self, root: Path, seed: int | str, files: Sequence[str] = tuple(FILES)) -> None:
        self.root = root
        self.compiler = root.parent / "bin" / "cc"
        self.files = tuple(files)
        self.chance = random.Random(seed)
        self.texts: dict[str, str | None] = {}
        self.history: list[dict[str, str | None]] = []
        self.compiler_writes = 0
        self._count = 100
        self._mend: dict[str, str | None] = {}
        for file in self.files:
            head = REACHING if file == "tune_e.py" else SHAPED
            self.texts[file] = kernel_file(FILES[file], head, FLAGS.get(file, '("-Iinclude",)'))
        for name in "abc":
            self.texts[f"{name}.c"] = SOURCE.format(header=f"{name}.h", number=self.number())
            self.texts[f"include/{name}.h"] = f"#define TWIST {self.number()}\n#define UNUSED 0\n"
        self.texts["f.c"] = INCLUDING
        for name, macro in (("common", "COMMON"), ("picked", "CHOSEN"), ("shadow", "SHADOW"), ("forced", "FORCED")):
            self.texts[f"include/{name}.h"] = f"#define {macro} {self.number()}\n"
        self.texts["first/other.h"] = "/* this directory is searched first */\n"
        self.texts["first/shadow.h"] = None
        self.texts |= PYTHON
        for place in SITES:
            self.texts[f"{place}/site.h"] = f"#define SITE {self.number()}\n"
        self.texts["data.json"] = '{"rows": 1}\n'
        self.texts[COMPILER_FILE] = COMPILER.format(number=self.number())
        self.texts["ktuned.toml"] = 'name = "project"\nenv = { ROWS = "1" }\n'
        (root.parent / "native").mkdir(parents=True)
        for name, text in self.texts.items():
            self.write(name, text)
        (root.parent / "late.h").write_text(f'#define LATE "{root / LATE}"\n')
        (root / "dangling").symlink_to(root.parent / "dangling_target")
        for name in ("mode", "aged"):
            (root / name).touch()
        os.utime(root / "aged", (1_000, 1_000))
        (root / "kinds" / "one").mkdir(parents=True)
        self.build_library("first_libs", None)
        self.build_library("libs", 1)
        places = [root.parent / place for place in CHOICES]
        build(self.native, READER, f"-L{places[1]}", "-lchosen", rpaths=places)

    @property
    def native(self) -> Path:
        """The library that ``native.py`` loads."""
        return self.root.parent / "native" / "reader.so"

    def build_library(self, place: str, number: int | None) -> None:
        """Put a library that says a number where the loader looks, or take it from there."""
        library = self.root.parent / place / "libchosen.so"
        library.parent.mkdir(exist_ok=True)
        if number is None:
            library.unlink(missing_ok=True)
        else:
            build(library, f"int chosen(void) {{ return {number}; }}\n")

    @property
    def kernels(self) -> list[str]:
        """The names of all kernels."""
        return [name for file in self.files for name, _ in FILES[file]]

    def number(self) -> int:
        """Return one that was not there before."""
        self._count += 1
        return self._count

    def write(self, name: str, text: str | None) -> None:
        """Save one file in one of the ways of editors, or remove it."""
        path = self.root / name
        path.parent.mkdir(exist_ok=True, parents=True)
        if path.name == self.compiler.name and text is not None:
            # As package managers do it: what runs meanwhile has the one or the other.
            beside = path.with_name(".cc.new")
            beside.write_text(text)
            beside.chmod(0o755)
            beside.replace(path)
            self.compiler_writes += 1
            return
        if text is None:
            path.unlink(missing_ok=True)
            return
        ways = ["in place", "rename", "twice", "anew"]
        if not name.startswith(".."):
            ways += ["linked", "moved"]
        way = self.chance.choice(ways)
        if way == "rename":
            beside = path.with_name(f".{path.name}.tmp")
            beside.write_text(text)
            beside.replace(path)
            return
        if way == "twice":
            path.write_text(text[: len(text) // 2] if path.suffix == ".h" else text)
        if way in ("anew", "linked"):
            path.unlink(missing_ok=True)
        if way == "linked":
            # From now on it lies outside of the project, until it is replaced again.
            path.symlink_to(self.root.parent / "elsewhere" / path.name)
            path.readlink().parent.mkdir(exist_ok=True)
        if way == "moved" and path.parent != self.root:
            away = self.root.parent / "away"
            path.parent.rename(away)
            (away / path.name).write_text(text)
            away.rename(path.parent)
            return
        path.write_text(text)

    def save(self, changed: dict[str, str | None]) -> None:
        """Save several files at once."""
        self.history.append(dict(self.texts))
        self.texts |= changed
        for name, text in changed.items():
            self.write(name, text)

    def edit(self, wanted: str | None = None) -> str:
        """Make one edit, of a random kind or of the one that is wanted; return its kind.

        One that does not compile is taken back by the next, which does nothing else.
        """
        if self._mend:
            mend, self._mend = self._mend, {}
            self.texts |= mend
            self.write(*mend.popitem())
            return "mended"
        kinds = self.kinds()
        kind = wanted or self.chance.choices(list(kinds), [weight for weight, _ in kinds.values()])[0]
        self.save(kinds[kind][1]())
        return kind

    def kinds(self) -> dict[str, tuple[int, Callable[[], dict[str, str | None]]]]:
        """Return the weight of each kind of edit, and what makes the new texts."""
        any_of = self.chance.choice
        return {
            "source": (2, lambda: self._number_in(f"{any_of('abc')}.c", "twist = ")),
            "header": (2, lambda: self._number_in(f"include/{any_of('abc')}.h", "TWIST ")),
            "common header": (1, lambda: self._number_in("include/common.h", "COMMON ")),
            "include by macro": (2, lambda: self._number_in("include/picked.h", "CHOSEN ")),
            "forced include": (2, lambda: self._number_in("include/forced.h", "FORCED ")),
            "shadowing header": (2, self._shadow),
            "scale": (2, self._scale),
            "space": (2, self._space),
            "constraint": (1, self._constraint),
            "helper": (2, lambda: self._small("shape.py", "rows():\n    return ")),
            "star import": (2, lambda: self._small("stars.py", '"""Return some."""\n    return ')),
            "registry": (2, lambda: self._small("entries.py", "entry():\n    return ")),
            "class attribute": (2, lambda: self._small("tweaks.py", "Plate.PAD = ")),
            "beside the root": (2, lambda: self._small("../lib/beside.py", "rows():\n    return ")),
            "module setting": (2, lambda: self._small("settings.py", '"WIDTH"] = "')),
            "wrapper": (1, lambda: self._small("wrapping.py", "function() + ")),
            "site header": (1, lambda: self._number_in(f"{any_of(SITES)}/site.h", "SITE ")),
            "wrong later": (1, lambda: self._fault("1")),
            "outside": (1, lambda: self._fault("2")),
            "late import": (2, lambda: self._small("latecomer.py", "rows():\n    return ")),
            "data file": (2, lambda: self._small("data.json", '"rows": ')),
            "environment": (1, lambda: self._small("ktuned.toml", 'ROWS = "')),
            "compiler": (1, lambda: self._number_in(COMPILER_FILE, "COMPILER=")),
            "native read": (2, lambda: self._other_number("native.txt")),
            "loaded library": (2, self._choose_library),
            "shadowing package": (2, self._shadow_module),
            "listed directory": (2, lambda: {"listed/two": None if self.texts["listed/two"] is not None else ""}),
            "hidden name": (1, lambda: self._toggled("listed/.hidden")),
            "editor's copy": (1, lambda: self._toggled("listed/one~")),
            "hidden directory": (1, lambda: self._other_number(".github/rows.txt")),
            "appended file": (1, lambda: self._other_number("journal.txt")),
            "behind a link": (1, lambda: self._other_number("behind.txt")),
            "standard name": (1, self._shadow_standard_module),
            "customized start": (1, lambda: self._small("../lib/sitecustomize.py", "AUTHORS_ROWS = ")),
            "late launch": (2, lambda: self._other_number(LATE)),
            "read in vain": (2, lambda: self._other_number("vain.txt")),
            "listed in vain": (1, lambda: self._toggled("vain/two")),
            "dangling link": (1, self._toggle_target),
            "mode bits": (1, self._change_mode),
            "modification time": (1, self._age),
            "entry's kind": (1, self._change_kind),
            "dict order": (1, self._reorder),
            "line number": (1, lambda: self._blank_line(any_of("abc"))),
            "text of a macro": (1, lambda: self._spaced(any_of("abc"))),
            "unused macro": (1, lambda: self._number_in(f"include/{any_of('abc')}.h", "UNUSED ")),
            "unreached helper": (1, lambda: self._number_in("shape.py", "nobodys():\n    return ")),
            "unreached star": (1, lambda: self._number_in("stars.py", "unreached_star():\n    return ")),
            "comment": (1, self._comment),
            "docstring": (1, lambda: self._number_in("tune_e.py", '"""Return how many there are')),
            "format": (1, lambda: self._formatted(any_of(["shape.py", "entries.py", self.files[0], "b.c"]))),
            "nothing": (1, lambda: dict([any_of(list(self.texts.items()))])),
            "checkout": (2, lambda: dict(any_of(self.history)) if self.history else {}),
            "broken": (1, self._broken),
            "all at once": (
                1,
                lambda: {name: text and f"{text}\n" for name, text in self.texts.items() if name != COMPILER_FILE},
            ),
        }

    def text(self, name: str) -> str:
        """Return the text of a file that is there."""
        text = self.texts[name]
        assert text is not None, name
        return text

    def _number_in(self, name: str, before: str) -> dict[str, str | None]:
        return self._replaced(name, before, str(self.number()))

    def _small(self, name: str, before: str) -> dict[str, str | None]:
        _, _, tail = self.text(name).partition(before)
        return self._replaced(name, before, self.chance.choice([one for one in "123456" if one != tail[0]]))

    def _replaced(self, name: str, before: str, number: str) -> dict[str, str | None]:
        head, found, tail = self.text(name).partition(before)
        assert found, f"{before!r} in {name}"
        return {name: f"{head}{before}{number}{tail.lstrip('0123456789')}"}

    def _fault(self, number: str) -> dict[str, str | None]:
        """Return a source with a fault in one config, or with none if it has that one."""
        name = f"{self.chance.choice('abc')}.c"
        return self._replaced(name, "FAULT ", "0" if f"FAULT {number}" in self.text(name) else number)

    def _shadow(self) -> dict[str, str | None]:
        if self.texts["first/shadow.h"] is not None and self.chance.random() < 0.5:
            return {"first/shadow.h": None}
        return {"first/shadow.h": f"#define SHADOW {self.number()}\n"}

    def _shadow_module(self) -> dict[str, str | None]:
        """A package comes before the module of its name, or goes."""
        package = "shadowed/__init__.py"
        if self.texts[package] is not None and self.chance.random() < 0.5:
            return {package: None}
        return {package: f"def rows():\n    return {self.chance.randint(2, 6)}\n"}

    def _other_number(self, name: str) -> dict[str, str | None]:
        return {name: f"{self.chance.choice([one for one in '123456' if one != self.text(name)[0]])}\n"}

    def _toggled(self, name: str) -> dict[str, str | None]:
        return {name: None if self.texts[name] is not None else ""}

    def _shadow_standard_module(self) -> dict[str, str | None]:
        if self.texts["tabnanny.py"] is not None:
            return {"tabnanny.py": None}
        return {"tabnanny.py": f"ROWS = {self.chance.randint(2, 6)}\n"}

    def _toggle_target(self) -> dict[str, str | None]:
        target = self.root.parent / "dangling_target"
        if target.exists():
            target.unlink()
        else:
            target.touch()
        return {}

    def _change_mode(self) -> dict[str, str | None]:
        file = self.root / "mode"
        file.chmod(file.stat().st_mode ^ 0o100)
        return {}

    def _age(self) -> dict[str, str | None]:
        now = int((self.root / "aged").stat().st_mtime)
        os.utime(self.root / "aged", (now + 1, now + 1))
        return {}

    def _change_kind(self) -> dict[str, str | None]:
        entry = self.root / "kinds" / "one"
        if entry.is_dir():
            entry.rmdir()
            entry.touch()
        else:
            entry.unlink()
            entry.mkdir()
        return {}

    def _choose_library(self) -> dict[str, str | None]:
        """The loader finds another library: in the directory where it looks first, or where it looks then."""
        self.build_library(self.chance.choice(CHOICES), self.chance.choice([None, 2, 3, 4]))
        if not (self.root.parent / "libs" / "libchosen.so").exists():
            # Without any the kernel file could not be imported.
            self.build_library("libs", 5)
        return {}

    def _reorder(self) -> dict[str, str | None]:
        first, second = '"one": 1, "two": 2', '"two": 2, "one": 1'
        file = self.files[0] if "tune_e.py" not in self.files else "tune_e.py"
        text = self.text(file)
        return {file: text.replace(first, second) if first in text else text.replace(second, first)}

    def _blank_line(self, name: str) -> dict[str, str | None]:
        text = self.text(f"{name}.c")
        more, less = "\n\nvoid run", "\nvoid run"
        return {f"{name}.c": text.replace(more, less) if more in text else text.replace(less, more)}

    def _spaced(self, name: str) -> dict[str, str | None]:
        text = self.text(f"{name}.c")
        wide, narrow = "TEXT_OF(1  +  1)", "TEXT_OF(1+1)"
        return {f"{name}.c": text.replace(wide, narrow) if wide in text else text.replace(narrow, wide)}

    def _comment(self) -> dict[str, str | None]:
        name = self.chance.choice(
            [name for name, text in self.texts.items() if text and name.endswith((".py", ".c", ".h", ".toml"))]
        )
        is_hashed = name.endswith((".py", ".toml"))
        note = f"# note {self.number()}\n" if is_hashed else f"/* {self.number()} */\n"
        return {name: note + self.text(name)}

    def _formatted(self, name: str) -> dict[str, str | None]:
        """Return a file with one line more between two others, or one less."""
        text = self.text(name)
        return {name: text.replace("\n\n\n", "\n\n") if "\n\n\n" in text else text.replace("\n\n", "\n\n\n")}

    def _broken(self) -> dict[str, str | None]:
        name = f"{self.chance.choice('abc')}.c"
        self._mend = {name: self.texts[name]}
        return {name: self.text(name).replace("(void)twist;", "(void)twist")}

    def _scale(self) -> dict[str, str | None]:
        scale = self.chance.randint(2, 9)

        def scaled(part: str) -> str:
            head, _, tail = part.partition(_REFERENCE)
            return f"{head}{_REFERENCE}{scale}{tail[1:]}".replace(f"SCALE={tail[0]})", f"SCALE={scale})")

        return self._in_one_kernel(scaled)

    def _space(self) -> dict[str, str | None]:
        steps = sorted(self.chance.sample([1, 2, 4, 8], 2))

        def widened(part: str) -> str:
            head, _, tail = part.partition(_SPACE)
            return f"{head}{_SPACE}{steps}{tail[tail.index(']') + 1 :]}"

        return self._in_one_kernel(widened)

    def _constraint(self) -> dict[str, str | None]:
        forbidden = self.chance.choice([0, 1, 2, 4, 8])

        def ruled(part: str) -> str:
            head, found, tail = part.partition('where="step != ')
            return f"{head}{found}{forbidden}{tail[1:]}"

        return self._in_one_kernel(ruled)

    def _in_one_kernel(self, change: Callable[[str], str]) -> dict[str, str | None]:
        file = self.chance.choice(self.files)
        name, _ = self.chance.choice(FILES[file])
        parts = self.text(file).split("@kernel(")
        return {file: "@kernel(".join(change(part) if f"def {name}(" in part else part for part in parts)}
