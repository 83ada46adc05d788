"""A program that tunes a kernel of its own, calls the winner, and asks for sizes that it never tuned.

``python tune_dot.py`` needs `ktuned[tvm-ffi]`, a C++ compiler, and neither torch nor a GPU.
"""

import numpy as np

from ktuned import kernel, space, tensor, tune
from ktuned_client import Client
from ktuned_tvm_ffi import Build

PROBLEMS = [dict(N=1024), dict(N=65536)]


@kernel(
    backend="tvm_ffi",
    sources=["dot.cc"],
    problems=PROBLEMS,
    bucket=dict(N="pow2"),  # a vector of 1000 numbers takes the config of 1024
    space=space(LANES=[1, 16, 64]),
    default=dict(LANES=1),
    inputs=lambda p: dict(x=tensor(p.N), y=tensor(p.N), out=tensor(1, output=True)),
    reference=lambda x, y: dict(out=(x @ y).reshape(1)),
    rtol=1e-3,
    atol=1e-2,
)
def dot(p, c):
    return Build(function="dot", args=("x", "y", "out"), defines=dict(LANES=c.LANES))


# Workers import the file down to this call. A second run finds the winners in the daemon's store, and measures nothing.
results = [tune(dot, problem, preset="fast") for problem in PROBLEMS]
for result in results:
    print(f"{result.problem}: {result.speedup:.1f} times as fast as the default")

client = Client(deadline_s=1)
hit = client.lookup("dot", dict(N=65536))
call = hit.load()
x, y, out = np.ones(65536, "float32"), np.ones(65536, "float32"), np.empty(1, "float32")
call(x=x, y=y, out=out)
print("the dot product is", out[0])

small = client.lookup("dot", dict(N=1000))
print("for 1000 numbers:", small.status, small.config, "as measured for", small.measured)
