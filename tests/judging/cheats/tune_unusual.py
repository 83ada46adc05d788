"""Honest kernels whose tensors are unusual. Each has one config, its default."""

import torch

from ktuned import kernel, space, tensor
from ktuned_torch import Build

N = 1000


def declare(inputs, reference, function, **options):
    """Declare a kernel of one config, which calls ``function`` with all tensors by their names."""

    def build(p, c):
        return Build(function, kwargs={name: name for name in inputs(p)})

    kernel(
        backend="torch",
        space=space(only=[1]),
        problems=[dict(n=N)],
        inputs=inputs,
        reference=reference,
        default=dict(only=1),
        name=function.__name__,
        **options,
    )(build)


def integers(x, y):
    torch.cumsum(x, 0, out=y)


def booleans(x, y):
    torch.gt(x, 0.25, out=y)


def bytes_of_weights(x, y):
    y.copy_((x * 100).round().clamp(-128, 127).to(torch.int8))


def largest_place(x, y):
    y.copy_(x.argmax())


def several_outputs(x, low, high, total):
    low.copy_(x.clamp(max=0))
    high.copy_(x.clamp(min=0))
    total.copy_(x.sum())


def in_place(x):
    x.mul_(0.5).add_(1)


def adds_to_outputs(x, y):
    y.add_(x)


def scalar_inputs(x, factor, y):
    torch.mul(x, factor, out=y)


def empty_outputs(x, y, nothing):
    y.copy_(x.abs())


def half(x, y):
    y.copy_(x.float().exp())


def brain(x, y):
    y.copy_(x.float().exp())


def double(x, y):
    torch.exp(x, out=y)


def complex_numbers(x, y):
    y.copy_(x * x)


def transposed(x, y):
    torch.mul(x, 2, out=y)


def every_other_element(x, y):
    y.copy_(x * 2)


def sparse_rows(starts, columns, values, x, y):
    products = torch.zeros_like(y)
    rows = torch.repeat_interleave(torch.arange(y.numel()), starts.diff())
    y.copy_(products.index_add_(0, rows, values * x[columns]))


def gathered(x, places, y):
    torch.index_select(x, 0, places, out=y)


def one_element(x, y):
    y.copy_(x + 1)


def large(x, y):
    torch.mul(x, 2, out=y)


def with_workspace(x, space, y):
    torch.mul(x, 2, out=space)
    torch.add(space, 1, out=y)


def any_permutation(x, y):
    y.copy_(x.sort(descending=True).values)


def vectors(dtype="float32", to=None, **more):
    """Return the inputs of a kernel with a vector and an output."""
    return lambda p: dict(x=tensor(p.n, dtype), y=tensor(p.n, to or dtype, output=True), **more)


declare(vectors("int64"), lambda x, y: dict(y=x.cumsum(0)), integers)
declare(vectors("float32", "bool"), lambda x, y: dict(y=x > 0.25), booleans)
declare(
    vectors("float32", "int8"), lambda x, y: dict(y=(x * 100).round().clamp(-128, 127).to(torch.int8)), bytes_of_weights
)
declare(
    lambda p: dict(x=tensor(p.n), y=tensor((), "int64", output=True)), lambda x, y: dict(y=x.argmax()), largest_place
)
declare(
    lambda p: dict(
        x=tensor(p.n), low=tensor(p.n, output=True), high=tensor(p.n, output=True), total=tensor((), output=True)
    ),
    lambda x, **_: dict(low=x.clamp(max=0), high=x.clamp(min=0), total=x.sum()),
    several_outputs,
    rtol=1e-3,
    atol=1e-3,
)
declare(
    lambda p: dict(x=tensor(p.n, fill="uniform", output=True)), lambda x: dict(x=x * 0.5 + 1), in_place, setup=["x"]
)
declare(
    lambda p: dict(x=tensor(p.n), y=tensor(p.n, fill="ones", output=True)),
    lambda x, y: dict(y=y + x),
    adds_to_outputs,
    setup=["y"],
)
declare(
    lambda p: dict(x=tensor(p.n), factor=tensor(()), y=tensor(p.n, output=True)),
    lambda x, factor, y: dict(y=x * factor),
    scalar_inputs,
)
declare(
    lambda p: dict(x=tensor(p.n), y=tensor(p.n, output=True), nothing=tensor((0, 4), output=True)),
    lambda x, y, nothing: dict(y=x.abs(), nothing=torch.empty(0, 4)),
    empty_outputs,
)
declare(vectors("float16"), lambda x, y: dict(y=x.float().exp().half()), half, rtol=1e-2)
declare(vectors("bfloat16"), lambda x, y: dict(y=x.float().exp().bfloat16()), brain, rtol=2e-2)
declare(vectors("float64"), lambda x, y: dict(y=x.exp()), double)
declare(vectors("complex64"), lambda x, y: dict(y=x * x), complex_numbers)
declare(
    lambda p: dict(x=torch.rand(40, 25).t(), y=tensor((25, 40), output=True)),
    lambda x, y: dict(y=x * 2),
    transposed,
)
declare(
    lambda p: dict(x=torch.rand(2 * p.n)[::2], y=tensor(p.n, output=True)),
    lambda x, y: dict(y=x * 2),
    every_other_element,
)
declare(
    lambda p: dict(
        starts=torch.arange(0, 5 * p.n + 1, 5),
        columns=torch.randint(0, p.n, (5 * p.n,)),
        values=torch.rand(5 * p.n),
        x=tensor(p.n),
        y=tensor(p.n, output=True),
    ),
    lambda starts, columns, values, x, y: dict(y=(values * x[columns]).reshape(-1, 5).sum(1)),
    sparse_rows,
)
declare(
    lambda p: dict(x=tensor(p.n), places=tensor(50, "int64", low=0, high=p.n), y=tensor(50, output=True)),
    lambda x, places, y: dict(y=x[places]),
    gathered,
)
declare(lambda p: dict(x=tensor(1), y=tensor(1, output=True)), lambda x, y: dict(y=x + 1), one_element)
declare(lambda p: dict(x=tensor(1 << 21), y=tensor(1 << 21, output=True)), lambda x, y: dict(y=x * 2), large)
declare(
    lambda p: dict(x=tensor(p.n), space=tensor(p.n, fill="empty"), y=tensor(p.n, output=True)),
    lambda x, space, y: dict(y=x * 2 + 1),
    with_workspace,
)
declare(vectors(), lambda x, y: dict(y=x.sort(descending=True).values), any_permutation)
