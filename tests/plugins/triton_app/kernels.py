"""Autotuned functions as applications have them."""

import enum
from typing import Any

import triton
import triton.language as tl

from ktuned_triton import autotune


class Rounding(enum.Enum):
    """Ways that a config may choose."""

    NEAREST = 0
    UP = 1


def at_least_128(configs: list[Any], named: dict[str, Any], **rest: Any) -> list[Any]:
    """Prune small blocks away."""
    return [config for config in configs if config.kwargs["BLOCK"] >= 128]


CONFIGS = [
    triton.Config({"BLOCK": block, "THROUGH": through}) for block in (64, 128, 256) for through in (None, tl.float16)
]


@autotune(CONFIGS, key=["size"], prune_configs_by={"early_config_prune": at_least_128}, restore_value=["y"])
@triton.heuristics({"EVEN": lambda args: args["size"] % args["BLOCK"] == 0})
@triton.jit
def scale(x, y, size, factor, BLOCK: tl.constexpr, THROUGH: tl.constexpr, EVEN: tl.constexpr):
    """Scale x into y."""
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    values = tl.load(x + offsets) if EVEN else tl.load(x + offsets, mask=offsets < size)
    if THROUGH is not None:
        values = values.to(THROUGH).to(tl.float32)
    tl.store(y + offsets, values * factor, mask=offsets < size)


@autotune([triton.Config({"BLOCK": 128}), triton.Config({"BLOCK": 256})], key=["size"])
@triton.jit
def stretch(x, y, size, factor, BLOCK: tl.constexpr):
    """Scale x into y with few configs, for tests of many keys."""
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + offsets, tl.load(x + offsets, mask=offsets < size) * factor, mask=offsets < size)


def clear(named: dict[str, Any], **rest: Any) -> None:
    """Set the output to what no launch may rely on."""
    named["x"].fill_(named["BLOCK"])


def note(named: dict[str, Any], exception: Exception | None = None) -> None:
    """Look at the output after a launch."""
    named["x"].add_(1)


@triton.jit
def plain_x(x, BLOCK: tl.constexpr):
    """Be decorated with hooks by tests."""
    tl.store(x + tl.arange(0, BLOCK), 0.0)


@autotune([triton.Config({"BLOCK": 128})] * 2, key=[], do_bench=lambda call, quantiles: [1.0, 1.0, 1.0])
@triton.jit
def benched(x, BLOCK: tl.constexpr):
    """Have a benchmark of the application's."""
    tl.store(x + tl.arange(0, BLOCK), 0.0)


@autotune([triton.Config({"BLOCK": 64}), triton.Config({"BLOCK": 128})], key=["size"])
@triton.jit
def gather(x, rows, y, size, BLOCK: tl.constexpr):
    """Gather x by rows into y."""
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < size
    tl.store(y + offsets, tl.load(x + tl.load(rows + offsets, mask=mask), mask=mask), mask=mask)


@autotune([triton.Config({"WAY": way}) for way in Rounding], key=["size"])
@triton.jit
def rounded(x, y, size, WAY: tl.constexpr, UP: tl.constexpr = Rounding.UP):
    """Round in a way that is a member of an enum."""
    value = tl.load(x)
    if WAY == UP:
        value = tl.ceil(value)
    tl.store(y, value)


@triton.jit
def plain(x, size, BLOCK: tl.constexpr):
    """Be tuned by anyone who decorates it."""
    offsets = tl.arange(0, BLOCK)
    tl.store(x + offsets, 0.0, mask=offsets < size)


def zero_y(named: dict[str, Any]) -> None:
    """Clear what the kernel adds to."""
    named["y"].zero_()


@autotune([triton.Config({"BLOCK": 64}, pre_hook=zero_y), triton.Config({"BLOCK": 128}, pre_hook=zero_y)], key=["size"])
@triton.jit
def zeroed(x, y, size, BLOCK: tl.constexpr):
    """Add x to y, which a hook of each config has cleared."""
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.atomic_add(y + offsets, tl.load(x + offsets, mask=offsets < size), mask=offsets < size)


@triton.jit
def odd_names(x, call, dtypes, BLOCK: tl.constexpr):
    """Have arguments whose names ktuned uses, too."""
    tl.store(x + tl.arange(0, BLOCK), call + dtypes)
