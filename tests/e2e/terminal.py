"""A small terminal: the lines that a program's output leaves on a screen, for the sequences that ktuned writes."""

from __future__ import annotations

import re

_SEQUENCE = re.compile(r"\x1b\[(?P<mode>\?)?(?P<numbers>[\d;]*)(?P<final>[A-Za-z])")


class Terminal:
    """Lines of text, without styles; ``feed`` takes the output as it comes."""

    def __init__(self, columns: int, height: int) -> None:
        self._columns = columns
        self._lines = [[" "] * columns for _ in range(height)]
        self._row = self._column = 0
        self._rest = b""

    def feed(self, data: bytes) -> None:
        """Take output; an unfinished sequence or character waits for its end."""
        data = self._rest + data
        whole = data.rfind(b"\x1b")
        if whole >= 0 and not re.match(rb"\x1b\[[?\d;]*[A-Za-z]", data[whole:]):
            data, self._rest = data[:whole], data[whole:]
        else:
            self._rest = b""
        text = data.decode(errors="ignore")
        at = 0
        for found in _SEQUENCE.finditer(text):
            self._write(text[at : found.start()])
            self._obey(found)
            at = found.end()
        self._write(text[at:])

    @property
    def picture(self) -> str:
        """The screen's lines."""
        return "\n".join("".join(line).rstrip() for line in self._lines)

    def _obey(self, sequence: re.Match[str]) -> None:
        numbers = [int(number or 1) for number in sequence["numbers"].split(";")] if sequence["numbers"] else [1]
        match sequence["final"]:
            case "H":
                self._row, self._column = numbers[0] - 1, (numbers[1] if len(numbers) > 1 else 1) - 1
            case "K":
                self._lines[self._row][self._column :] = [" "] * (self._columns - self._column)
            case "J":
                for row in range(self._row, len(self._lines)):
                    self._lines[row] = [" "] * self._columns
            case "h" | "l" if sequence["numbers"] == "1049":
                # The other screen, which is empty when a program comes to it.
                self._lines = [[" "] * self._columns for _ in self._lines]

    def _write(self, text: str) -> None:
        for letter in text:
            if letter == "\n":
                self._row += 1
            elif letter == "\r":
                self._column = 0
            elif self._row < len(self._lines):
                self._lines[self._row][self._column] = letter
                # Lines do not run on: the cursor stays in the last column.
                self._column = min(self._column + 1, self._columns - 1)
