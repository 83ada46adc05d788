"""Winners as files for programs without ktuned: JSON keyed by one size, as vLLM reads it.

It is made from a document of winners (``docs/sharing.md``): a kernel, a device model, and for each problem a config.
"""

from __future__ import annotations

import json

from ktuned.model import Config, UsageError, listed
from ktuned.protocol import WinnersDocument


def render_vllm_files(document: WinnersDocument, by: str) -> dict[str, str]:
    """Return files of configs keyed by one size: ``{"16": {"BLOCK_SIZE_M": 32, …}, …}``.

    There is one file for each choice of the problem's other keys, and its name contains them: vLLM's fused MoE kernels
    look for ``E=8,N=14336,device_name=NVIDIA_H100.json`` (https://github.com/vllm-project/vllm).

    Raises:
        UsageError: a winner's problem has no such size.
    """
    files: dict[str, dict[int, Config]] = {}
    for winner in document.winners:
        problem = dict(winner.problem)
        size = problem.pop(by, None)
        if type(size) is not int:
            hint = f"name an integer of it with --by {listed(winner.problem)}"
            raise UsageError(f"{document.kernel}: its problem has no size {by!r}", hint=hint)
        keys = [f"{key}={value}" for key, value in problem.items()]
        name = ",".join([*keys, f"device_name={document.device.replace(' ', '_')}"]).replace("/", "_")
        files.setdefault(f"{name}.json", {})[size] = winner.config
    return {
        name: json.dumps({str(size): dict(configs[size]) for size in sorted(configs)}, indent=4) + "\n"
        for name, configs in files.items()
    }
