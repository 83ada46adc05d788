"""Effects of importing a Python file: the module-level statements that do more than define names.

What such a statement does (registers, patches, sets a flag of torch) may decide the result of any kernel whose file
imports it, directly or not. A statement counts as a definition only where that is provable: functions and classes with
known decorators, assignments to names, calls of what is known to change nothing, and of the project's own functions
whose bodies do no more than that.
"""

from __future__ import annotations

import ast
import builtins
import dataclasses
import enum
from collections.abc import Callable, Collection, Iterable
from types import FunctionType, ModuleType
from typing import Any

from ktuned.spec.origin import is_ours
from ktuned.spec.python_syntax import FunctionNode, Source

_UNKNOWN = object()

_IMPURE_BUILTINS = frozenset(
    {"__import__", "breakpoint", "compile", "delattr", "eval", "exec", "globals", "input", "locals", "open", "setattr"}
)
_PURE_MODULES = frozenset(
    {"abc", "cmath", "collections", "contextlib", "dataclasses", "enum", "fractions", "itertools", "math", "numbers"}
    | {"pathlib", "string", "textwrap", "triton", "types", "typing", "typing_extensions"}
)
"""Packages whose callables change nothing but what they return; their setters and registrations are named below."""

_PURE_OF: dict[str, frozenset[str]] = {
    "functools": frozenset({"cache", "cached_property", "lru_cache", "partial", "reduce", "total_ordering", "wraps"}),
    "operator": frozenset({"add", "attrgetter", "itemgetter", "mul", "sub"}),
    "copy": frozenset({"copy", "deepcopy"}),
    "torch": frozenset({"Size", "compile", "device", "finfo", "iinfo", "inference_mode", "no_grad", "tensor", "zeros"}),
}
"""Callables of packages that have others, which do change something."""

_CHANGING = ("set", "register", "add", "del", "enable", "disable", "use", "init", "seed", "install", "update")
"""Beginnings of the names of callables that change something, whatever package they are of."""

_PURE_METHODS = frozenset(
    {"items", "keys", "values", "get", "count", "index", "copy", "split", "rsplit", "splitlines", "join", "format"}
    | {"strip", "lstrip", "rstrip", "lower", "upper", "title", "replace", "startswith", "endswith", "encode", "decode"}
    | {"partition", "rpartition", "removeprefix", "removesuffix", "bit_length", "with_suffix", "with_name", "resolve"}
    | {"union", "intersection", "difference", "isdigit", "zfill", "ljust", "rjust", "parent", "joinpath"}
)
"""Methods that change nothing of plain values, by their names."""

_SIMPLE = (ast.Pass, ast.Break, ast.Continue, ast.Import, ast.ImportFrom)
_MAX_DEPTH = 8
"""Calls within calls that are followed; below, a call counts as one with effects."""


class Effects:
    """Judges statements; ``find_source`` returns the source of a function of the project, ``declares`` knows kernels.

    ``declares`` says whether a value is a declaration of kernels (the decorator): it collects them, and no more.
    """

    def __init__(
        self,
        find_source: Callable[[FunctionType], tuple[Source, FunctionNode] | None],
        declares: Callable[[object], bool],
    ) -> None:
        self._find_source = find_source
        self._declares = declares
        self._judged: dict[tuple[int, bool], tuple[object, bool]] = {}
        self._depth = 0

    def of(self, source: Source) -> list[ast.stmt]:
        """Return the module-level statements of a file that do more than define names, in their order."""
        return [node for node in source.syntax.tree.body if not self._is_pure(source, node, frozenset())]

    def _all_pure(self, source: Source, nodes: Iterable[ast.stmt], bound: frozenset[str]) -> bool:
        return all(self._is_pure(source, node, bound) for node in nodes)

    def _is_pure(self, source: Source, node: ast.stmt, bound: frozenset[str]) -> bool:
        """Return whether a statement only defines names; ``bound`` are the parameters of the function it is in."""
        if isinstance(node, _SIMPLE):
            return True
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            defaults = [*node.args.defaults, *filter(None, node.args.kw_defaults)]
            is_known = all(self._decorates(source, item, bound) for item in node.decorator_list)
            return is_known and self._evaluate(source, defaults, bound)
        if isinstance(node, ast.ClassDef):
            return self._class_is_pure(source, node, bound)
        if isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            values = [] if node.value is None else [node.value]
            return all(_binds_names(target, bound) for target in targets) and self._evaluate(source, values, bound)
        if isinstance(node, ast.Expr | ast.Return):
            return node.value is None or self._evaluate(source, [node.value], bound)
        if isinstance(node, ast.Raise | ast.Assert):
            parts = [part for part in ast.iter_child_nodes(node) if isinstance(part, ast.expr)]
            return self._evaluate(source, parts, bound)
        if isinstance(node, ast.If):
            if _is_main_guard(node.test):
                return True
            return self._evaluate(source, [node.test], bound) and self._all_pure(
                source, [*node.body, *node.orelse], bound
            )
        if isinstance(node, ast.For):
            is_plain = _binds_names(node.target, frozenset()) and self._evaluate(source, [node.iter], bound)
            inner = bound | {name.id for name in ast.walk(node.target) if isinstance(name, ast.Name)}
            return is_plain and self._all_pure(source, [*node.body, *node.orelse], inner)
        if isinstance(node, ast.Try):
            handlers = [statement for handler in node.handlers for statement in handler.body]
            return self._all_pure(source, [*node.body, *handlers, *node.orelse, *node.finalbody], bound)
        return False

    def _class_is_pure(self, source: Source, node: ast.ClassDef, bound: frozenset[str]) -> bool:
        kind = source.namespace.get(node.name) if not bound else None
        if any(keyword.arg == "metaclass" for keyword in node.keywords) and not isinstance(kind, enum.EnumMeta):
            return False
        bases = [_resolve(source, base, bound) for base in node.bases]
        for base in bases:
            hook = getattr(getattr(base, "__init_subclass__", None), "__func__", None)
            if base is _UNKNOWN or (isinstance(hook, FunctionType) and self._find_source(hook) is not None):
                return False
            if isinstance(base, type) and self._has_own_metaclass(base):
                return False
        is_known = all(self._decorates(source, item, bound) for item in node.decorator_list)
        return is_known and self._all_pure(source, node.body, bound)

    def _has_own_metaclass(self, kind: type) -> bool:
        made_by = getattr(type(kind), "__init__", None), getattr(type(kind), "__new__", None)
        return any(isinstance(made, FunctionType) and self._find_source(made) is not None for made in made_by)

    def _decorates(self, source: Source, decorator: ast.expr, bound: frozenset[str]) -> bool:
        """Return whether applying a decorator changes nothing but what it decorates."""
        called = decorator.func if isinstance(decorator, ast.Call) else decorator
        value = _resolve(source, called, bound)
        if self._declares(value):
            return True
        if isinstance(decorator, ast.Call):
            arguments = [*decorator.args, *(keyword.value for keyword in decorator.keywords)]
            return self._evaluate(source, arguments, bound) and self._call_is_pure(value, applied=True)
        return self._call_is_pure(value)

    def _evaluate(self, source: Source, nodes: Iterable[ast.expr], bound: frozenset[str]) -> bool:
        """Return whether evaluating expressions changes nothing."""
        return all(self._expression(source, node, bound) for node in nodes)

    def _expression(self, source: Source, node: ast.AST, bound: frozenset[str]) -> bool:
        if isinstance(node, ast.Lambda):
            return self._evaluate(source, node.args.defaults, bound)
        if isinstance(node, ast.Await):
            return False
        if isinstance(node, ast.Call):
            return self._call(source, node, bound)
        return all(self._expression(source, child, bound) for child in ast.iter_child_nodes(node))

    def _call(self, source: Source, node: ast.Call, bound: frozenset[str]) -> bool:
        arguments: list[ast.expr] = [*node.args, *(keyword.value for keyword in node.keywords)]
        # A function that is handed to another may be called there.
        handed = [item.body for item in arguments if isinstance(item, ast.Lambda)]
        function = node.func
        if isinstance(function, ast.Call) and self._declares(_resolve(source, function.func, bound)):
            return True
        value = _resolve(source, function, bound)
        if self._declares(value):
            return True
        if not self._evaluate(source, [*arguments, *(() if is_our_callable(value) else handed)], bound):
            return False
        if value is not _UNKNOWN:
            return self._call_is_pure(value)
        is_method = isinstance(function, ast.Attribute) and function.attr in _PURE_METHODS
        return is_method and self._expression(source, function, bound)

    def _call_is_pure(self, value: object, *, applied: bool = False) -> bool:
        """Return whether calling a value changes nothing; with ``applied``, nor calling what it returned."""
        key = id(value), applied
        if key in self._judged:
            return self._judged[key][1]
        if self._depth >= _MAX_DEPTH:
            return False
        # A function that calls itself adds nothing to what its other statements do.
        self._judged[key] = (value, True)
        self._depth += 1
        try:
            verdict = self._judge(value, applied)
        finally:
            self._depth -= 1
        self._judged[key] = (value, verdict)
        return verdict

    def _judge(self, value: object, applied: bool) -> bool:
        if isinstance(value, FunctionType) and (found := self._find_source(value)) is not None:
            return self._body_is_pure(*found, applied)
        if isinstance(value, type):
            return self._constructs(value)
        return is_our_callable(value) or _is_known(value)

    def _body_is_pure(self, source: Source, node: FunctionNode, applied: bool) -> bool:
        bound = _parameters(node) | _assigned(node)
        if isinstance(node, ast.Lambda):
            return self._evaluate(source, [node.body], bound)
        if any(isinstance(inner, ast.Global | ast.Nonlocal) for inner in ast.walk(node)):
            return False
        inner = [item for item in node.body if isinstance(item, ast.FunctionDef)] if applied else []
        return self._all_pure(source, node.body, bound) and all(
            self._body_is_pure(_without_locals(source, bound), item, False) for item in inner
        )

    def _constructs(self, kind: type) -> bool:
        """Return whether making an instance of a class changes nothing else."""
        if issubclass(kind, BaseException | enum.Enum):
            return True
        own = [
            method
            for name in ("__new__", "__init__", "__post_init__")
            if isinstance(method := getattr(kind, name, None), FunctionType)
        ]
        found = [self._find_source(method) for method in own]
        if self._has_own_metaclass(kind):
            return False
        if all(place is None for place in found):
            return is_our_callable(kind) or _is_known(kind) or dataclasses.is_dataclass(kind) or _is_plain_class(kind)
        return all(self._body_is_pure(*place, False) for place in found if place is not None)


def is_our_callable(value: object) -> bool:
    """Return whether a value is a callable of ktuned or of an installed plugin."""
    module = getattr(value, "__module__", None)
    return isinstance(module, str) and is_ours(module)


def _is_known(value: object) -> bool:
    """Return whether a callable of other packages is known to change nothing."""
    name, module = getattr(value, "__name__", ""), getattr(value, "__module__", None)
    qualname = getattr(value, "__qualname__", name)
    if not isinstance(module, str) or not isinstance(name, str) or "<locals>" in str(qualname):
        return False
    top = module.partition(".")[0]
    if top in ("builtins", "_operator"):
        return name not in _IMPURE_BUILTINS and getattr(builtins, name, None) is value
    if top in _PURE_OF or top == "_functools":
        return name in _PURE_OF["functools" if top == "_functools" else top]
    return top.removeprefix("_") in _PURE_MODULES and not name.startswith(_CHANGING)


def _is_plain_class(kind: type) -> bool:
    """Return whether a class leaves making its instances to :class:`object`."""
    return all(getattr(kind, name) is getattr(object, name) for name in ("__init__", "__new__"))


def _resolve(source: Source, node: ast.expr, bound: Collection[str]) -> object:
    """Return the value of ``a.b.c`` at the module level, or a mark that it cannot be known."""
    if isinstance(node, ast.Name):
        if node.id in bound or len(source.syntax.definitions.get(node.id, ())) > 1:
            return _UNKNOWN
        return source.namespace.get(node.id, getattr(builtins, node.id, _UNKNOWN))
    if isinstance(node, ast.Attribute):
        owner = _resolve(source, node.value, bound)
        if isinstance(owner, ModuleType | type):
            try:
                found: Any = getattr(owner, node.attr, _UNKNOWN)
            except Exception:
                return _UNKNOWN
            return found
    return _UNKNOWN


def _binds_names(target: ast.expr, bound: frozenset[str]) -> bool:
    """Return whether an assignment binds names alone, or sets attributes of the instance that is being made."""
    if isinstance(target, ast.Tuple | ast.List):
        return all(_binds_names(item, bound) for item in target.elts)
    if isinstance(target, ast.Starred):
        return _binds_names(target.value, bound)
    if isinstance(target, ast.Attribute):
        return isinstance(target.value, ast.Name) and target.value.id == "self" and "self" in bound
    return isinstance(target, ast.Name)


def _parameters(node: FunctionNode) -> frozenset[str]:
    arguments = node.args
    named = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    return frozenset(item.arg for item in (*named, arguments.vararg, arguments.kwarg) if item is not None)


def _assigned(node: FunctionNode) -> frozenset[str]:
    stored = (inner.id for inner in ast.walk(node) if isinstance(inner, ast.Name) and isinstance(inner.ctx, ast.Store))
    defined = (inner.name for inner in ast.walk(node) if isinstance(inner, ast.FunctionDef | ast.ClassDef))
    return frozenset(stored) | frozenset(name for name in defined if name != getattr(node, "name", ""))


def _without_locals(source: Source, bound: frozenset[str]) -> Source:
    """Return a source in which the effects of an inner function are judged: the outer one's names are unknown."""
    namespace = {name: value for name, value in source.namespace.items() if name not in bound}
    return dataclasses.replace(source, namespace={**namespace, **dict.fromkeys(bound, _UNKNOWN)})


def _is_main_guard(test: ast.expr) -> bool:
    """Return whether a test is ``__name__ == "__main__"``: a module that is imported never passes it."""
    return ast.unparse(test) in ("__name__ == '__main__'", "'__main__' == __name__")
