"""The state of a kernel, as far as answers depend on it: one frozen value, from which every answer is computed.

::

    catalog   machine   admission   store   artifacts   failed jobs
       └─────────┴──────────┴─────────┴─────────┴──────────┘
                              │  make_kernel_state
                              ▼
                         KernelState ──▶ decide_answer ──▶ lookups, the table of winners, `kernels --why`, jobs

A million trials do not fit into memory, so the state has only what an answer may name: the winners, and the verdicts
and failures of their configs and of the default.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from msgspec.structs import replace

from ktuned.catalog import Admission, Catalog, complete_config, decide_config
from ktuned.devices import Machine
from ktuned.fleet import Environment
from ktuned.model import (
    Config,
    Device,
    DeviceModel,
    FrozenStruct,
    KernelInfo,
    KeyProblem,
    Objective,
    Problem,
    WinnerKey,
    canonical,
    is_exact,
)
from ktuned.store import Artifacts, Context, Store, Winner

UNREPEATED = (
    "the winner was not made again for an hour, so ktuned may have missed a change that the observer cannot see"
)


class Place(FrozenStruct):
    """A device on which the kernel may be measured now.

    Attributes:
        device: The device.
        context: The context of a measurement there, without the problem.
        doubt: Why it is not certain that its toolchain and driver are unchanged; empty if it is.
    """

    device: Device
    context: Context
    doubt: str


class KernelState(FrozenStruct, kw_only=True):
    """What is known about a kernel now.

    Attributes:
        kernel: Its declaration.
        environment: The environment of its project.
        fault: Why its file cannot be read; empty if it can.
        suspicion: Why its files are about to be inspected; empty if they are not.
        notice: What answers say although they are fresh; empty if nothing.
        places: The devices that it may be measured on, the first one first.
        winners: Its winners, and those of other checkouts that hold here, too.
        measured: The whole problem that each winner was measured for, by trial, if keys are only a part of problems.
        best_us: The least latency of any config in each winner's context, by trial, for winners with exact numerics.
        artifacts: Where the winners' artifacts are, by key; those that are gone are left out.
        anchors: The configs that were chosen as anchors for exact numerics.
        verdicts: Whether its space has a config, by problem and config, as far as only a worker could tell.
        failed: Configs that are known to fail where there is no winner, with the context.
        failed_jobs: How the last job failed, by context and objective, if another one would fail again.
    """

    kernel: KernelInfo
    environment: Environment
    fault: str
    suspicion: str
    notice: str
    places: tuple[Place, ...]
    winners: Mapping[WinnerKey, Winner]
    measured: Mapping[int, Problem]
    best_us: Mapping[int, float]
    artifacts: Mapping[str, str]
    anchors: Mapping[tuple[KeyProblem, DeviceModel], Config]
    verdicts: Mapping[str, Mapping[str, bool]]
    failed: frozenset[tuple[Context, str]]
    failed_jobs: Mapping[tuple[Context, Objective], str]

    def find_place(self, device: str | None) -> Place | None:
        """Return the place of a device by its name or model (None: the first one); None if it is not here."""
        for place in self.places:
            if device in (None, place.device.name, place.device.model):
                return place
        return None

    def make_context(self, place: Place, problem: Problem) -> Context:
        """Return the context of a measurement that is made now for a problem."""
        return replace(place.context, problem=self.kernel.make_key_problem(problem))

    def find_doubt(self, place: Place, files: str) -> str:
        """Return why it is not certain that nothing has changed since the state was made; empty if it is.

        ``files`` is why the kernel's files may have changed, if that was looked at apart from the state.
        """
        return self.suspicion or files or place.doubt

    def find_verdict(self, problem: Problem, config: Config) -> bool | None:
        """Return whether the space has a config for a problem; None if a worker must be asked."""
        return decide_config(self.kernel, self.verdicts, problem, config)


class Knowledge(FrozenStruct):
    """The parts of the daemon from which states are made; ``list_failed_jobs`` returns a kernel's failed jobs."""

    admission: Admission
    artifacts: Artifacts
    catalog: Catalog
    machine: Machine
    store: Store
    list_failed_jobs: Callable[[KernelInfo], Mapping[tuple[Context, Objective], str]]


def make_kernel_state(kernel: KernelInfo, known: Knowledge) -> KernelState:
    """Return the present state of a kernel.

    Raises:
        NotFound: The kernel's file is below no watched root.
    """
    catalog, machine, store = known.catalog, known.machine, known.store
    environment = catalog.find_kernel_environment(kernel)
    environments = machine.environments
    doubt = environments.explain_doubt(environment)
    places = tuple(
        Place(
            device,
            machine.build_base_context(kernel, environment, device),
            doubt or (environments.explain_doubt(environment.with_host_of(device)) if device.host else ""),
        )
        for device in machine.list_devices(environment, kernel.backend)
    )
    own = store.list_winners(kernel.name)
    suspect = catalog.find_suspicion(kernel)
    by_key = _add_shared_winners(own, store.list_winners_elsewhere(kernel), kernel, places)
    winners = by_key.values()
    configs = [*(winner.config for winner in winners), *([] if kernel.default is None else [kernel.default])]
    named = {canonical(complete_config(kernel, config)) for config in configs}
    exact = [winner.trial for winner in winners if is_exact(winner.objective)]
    return KernelState(
        kernel=kernel,
        environment=environment,
        fault=catalog.find_file_fault(kernel),
        suspicion=f"{suspect} or a file that it depends on changed, and is being inspected" if suspect else "",
        notice=UNREPEATED if kernel.name in catalog.unrepeated else "",
        places=places,
        winners=by_key,
        measured={} if kernel.specialize is None else store.load_job_problems([winner.trial for winner in winners]),
        best_us=store.load_least_latencies(exact),
        artifacts={
            winner.artifact: str(path)
            for winner in winners
            if winner.artifact is not None and (path := known.artifacts.find_artifact(winner.artifact)) is not None
        },
        anchors=store.anchors.load_anchors(kernel.name),
        verdicts=known.admission.list_verdicts(kernel, named),
        failed=store.load_failed_configs(
            kernel.name, kernel.digest, named, len({winner.objective for winner in winners}) or 1
        ),
        failed_jobs=known.list_failed_jobs(kernel),
    )


def _add_shared_winners(
    own: list[Winner], others: list[Winner], kernel: KernelInfo, places: Iterable[Place]
) -> dict[WinnerKey, Winner]:
    """Also return winners of equal kernels in other projects, if they were measured in this kernel's context.

    Every checkout of a project counts as a project of its own: worktrees, clones, and the project's state before it was
    moved or renamed. As long as nothing that decides a measurement differs, a measurement in one of them holds in all.
    """
    now = {place.context.device: place.context for place in reversed(list(places))}
    found = {winner.key: winner for winner in own}
    for winner in others:
        if kernel.specialize is not None and set(kernel.specialize) != set(winner.problem):
            continue
        context = replace(winner.context, kernel=kernel.name)
        key = context.key_for(winner.objective)
        # A winner that no final round has decided may only be the first config that was measured there.
        if not winner.is_final or (key in found and found[key].context == context):
            continue
        if (
            context.device in now
            and replace(now[context.device], problem=kernel.make_key_problem(winner.problem)) == context
        ):
            found[key] = replace(winner, context=context)
    return found
