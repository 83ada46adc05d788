"""Candidates in Python: each file of ``candidates`` is a module with a function ``launch``."""

from pathlib import Path

from ktuned import kernel, space, tensor
from ktuned_torch import Build

HERE = Path(__file__).parent
N = 2048


def reference(x, y):
    """Return f(x)."""
    from work import compute

    compute(x, y)
    return dict(y=y)


@kernel(
    backend="torch",
    space=space(candidate=sorted(path.stem for path in HERE.glob("candidates/*.py"))),
    problems=[dict(n=N)],
    inputs=lambda p: dict(x=tensor(p.n), y=tensor(p.n, output=True)),
    reference=reference,
    preset="fast",
)
def in_python(p, c):
    """Call the candidate's function ``launch``."""
    return Build(f"candidates.{c.candidate}:launch", ("x", "y"))
