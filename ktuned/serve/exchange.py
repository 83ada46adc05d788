"""The methods ``export`` and ``import``: winners as documents that can be kept in git, and imported elsewhere.

A document lists its kernel's learned names, without their contents. An import reads these files here. If the kernel's
digest with them is the digest of one of the winners, they have the same contents here, and are learned here, too. The
reader of documents is imported only when it is needed, which saves an idle daemon 0.1 MiB.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from itertools import chain
from os.path import basename
from time import time
from typing import Any

import anyio.to_thread
import structlog
from msgspec import UNSET, structs

from ktuned.adoption import read_function
from ktuned.answers import Knowledge
from ktuned.catalog import PROJECT_FILE, ForeignNames, make_root, read_problem
from ktuned.model import (
    LATENCY,
    RETRIED_BY_NEXT_JOB,
    Config,
    DeviceModel,
    FrozenStruct,
    KernelInfo,
    KeyProblem,
    KtunedError,
    NotFound,
    Objective,
    Observation,
    Problem,
    UsageError,
    WinnerKey,
    WorkerError,
    canonical,
    is_of_one_machine,
    name_figure,
    reduce_digest,
)
from ktuned.protocol import (
    EXPORT,
    IMPORT,
    Change,
    ExportAnswer,
    ExportedFunction,
    ExportedWinner,
    ExportInfo,
    ExportParams,
    ImportAnswer,
    ImportedWinner,
    ImportParams,
    PublishEvent,
    Status,
    WinnersDocument,
    describe_change,
)
from ktuned.scheduling import MOST_COMPARED, Repetition
from ktuned.serve.method import Handler, Peer
from ktuned.store import IMPORTED, Context, Winner, compare_contexts, exchange
from ktuned.tuning import publish_winner

_log = structlog.get_logger()

MAX_IMPORTED = 200
"""Winners in one ``import``: they take some 20 ms of the event loop's time."""

MAX_NAMED = 5
"""Watched directories that an error message lists; a longer list would help nobody."""


class WinnerExchange(FrozenStruct, kw_only=True):
    """Exports winners and imports others; ``publish`` announces imported ones that became winners here.

    ``inspect`` has a kernel's file inspected: an import that comes right after a save judges what was saved.
    """

    known: Knowledge
    foreign_names: ForeignNames
    repetition: Repetition
    inspect: Callable[[str], Awaitable[None]]
    publish: PublishEvent

    def list_handlers(self) -> list[Handler[Any, Any]]:
        """Return the methods with their handlers."""
        return [
            Handler(EXPORT, self.handle_export),
            Handler(IMPORT, self.handle_import),
        ]

    async def handle_export(self, params: ExportParams, peer: Peer) -> ExportAnswer:
        """List the kernels and device models that have winners, or return the document of one kernel and model.

        The store is read in a thread, so that lookups do not wait for it.
        """
        name = None if params.kernel is None else self._full_name(params.kernel, params.directory)
        if name is None or params.device is None:
            found = await anyio.to_thread.run_sync(exchange.list_exports, self.known.store.path)
            return ExportAnswer(
                [
                    ExportInfo(kernel, device, count)
                    for kernel, device, count in found
                    if name in (None, kernel) and params.device in (None, device)
                ]
            )
        winners = await anyio.to_thread.run_sync(
            exchange.load_exported_winners, self.known.store.path, name, params.device
        )
        if not winners:
            raise NotFound(f"{name} has no winner on {params.device!r}", hint="`ktuned results` lists what it has")
        keys = {winner.artifact for winner in winners if winner.artifact is not None}
        places = {key: self.known.artifacts.find_artifact(key) for key in sorted(keys)}
        document = self.build_document(name, params.device, winners)
        kernel = self.known.catalog.find_kernel(name)
        function = None if kernel is None else await anyio.to_thread.run_sync(read_function, kernel.file)
        return ExportAnswer(
            document=structs.replace(document, function=UNSET if function is None else ExportedFunction(*function)),
            artifacts={key: str(place) for key, place in places.items() if place is not None},
        )

    async def handle_import(self, params: ImportParams, peer: Peer) -> ImportAnswer:
        """Import a client's document; with ``dry_run``, only report the outcome."""
        from ktuned_client import winners

        try:
            winners.check_document(params.document)
            document = WinnersDocument.read(params.document)
        except ValueError as error:
            raise UsageError(f"the document {error}") from error
        receiver = await anyio.to_thread.run_sync(self._choose_receiver, document.kernel, params.directory)
        return await self.import_document(structs.replace(document, kernel=receiver), dry_run=params.dry_run)

    def _choose_receiver(self, name: str, directory: str | None) -> str:
        """Return the name of a document's kernel in the checkout of its project that is around a directory."""
        project, _, short = name.rpartition(":")
        root = None if directory is None else self.known.catalog.find_root(os.path.realpath(directory))
        if root is None or make_root(root.path, name=root.asked.name).name != project:
            return name
        own = f"{root.name}:{short}"
        return own if self.known.catalog.find_kernel(own) is not None else name

    async def import_document(self, document: WinnersDocument, *, dry_run: bool = False) -> ImportAnswer:
        """Import the winners of a document that pass all checks; with ``dry_run``, only report the outcome.

        Raises:
            UsageError: There are too many winners.
            NotFound: The kernel is unknown here.
            WorkerError: its file was saved just now and cannot be inspected.
        """
        if (count := document.count_winners()) > MAX_IMPORTED:
            raise UsageError(f"{count} winners are too many at once", hint=f"send {MAX_IMPORTED}")
        catalog = self.known.catalog
        try:
            kernel: KernelInfo = catalog.resolve_kernel(document.kernel)
            if catalog.find_suspicion(kernel):
                await self.inspect(kernel.name)
                kernel = catalog.resolve_kernel(kernel.name)
        except NotFound as error:
            raise self._explain_unknown_kernel(document.kernel) from error
        kernel, valid, parts = await self._add_names(kernel, document, is_dry=dry_run)
        differing: dict[str, Mapping[str, str]] = {}
        taken: dict[WinnerKey, Winner] = {}
        entries = []
        for objective, offered in document.by_objective.items():
            for winner in offered:
                entry = ImportedWinner(
                    kernel.order_problem(winner.problem), kernel.order_config(winner.config), objective
                )
                try:
                    offer = await self._read_offer(kernel, valid, document.device, winner, objective)
                except (UsageError, WorkerError) as error:
                    entries.append(structs.replace(entry, reason=f"refused: {error.message}"))
                    continue
                # A document may offer several winners of one key: each competes with the best before it.
                status, decision = self._judge_offer(kernel, offer, taken.get(offer.key))
                changes = [] if status is Status.FRESH else self._describe_differences(kernel, offer, document, parts)
                reason = decision.reason + (f"; {_name_changes(changes)}" if decision.takes and changes else "")
                entries.append(structs.replace(entry, taken=decision.takes, status=status, reason=reason))
                if decision.takes:
                    taken[offer.key] = offer
                    if winner.digest in document.parts and winner.digest not in valid:
                        differing[winner.digest] = _mark_differences(kernel.parts, document.parts[winner.digest], parts)
        if taken and not dry_run:
            await self._adopt_offers(kernel, list(taken.values()))
            await self._save_parts(kernel, document, differing)
        return ImportAnswer(kernel.name, document.device, entries)

    def _describe_differences(
        self, kernel: KernelInfo, offer: Winner, document: WinnersDocument, parts: Mapping[str, str]
    ) -> list[Change]:
        """Return what differs between an offer's context and a measurement made here now, on a device that is here."""
        today = self.build_context_today(kernel, offer.problem, offer.context.device)
        if today is None:
            return []
        then, here = offer.context, self.known.store.load_fingerprint_versions
        return compare_contexts(
            then,
            today,
            (document.parts.get(then.digest), parts),
            (document.parts.get(then.toolchain), here(today.toolchain)),
            (document.parts.get(then.device_fingerprint), here(today.device_fingerprint)),
            basename(kernel.file),
        )

    async def _save_parts(
        self, kernel: KernelInfo, document: WinnersDocument, differing: Mapping[str, Mapping[str, str]]
    ) -> None:
        """Store what the imported winners' digests and fingerprints were made of, so that answers can name changes."""
        winners = chain.from_iterable(document.by_objective.values())
        used = {one for winner in winners for one in (winner.toolchain, winner.device_fingerprint)}
        await self.known.store.save_digest_parts(kernel.name, differing)
        await self.known.store.save_versions({one: document.parts[one] for one in used if one in document.parts})

    def _explain_unknown_kernel(self, name: str) -> NotFound:
        """Return the error for a document whose kernel is not here: the name, where it was sought, similar names."""
        project, _, short = name.rpartition(":")
        alike = [kernel for kernel in self.known.catalog.kernels if kernel.kernel == short]
        if alike:
            names = ", ".join(kernel.name for kernel in alike)
            other = self.known.catalog.find_root(alike[0].file)
            place = other.path if other is not None else "its project"
            return NotFound(
                f"no watched project named {project!r} has a kernel {short!r}; there is {names}",
                hint=f"if that is the same, name its project {project!r} in {place}/{PROJECT_FILE}",
            )
        watched = ", ".join(root.path for root in self.known.catalog.roots[:MAX_NAMED]) or "no directory"
        more = ", …" if len(self.known.catalog.roots) > MAX_NAMED else ""
        return NotFound(
            f"no kernel {name!r} was found in the watched directories: {watched}{more}",
            hint="`ktuned add PATH` watches the directory that declares it",
        )

    async def _add_names(
        self, kernel: KernelInfo, document: WinnersDocument, *, is_dry: bool
    ) -> tuple[KernelInfo, Collection[str], Mapping[str, str]]:
        """Return a kernel with a document's names, the digests of winners that hold in its state, and its parts here.

        If there are such digests, the names are learned, except in a dry run; else the kernel is returned unchanged.
        """
        entries = [
            Observation(name, "", is_source="source" in ends, is_data="data" in ends, is_run="run" in ends)
            for name, ends in document.names.items()
        ]
        named = await self.foreign_names.look_at_names(kernel, entries)
        by_digest: dict[str, list[ExportedWinner]] = {}
        for winner in chain.from_iterable(document.by_objective.values()):
            by_digest.setdefault(winner.digest, []).append(winner)
        # Winners do not depend on names that only this machine has learned. But a name that only one machine can have
        # is in no document while it is absent there: if it is present here, it counts as a difference.
        here_alone = [one for name, one in named.learned.items() if name not in document.names]
        exported = reduce_digest(named.digest, [one for one in here_alone if not is_of_one_machine(one.name)])
        valid = by_digest.keys() & {kernel.digest, exported}
        for digest, winners in by_digest.items() if not valid else ():
            if await self._are_made_alike(named, document.device, winners):
                valid = valid | {digest}
        if not valid or named is kernel:
            return kernel, valid, named.parts
        learned = named if is_dry else await self.foreign_names.learn_names(kernel, named)
        return learned, valid, named.parts

    async def _are_made_alike(self, kernel: KernelInfo, device: str, winners: Sequence[ExportedWinner]) -> bool:
        """Return whether winners of one digest, made again here, are what they were where they were measured."""
        if len(winners) > MOST_COMPARED or any(winner.made is UNSET for winner in winners):
            return False
        try:
            for winner in winners:
                made = await self.repetition.make_again(kernel, device, winner.problem, winner.config)
                if made != winner.made:
                    return False
        except KtunedError as error:
            _log.info("compare_import_failed", kernel=kernel.name, reason=error.message)
            return False
        return True

    async def _read_offer(
        self, kernel: KernelInfo, valid: Collection[str], device: str, winner: ExportedWinner, objective: str
    ) -> Winner:
        """Return a document's winner as one of ours; winners with ``valid`` digests hold in the kernel's state.

        Raises:
            UsageError: the winner does not fit the kernel.
            WorkerError: it cannot be checked whether the config is in the kernel's space.
        """
        problem, config = winner.problem, winner.config
        by = kernel.objective(objective)
        if kernel.specialize is None:
            problem = read_problem(kernel, problem)
        elif set(problem) != set(kernel.specialize):
            raise UsageError(f"the problem names {', '.join(sorted(problem))}")
        try:
            is_admitted = await self._may_be_served(kernel, problem, config)
        except WorkerError as error:
            raise WorkerError(f"the kernel's space could not be evaluated: {error.message}") from error
        if not is_admitted:
            raise UsageError("the kernel's space has no such config")
        context = Context(
            kernel.name,
            KeyProblem(canonical(problem)),
            DeviceModel(device),
            kernel.digest if winner.digest in valid else winner.digest,
            winner.toolchain,
            winner.device_fingerprint,
            winner.measuring_version,
        )
        offer = Winner(
            context,
            trial=0,
            problem=problem,
            config=config,
            latency_us=winner.latency_us,
            spread_us=winner.spread_us,
            artifact=None,
            # A time in the future would make this the newer winner forever.
            decided=min(winner.decided, time()),
            metrics=winner.metrics or {},
            objective=by,
        )
        if offer.figure is None:
            raise UsageError(f"it has no {name_figure(by)}")
        return offer

    def _judge_offer(self, kernel: KernelInfo, offer: Winner, taken: Winner | None) -> tuple[Status, exchange.Decision]:
        """Return the status that lookups would give a winner, and whether it replaces ours, or the one just taken."""
        today = self.build_context_today(kernel, offer.problem, offer.context.device)
        ours = taken or self.known.store.get_winner(offer.key)
        if ours is not None and self.known.admission.find_known_verdict(kernel, offer.problem, ours.config) is False:
            # Ours is not served any more, because the space no longer has its config.
            ours = None
        status = Status.FRESH if offer.context == today else Status.STALE
        decision = exchange.judge_offer(offer, ours, today)
        known = self.known.store.find_trial(offer.context, offer.config) if decision.takes else None
        if (
            known is not None
            and known.outcome not in (None, *RETRIED_BY_NEXT_JOB)
            and known.detail.failure.phase != IMPORTED
        ):
            decision = exchange.Decision(
                False, f"this machine has tried the config in the same context: {known.outcome}"
            )
        return status, decision

    async def _may_be_served(self, kernel: KernelInfo, problem: Problem, config: Config) -> bool:
        """Return whether the space has a config; True if only the whole problem of a lookup can decide that."""
        if kernel.specialize is not None and all(set(problem) != set(declared) for declared in kernel.problems):
            return self.known.admission.find_known_verdict(kernel, problem, config) is not False
        (is_admitted,) = await self.known.admission.check_configs(kernel, problem, [config])
        return is_admitted

    def build_context_today(self, kernel: KernelInfo, problem: Problem, model: str) -> Context | None:
        """Return the context of a measurement made here now; ``None`` if the device is not here."""
        try:
            environment = self.known.catalog.find_kernel_environment(kernel)
            found = self.known.machine.find_device(environment, kernel.backend, model)
        except KtunedError:
            return None
        return self.known.machine.build_context(kernel, environment, problem, found)

    async def _adopt_offers(self, kernel: KernelInfo, offers: list[Winner]) -> None:
        device = offers[0].context.device
        job = await self.known.store.adopt_winners(kernel.name, device, offers)
        for offer in offers:
            publish_winner(self.publish, kernel, offer, job)

    def _full_name(self, name: str, directory: str | None) -> str:
        """Return a kernel's full name; if it does not exist any more, the name as given."""
        try:
            return self.known.catalog.resolve_kernel(name, directory).name
        except NotFound:
            return name

    def _export_winner(self, winner: Winner, count: int) -> ExportedWinner:
        """Return one of ``count`` winners in the form of a document's lists for objectives other than latency."""
        context = winner.context
        kernel = self.known.catalog.find_kernel(context.kernel)
        is_comparable = kernel is not None and kernel.digest == context.digest and count <= MOST_COMPARED
        made = self.repetition.find_baseline(kernel, winner) if kernel is not None and is_comparable else ""
        return ExportedWinner(
            problem=winner.problem,
            config=winner.config,
            latency_us=winner.latency_us,
            decided=winner.decided,
            digest=context.digest,
            toolchain=context.toolchain,
            device_fingerprint=context.device_fingerprint,
            measuring_version=context.measuring_version,
            spread_us=winner.spread_us,
            artifact=winner.artifact,
            metrics=winner.metrics,
            made=made or UNSET,
        )

    def build_document(self, name: str, device: str, winners: list[Winner]) -> WinnersDocument:
        """Return the document of a kernel's winners on a device model."""
        from ktuned_client.winners import FORMAT

        by_objective: dict[Objective, list[ExportedWinner]] = {}
        for winner in winners:
            by_objective.setdefault(winner.objective, []).append(self._export_winner(winner, len(winners)))
        fastest = [structs.replace(winner, metrics=UNSET) for winner in by_objective.pop(LATENCY, [])]
        document = WinnersDocument(
            FORMAT,
            name,
            device,
            fastest,
            default=None,
            specialize=None,
            bucket={},
            names={},
            objectives=by_objective,
        )
        try:
            kernel: KernelInfo = self.known.catalog.resolve_kernel(name)
        except NotFound:
            return document
        return structs.replace(
            document,
            default=kernel.default,
            specialize=kernel.specialize,
            bucket=kernel.bucket,
            names={
                entry.name: _list_name_purposes(entry)
                for entry in kernel.learned.values()
                if entry.decisive or not is_of_one_machine(entry.name)
            },
            parts=self._collect_parts(name, winners),
            objective=kernel.objective(None),
        )

    def _collect_parts(self, kernel: str, winners: Iterable[Winner]) -> dict[str, dict[str, str]]:
        """Return what the winners' digests and fingerprints were made of, as far as it is stored and not absent."""
        store, found = self.known.store, {}
        for context in {winner.context for winner in winners}:
            found[context.digest] = store.load_digest_parts(kernel, context.digest)
            for fingerprint in (context.toolchain, context.device_fingerprint):
                found[fingerprint] = store.load_fingerprint_versions(fingerprint)
        return {one: {label: part for label, part in parts.items() if part} for one, parts in found.items() if parts}


def _name_changes(changes: Sequence[Change]) -> str:
    """Return the first changes in words."""
    more = f", and {len(changes) - MAX_NAMED} more" if len(changes) > MAX_NAMED else ""
    return "; ".join(describe_change(change) for change in changes[:MAX_NAMED]) + more


def _mark_differences(now: Mapping[str, str], then: Mapping[str, str], named: Mapping[str, str]) -> dict[str, str]:
    """Return a kernel's parts, with those of another machine's digest that differ there from ``named``."""
    differing = (label for label in {*then, *named} if then.get(label, "") != named.get(label, ""))
    return {**now, **{label: then.get(label, "") for label in differing}}


def _list_name_purposes(entry: Observation) -> list[str]:
    """Return the purposes for which a learned name was read."""
    return ["source"] * entry.is_source + ["data"] * entry.is_data + ["run"] * entry.is_run
