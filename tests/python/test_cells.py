"""From the cells of a notebook to a kernel file."""

from textwrap import dedent

import pytest

from ktuned.model import UsageError
from ktuned.python.cells import MARK, write_kernel_text

KERNEL = """
    @kernel(space=space(N=SIZES))
    def it(p, c):
        return Build(**c)
"""


def write_cells(*cells: str, names: tuple[str, ...] = ("it",)) -> str:
    """Return the file of the kernel ``it`` without its first line."""
    text = write_kernel_text([dedent(cell) for cell in cells], "it", names)
    first, _, rest = text.partition("\n")
    assert MARK in first
    return rest.strip()


def test_the_cell_of_the_kernel_is_copied_whole() -> None:
    """With effects and comments; unrelated cells are left out."""
    cell = "import torch\n# as in production\ntorch.set_num_threads(1)\n@kernel()\ndef it(p, c): ..."
    text = write_cells("print('hello')", "data = load()", cell, "data.plot()")
    assert text.split() == cell.replace("# as in production", "").split()


def test_statements_that_the_kernel_uses_are_copied_in_order() -> None:
    """Imports, functions and constants, directly and indirectly."""
    text = write_cells(
        "import os\nimport torch\nfrom ktuned import kernel, space",
        "LEAST = 2\nUNUSED = 3",
        "def sizes():\n    return [LEAST, torch.tensor(4)]\n",
        "SIZES = sizes()",
        KERNEL,
    )
    compile(text, "it", "exec")
    lines = [line for line in text.splitlines() if line and not line.startswith((" ", "@", "def it"))]
    assert lines == ["import torch", "from ktuned import kernel, space", "LEAST = 2", "def sizes():", "SIZES = sizes()"]


def test_the_last_definition_is_copied() -> None:
    """A cell that ran again replaces its definitions."""
    text = write_cells("SIZES = [1]", KERNEL.replace("N=", "OLD="), "SIZES = [2]", KERNEL)
    assert "SIZES = [1]" not in text
    assert "OLD" not in text
    assert text.startswith("SIZES = [2]")


@pytest.mark.parametrize(
    "change", ["SIZES.append(3)", "SIZES += [3]", "SIZES[0] = 3", "for n in (3,):\n    SIZES.append(n)"]
)
def test_changes_in_place_are_copied(change: str) -> None:
    """For example elements that another cell appends to a list."""
    text = write_cells("SIZES = [1]", change, KERNEL)
    assert change in text
    assert text.index("SIZES = [1]") < text.index(change) < text.index("def it")


def test_a_name_that_is_assigned_again_later_keeps_both_values() -> None:
    """The declaration has the value of its time; functions have the latest one, as in the notebook."""
    text = write_cells("SIZES = [0]", "SIZES = [1]", KERNEL, "SIZES = [2]")
    assert "SIZES = [0]" not in text
    assert text.index("SIZES = [1]") < text.index("def it") < text.index("SIZES = [2]")


def test_magics_and_broken_cells_are_left_out() -> None:
    """A worker has no shell of the notebook, and a cell with a syntax error never ran."""
    shell = "get_ipython().run_line_magic('matplotlib', 'inline')\nSIZES = [1]"
    text = write_cells(shell, "SIZES = [", KERNEL)
    assert "get_ipython" not in text
    assert "SIZES = [1]" in text


def test_statements_on_one_line_are_separated() -> None:
    """``SIZES = [1]; print(SIZES)`` gives its first half."""
    assert write_cells("SIZES = [1]; print(SIZES)", KERNEL).startswith("SIZES = [1]\n")


def test_a_kernel_may_have_another_name_in_the_notebook() -> None:
    """It is found by its variable, also if a factory made it."""
    text = write_cells("make = print", "best = make()", names=("best",))
    assert text.split("\n\n") == ["make = print", "best = make()"]


def test_a_kernel_that_no_cell_declares_is_one_line() -> None:
    """One inside a function or below a ``%%magic`` cannot be written."""
    with pytest.raises(UsageError, match="no cell declares the kernel 'it'"):
        write_cells("x = 1")
