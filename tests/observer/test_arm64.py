"""The observer on a 64-bit ARM, below qemu; skipped where there is no cross compiler or no qemu."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from ktuned.observer.library import FLAGS, SOURCE
from ktuned.observer.log import Log

COMPILER, EMULATOR, LIBRARIES = "aarch64-linux-gnu-gcc", "qemu-aarch64", "/usr/aarch64-linux-gnu"

PROGRAM = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
int main(int count, char **words) {
    void *libc = dlopen("libc.so.6", RTLD_LAZY);
    int (*open_file)(const char *, int, ...) = (int (*)(const char *, int, ...))dlsym(libc, "open");
    if (open_file(words[1], O_RDONLY) < 0 || !dlsym(libc, "strlen") || dlsym(libc, "no_such_name")) return 1;
    if (!dlsym(RTLD_NEXT, "getpid") || !dlsym(RTLD_DEFAULT, "open") || getenv("KTUNED_WORKER")) return 2;
    dlopen("libm.so.6", RTLD_NOW | RTLD_DEEPBIND);
    return 0;
}
"""


@pytest.mark.skipif(not shutil.which(COMPILER) or not shutil.which(EMULATOR), reason="needs a cross compiler and qemu")
def test_a_library_s_own_handle_passes_the_observer_by_on_no_processor(tmp_path: Path) -> None:
    library, program, read = tmp_path / "observer.so", tmp_path / "program", tmp_path / "read"
    subprocess.run([COMPILER, *FLAGS, "-o", library, SOURCE, "-ldl"], check=True)
    (tmp_path / "program.c").write_text(PROGRAM)
    subprocess.run([COMPILER, "-o", program, tmp_path / "program.c", "-ldl"], check=True)
    read.touch()
    Log.create(tmp_path / "log", {"KTUNED_WORKER": "w"})
    variables = {"KTUNED_OBSERVER": tmp_path / "log", "LD_PRELOAD": library, "KTUNED_WORKER": "w"}
    settings = [word for name, value in variables.items() for word in ("-E", f"{name}={value}")]
    subprocess.run([EMULATOR, "-L", LIBRARIES, *settings, program, read], env=os.environ, check=True)
    notes = {(note.kind.value, note.name) for note in Log(str(tmp_path / "log")).read_notes()}
    assert ("o", str(read)) in notes
    assert any(kind == "h" and "RTLD_DEEPBIND" in name for kind, name in notes)
