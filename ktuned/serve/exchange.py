"""The methods ``export`` and ``import``: winners as documents that can be kept in git, and taken in elsewhere.

A document has its kernel's learned names without their contents. Where an import looks at them, and finds what makes
the digest of one of the winners, all of them hold what they held there: they are learned here, too. Their
reader is imported when there is one to read: a daemon at rest holds 0.1 MiB less.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from time import time
from typing import Any, Final

import anyio.to_thread

from ktuned.catalog import PROJECT_FILE, Admission, Catalog, ForeignNames, check_problem
from ktuned.devices import Machine
from ktuned.lookup import ServedWinners
from ktuned.model import (
    LATENCY,
    Config,
    Context,
    DeviceModel,
    KernelInfo,
    KeyProblem,
    KtunedError,
    NotFound,
    Observation,
    Problem,
    Status,
    UsageError,
    Winner,
    WorkerError,
    canonical,
    metric_of,
)
from ktuned.protocol import EXPORT, IMPORT, ExportParams, ImportParams, PublishEvent, WinnerChanged
from ktuned.serve.connection import Connection
from ktuned.serve.method import Handler
from ktuned.store import Artifacts, Offer, Store, exchange

MAX_IMPORTED: Final = 200
"""Winners in one ``import``: some 20 ms of the loop's time."""


MAX_NAMED: Final = 5
"""Watched directories that an error names: more say less."""


class WinnerExchange:
    """Exports winners and imports others; ``publish`` announces those that became winners here."""

    def __init__(
        self,
        *,
        admission: Admission,
        catalog: Catalog,
        foreign_names: ForeignNames,
        machine: Machine,
        store: Store,
        artifacts: Artifacts,
        served: ServedWinners,
        publish: PublishEvent,
    ) -> None:
        self._admission = admission
        self._catalog = catalog
        self._foreign_names = foreign_names
        self._machine = machine
        self._store = store
        self._artifacts = artifacts
        self._served = served
        self._publish = publish

    def list_handlers(self) -> list[Handler[Any, Any]]:
        """Return the methods with their handlers."""
        return [
            Handler(EXPORT, self.export_winners),
            Handler(IMPORT, self.import_winners),
        ]

    async def export_winners(self, wanted: ExportParams, connection: Connection) -> dict[str, Any]:
        """List the kernels and device models that have winners, or return the document of one of each.

        It is read in a thread, so that lookups do not wait for it.
        """
        name = None if wanted.kernel is None else self._full_name(wanted.kernel, wanted.directory)
        if name is None or wanted.device is None:
            found = await anyio.to_thread.run_sync(exchange.list_exports, self._store.path)
            return {
                "shared": [
                    {"kernel": kernel, "device": device, "winners": count}
                    for kernel, device, count in found
                    if name in (None, kernel) and wanted.device in (None, device)
                ]
            }
        winners = await anyio.to_thread.run_sync(exchange.winners_to_export, self._store.path, name, wanted.device)
        winners = self._as_served(name, wanted.device, winners)
        if not winners:
            raise NotFound(f"{name} has no winner on {wanted.device!r}", hint="`ktuned results` lists what it has")
        places = {winner.artifact: self._artifact_path(winner) for winner in winners if winner.artifact is not None}
        return {
            "document": self._build_document(name, wanted.device, winners),
            "artifacts": {key: place for key, place in places.items() if place is not None},
        }

    def _as_served(self, name: str, device: str, winners: list[Winner]) -> list[Winner]:
        """Return winners as lookups serve them: one config for all, where the file of a known kernel says so."""
        try:
            kernel = self._catalog.resolve_kernel(name)
        except NotFound:
            return winners
        served = self._served.in_place_of(winners, kernel, self._catalog.kernel_environment(kernel))
        known = {winner.key for winner in winners}
        return [winner for winner in served if winner.context.device == device and winner.key in known]

    async def import_winners(self, wanted: ImportParams, connection: Connection) -> dict[str, Any]:
        """Take in the winners of a document that may be believed; with ``dry_run``, only say what would be."""
        from ktuned_client import winners

        document = wanted.document
        try:
            winners.check_document(document)
        except ValueError as error:
            raise UsageError(f"the document {error}") from error
        assert isinstance(document, dict)
        offered = [(LATENCY, winner) for winner in document["winners"]]
        offered += [(text, winner) for text, found in document.get("objectives", {}).items() for winner in found]
        if len(offered) > MAX_IMPORTED:
            raise UsageError(f"{len(offered)} winners are too many at once", hint=f"send {MAX_IMPORTED}")
        try:
            kernel: KernelInfo = self._catalog.resolve_kernel(document["kernel"])
        except NotFound as error:
            raise self._unknown_kernel(document["kernel"]) from error
        kernel, exported = await self._with_names(
            kernel, document.get("names"), [winner for _, winner in offered], is_dry=wanted.dry_run
        )
        taken: list[Offer] = []
        entries = []
        for objective, winner in offered:
            verdict, offer = await self._judge_winner(kernel, exported, document["device"], winner, objective)
            place = {
                "problem": kernel.order_problem(winner["problem"]),
                "config": kernel.order_config(winner["config"]),
            }
            entries.append({**place, "objective": objective, **verdict})
            if offer is not None:
                taken.append(offer)
        if taken and not wanted.dry_run:
            await self._adopt_offers(kernel, taken)
        return {"kernel": kernel.name, "device": document["device"], "winners": entries}

    def _unknown_kernel(self, name: str) -> NotFound:
        """Return the error of a document's kernel that is not here: what was sought, where, and what comes near."""
        project, _, short = name.rpartition(":")
        alike = [kernel for kernel in self._catalog.kernels if kernel.kernel == short]
        if alike:
            names = ", ".join(kernel.name for kernel in alike)
            other = self._catalog.root_of(alike[0].file)
            place = other.path if other is not None else "its project"
            return NotFound(
                f"no watched project named {project!r} has a kernel {short!r}; there is {names}",
                hint=f"if that is the same, name its project {project!r} in {place}/{PROJECT_FILE}",
            )
        watched = ", ".join(root.path for root in self._catalog.roots[:MAX_NAMED]) or "no directory"
        more = ", …" if len(self._catalog.roots) > MAX_NAMED else ""
        return NotFound(
            f"no kernel {name!r} was found below what is watched: {watched}{more}",
            hint="`ktuned add PATH` watches the directory that declares it",
        )

    async def _with_names(
        self,
        kernel: KernelInfo,
        names: Mapping[str, Collection[str]] | None,
        winners: Iterable[Mapping[str, Any]],
        *,
        is_dry: bool,
    ) -> tuple[KernelInfo, str]:
        """Return a kernel with a document's names too, and the digest that it has with these names alone.

        They are learned, unless the run is dry, if that is the digest of one of the winners.
        """
        if names is None:
            return kernel, kernel.digest
        entries = [
            Observation(name, "", is_source="source" in ends, is_data="data" in ends) for name, ends in names.items()
        ]
        known = [(canonical(winner["problem"]), winner["digest"]) for winner in winners]
        named, exported = await self._foreign_names.match_digest(kernel, entries, known, learns=not is_dry)
        return named, exported or kernel.digest

    def _digest_for_problem(self, kernel: KernelInfo, specialized: str, digest: str = "") -> str:
        """Return what a kernel means for a specialised problem; with another ``digest``, what that would mean."""
        return self._machine.digest_kernel(replace(kernel, digest=digest or kernel.digest), specialized)

    async def _judge_winner(
        self, kernel: KernelInfo, exported: str, device: str, winner: Mapping[str, Any], objective: str
    ) -> tuple[dict[str, Any], Offer | None]:
        """Return the decision about one winner, in the protocol's form, and the offer if it becomes the winner.

        ``exported`` is the kernel's digest with the names that the document has.
        """
        problem, config = winner["problem"], winner["config"]
        refused = {"taken": False, "status": None}
        try:
            by = kernel.objective(objective)
        except UsageError as error:
            return {**refused, "reason": f"refused: {error.message}"}, None
        if kernel.specialize is not None:
            if set(problem) != set(kernel.specialize):
                return {**refused, "reason": f"refused: the problem names {', '.join(sorted(problem))}"}, None
        else:
            try:
                check_problem(kernel, problem)
            except UsageError as error:
                return {**refused, "reason": f"refused: {error.message}"}, None
        try:
            is_admitted = await self._may_be_served(kernel, problem, config)
        except WorkerError as error:
            return {**refused, "reason": f"refused: the kernel's space cannot be asked: {error.message}"}, None
        if not is_admitted:
            return {**refused, "reason": "refused: the kernel's space has no such config"}, None
        specialized = canonical(problem)
        is_known = winner["digest"] == self._digest_for_problem(kernel, specialized, exported)
        offer = Offer(
            Context(
                kernel.name,
                KeyProblem(specialized),
                DeviceModel(device),
                self._digest_for_problem(kernel, specialized) if is_known else winner["digest"],
                winner["toolchain"],
                winner["device_fingerprint"],
                winner["measuring_version"],
            ),
            problem,
            config,
            float(winner["latency_us"]),
            winner.get("spread_us"),
            # One from the future would be the later one for ever.
            min(float(winner["decided"]), time()),
            by,
            winner.get("metrics") or {},
        )
        if offer.figure is None:
            return {**refused, "reason": f"refused: it has no {metric_of(by)}"}, None
        today = self._context_today(kernel, problem, device)
        ours = self._store.get_winner(offer.key)
        if ours is not None and self._admission.known_verdict(kernel, problem, ours.config) is False:
            # It is served no more.
            ours = None
        verdict = exchange.judge_offer(offer, ours, today)
        status = Status.FRESH if offer.context == today else Status.STALE
        return {"taken": verdict.takes, "status": status.value, "reason": verdict.reason}, (
            offer if verdict.takes else None
        )

    async def _may_be_served(self, kernel: KernelInfo, problem: Problem, config: Config) -> bool:
        """Return whether the space holds a config, unless only a lookup's whole problem can decide that."""
        if kernel.specialize is not None and all(set(problem) != set(declared) for declared in kernel.problems):
            return self._admission.known_verdict(kernel, problem, config) is not False
        (is_admitted,) = await self._admission.check_configs(kernel, problem, [config])
        return is_admitted

    def _context_today(self, kernel: KernelInfo, problem: Mapping[str, Any], model: str) -> Context | None:
        """Return what a measurement made here now would stand on; ``None`` where the device is not here."""
        try:
            environment = self._catalog.kernel_environment(kernel)
            found = self._machine.find_device(environment, kernel.backend, model)
        except KtunedError:
            return None
        return self._machine.build_context(kernel, environment, problem, found)

    async def _adopt_offers(self, kernel: KernelInfo, offers: list[Offer]) -> None:
        device = offers[0].context.device
        job = await self._store.adopt_winners(kernel.name, device, offers)
        for offer in offers:
            self._publish(
                WinnerChanged(
                    kernel=kernel.name,
                    job=job,
                    problem=offer.problem,
                    device=device,
                    config=offer.config,
                    latency_us=offer.latency_us,
                    metrics=offer.metrics,
                    objective=offer.objective,
                )
            )

    def _full_name(self, name: str, directory: str | None) -> str:
        """Return the full name; of a kernel that is not there any more, as it was given."""
        try:
            return self._catalog.resolve_kernel(name, directory).name
        except NotFound:
            return name

    def _build_document(self, name: str, device: str, winners: list[Winner]) -> dict[str, Any]:
        from ktuned_client.winners import FORMAT

        try:
            kernel: KernelInfo | None = self._catalog.resolve_kernel(name)
        except NotFound:
            kernel = None
        objectives: dict[str, list[dict[str, Any]]] = {}
        for winner in winners:
            if winner.objective != LATENCY:
                figures = {"metrics": dict(winner.metrics)}
                objectives.setdefault(winner.objective, []).append(_winner_entry(winner) | figures)
        return {
            "ktuned_winners": FORMAT,
            "kernel": name,
            "device": device,
            "default": None if kernel is None or kernel.default is None else dict(kernel.default),
            **_declared_objective(kernel),
            "specialize": None if kernel is None or kernel.specialize is None else list(kernel.specialize),
            "bucket": {} if kernel is None else dict(kernel.bucket),
            "names": {} if kernel is None else {name: _ends_of_name(entry) for name, entry in kernel.learned.items()},
            "winners": [_winner_entry(winner) for winner in winners if winner.objective == LATENCY],
            # Apart, because a reader that knows of no objectives takes every winner there for the fastest.
            **({"objectives": objectives} if objectives else {}),
        }

    def _artifact_path(self, winner: Winner) -> str | None:
        assert winner.artifact is not None
        path = self._artifacts.find_artifact(winner.artifact)
        return None if path is None else str(path)


def _ends_of_name(entry: Observation) -> list[str]:
    """Return the ends for which a learned name was read."""
    return ["source"] * entry.is_source + ["data"] * entry.is_data


def _winner_entry(winner: Winner) -> dict[str, Any]:
    """Return a winner as a document holds it."""
    return {
        "problem": dict(winner.problem),
        "config": dict(winner.config),
        "latency_us": winner.latency_us,
        "spread_us": winner.spread_us,
        "decided": winner.decided,
        "digest": winner.context.digest,
        "toolchain": winner.context.toolchain,
        "device_fingerprint": winner.context.device_fingerprint,
        "measuring_version": winner.context.measuring_version,
        "artifact": winner.artifact,
    }


def _declared_objective(kernel: KernelInfo | None) -> dict[str, str]:
    """Return the field that says what lookups want that name no objective, where that is not the latency."""
    return {} if kernel is None or kernel.plan.objective == LATENCY else {"objective": kernel.plan.objective}
