"""``ktuned kernels``: the declared kernels of the watched roots."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

import click

from ktuned.cli import lines, output, text
from ktuned.cli.completion import complete_target
from ktuned.cli.exit_status import Exit
from ktuned.cli.options import as_path, is_path, json_option
from ktuned.model import describe_change
from ktuned_client import Client


@click.command()
@click.argument("target", metavar="[NAME|PATH]", required=False, shell_complete=complete_target)
@json_option
def kernels(target: str | None, as_json: bool) -> int:
    """List kernels, or show one and how its winners stand.

    Of a NAME it shows the full name that it means here, where it is declared, its interpreter and environment, and for
    each winner what has changed since it was measured. Errors in kernel files are listed, too.
    """
    is_one = target is not None and not is_path(target)
    chosen: dict[str, Any] = {}
    if target is not None:
        chosen = {"kernel": target, "why": True} if is_one else {"path": as_path(target)}
    with Client() as client:
        answer = client.call("kernels", **chosen)
    if as_json:
        output.emit_json({**answer, "root": _root_of(answer)} if is_one else answer)
    elif is_one:
        _describe_kernel(answer)
        _explain_winners(answer)
    elif target is None or answer["kernels"] or answer["errors"]:
        show_kernels(answer)
    if target is not None and not answer["kernels"] and not answer["errors"]:
        output.print_error(
            f"{target} declares no known kernel",
            "`ktuned add PATH` adds a file or a directory, `ktuned tune PATH` tunes it, too",
        )
        return Exit.NOT_REACHED
    return Exit.NOT_REACHED if answer["errors"] and target is not None else Exit.DONE


def _root_of(answer: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the innermost root that holds the one kernel of an answer."""
    (found,) = answer["kernels"]
    holders = [root for root in answer["roots"] if f"{found['file']}/".startswith(f"{root['path'].rstrip('/')}/")]
    return max(holders, key=lambda root: len(root["path"]), default={})


def _describe_kernel(answer: Mapping[str, Any]) -> None:
    (found,) = answer["kernels"]
    root = _root_of(answer)
    output.emit_line(found["name"])
    facts = {
        "declared at": f"{found['file']}:{found['line']}",
        "backend": found["backend"],
        "space": _describe_space(found["space"]),
        "problems": "; ".join(text.format_values(problem) for problem in found["problems"]) or text.ABSENT,
        "default": text.format_values(found["default"]),
        "root": root.get("path", text.ABSENT),
        "python": root.get("python", text.ABSENT),
        "environment": text.format_values(root.get("env")),
    }
    for name, value in facts.items():
        output.emit_line(f"  {name:<12} {value}")


def show_kernels(answer: Mapping[str, Any]) -> None:
    """Print a table of kernels, and the errors of their files."""
    if answer["kernels"]:
        rows = (
            [
                kernel["name"],
                kernel["backend"],
                f"{kernel['file']}:{kernel['line']}",
                _describe_space(kernel["space"]),
                "; ".join(text.format_values(problem) for problem in kernel["problems"]) or text.ABSENT,
                text.format_values(kernel["default"]),
            ]
            for kernel in answer["kernels"]
        )
        output.print_table(["kernel", "backend", "declared at", "space", "problems", "default"], rows)
    elif not answer["errors"]:
        output.print_message(
            "no kernels are known; `ktuned add PATH` adds a file or a directory, `ktuned tune PATH` tunes it, too"
        )
    _show_faults(answer)


def _show_faults(answer: Mapping[str, Any]) -> None:
    for kernel in answer["kernels"]:
        for missing in kernel["extra"].get("missing", ()):
            output.emit_line(f"{kernel['name']}: {missing}, which is missing")
    for error in answer["errors"]:
        what = lines.error_line(error)
        output.emit_line(f"{what}; {error.hint}" if error.hint else what)
        for line in lines.source_excerpt(error):
            output.emit_line(line)


def _explain_winners(answer: Mapping[str, Any]) -> None:
    for kernel in answer["kernels"]:
        if not kernel["why"]:
            output.emit_line(f"{kernel['name']}: not tuned yet")
        for entry in kernel["why"]:
            place = f"{kernel['name']} {text.format_values(entry['problem'])} on {entry['device']}"
            day = datetime.fromtimestamp(entry["decided"]).astimezone().strftime("%Y-%m-%d %H:%M:%S")
            if entry["status"] == "fresh":
                output.emit_line(f"{place}: fresh; nothing changed since {day} (trial {entry['trial']})")
                _show_notices(entry)
                continue
            output.emit_line(f"{place}: {entry['status']}; changed since {day} (trial {entry['trial']}):")
            for change in entry["changes"]:
                output.emit_line(f"  {describe_change(change)}")
            if entry["message"]:
                output.emit_line(f"  the newest job: {entry['message']}")
            _show_notices(entry)
    _show_faults(answer)


def _show_notices(entry: Mapping[str, Any]) -> None:
    # An earlier daemon sends none.
    for notice in entry.get("notices", ()):
        output.emit_line(f"  notice: {notice}")


def _describe_space(space: Mapping[str, Any]) -> str:
    size = "configs from a callable" if space.get("size") is None else f"{space['size']} configs"
    axes = f" of {' '.join(space['axes'])}" if space.get("axes") else ""
    return size + axes + (", constrained" if space.get("constrained") else "")
