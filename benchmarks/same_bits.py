"""Do exact numerics hold on a GPU? Bits of an application's launches before and after the switch to the winner.

    python -m benchmarks.same_bits [--launches 100000] [--only norms|matmul]

Two parts, each with a daemon of its own:

1. A Triton matmul in float16, bfloat16, float32 and TF32 (``tune_same_bits.py``) is tuned; then the anchor and the
   winner compute products of numbers that the tuning never saw, and their outputs are compared bit by bit.
2. A program that calls FLA's normalizations runs under ``ktuned run --numerics exact``. It takes a digest of each
   launch's outputs until its functions are tuned, and of the same inputs again afterwards.

Printed are the classes, the price, the winners, the launches and the differing ones: none may differ.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path
from threading import Event
from time import monotonic
from typing import Any

from benchmarks.private_daemon import installed_environment, private_home, serving

HERE = Path(__file__).parent
PATIENCE_S = 400.0
ROWS, WIDE, NARROW = 256, 1024, 256
INPUTS = 50
"""Calls for each draw of new random numbers; the others scale them."""


def compare_matmul(launches: int) -> None:
    """Tune the matmul, and launch its anchor and its winner on the same new numbers."""
    import torch

    from benchmarks import tune_same_bits as example

    with private_home() as home, serving(home) as daemon, daemon.client() as client:
        with client.tune(path=HERE / "tune_same_bits.py", preset="fast", time_limit_s=45.0) as tuning:
            for _ in tuning:
                pass
        for job in tuning.jobs:
            kind = job["problem"]["KIND"]
            answer = client.lookup(job["kernel"], job["problem"])
            print(f"{kind}: {job['state']}, {job['message']}", flush=True)
            anchor = example.ANCHOR
            winner = {**anchor, **dict(answer.config or {})}
            differing = count_differing(torch, example, kind, anchor, winner, launches)
            print(
                json.dumps(
                    {
                        "kind": kind,
                        "status": answer.status,
                        "winner": {name: value for name, value in winner.items() if anchor[name] != value},
                        "best_us": job["best_us"],
                        "default_us": job["default_us"],
                        "launches_of_each": launches,
                        "differing": differing,
                    }
                ),
                flush=True,
            )


def count_differing(torch: Any, example: Any, kind: str, anchor: Any, winner: Any, launches: int) -> int:
    """Return the number of launches in which two configs leave different bits."""
    size = example.SIZE
    kinds = getattr(torch, example.element_type(kind))
    a = torch.empty(size, 2 * size, device="cuda", dtype=kinds)
    b = torch.empty(2 * size, size, device="cuda", dtype=kinds)
    outputs = [torch.empty(size, size, device="cuda") for _ in range(2)]
    differing = torch.zeros((), device="cuda", dtype=torch.int64)
    torch.manual_seed(20261126)
    for number in range(launches):
        if number % 10 == 0:
            a.normal_(std=10.0 ** (number // 10 % 7 - 3))
            b.normal_()
        else:
            # Other rows meet other columns.
            a.copy_(a.roll(number, 1))
        for config, output in zip((anchor, winner), outputs, strict=True):
            constants, grid = example.launch_options(kind, config)
            options = {"num_warps": config["WARPS"], "num_stages": config["STAGES"]}
            example.split_matmul[grid](a, b, output, size, size, 2 * size, **constants, **options)
        differing += (outputs[0].view(torch.int32) != outputs[1].view(torch.int32)).any()
    return int(differing)


def compare_norms(launches: int) -> None:
    """Run the program of norms under ``ktuned run``, and tell it when its functions are tuned."""
    with private_home() as home, serving(home) as daemon, daemon.client() as client:
        tuned = home / "tuned"
        words = [
            "run",
            "--numerics",
            "exact",
            sys.executable,
            "-m",
            "benchmarks.same_bits",
            "--launches",
            str(launches),
        ]
        program = subprocess.Popen(
            [sys.executable, "-m", "ktuned", *words, "--until", str(tuned)],
            env=installed_environment() | daemon.environment,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert program.stdout is not None
        for line in program.stdout:
            print(line, end="", flush=True)
            if line.startswith("before"):
                wait_until_idle(client)
                for job in client.call("jobs")["jobs"]:
                    print(f"  {job['kernel']}: {job['state']}, {job['message']}", flush=True)
                tuned.touch()
        program.wait()


def wait_until_idle(client: Any) -> None:
    """Wait until no job is queued or running."""
    end = monotonic() + PATIENCE_S
    while monotonic() < end:
        if all(job["state"] not in ("queued", "running") for job in client.call("jobs")["jobs"]):
            return
        Event().wait(1.0)


def launch_norms(launches: int, tuned: Path) -> None:
    """Be the program of norms: make launches, wait until a file exists, and make them again on the same inputs."""
    from benchmarks.library_program import describe_winners

    # Each step launches four autotuned functions.
    steps = launches // 4
    before = take_digests(steps)
    configs = describe_winners()
    print(f"before: {4 * steps} launches, {len(set(before.tolist()))} digests, {configs}", flush=True)
    while not tuned.exists():
        Event().wait(0.2)
    # The switch is made at a call.
    take_digests(200)
    after = take_digests(steps)
    switched = {name: config for name, config in describe_winners().items() if configs.get(name) != config}
    print(f"after: {int((before != after).sum())} of {steps} steps differ; switched: {switched}", flush=True)


def take_digests(steps: int) -> Any:
    """Return a digest of each step's outputs, ``(steps,)`` int64, on inputs that the step's number decides."""
    import torch
    from fla.modules.norm.fused_norm_gate import rms_norm_gated
    from fla.modules.norm.layernorm import rms_norm

    from benchmarks.library_program import gradients

    shapes = [(ROWS, WIDE), (WIDE,), (ROWS, NARROW), (ROWS, NARROW), (NARROW,), (ROWS, WIDE), (ROWS, NARROW)]
    # Odd weights by position: outputs that change places have another digest.
    weights = torch.arange(ROWS * WIDE, device="cuda", dtype=torch.int64) * 2654435761 * 2 + 1
    digests = torch.zeros(steps, device="cuda", dtype=torch.int64)
    leaves = [torch.empty(shape, device="cuda", dtype=torch.bfloat16) for shape in shapes]
    for step in range(steps):
        if step % INPUTS == 0:
            torch.manual_seed(step)
            for leaf in leaves:
                leaf.requires_grad_(False).normal_()
        x, weight, narrow, gate, narrow_weight, upstream, narrow_upstream = leaves
        with torch.no_grad():
            x.mul_(-1.03125 if step % 2 else 0.96875)
            narrow.mul_(-1.03125 if step % 3 else 0.9375)
        for leaf in (x, weight, narrow, gate, narrow_weight):
            leaf.requires_grad_()
        outputs = [
            *gradients(rms_norm(x, weight, None, eps=1e-5), [x, weight], upstream),
            *gradients(
                rms_norm_gated(narrow, gate, narrow_weight, None, eps=1e-5),
                [narrow, gate, narrow_weight],
                narrow_upstream,
            ),
        ]
        for output in outputs:
            bits = output.detach().contiguous().view(torch.int16).flatten().to(torch.int64)
            digests[step] += (bits * weights[: bits.numel()]).sum()
    return digests


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--launches", type=int, default=100_000)
    parser.add_argument("--only", choices=("norms", "matmul"), help="one of the parts")
    parser.add_argument("--until", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.until:
        launch_norms(options.launches, options.until)
    else:
        if options.only != "norms":
            compare_matmul(options.launches)
        if options.only != "matmul":
            compare_norms(options.launches)
