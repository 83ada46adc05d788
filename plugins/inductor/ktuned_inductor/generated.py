"""Generated kernels in the program: which config Inductor compiles, and the record of a kernel's first launch.

*Identity.* The source with the kernel's name and the device's number replaced, and the versions of torch and Triton. So
equal kernels of several layers and ranks are one. The source holds the flags of max-autotune, and with them the list.

*Types.* Triton's launcher derives a parameter's type from each value: a 1 becomes a constant, and a small number has 32
bits. Inductor decides the types when it generates a kernel. So the plain Triton file annotates each parameter with
Inductor's type.

*Search.* The configs that Inductor lists, and then neighbours of the best ones: a block size or the warps are halved or
doubled, the stages are one more or less. This stands for Inductor's coordinate descent.
"""

from __future__ import annotations

import functools
import json
import os
import re
from ast import literal_eval
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from ktuned.dropin import NotTunable, digest_content, find_device_model, is_capturing
from ktuned.model import canonical
from ktuned_inductor.decisions import Decision, Declaration, Origin, decisions
from ktuned_inductor.loading import META_KEY, Knobs, make_config
from ktuned_inductor.seams import GRID
from ktuned_triton.call import ArgumentReader, Call, Recipe, copy_contents

KERNEL: Final = "triton_kernel"
"""The name of every generated kernel in its record."""

MAX_BLOCKS: Final = {"XBLOCK": 4096, "YBLOCK": 1024, "ZBLOCK": 1024, "R0_BLOCK": 4096, "R1_BLOCK": 4096}
"""Largest block sizes that neighbours have; generated code leaves masks out that larger blocks would need."""

MAX_WARPS, MAX_STAGES = 16, 6

MAX_CANDIDATES: Final = 128
"""Most configs of a kernel's space."""

_KERNEL = re.compile(r"@triton_heuristics\.(\w+)\(\n.*?\n\)\n@triton\.jit\ndef \w+\(.*?\):\n", re.DOTALL)
_SIGNATURE = re.compile(r"'signature': (\{[^}]*\})")
_ATTRIBUTES = re.compile(r"'configs': \[(\{[^}]*\})\]")
"""What Inductor knows of the parameters' values, by their places: which are multiples of 16."""

_DEVICE = re.compile(r"(DeviceProperties\(type='cuda', index=)(\d+)")
_DTYPE = re.compile(r"'\w+': '\*(\w+)'")
_SIZES = re.compile(r"size_hints=\{([^}]*)\}")
_LISTED = ("pointwise", "reduction", "persistent_reduction")
_NOT_REPEATABLE = re.compile(r"'(ws_ptr|sem_ptr|semaphores_ptr)[0-9]*': '\*")
"""Parameters whose content Inductor prepares for each launch: workspaces and semaphores."""

_FLAGS = re.compile(r"'(?:max_autotune|max_autotune_pointwise|coordinate_descent_tuning)': True")
_DETERMINISTIC = re.compile(r"'(?:deterministic|batch_invariant)': True")


@dataclass(frozen=True, kw_only=True)
class GeneratedCall(Call):
    """A launch of a generated kernel; ``first`` of its recipes are measured first, and then others near the best."""

    first: int = 0

    def list_configs(self) -> list[dict[str, Any]]:
        """Return the configs of its recipes."""
        return [*map(json.loads, self.recipes)]


origins: Final[dict[str, Origin]] = {}
"""What the user wrote, by the names of the kernels that were generated from it last."""


def note_origin(kernel_name: str, nodes: Any) -> None:
    """Note what the user wrote for a kernel's nodes."""
    scheduled = (getattr(entry, "node", None) for entry in nodes)
    origins[kernel_name] = locate_origin(
        origin for node in scheduled if node is not None for origin in node.get_origins()
    )


def locate_origin(nodes: Iterable[Any]) -> Origin:
    """Return what the user wrote for the last of some FX nodes: the innermost frame and module that are not torch's.

    Without a frame, it is the file of the module's class.
    """
    import torch
    from torch._inductor.virtualized import V

    found = Origin(direction="backward" if getattr(V.graph, "is_backward", False) else "")
    for node in sorted(nodes, key=lambda node: str(node.name), reverse=True):
        modules = node.meta.get("nn_module_stack") or node.meta.get("fwd_nn_module_stack") or {}
        kinds = [
            f"{kind.__module__}.{kind.__name__}" if isinstance(kind, type) else str(kind)
            for _, kind in modules.values()
        ]
        own = [kind for kind in kinds if not kind.startswith("torch.")]
        place, _, module = (own or kinds or [""])[-1].rpartition(".")
        frames = re.findall(r'File "([^"]+)", line (\d+)', node.meta.get("stack_trace") or "")
        lines = [frame for frame in frames if not frame[0].startswith(f"{Path(torch.__file__).parent}{os.sep}")]
        if lines:
            return found._replace(file=Path(lines[-1][0]).name, line=lines[-1][1], module=module)
        if module and not found.module:
            found = found._replace(file=f"{place.rpartition('.')[2]}.py", module=module)
    return found


def find_decorator(source: str) -> re.Match[str] | None:
    """Return a generated source's decorator; ``None`` if it leaves nothing to choose, or if Inductor must choose."""
    decorator = _KERNEL.search(source)
    if decorator is None or decorator[1] not in _LISTED or not _FLAGS.search(decorator[0]):
        return None
    if _NOT_REPEATABLE.search(decorator[0]) or _DETERMINISTIC.search(decorator[0]):
        return None
    return decorator if _DEVICE.search(decorator[0]) else None


def decide_kernel(kernel_name: str, source: str, decorator: re.Match[str]) -> Decision:
    """Return the decision about a generated kernel that leaves Inductor something to choose."""
    sizes = re.findall(r"(\d+)", re.sub(r"'[^']*'", "", (_SIZES.search(decorator[0]) or ["", ""])[1]))
    dtype = _DTYPE.search(decorator[0])
    return decisions.make_decision(
        origins.pop(kernel_name, Origin()),
        re.sub(r"^triton_\w{3}_fused_|_?\d+$", "", kernel_name).strip("_")[:60] or decorator[1],
        {"size": "x".join(sizes), "dtype": "" if dtype is None else dtype[1].replace("fp", "f")},
        find_device_model(int(_DEVICE.findall(decorator[0])[0][1])),
        module=_name_module(kernel_name, source),
        qualname=KERNEL,
        source=_DEVICE.sub(r"\g<1>0", source.replace(kernel_name, KERNEL)),
    )


def make_plain_source(kernel_name: str, source: str) -> str:
    """Return a generated source as a plain Triton file, with Inductor's types, and without its decorator and driver."""
    plain = _KERNEL.sub(_annotate_parameters, source.replace(kernel_name, KERNEL))
    return plain.replace("triton_helpers.set_driver_to_gpu()", "")


def _annotate_parameters(kernel: re.Match[str]) -> str:
    signature, attributes = (literal_eval(meta.findall(kernel[0])[0]) for meta in (_SIGNATURE, _ATTRIBUTES))
    parameters = ", ".join(f"{name}: {kind!r}" for name, kind in signature.items())
    # Inductor compiles them for all values, even if this launch passes a 1 or a multiple of 16.
    unspecialised = [
        name
        for place, (name, kind) in enumerate(signature.items())
        if kind != "constexpr" and (place,) not in attributes
    ]
    return f"@triton.jit(do_not_specialize={unspecialised})\ndef {KERNEL}({parameters}):\n"


def _name_module(kernel_name: str, source: str) -> str:
    return f"inductor_{digest_content(make_plain_source(kernel_name, source))}"


def list_first(default: Knobs, listed: Sequence[Knobs]) -> list[dict[str, Any]]:
    """Return the configs to measure first: the default mode's, and those that Inductor lists."""
    alike = [knobs for knobs in listed if knobs.keys() == default.keys()]
    return list({canonical(dict(knobs)): dict(knobs) for knobs in (default, *alike)}.values())


def list_candidates(first: Sequence[Knobs]) -> list[dict[str, Any]]:
    """Return a kernel's space: the first configs, their neighbours, the neighbours of these, and so on.

    >>> [list_candidates([dict(XBLOCK=x, num_warps=4, num_stages=1)])[1]["XBLOCK"] for x in (64, 1)]
    [32, 2]
    """
    found = [dict(knobs) for knobs in first]
    known = {canonical(knobs) for knobs in found}
    for knobs in found:
        for neighbour in _walk_neighbours(knobs):
            if len(found) < MAX_CANDIDATES and canonical(neighbour) not in known:
                known.add(canonical(neighbour))
                found.append(neighbour)
    return found


def _walk_neighbours(knobs: Knobs) -> Iterator[dict[str, Any]]:
    for name, value in knobs.items():
        if name == "num_stages":
            values, largest = (value - 1, value + 1), MAX_STAGES
        elif name == "num_warps":
            values, largest = (value // 2, value * 2), MAX_WARPS
        elif name in MAX_BLOCKS:
            values, largest = (value // 2, value * 2), max(MAX_BLOCKS[name], value)
        else:
            continue
        for other in values:
            if 1 <= other <= largest:
                yield {**knobs, name: other}


# The record


def arm_recorder(kernel: Any) -> None:
    """Have the first launch of a kernel leave a record, if the decision about it is open.

    Later launches call Inductor's ``run`` directly.
    """
    known = dict(kernel.inductor_meta.get(META_KEY, ()))
    decision = decisions.find_decision(known.pop("key", ""))
    if decision is None or decision.is_recorded:
        return

    @functools.wraps(kernel.run)
    def run(*args: Any, **kwargs: Any) -> Any:
        # Several threads may make the first launch.
        if not is_capturing() and not kwargs.get("benchmark_run") and vars(kernel).pop("run", None):
            decisions.record_decision(decision, partial(_pack_launch, kernel, decision.declaration, known, args))
        return type(kernel).run(kernel, *args, **kwargs)

    kernel.run = run


def _pack_launch(
    kernel: Any, declaration: Declaration, known: Mapping[str, Any], args: Sequence[Any]
) -> tuple[Call, Mapping[str, Any], Mapping[str, bytes]]:
    if "error" in known:
        raise NotTunable(f"its configs cannot be listed: {known['error']}")
    first = list_first(**known)
    call, captured = describe_launch(kernel.triton_meta, kernel.inductor_meta, list_candidates(first), args)
    source = make_plain_source(KERNEL, declaration.source).encode()
    contents = copy_contents(captured, call.tensors)
    return replace(call, first=len(first)), contents, {f"{declaration.module}.py": source}


def describe_launch(
    triton_meta: Mapping[str, Any], inductor_meta: Mapping[str, Any], candidates: Sequence[Knobs], args: Sequence[Any]
) -> tuple[GeneratedCall, dict[str, Any]]:
    """Describe a launch as plain data, with a recipe for each config.

    Returns:
        the call, and the tensors whose content must travel, by name.

    Raises:
        NotTunable: another process cannot make the launch.
    """
    signature = triton_meta["signature"]
    names = [name for name in signature if name not in candidates[0]]
    if len(args) != len(names):
        raise NotTunable(f"its launch has {len(args)} arguments, and its signature {len(names)}")
    given = dict(zip(names, args, strict=True))
    # Sizes that Inductor writes into the kernel are passed all the same.
    fixed = {name: value for name, value in given.items() if signature[name] == "constexpr"}
    reader = ArgumentReader(())
    packed = tuple(reader.read_argument(name, value) for name, value in given.items() if name not in fixed)
    # Nothing reads the content of an output.
    outputs = [name for name in reader.captured if name.startswith("out_ptr")]
    reader.zeroed |= {id(reader.captured[name]) for name in outputs}
    options = {"sanitize_overflow": False}
    if "enable_fp_fusion" in triton_meta:
        options["enable_fp_fusion"] = triton_meta["enable_fp_fusion"]
    recipes, grids = {}, {}
    for knobs in candidates:
        blocks = canonical({name: value for name, value in knobs.items() if name in MAX_BLOCKS})
        if blocks not in grids:
            grids[blocks] = _evaluate_grid(inductor_meta, knobs, given)
        recipes[canonical(dict(knobs))] = Recipe(
            constants={**fixed, **{name: value for name, value in knobs.items() if name in signature}},
            grid=grids[blocks],
            sizes={name: knobs[name] for name in ("num_warps", "num_stages")},
            options=options,
        )
    return GeneratedCall(tensors=reader.describe_tensors(), args=packed, recipes=recipes), reader.captured


def _evaluate_grid(inductor_meta: Mapping[str, Any], knobs: Knobs, given: Mapping[str, Any]) -> tuple[int, int, int]:
    import triton

    owner, name = GRID.find_owner()
    grid = getattr(owner, name)(inductor_meta, make_config(knobs, [triton.Config({})]))
    scope = {name: value for name, value in given.items() if isinstance(value, int)}
    lines = [*([grid.prefix] if isinstance(grid.prefix, str) else grid.prefix)]
    exec("\n".join([*lines, f"_x, _y, _z = {grid.x_grid}, {grid.y_grid}, {grid.z_grid}"]), {}, scope)
    sizes = scope["_x"], scope["_y"], scope["_z"]
    if min(sizes) < 1:
        raise NotTunable(f"its grid is {sizes}")
    return sizes
