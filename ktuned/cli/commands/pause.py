"""``ktuned pause`` and ``ktuned resume``."""

from __future__ import annotations

from typing import Any

import click

from ktuned.cli import output
from ktuned.cli.commands import jobs as job_tables
from ktuned.cli.completion import complete_kernel
from ktuned.cli.exit_status import Exit
from ktuned.cli.options import json_option
from ktuned_client import Client


@click.command()
@click.argument("target", metavar="[JOB|KERNEL]", required=False, shell_complete=complete_kernel)
@click.option("--device", metavar="DEVICE", help="Pause only this device (cpu:0, cuda:1) or device model.")
@json_option
def pause(target: str | None, device: str | None, as_json: bool) -> int:
    """Pause a job, a kernel's jobs, a device, or all tuning.

    A pause lasts until it is resumed, across restarts of the daemon too. Measurements are kept, and lookups are
    still answered.
    """
    return _set("pause", target, device, as_json)


@click.command()
@click.argument("target", metavar="[JOB|KERNEL]", required=False, shell_complete=complete_kernel)
@click.option("--device", metavar="DEVICE", help="Resume only this device (cpu:0, cuda:1) or device model.")
@json_option
def resume(target: str | None, device: str | None, as_json: bool) -> int:
    """Resume a paused job, kernel, device, or all tuning.

    A job that was paused by itself is not resumed with its device.
    """
    return _set("resume", target, device, as_json)


def _set(method: str, target: str | None, device: str | None, as_json: bool) -> int:
    if target is not None and device is not None:
        raise click.UsageError(
            "a target and --device exclude each other; give one of them", click.get_current_context()
        )
    chosen: dict[str, Any] = {}
    if target is not None:
        chosen = {"job": int(target)} if target.isdecimal() else {"kernel": target}
    elif device is not None:
        chosen = {"device": device}
    with Client() as client:
        answer = client.call(method, **chosen)
        if as_json:
            output.emit_json(answer)
        elif target is None:
            output.say(_devices_line(answer["paused"]) or _jobs_line(client))
        elif answer["jobs"]:
            job_tables.show(answer["jobs"])
    if target is not None and not answer["jobs"]:
        output.complain(f"{target} has no job that could be {method}d", "`ktuned jobs` lists them")
        return Exit.NOT_REACHED
    return Exit.DONE


def _devices_line(paused: list[str]) -> str:
    if "" in paused:
        return "all tuning is paused; `ktuned resume` resumes it"
    if paused:
        return f"paused: {', '.join(paused)}; `ktuned resume --device DEVICE` resumes one"
    return ""


def _jobs_line(client: Client) -> str:
    """Return the line for paused jobs, which need their own ``resume``, if no device is paused."""
    paused = [str(job["id"]) for job in client.call("jobs", state="paused")["jobs"]]
    if not paused:
        return "nothing is paused"
    return f"still paused: job {', '.join(paused)}; `ktuned resume JOB` resumes one"
