"""A program that compiles a model with ``torch.compile`` and prints its figures as JSON. It knows nothing of ktuned."""

import argparse
import json
import sys
from collections.abc import Callable
from time import perf_counter
from typing import Any

import torch
from torch import nn
from torch.nn.functional import relu
from torch.profiler import ProfilerActivity, profile

STEADY_ROUNDS, STEADY_STEPS = 3, 20


class Block(nn.Module):
    """Two convolutions around a shortcut."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(channels)
        self.second = nn.Conv2d(channels, channels, 3, padding=1, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the block's output."""
        found: torch.Tensor = relu(x + self.second(relu(self.norm(self.first(x)))))
        return found


class ConvNet(nn.Module):
    """Three stages of blocks, each at half of the resolution of the one before, and two linear layers on each place."""

    def __init__(self, blocks: int) -> None:
        super().__init__()
        layers: list[nn.Module] = [nn.Conv2d(3, 64, 7, stride=2, padding=3)]
        for channels in (64, 128, 256):
            layers += [Block(channels) for _ in range(blocks)]
            layers.append(nn.Conv2d(channels, 2 * channels, 3, stride=2, padding=1))
        self.layers = nn.Sequential(*layers)
        self.hidden = nn.Linear(512, 2048)
        self.head = nn.Linear(2048, 1000)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the logits."""
        places = self.layers(x).flatten(2).transpose(1, 2)
        found: torch.Tensor = self.head(relu(self.hidden(places))).mean(1)
        return found


def make_llama(layers: int, compiled: Callable[[nn.Module], Any]) -> Callable[[], torch.Tensor]:
    """Return a training step."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        hidden_size=1024,
        intermediate_size=2816,
        num_hidden_layers=layers,
        num_attention_heads=16,
        num_key_value_heads=16,
        vocab_size=32000,
        use_cache=False,
    )
    model = LlamaForCausalLM(config).to("cuda", torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    run = compiled(model)
    tokens = torch.randint(0, 32000, (4, 1024), device="cuda")

    def step() -> torch.Tensor:
        loss: torch.Tensor = run(input_ids=tokens, labels=tokens).loss
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return step


def make_encoder(layers: int, compiled: Callable[[nn.Module], Any]) -> Callable[[], torch.Tensor]:
    """Return an inference step."""
    from transformers import BertConfig, BertModel

    model = BertModel(BertConfig(num_hidden_layers=layers)).to("cuda", torch.bfloat16).eval()
    run, tokens = compiled(model), torch.randint(0, 30000, (64, 512), device="cuda")

    def step() -> torch.Tensor:
        with torch.no_grad():
            found: torch.Tensor = run(input_ids=tokens).last_hidden_state.float().square().mean()
            return found

    return step


def make_convolutions(layers: int, compiled: Callable[[nn.Module], Any]) -> Callable[[], torch.Tensor]:
    """Return an inference step."""
    model: Any = ConvNet(layers).eval()
    model.to("cuda", torch.bfloat16, memory_format=torch.channels_last)
    run = compiled(model)
    images = torch.randn(32, 3, 224, 224, device="cuda", dtype=torch.bfloat16).to(memory_format=torch.channels_last)

    def step() -> torch.Tensor:
        with torch.no_grad():
            found: torch.Tensor = run(images).float().square().mean()
            return found

    return step


MODELS = {"llama": make_llama, "encoder": make_encoder, "conv": make_convolutions}


def count_benchmarks() -> dict[str, int]:
    """Count from now on what Inductor times in this process."""
    from torch._inductor.runtime.triton_heuristics import CachingAutotuner
    from torch._inductor.select_algorithm import AlgorithmSelectorCache

    counts = {"kernels": 0, "choices": 0}

    def wrap(owner: Any, name: str, counter: str) -> None:
        kept = owner.__dict__[name]
        original = getattr(kept, "__func__", kept)

        def counted(*args: Any, **kwargs: Any) -> Any:
            counts[counter] += 1
            return original(*args, **kwargs)

        setattr(owner, name, type(kept)(counted) if isinstance(kept, (classmethod, staticmethod)) else counted)

    wrap(CachingAutotuner, "bench", "kernels")
    wrap(AlgorithmSelectorCache, "benchmark", "choices")
    return counts


def time_steps(step: Callable[[], torch.Tensor]) -> float:
    """Return the median time of some steps, in ms."""
    times = []
    for _ in range(STEADY_STEPS):
        torch.cuda.synchronize()
        began = perf_counter()
        step()
        torch.cuda.synchronize()
        times.append(perf_counter() - began)
    return round(sorted(times)[STEADY_STEPS // 2] * 1e3, 3)


def sum_kernel_times(step: Callable[[], torch.Tensor]) -> float:
    """Return how long the kernels of one step take together, in ms; unlike the step's time, whatever the host does."""
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        step()
        torch.cuda.synchronize()
    taken_us: float = sum(event.device_time_total for event in profiler.events() or ())
    return round(taken_us / 1e3, 3)


def main() -> None:
    """Run some steps and print their times."""
    parser = argparse.ArgumentParser()
    parser.add_argument("model", choices=MODELS)
    parser.add_argument("mode")
    parser.add_argument("--layers", type=int, default=8)
    chosen = parser.parse_args()
    torch.manual_seed(0)
    torch.randn(1, device="cuda")
    step = MODELS[chosen.model](chosen.layers, lambda model: torch.compile(model, mode=chosen.mode))
    counts = count_benchmarks()
    torch.cuda.synchronize()
    began = perf_counter()
    first = step().item()
    first_s = perf_counter() - began
    for _ in range(3):
        step()
    steady = sorted(time_steps(step) for _ in range(STEADY_ROUNDS))
    from torch._dynamo.utils import counters

    found = {
        "first_s": round(first_s, 2),
        "steady_ms": steady[STEADY_ROUNDS // 2],
        "steady_range_ms": [steady[0], steady[-1]],
        "kernels_ms": sum_kernel_times(step),
        "first_result": first,
        "timed": counts,
        "graph_cache": {name: n for name, n in counters["inductor"].items() if name.startswith("fxgraph_cache")},
        "torch": torch.__version__,
        "gpu": torch.cuda.get_device_name(),
    }
    print(json.dumps(found), flush=True)
    sys.exit(0)


if __name__ == "__main__":
    main()
