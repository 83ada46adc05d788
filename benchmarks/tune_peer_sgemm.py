"""The space of the SGEMM that is tuned beside Kernel Tuner."""

import os

from ktuned import kernel, space, tensor
from ktuned_nvrtc import Build

SIZE = int(os.environ.get("PEER_SGEMM_SIZE", "2048"))
KNOBS = {
    "block_size_x": [8, 16, 32],
    "block_size_y": [4, 8, 16, 32],
    "tile_x": [2, 4, 8],
    "tile_y": [2, 4, 8],
    "tile_k": [4, 8, 16, 32],
}
WHERE = (
    "64 <= block_size_x * block_size_y <= 512",
    "tile_x * tile_y >= 8",
    "16 <= block_size_x * tile_x <= 128",
    "16 <= block_size_y * tile_y <= 128",
    "(block_size_x * tile_x + block_size_y * tile_y) * tile_k <= 8192",
)


@kernel(
    backend="nvrtc",
    sources=["sgemm.cu"],
    space=space(**KNOBS, where=list(WHERE)),
    problems=[dict(size=SIZE)],
    inputs=lambda p: dict(
        A=tensor((p.size, p.size), fill="normal"),
        B=tensor((p.size, p.size), fill="normal"),
        C=tensor((p.size, p.size), output=True),
    ),
    reference=lambda A, B: A @ B,
    rtol=1e-3,
    atol=2e-2,
    strategy="exhaustive",
    preset="fast",
)
def sgemm(p, c):
    return Build(
        entry="sgemm",
        args=("A", "B", "C", p.size, p.size, p.size),
        grid=(p.size // (c.block_size_x * c.tile_x), p.size // (c.block_size_y * c.tile_y)),
        block=(c.block_size_x, c.block_size_y),
        defines=dict(c),
    )
