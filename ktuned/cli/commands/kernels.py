"""``ktuned kernels``: what the watched roots declare."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from ktuned.cli import Exit, lines, output, text
from ktuned.cli.options import as_path, given, is_path, json_option
from ktuned_client import Client


@click.command()
@click.argument("target", metavar="[NAME|PATH]", required=False)
@json_option
def kernels(target: str | None, as_json: bool) -> int:
    """List kernels, and errors in kernel files."""
    chosen: dict[str, Any] = {}
    if target is not None:
        chosen = {"path": as_path(target)} if is_path(target) else {"kernel": target}
    with Client() as client:
        answer = client.call("kernels", **given(**chosen))
    if as_json:
        output.emit_json(answer)
    else:
        _show(answer)
    if target is not None and not answer["kernels"]:
        output.complain(f"{target} declares no kernel that is known", "`ktuned tune PATH` adds a file or a directory")
        return Exit.NOT_REACHED
    return Exit.NOT_REACHED if answer["errors"] and target is not None else Exit.DONE


def _show(answer: Mapping[str, Any]) -> None:
    if answer["kernels"]:
        rows = (
            [
                kernel["name"],
                kernel["backend"],
                f"{kernel['file']}:{kernel['line']}",
                _space(kernel["space"]),
                "; ".join(text.flat(problem) for problem in kernel["problems"]) or text.ABSENT,
                text.flat(kernel["default"]),
            ]
            for kernel in answer["kernels"]
        )
        output.table(["kernel", "backend", "declared at", "space", "problems", "default"], rows)
    elif not answer["errors"]:
        output.say("no kernels are known; `ktuned tune PATH` adds a file or a directory")
    for error in answer["errors"]:
        output.emit(lines.error_line(error.get("path"), error.get("line"), error["message"]))


def _space(space: Mapping[str, Any]) -> str:
    size = "configs from a callable" if space.get("size") is None else f"{space['size']} configs"
    axes = f" of {' '.join(space['axes'])}" if space.get("axes") else ""
    return size + axes + (", constrained" if space.get("constrained") else "")
