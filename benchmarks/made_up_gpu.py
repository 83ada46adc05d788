"""A made-up CUDA device, which answers the questions that libraries ask while they are imported.

Libraries decide at import what they define: FLA asks Triton's driver for its target and the shared memory of each
device, and torch for the name and the compute capability; Liger asks whether CUDA is available. With these answers a
machine without a GPU imports what a machine with one does. Nothing can be launched on it. A few libraries make a tensor
at import: it lies in the host's memory.
"""

from typing import Any

from ktuned_inductor.made_up_gpu import H100, make_up_device

MODELS = {
    80: ("NVIDIA A100-SXM4-80GB", 108, 166912),
    89: ("NVIDIA L40S", 142, 101376),
    90: ("NVIDIA H100 80GB HBM3", 132, 232448),
    100: ("NVIDIA B200", 148, 232448),
    120: ("NVIDIA GeForce RTX 5090", 170, 101376),
}
"""By compute capability: a model's name, its multiprocessors, and the shared memory that a block may have."""


class NoSuchGpu(RuntimeError):
    """Something was to run on the device."""


def make_up_gpu(arch: int) -> None:
    """Have torch and Triton answer as if this process had one device of a compute capability (90 for 9.0).

    Raises:
        KeyError: nothing is known of such a device.
    """
    import torch
    from triton.runtime import driver

    name, processors, shared_bytes = MODELS[arch]
    major, minor = divmod(arch, 10)
    make_up_device(
        {
            **H100,
            "name": name,
            "major": major,
            "minor": minor,
            "multi_processor_count": processors,
            "shared_memory_per_block_optin": shared_bytes,
            "shared_memory_per_multiprocessor": shared_bytes + 1024,
        }
    )
    setattr(torch.cuda, "mem_get_info", lambda *_: (H100["total_memory"], H100["total_memory"]))  # noqa: B010

    def refuse(*_: Any, **__: Any) -> Any:
        raise NoSuchGpu(f"there is no {name} here: nothing can be launched on it")

    # What imports ask Triton's driver for, besides the target.
    vars(driver.active).update(
        set_current_device=lambda _: None,
        get_device_capability=lambda *_: (major, minor),
        get_active_torch_device=lambda: torch.device("cuda", 0),
        get_device_interface=lambda: torch.cuda,
        get_benchmarker=lambda: refuse,
        get_empty_cache_for_benchmark=refuse,
        clear_cache=refuse,
        launcher_cls=refuse,
    )
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
