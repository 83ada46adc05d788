"""A made-up CUDA device, which answers the questions that libraries ask while they are imported.

Libraries decide at import what they define: FLA asks Triton's driver for its target and the shared memory of each
device, and torch for the name and the compute capability; Liger asks whether CUDA is available. With these answers a
machine without a GPU imports what a machine with one does. Nothing can be launched on it. A few libraries make a tensor
at import: it lies in the host's memory.
"""

from types import SimpleNamespace
from typing import Any

WARP_SIZE = 32

MODELS = {
    80: ("NVIDIA A100-SXM4-80GB", 108, 166912),
    89: ("NVIDIA L40S", 142, 101376),
    90: ("NVIDIA H100 80GB HBM3", 132, 232448),
    100: ("NVIDIA B200", 148, 232448),
    120: ("NVIDIA GeForce RTX 5090", 170, 101376),
}
"""By compute capability: a model's name, its multiprocessors, and the shared memory that a block may have."""

MEMORY_BYTES = 80 << 30


class NoSuchGpu(RuntimeError):
    """Something was to run on the device."""


class _Device:
    """Answers about one device, to Triton and to torch."""

    def __init__(self, arch: int) -> None:
        self.arch = arch
        self.capability = divmod(arch, 10)
        self.name, self.processors, self.shared_bytes = MODELS[arch]

    def triton_properties(self, _: int = 0) -> dict[str, int]:
        """Return the properties that Triton's driver reports."""
        return {
            "max_shared_mem": self.shared_bytes,
            "max_num_regs": 65536,
            "multiprocessor_count": self.processors,
            "warpSize": WARP_SIZE,
            "sm_clock_rate": 1_980_000,
            "mem_clock_rate": 2_619_000,
            "mem_bus_width": 5120,
        }

    def torch_properties(self, _: Any = None) -> Any:
        """Return the properties that torch reports."""
        major, minor = self.capability
        return SimpleNamespace(
            name=self.name,
            major=major,
            minor=minor,
            total_memory=MEMORY_BYTES,
            multi_processor_count=self.processors,
            warp_size=WARP_SIZE,
            shared_memory_per_block=49152,
            shared_memory_per_block_optin=self.shared_bytes,
            shared_memory_per_multiprocessor=self.shared_bytes + 1024,
            max_threads_per_multi_processor=2048,
            regs_per_multiprocessor=65536,
            L2_cache_size=50 << 20,
            is_integrated=False,
            gcnArchName="",
        )


def make_up_gpu(arch: int) -> None:
    """Have torch and Triton answer as if this process had one device of a compute capability (90 for 9.0).

    Raises:
        KeyError: nothing is known of such a device.
    """
    device = _Device(arch)
    _answer_for_triton(device)
    _answer_for_torch(device)


def _answer_for_triton(device: _Device) -> None:
    from triton.backends.compiler import GPUTarget
    from triton.runtime import driver

    def refuse(*_: Any, **__: Any) -> Any:
        raise NoSuchGpu(f"there is no {device.name} here: nothing can be launched on it")

    # Of the driver, imports need these; Triton keeps whatever object is active.
    driver.set_active(
        SimpleNamespace(
            get_current_target=lambda: GPUTarget("cuda", device.arch, WARP_SIZE),
            get_current_device=lambda: 0,
            get_current_stream=lambda *_: 0,
            set_current_device=lambda _: None,
            get_device_capability=lambda *_: device.capability,
            get_active_torch_device=_torch_device,
            get_device_interface=_torch_cuda,
            get_benchmarker=lambda: refuse,
            get_empty_cache_for_benchmark=refuse,
            clear_cache=refuse,
            launcher_cls=refuse,
            utils=SimpleNamespace(get_device_properties=device.triton_properties, load_binary=refuse),
        )
    )


def _answer_for_torch(device: _Device) -> None:
    import torch

    answers = {
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "is_bf16_supported": lambda *_, **__: device.arch >= 80,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "set_device": lambda _: None,
        "synchronize": lambda *_: None,
        "get_device_name": lambda *_: device.name,
        "get_device_capability": lambda *_: device.capability,
        "get_device_properties": device.torch_properties,
        "get_arch_list": lambda: [f"sm_{device.arch}"],
        "mem_get_info": lambda *_: (MEMORY_BYTES, MEMORY_BYTES),
        # Behind the context manager torch.cuda.device.
        "_exchange_device": lambda _: 0,
        "_maybe_exchange_device": lambda _: 0,
    }
    for name, answer in answers.items():
        setattr(torch.cuda, name, answer)
    # A torch for the CPU has no such function.
    torch._C._cuda_getDevice = lambda: 0
    if torch.version.cuda is None:
        torch.version.cuda = "13.0"
    _allocate_on_host()


def _allocate_on_host() -> None:
    """Have every tensor of the device be one of the host, from now on and in this thread."""
    import torch
    from torch.overrides import TorchFunctionMode

    def place(value: Any) -> Any:
        is_device = isinstance(value, (str, torch.device)) and str(value).partition(":")[0] == "cuda"
        return torch.device("cpu") if is_device else value

    class OnHost(TorchFunctionMode):
        def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if function is torch.Tensor.cuda:
                return args[0]
            return function(*map(place, args), **{name: place(value) for name, value in (kwargs or {}).items()})

    # Until the process ends: its threads are the library's.
    OnHost().__enter__()  # type: ignore[no-untyped-call]


def _torch_device() -> Any:
    import torch

    return torch.device("cuda", 0)


def _torch_cuda() -> Any:
    import torch

    return torch.cuda
