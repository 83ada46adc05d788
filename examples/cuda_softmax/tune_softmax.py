"""A softmax over the rows of a float16 matrix in CUDA C++, with a tuned split of rows among threads."""

from ktuned import kernel, space, tensor
from ktuned_tvm_ffi import Build

MAX_KEPT = 64
"""Elements that a thread can keep in registers."""


def block_is_possible(p, c):
    """Keep the blocks that a device can launch."""
    return c.THREADS * c.ROWS <= 1024


def vectors_are_whole(p, c):
    """Keep the vectors that divide a row, with at least one for each thread."""
    return p.N % c.VECTOR == 0 and c.THREADS * c.VECTOR <= p.N


def row_fits_the_registers(p, c):
    """Keep a row in registers if it fits; otherwise VECTORS is unused, and 1."""
    if c.METHOD != "ONE_READ":
        return c.VECTORS == 1
    kept = c.VECTOR * c.VECTORS
    return c.THREADS * (kept - c.VECTOR) < p.N <= c.THREADS * kept and kept <= MAX_KEPT


@kernel(
    backend="tvm_ffi",
    sources=["softmax.cu"],
    space=space(
        THREADS=[32, 64, 128, 256, 512, 1024],
        VECTOR=[1, 2, 4, 8],
        VECTORS=[1, 2, 4, 8, 16, 32, 64],
        ROWS=[1, 2, 4],
        METHOD=["THREE_READS", "TWO_READS", "ONE_READ"],
        where=[block_is_possible, vectors_are_whole, row_fits_the_registers],
    ),
    problems=[dict(M=16384, N=4096)],
    inputs=lambda p: dict(x=tensor((p.M, p.N), "float16"), y=tensor((p.M, p.N), "float16", output=True)),
    reference=lambda x: dict(y=x.float().softmax(dim=1)),
    rtol=2e-3,
    atol=1e-6,
    default=dict(THREADS=128, VECTOR=1, VECTORS=1, ROWS=1, METHOD="THREE_READS"),
)
def softmax(p, c):
    """Instantiate one method; the sizes come with the tensors."""
    return Build(
        function=f"softmax<{c.THREADS}, {c.VECTOR}, {c.VECTORS}, {c.ROWS}, {c.METHOD}>",
        args=("x", "y"),
    )
