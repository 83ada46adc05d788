"""systemd user units of the daemon: their texts and their directory. ``systemd/`` contains copies for readers.

Sources: systemd.service(5), systemd.socket(5), systemd.exec(5), systemd.resource-control(5), systemd.syntax(7).
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

MARK: Final = "# Written by `ktuned service install`"
"""Start of the first line of a unit that this program wrote; only such a unit may be replaced and removed."""

_FIRST_LINE: Final = f"{MARK}, which may overwrite it."

SERVICE: Final = "ktuned.service"
SOCKET: Final = "ktuned.socket"

DEFAULT_COMMAND: Final = ("%h/.local/bin/ktuned", "start", "--foreground")
"""The command where pipx and ``pip install --user`` put it; a full path, because systemd does not use the user's PATH.
"""

DEFAULT_LISTEN: Final = "%t/ktuned/ktuned.sock"
"""``$XDG_RUNTIME_DIR/ktuned/ktuned.sock``, as in :func:`ktuned_client.paths.socket_path`."""

KEPT_VARIABLES: Final = ("PATH", "CUDA_HOME", "CUDA_PATH", "KTUNED_HOME")
"""Environment variables that an installed unit keeps from the installing shell: where compilers are, and the state
directory."""

_SERVICE_TEXT: Final = """\
[Unit]
Description=ktuned, the kernel-tuning daemon
Documentation=man:systemd.service(5)
Requires={socket}
After={socket}

[Service]
Type=notify
NotifyAccess=main
ExecStart={command}
ExecReload=/bin/kill -HUP $MAINPID
{environment}\
# The event loop sends the watchdog's messages: a daemon whose loop is blocked is killed and restarted.
WatchdogSec=30
TimeoutStartSec=60
Restart=on-failure
RestartSec=1
# Exit status 2: config.toml has an error, which a restart does not mend.
RestartPreventExitStatus=2
# SIGTERM goes only to the daemon, which ends its workers and keeps their measurements.
KillMode=mixed
TimeoutStopSec=30
# A compiler that the OOM killer ends is one failed config; tuning continues.
OOMPolicy=continue

# Tuning is background work, and yields to interactive programs.
CPUWeight=20
IOWeight=20
MemoryHigh=70%
MemoryMax=85%

# Restrictions that user code, compilers and drivers tolerate. Left out on purpose: MemoryDenyWriteExecute (JIT
# compilers), PrivateDevices, DevicePolicy and ProtectClock (GPUs), ProtectHome and PrivateTmp (kernel files and
# caches are there), PrivateNetwork (licence servers of compilers).
NoNewPrivileges=yes
RestrictSUIDSGID=yes
RestrictRealtime=yes
RestrictNamespaces=yes
RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6 AF_NETLINK
LockPersonality=yes
SystemCallArchitectures=native
UMask=0077

[Install]
WantedBy=default.target
Also={socket}
"""

_SOCKET_TEXT: Final = """\
[Unit]
Description=ktuned's socket, which starts the daemon at the first connection
Documentation=man:systemd.socket(5)

[Socket]
ListenStream={listen}
# The daemon and its clients check that no other user has access.
SocketMode=0600
DirectoryMode=0700
RemoveOnStop=yes

[Install]
WantedBy=sockets.target
"""


def units_directory(environ: Mapping[str, str]) -> Path:
    """Return the directory of a user's units."""
    chosen = environ.get("XDG_CONFIG_HOME")
    return (Path(chosen) if chosen else Path.home() / ".config") / "systemd" / "user"


def compose_units(command: Sequence[str], *, listen: str, environment: Mapping[str, str]) -> dict[str, str]:
    """Return each unit's text by file name; ``command`` and ``listen`` may contain systemd's ``%`` specifiers."""
    lines = "".join(f'Environment="{name}={quote_value(value)}"\n' for name, value in environment.items())
    return {
        SERVICE: _SERVICE_TEXT.format(socket=SOCKET, command=_command_line(command), environment=lines),
        SOCKET: _SOCKET_TEXT.format(listen=listen),
    }


def compose_installed_units(executable: str, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the units that run the daemon of ``executable``, a Python interpreter; each starts with :data:`MARK`."""
    listen = environ.get("KTUNED_SOCKET")
    kept = {name: environ[name] for name in KEPT_VARIABLES if environ.get(name)}
    if "KTUNED_HOME" in kept:
        kept["KTUNED_HOME"] = os.path.abspath(os.path.expanduser(kept["KTUNED_HOME"]))
    command = (_escape_specifiers(executable), "-m", "ktuned", "start", "--foreground")
    found = compose_units(
        command, listen=_escape_specifiers(os.path.abspath(listen)) if listen else DEFAULT_LISTEN, environment=kept
    )
    return {name: f"{_FIRST_LINE}\n{text}" for name, text in found.items()}


def quote_value(value: str) -> str:
    """Return a value escaped for double quotes in a unit."""
    return _escape_specifiers(value).replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _escape_specifiers(value: str) -> str:
    """Return a value with systemd's specifiers escaped."""
    return value.replace("%", "%%")


def _command_line(words: Sequence[str]) -> str:
    """Return words as a command line (systemd.service(5), "Command lines")."""
    program, *arguments = words
    # In every word except the program, quoted or not, a dollar starts a variable.
    return " ".join([_quote_word(program), *(_quote_word(word.replace("$", "$$")) for word in arguments)])


def _quote_word(word: str) -> str:
    word = word.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{word}"' if any(letter in word for letter in " \t;'\\\"") else word
