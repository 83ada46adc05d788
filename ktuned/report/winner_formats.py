"""Winners as files for programs without ktuned: JSON keyed by one size, as vLLM reads it.

It is made from a document of winners (``docs/reference/sharing.md``): a kernel, a device model, and a config for
each problem.
"""

from __future__ import annotations

import json
import re

from ktuned.model import Config, Problem, UsageError, listed
from ktuned.protocol import WinnersDocument


def render_vllm_files(document: WinnersDocument, by: str) -> dict[str, str]:
    """Return files of configs keyed by one size: ``{"16": {"BLOCK_SIZE_M": 32, …}, …}``.

    There is one file for each choice of the problem's other keys, under the name that vLLM's loaders ask for: those of
    fused MoE kernels for ``E=8,N=14336,device_name=NVIDIA_H100,dtype=fp8_w8a8.json``, those of block-scaled matrix
    products for ``N=4096,K=512,device_name=NVIDIA_H100,dtype=fp8_w8a8,block_shape=[128,128].json``
    (``get_config_file_name`` and ``get_w8a8_block_fp8_configs`` in https://github.com/vllm-project/vllm).

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
        files.setdefault(_name_vllm_file(problem, document.device), {})[size] = winner.config
    return {
        name: json.dumps({str(size): dict(configs[size]) for size in sorted(configs)}, indent=4) + "\n"
        for name, configs in files.items()
    }


_SIZES = ("E", "N", "K")
_AFTER_DEVICE = ("dtype", "block_shape")


def _name_vllm_file(problem: Problem, device: str) -> str:
    """Return a file's name as vLLM forms it: sizes, other keys, device, and dtype and the block's shape if given."""
    others = [key for key in problem if key not in (*_SIZES, *_AFTER_DEVICE)]
    words = [f"{key}={problem[key]}" for key in (*_SIZES, *others) if key in problem]
    words.append("device_name=" + re.sub(r"[\s/]+", "_", device))
    words += [f"{key}={problem[key]}" for key in _AFTER_DEVICE if problem.get(key)]
    return re.sub(r"[\s/]+", "", ",".join(words)) + ".json"
