"""The server: its tools, its resources, and the errors of both.

Each tool sends a few requests to the daemon and returns the parts of the answers that an agent reads: a kernel's list
of trials may have megabytes. An error of any kind is a result with ``isError`` and the structured content
``{"error": {"code", "message", "hint"}}``, with the codes of the daemon's protocol and ``budget``.
"""

from __future__ import annotations

import inspect
import json
import math
import os
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from importlib import metadata
from pathlib import Path
from time import monotonic
from typing import Annotated, Any

import anyio
import msgspec
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.server.mcpserver.resources import FileResource
from mcp.types import CallToolResult, TextContent, ToolAnnotations
from pydantic import Field, ValidationError

from ktuned.declaration import kernel, load_tensors, space, tensor
from ktuned.model import Peaks, compute_shares
from ktuned_client import AsyncClient, DaemonError, DaemonUnavailable
from ktuned_mcp.budget import Budget, RefusedCall

INSTRUCTIONS = (
    "ktuned compiles, checks and times kernels on this machine. The resource ktuned://kernel-file explains the file "
    "that declares a kernel with its inputs, its reference and its tolerances; ktuned://examples/… are whole files."
)

PROGRESS_S = 0.2
"""Shortest time between two progress notifications of a call; a job may try hundreds of configs a second."""

MESSAGE_CHARS = 2000
"""Most characters of a trial's message: a compiler's first errors."""

ADD_DEADLINE_S = 120.0
"""A kernel file may import torch."""

EXAMPLES_OF_FAILURE = 3
"""Trials that ``explain`` shows of each outcome."""

EXAMPLES = Path(__file__).parent / "examples"

FAILED = ("compile_error", "compile_timeout", "unsupported", "mismatch", "launch_error", "crashed", "hung")
"""Outcomes that say that a config cannot win."""

Values = dict[str, bool | int | float | str]
Answer = dict[str, Any]

Kernel = Annotated[str, Field(description="the kernel's name, `kernel` or `project:kernel`")]
Target = Annotated[str, Field(description="a kernel file's path (with a slash or .py), or a kernel's name")]
Problem = Annotated[Values | None, Field(description='sizes, as {"M": 1024}; default: all that the file declares')]
Device = Annotated[str | None, Field(description="a device (cpu:0, cuda:1) or a device model; default: the first")]

READS = ToolAnnotations(read_only_hint=True, open_world_hint=False)
RUNS = ToolAnnotations(read_only_hint=False, destructive_hint=False, open_world_hint=False)


class Server(MCPServer[Any]):
    """An MCP server whose tools' errors are structured."""

    async def call_tool(
        self, name: str, arguments: dict[str, Any], context: Context[Any, Any] | None = None
    ) -> Any:  # the SDK's own type names what only its newest protocol has
        """Call a tool; an error becomes a result with code, message and hint."""
        try:
            return await super().call_tool(name, arguments, context)
        except ToolError as error:
            found = {"error": _describe_error(error)}
            text = TextContent(type="text", text=json.dumps(found))
            return CallToolResult(content=[text], structured_content=found, is_error=True)


def _describe_error(error: ToolError) -> Mapping[str, str]:
    cause = error.__cause__
    while isinstance(cause, BaseExceptionGroup):
        cause = cause.exceptions[0]
    match cause:
        case DaemonError() | RefusedCall():
            code, message, hint = cause.code, cause.message, cause.hint
        case DaemonUnavailable():
            code, message, hint = "unavailable", cause.message, cause.hint
        case ValidationError():
            faults = [f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}" for fault in cause.errors()]
            code, message, hint = "usage", "; ".join(faults), "tools/list has each tool's parameters"
        case None:
            code, message, hint = "unknown_method", str(error), "tools/list has the tools"
        case _:
            code, message, hint = "internal", f"{type(cause).__name__}: {cause}", "this is a bug in ktuned-mcp"
    return {"code": code, "message": message, "hint": hint}


def make_server(client: AsyncClient, budget: Budget) -> Server:
    """Return the server of one connection, which closes the client at its end."""

    @asynccontextmanager
    async def lifespan(_: MCPServer[Any]) -> AsyncIterator[None]:
        async with client:
            yield

    server = Server(
        "ktuned",
        version=metadata.version("ktuned-mcp"),
        instructions=INSTRUCTIONS,
        lifespan=lifespan,
        log_level="ERROR",
    )
    tools = Tools(client, budget)
    server.add_tool(tools.judge, annotations=RUNS)
    server.add_tool(tools.tune, annotations=RUNS)
    reading: tuple[Callable[..., Any], ...] = (tools.best, tools.explain, tools.limits, tools.history)
    for tool in reading:
        server.add_tool(tool, annotations=READS)
    about = server.resource("ktuned://kernel-file", description="How to declare a kernel", mime_type="text/markdown")
    about(describe_kernel_files)
    for path in sorted(EXAMPLES.glob("*.md")):
        uri = f"ktuned://examples/{path.stem}"
        server.add_resource(FileResource(uri=uri, name=path.stem, path=path, mime_type="text/markdown"))
    return server


def describe_kernel_files() -> str:
    """Return the documentation of the functions that a kernel file calls."""
    parts: list[Callable[..., Any]] = [kernel, space, tensor, load_tensors]
    return "\n\n".join(f"# `{part.__name__}{inspect.signature(part)}`\n\n{inspect.getdoc(part)}" for part in parts)


class Tools:
    """The tools of one connection.

    Args:
        client: asks the daemon.
        budget: limits what ``judge`` and ``tune`` may cost.
    """

    def __init__(self, client: AsyncClient, budget: Budget) -> None:
        self._client = client
        self._budget = budget

    async def judge(
        self,
        target: Target,
        ctx: Context[Any, Any],
        configs: Annotated[list[Values] | None, Field(description="candidates; default: the default config")] = None,
        problem: Problem = None,
        device: Device = None,
        against: Annotated[
            str | Values | None, Field(description="also compare with `winner`, a config, or a kernel file's path")
        ] = None,
        quick: Annotated[bool, Field(description="judge by fewer launches")] = False,
    ) -> Answer:
        """Judge candidates that you do not trust: verdict, reason, latency, and speed-up over the reference.

        Verdicts: right, refused, compile_error, wrong, crashed, hung, cheating. Candidates do not become winners.
        """
        count = 1 if configs is None else len(configs)
        self._budget.require_candidates(count)
        named = _name_target(target)
        if "path" in named:
            found = await self._client.call("add", path=os.path.abspath(target), deadline_s=ADD_DEADLINE_S)
        else:
            found = await self._client.call("kernels", kernel=target)
        # A file with an error has no kernels, and the request below says what is wrong.
        declared = found["kernels"]
        total = count * sum(1 if problem else len(kernel["problems"]) for kernel in declared)
        async with (
            await self._client.events(
                kernels=[kernel["kernel"] for kernel in declared], types=["trial_done"]
            ) as events,
            anyio.create_task_group() as tasks,
        ):
            tasks.start_soon(_report_verdicts, events, ctx, total)
            answer = await self._client.judge(
                **named,  # type: ignore[arg-type]
                configs=configs,
                problem=problem,
                device=device,
                against=against,
                quick=quick or None,
            )
            tasks.cancel_scope.cancel()
        self._budget.subtract_cost(count, await self._sum_lane_s(answer))
        return {**answer, "budget": self._budget.describe_rest()}

    async def tune(
        self,
        target: Target,
        ctx: Context[Any, Any],
        problem: Problem = None,
        device: Device = None,
        preset: Annotated[str, Field(description="how thoroughly to measure: fast, default or thorough")] = "fast",
        trials: Annotated[int | None, Field(description="try at most so many configs", ge=1)] = None,
        time_limit_s: Annotated[float | None, Field(description="stop trying configs after this time", gt=0)] = None,
    ) -> Answer:
        """Search a kernel's space for its fastest correct config, and return each problem's winner at the end."""
        self._budget.require_candidates()
        tuning = await self._client.tune(
            **_name_target(target),  # type: ignore[arg-type]
            problem=problem,
            device=device,
            preset=preset,
            trials=self._budget.limit_trials(trials),
            time_limit_s=time_limit_s,
        )
        progress = _Progress(tuning.jobs)
        cancelled: set[int] | None = None
        try:
            async for event in tuning:
                self._budget.subtract_cost(*progress.apply_event(event))
                await progress.report_progress(ctx)
                # Several jobs may together try more than each may.
                if self._budget.is_overspent and cancelled is None:
                    cancelled = await self._cancel_jobs(tuning.jobs)
                if event["type"] == "job_done" and cancelled is not None:
                    cancelled.discard(event["job"])
                # A cancelled job ends when its config under way does. Jobs of other clients are not waited for.
                if cancelled is not None and not cancelled:
                    break
        finally:
            await tuning.aclose()
        jobs = (await self._client.call("jobs", ids=[job["id"] for job in tuning.jobs]))["jobs"]
        return {
            "jobs": [await self._describe_job(job) for job in jobs],
            "errors": tuning.errors,
            "notices": tuning.notices,
            "budget": self._budget.describe_rest(),
        }

    async def best(self, kernel: Kernel, problem: Problem = None, device: Device = None) -> Answer:
        """Return the best config known for each problem, with its latency and whether it is fresh. Tunes nothing."""
        problems = [problem] if problem else (await self._find_kernel(kernel))["problems"]
        lookups = [_drop_none(kernel=kernel, problem=one, device=device, tune=False, settle=1.0) for one in problems]
        return {"answers": (await self._client.call("lookup_many", lookups=lookups))["answers"]}

    async def explain(
        self,
        kernel: Kernel,
        problem: Problem = None,
        device: Device = None,
        trial: Annotated[int | None, Field(description="everything about one trial instead")] = None,
    ) -> Answer:
        """Explain why configs are wrong or failed (`failures`), slow (`jobs`; see `limits`) or stale (`stale`)."""
        if trial is not None:
            (found,) = (await self._client.call("results", kernel=kernel, trial=trial))["trials"]
            return {"trial": found}
        declared = await self._find_kernel(kernel, why=True)
        asked = _drop_none(kernel=kernel, problem=problem, device=device, current=True)
        failures = {}
        for outcome in FAILED:
            answer = await self._client.call(
                "results", **asked, outcome=outcome, order="newest", limit=EXAMPLES_OF_FAILURE, count=True
            )
            if answer["total"]:
                failures[outcome] = {"count": answer["total"], "newest": list(map(_shorten_trial, answer["trials"]))}
        jobs = (await self._client.call("jobs", kernel=kernel, limit=10))["jobs"]
        stale = [winner for winner in declared["why"] if winner["status"] != "fresh"]
        return {
            "kernel": declared["kernel"],
            "failures": failures,
            "jobs": list(map(_shorten_job, jobs)),
            "stale": stale,
            "unobserved": declared["unobserved"],
            "quarantined": declared["quarantined"],
        }

    async def limits(
        self,
        kernel: Annotated[str | None, Field(description="a kernel's name; default: only the devices' limits")] = None,
        measure: Annotated[bool, Field(description="measure the devices first, which takes a minute")] = False,
    ) -> Answer:
        """Return the devices' measured limits and, for a kernel, which limit its best configs are nearest to."""
        deadline_s = 300.0 if measure else 10.0
        peaks = (await self._client.call("peaks", measure=measure, deadline_s=deadline_s))["peaks"]
        if kernel is None:
            return {"devices": peaks}
        found = (await self._client.call("results", kernel=kernel, outcome="measured", current=True))["trials"]
        known = {device["device"]: msgspec.convert(device, Peaks) for device in peaks}
        bounds = []
        for trial in (trial for trial in found if trial["winner"]):
            shares = compute_shares(trial["metrics"], known.get(trial["device"], Peaks(trial["device"])))
            named = [{"limit": share.of, "share": round(share.share, 3), "at_most": share.at_most} for share in shares]
            note = "" if named else _explain_missing_limits(trial, known)
            bounds.append({**_shorten_trial(trial), "limits": named, "note": note})
        return {"devices": peaks, "winners": bounds}

    async def history(
        self,
        kernel: Kernel,
        problem: Problem = None,
        device: Device = None,
        limit: Annotated[int, Field(description="the number of trials", ge=1, le=200)] = 20,
        before: Annotated[int | None, Field(description="continue after the trial with this id")] = None,
    ) -> Answer:
        """List a kernel's trials over all its versions, newest first; ``version`` tells them apart."""
        asked = _drop_none(kernel=kernel, problem=problem, device=device, limit=limit, before=before)
        answer = await self._client.call("results", **asked, order="newest", count=True)
        return {"total": answer["total"], "trials": list(map(_shorten_trial, answer["trials"]))}

    async def _sum_lane_s(self, answer: Mapping[str, Any]) -> float:
        """Return the seconds for which judging these candidates has held the device."""
        ids = {problem["trial"] for candidate in answer["candidates"] for problem in candidate["problems"]}
        asked = {"kernel": answer["kernel"], "judged": True, "order": "newest", "limit": max(1, len(ids))}
        trials = (await self._client.call("results", **asked))["trials"]
        return math.fsum(trial["lane_s"] for trial in trials if trial["id"] in ids)

    async def _find_kernel(self, kernel: str, *, why: bool = False) -> Answer:
        (found,) = (await self._client.call("kernels", kernel=kernel, why=why))["kernels"]
        return dict(found)

    async def _describe_job(self, job: Mapping[str, Any]) -> Answer:
        """Return a job with its winner, which its final round has decided."""
        asked = {name: job[name] for name in ("kernel", "problem", "device", "objective")}
        answer = await self._client.call("lookup", **asked, tune=False)
        return {**_shorten_job(job), "winner": answer["config"] if answer["latency_us"] is not None else None}

    async def _cancel_jobs(self, jobs: Iterable[Mapping[str, Any]]) -> set[int]:
        """Cancel the jobs that have not ended, except those that other clients wait for; return the jobs' ids."""
        ids = [job["id"] for job in jobs if job["finished"] is None]
        live = (await self._client.call("jobs", ids=ids))["jobs"] if ids else ()
        cancelled = {job["id"] for job in live if job["finished"] is None and job["waiters"] <= 1}
        for job in sorted(cancelled):
            await self._client.call("cancel", job=job)
        return cancelled


async def _report_verdicts(events: AsyncIterator[Mapping[str, Any]], ctx: Context[Any, Any], total: int) -> None:
    """Notify the client of each verdict."""
    done = 0
    async for event in events:
        trial = event["trial"] or {}
        if judged := trial.get("detail", {}).get("judged"):
            done += 1
            await ctx.report_progress(min(done, total), total, f"{trial['config']}: {judged['verdict']}")


class _Progress:
    """The jobs of one call: what they have cost since the call began, and the notifications of their progress."""

    def __init__(self, jobs: Iterable[Mapping[str, Any]]) -> None:
        self._costs = {job["id"]: (job["done"], _read_lane_s(job)) for job in jobs}
        self._most = {job["id"]: job["plan"]["trials"] for job in jobs}
        self._totals: dict[int, int | None] = dict.fromkeys(self._costs)
        self._message = ""
        self._next_report = 0.0

    def apply_event(self, event: Mapping[str, Any]) -> tuple[int, float]:
        """Return the candidates, and the seconds of measuring, that are new with an event.

        At a job's end its own account replaces the sum of its trials.
        """
        if event["type"] not in ("trial_done", "job_done") or event["job"] not in self._costs:
            return 0, 0.0
        job: int = event["job"]
        done, lane_s = self._costs[job]
        if event["type"] == "trial_done":
            figures, now_s = event, lane_s + (event["trial"]["lane_s"] if event["trial"] else 0.0)
        else:
            figures, now_s = event["job_state"], _read_lane_s(event["job_state"])
            self._next_report = 0.0
        self._costs[job] = figures["done"], now_s
        self._totals[job] = figures["total"] and min(figures["total"], self._most[job])
        best = "nothing measured yet" if figures["best_us"] is None else f"best {figures['best_us']:.4g} µs"
        self._message = f"{event['kernel']}: {best}"
        return figures["done"] - done, now_s - lane_s

    async def report_progress(self, ctx: Context[Any, Any]) -> None:
        """Notify the client of the progress, unless it was notified a moment ago."""
        if self._message and monotonic() >= self._next_report:
            self._next_report = monotonic() + PROGRESS_S
            totals = self._totals.values()
            total = None if None in totals else sum(filter(None, totals))
            await ctx.report_progress(sum(done for done, _ in self._costs.values()), total, self._message)


def _read_lane_s(job: Mapping[str, Any]) -> float:
    """Return the seconds for which a job has held its device, without waits for other jobs' compiles."""
    cost = job["cost"]
    return float(cost.get("lane_s", 0.0) + cost.get("finalists_s", 0.0) - cost.get("quiet_s", 0.0))


def _name_target(target: str) -> dict[str, str]:
    """Return a target as the path or the kernel that the client takes."""
    return {"path" if "/" in target or target.endswith(".py") else "kernel": target}


def _drop_none(**values: Any) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def _shorten_trial(trial: Mapping[str, Any]) -> Answer:
    """Return what an agent reads of a trial."""
    names = "id problem device config outcome latency_us spread_us metrics facts winner updated"
    found = {name: trial[name] for name in names.split()}
    return {**found, "message": trial["message"][:MESSAGE_CHARS], "version": trial["digest"][:12]}


def _shorten_job(job: Mapping[str, Any]) -> Answer:
    """Return what an agent reads of a job."""
    names = "id kernel problem device state message waits_for outcomes best_us default_us reference_us"
    return {name: job[name] for name in names.split()}


def _explain_missing_limits(trial: Mapping[str, Any], known: Mapping[str, Peaks]) -> str:
    """Return why no limit is known to hold a trial's config back."""
    if trial["device"] not in known:
        return "the device's limits are not measured: call limits with measure=true"
    if not any(name == "gbps" or name.startswith("tflops") for name in trial["metrics"]):
        return "the kernel file declares neither flops= nor bytes="
    return "the config exceeds the measured limits: its data stays in a cache"
