from __future__ import annotations

import os
import pty
import termios
from typing import Any

import pytest

from ktuned.cli.watch.keys import GONE, Keyboard, decode


@pytest.mark.parametrize(
    ("data", "keys"),
    [
        (b"", []),
        (b"q", ["q"]),
        (b"tpPc", ["t", "p", "P", "c"]),
        (b"\x1b[A\x1b[B", ["up", "down"]),
        (b"\x1bOAj", ["up", "j"]),
        (b"\x1b[1;5Cq", ["q"]),
        (b"\x1b[200~x", ["x"]),
        (b"\x1b", ["escape"]),
        (b"\x1b[5~\x1b[6~\x1b[H\x1b[4~", ["pageup", "pagedown", "home", "end"]),
        (b"\x1b[D\x1b[C\x7f", ["left", "right", "backspace"]),
        (b"\x1bq", ["q"]),
        (b"\x1b[", []),
        (b"\xc3\xa4q\xc3", ["ä", "q"]),
        (b"\r\t\x00q", ["enter", "q"]),
    ],
)
def test_keys_of_what_a_terminal_sends(data: bytes, keys: list[str]) -> None:
    """Letters and named keys come through; other keys, and what is no key, do nothing."""
    assert decode(data) == keys


def sit_at(slave: int, master: int, before: list[Any]) -> None:
    """Use a terminal, give it back for a moment, take it again, and fail."""
    with Keyboard(slave) as keyboard:
        assert not termios.tcgetattr(slave)[3] & (termios.ICANON | termios.ECHO)
        assert termios.tcgetattr(slave)[3] & termios.ISIG
        os.write(master, b"\x1b[Bt")
        assert keyboard.read() == ["down", "t"]
        keyboard.give_back()
        assert termios.tcgetattr(slave) == before
        keyboard.take()
        keyboard.take()
        raise RuntimeError("a bug")


def test_terminal_is_left_as_it_was() -> None:
    """Keys come one by one and unseen while it is taken; afterwards, and between, the terminal is what it was."""
    master, slave = pty.openpty()
    try:
        before = termios.tcgetattr(slave)
        with pytest.raises(RuntimeError, match="a bug"):
            sit_at(slave, master, before)
        assert termios.tcgetattr(slave) == before
    finally:
        os.close(master)
        os.close(slave)


def test_terminal_that_is_gone_quits() -> None:
    """When the other end is closed there is nothing to restore, and no one to read from."""
    master, slave = pty.openpty()
    with Keyboard(slave) as keyboard:
        os.close(master)
        assert keyboard.read() == [GONE]
    os.close(slave)
