"""Imports kernel files: says what they declare, and walks their spaces for a job."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ktuned import search
from ktuned.backends import Registry
from ktuned.ipc import stamp, stamps
from ktuned.model import (
    BackendError,
    Config,
    KernelFileError,
    NotFound,
    Outcome,
    Plan,
    Problem,
    Unsupported,
    UsageError,
    canonical,
)
from ktuned.spec import MEMBERSHIP_BOUND, BoundSpace, describe, forget_modules, load_file
from ktuned.worker.prior import promising

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ktuned.spec import Kernel
    from ktuned.worker.reply import Reply


class SourceChanged(UsageError):
    """A file is no longer what the daemon inspected; the save that changed it will start anew."""

    code = "source_changed"


def check_stamps(stamps: Mapping[str, str]) -> None:
    """Check that files still hold the bytes that were inspected.

    Raises:
        SourceChanged: one does not; what was made of it must not be recorded under the old digest.
    """
    for name, held in stamps.items():
        if stamp(Path(name)) != held:
            raise SourceChanged(f"{name} changed after it was inspected")


def load_kernel(request: Mapping[str, Any]) -> Kernel:
    """Import the request's kernel file anew and return the kernel that it names.

    Raises:
        KernelFileError: the file cannot be imported.
        NotFound: it declares no such kernel.
        SourceChanged: it is no longer the file that was inspected.
    """
    root, path = Path(request["root"]), Path(request["file"])
    forget_modules(root)
    loaded = load_file(path, root)
    check_stamps(request["stamps"])
    for kernel in loaded.kernels:
        if kernel.name == request["kernel"]:
            return kernel
    if loaded.errors:
        raise loaded.errors[0]
    raise NotFound(f"{path} declares no kernel {request['kernel']!r}")


class Inspector:
    """Answers ``inspect``, and holds the space that one job explores."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._exploration: Exploration | None = None

    def inspect(self, request: dict[str, Any], reply: Reply) -> dict[str, Any]:
        """Import each of ``files`` and send an item for it: its ``kernels`` and its ``errors``."""
        reply.phase("inspect")
        root = Path(request["root"])
        for name in request["files"]:
            reply.item({"file": name, **self._inspect_file(Path(name), root, request["project"])})
        return {}

    def _inspect_file(self, path: Path, root: Path, project: str) -> dict[str, Any]:
        forget_modules(root)
        loaded = load_file(path, root, self._registry.names)
        kernels = []
        errors = list(loaded.errors)
        files = set(loaded.files)
        for kernel in loaded.kernels:
            try:
                _check_spaces(kernel)
                info = describe(kernel, project, root)
                kernels.append(replace(info, backend=self._backend_of(kernel)).to_wire())
            except KernelFileError as error:
                errors.append(error)
                # Perhaps one of these is missing, and its appearance mends the kernel.
                files.update(kernel.source_paths)
        return {
            "kernels": kernels,
            "errors": [{**error.to_wire(), "path": error.path, "line": error.line} for error in errors],
            "stamps": stamps(sorted(files)),
        }

    def _backend_of(self, kernel: Kernel) -> str:
        """Return the backend that a kernel's sources choose within the family that its file names."""
        try:
            return self._registry.load(kernel.backend).for_sources(kernel.source_paths)
        except BackendError:
            # Whoever wants to use it is told why it cannot be.
            return kernel.backend

    def explore(self, request: dict[str, Any], reply: Reply) -> dict[str, Any]:
        """Open the space of one kernel and problem for a job; ``ask`` then walks it."""
        kernel = load_kernel(request)
        self._exploration = Exploration(
            kernel, request["problem"], Plan(**request["plan"]), request["first"], request.get("last", ())
        )
        opened = self._exploration
        return {"size": opened.size, "strategy": opened.strategy, "notice": opened.notice}

    def ask(self, request: dict[str, Any], reply: Reply) -> dict[str, Any]:
        """Tell the strategy what became of configs, and ask it for up to ``n`` more."""
        if self._exploration is None:
            raise UsageError("ask comes after explore")
        self._exploration.tell(request["told"])
        return self._exploration.ask(request["n"])

    def admits(self, request: dict[str, Any], reply: Reply) -> dict[str, Any]:
        """Say which of ``configs`` the kernel's space admits for ``problem``."""
        space = load_kernel(request).bound_space(request["problem"])
        return {"admitted": [config in space for config in request["configs"]]}


COUNTED_SPACE = 20_000
"""A space of at most this many candidates is walked to its end: to count it, and to learn that it is not empty."""


def _check_spaces(kernel: Kernel) -> None:
    """Find an empty or broken space, or a default outside it, when the file is saved and not when a job starts.

    Raises:
        KernelFileError: the space is empty for a declared problem or lacks the default, or its code fails.
    """
    for problem in kernel.problem_list():
        space = kernel.bound_space(problem)
        if space.size is None or space.size <= COUNTED_SPACE:
            next(iter(space))
        if kernel.default is not None and kernel.default not in space:
            raise kernel.site.error(
                f"the default {canonical(kernel.default)} is not in the space for the problem {canonical(problem)}",
                hint="give a default that `where` admits for every declared problem, or loosen `where`",
            )


def _admitted(space: BoundSpace, configs: Sequence[Config]) -> dict[str, Config]:
    """Return those of ``configs`` that a space holds, by their canonical text, in their order."""
    wanted = {canonical(config): config for config in configs}
    if space.indexable:
        return {text: config for text, config in wanted.items() if config in space}
    # One walk for all: each membership test of a callable's space is a walk of its own.
    walked = {canonical(config) for config in islice(space.candidates(), MEMBERSHIP_BOUND) if config is not None}
    return {text: config for text, config in wanted.items() if text in walked}


class Exploration:
    """One job's walk through a space: the configs it must see first, what the strategy asks for, what is put off."""

    def __init__(
        self, kernel: Kernel, problem: Problem, plan: Plan, first: Sequence[Config], last: Sequence[Config] = ()
    ) -> None:
        self._kernel = kernel
        self._problem = problem
        space = kernel.bound_space(problem)
        self.size = space.size
        if space.size is not None and space.size <= COUNTED_SPACE:
            self.size = sum(1 for _ in space)
        admitted = _admitted(space, [*first, *promising(kernel, problem, space)])
        self._first = list(admitted.values())
        self._given = set(admitted)
        # By their place in the order; what the strategy asks for of them is put aside until it has no more.
        self._put_off = {canonical(config): place for place, config in enumerate(last)}
        self._aside: list[dict[str, Any]] = []
        chosen = search.choose(
            plan.strategy, space, plan.seed, search.Budget(plan.trials, plan.seconds, plan.until == "converged")
        )
        self._strategy = chosen.strategy
        self.strategy = chosen.name
        self.notice = chosen.notice

    def tell(self, told: list[dict[str, Any]]) -> None:
        """Pass outcomes on to the strategy."""
        for entry in told:
            self._strategy.tell(entry["config"], Outcome(entry["outcome"]), entry["latency_us"])

    def ask(self, n: int) -> dict[str, Any]:
        """Return up to ``n`` proposals, each with its Build or with why it has none."""
        configs = self._first[:n]
        del self._first[:n]
        if len(configs) < n and not self._strategy.finished:
            fresh = [config for config in self._strategy.ask(n - len(configs)) if canonical(config) not in self._given]
            self._aside += [config for config in fresh if canonical(config) in self._put_off]
            configs += [config for config in fresh if canonical(config) not in self._put_off]
        if self._strategy.finished:
            self._aside.sort(key=lambda config: self._put_off[canonical(config)])
            room = n - len(configs)
            configs += self._aside[:room]
            del self._aside[:room]
        finished = not self._first and not self._aside and self._strategy.finished
        return {
            "proposals": [self._propose(config) for config in configs],
            "finished": finished,
            "converged": self._strategy.converged,
        }

    def _propose(self, config: Config) -> dict[str, Any]:
        proposal: dict[str, Any] = {"config": dict(config), "build": None, "outcome": None, "message": ""}
        try:
            proposal["build"] = self._kernel.build(self._problem, config).to_plain()
        except Unsupported as error:
            proposal |= {"outcome": Outcome.UNSUPPORTED.value, "message": str(error)}
        except (KernelFileError, TypeError) as error:
            # The kernel function is part of the build: what it raises is why this config has none.
            proposal |= {"outcome": Outcome.COMPILE_ERROR.value, "message": str(error)}
        return proposal
