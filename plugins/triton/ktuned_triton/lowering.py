"""Splits a Triton compile: the front end makes a text (TTIR, before any pass), and another process compiles the text.

Only the front end needs the user's Python code, and it takes some 40 ms for a config. So one worker imports the module
and makes the texts; compile workers, which import none of the user's code, do the rest.

The first half is Triton's own launch of a copy of the function, whose compiler stops when it has made its module
(:func:`run_front_end`). It writes no files and changes neither the function nor Triton, because the application itself
may run it, too (:mod:`ktuned_triton.application_lowering`). The second half is Triton's ``compile`` with a source that
reads its module from the text (:func:`compile_lowered`). So the machine code, its key and its metadata are the same as
from a compile in one piece.

Configs that differ only in options that the front end never read share one text. To find this out, the options object
that it gets records each access (:class:`_ObservedOptions`).
"""

from __future__ import annotations

import copy
import inspect
import json
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Self
from weakref import WeakKeyDictionary

from ktuned_triton.launch_plan import Parameter

KNOWN_FROM = (3, 6)
"""The first version of Triton that lets a source make its own module; earlier versions compile in one piece."""

SIZES = ("num_warps", "num_stages", "maxnreg")
"""Options that the front end reads only if the function asks for them."""

MAX_TEXTS = 256
"""Most texts that are kept for a function: some 10 MB."""


class UnreadableText(Exception):
    """This Triton cannot read the text; compile the function in one piece instead."""


class _FrontEndFinished(BaseException):
    """Stops Triton's compiler after its front end; a ``BaseException``, so that no handler in between catches it."""

    def __init__(self, result: FrontEndResult) -> None:
        self.result = result


class _ObservedOptions:
    """The compiler's options, which record the names that are read."""

    __slots__ = ("_options", "_read")

    def __init__(self, options: Any, read: set[str]) -> None:
        self._options = options
        self._read = read

    def __getattr__(self, name: str) -> Any:
        # `vars(options)` reads all options, every size included.
        self._read.update(SIZES if name == "__dict__" else (name,))
        return getattr(self._options, name)


@dataclass(frozen=True)
class _LoweredText:
    """A text and the options that it depends on: all except the sizes that the front end did not read."""

    unread: frozenset[str]
    deciding: Mapping[str, Any]
    text: str


class _LoweredTexts:
    """The texts that were made so far for one function, by the identity of their source."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, ...], list[_LoweredText]] = {}
        self._count = 0

    def find_text(self, source: Any, options: Any) -> str | None:
        """Return the text of a source with these options; ``None`` if it has not been made yet."""
        given_options = vars(options)
        for lowered in self._known.get(_identify_source(source), ()):
            if {name: value for name, value in given_options.items() if name not in lowered.unread} == lowered.deciding:
                return lowered.text
        return None

    def keep_text(self, source: Any, options: Any, read: set[str], text: str) -> None:
        """Keep a text for later configs; ``read`` are the names of the options that it depends on."""
        if self._count == MAX_TEXTS:
            self._known.clear()
            self._count = 0
        unread = frozenset(SIZES) - read
        deciding = {name: value for name, value in vars(options).items() if name not in unread}
        self._known.setdefault(_identify_source(source), []).append(_LoweredText(unread, deciding, text))
        self._count += 1


def _identify_source(source: Any) -> tuple[str, ...]:
    """Return the identity of a source: Triton's digest, and the types of constants (its digest equates 1 and "1")."""
    return source.hash(), *(type(value).__name__ for value in source.constants.values())


_texts: WeakKeyDictionary[Any, _LoweredTexts] = WeakKeyDictionary()


@dataclass(frozen=True)
class Lowered:
    """A function lowered for one config, as data that can be compiled without the user's Python code.

    Attributes:
        name: the function's name.
        ext: the representation: ``ttir``, or ``ttgir`` for a function in Gluon.
        language: Triton's name for the language.
        digest: Triton's digest of the source, a part of the kernel's key.
        signature: a type for each parameter.
        options: the compiler's options.
        parameters: the parameters of the launch.
        text: the function in the representation ``ext``.
    """

    name: str
    ext: str
    language: str
    digest: str
    signature: Mapping[str, Any]
    options: Mapping[str, Any]
    parameters: tuple[Parameter, ...]
    text: str

    def to_bytes(self) -> bytes:
        """Return the data to send to a compile worker.

        Raises:
            TypeError: an option is not a plain value.
        """
        return json.dumps(asdict(self)).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Read :meth:`to_bytes`'s data; lists become tuples again, because Triton's key tells them apart."""
        fields: dict[str, Any] = json.loads(data)
        frozen = {name: _freeze_lists(fields[name]) for name in ("signature", "options")}
        parameters = tuple(map(Parameter.from_plain, fields["parameters"]))
        return cls(**{**fields, **frozen, "parameters": parameters})


@dataclass(frozen=True)
class FrontEndResult:
    """Result of Triton's front end: Triton's source object, the compiler's options, and the text."""

    source: Any
    options: Mapping[str, Any]
    text: str

    def make_lowered(self, parameters: tuple[Parameter, ...]) -> Lowered:
        """Return the data for a compile worker; ``parameters`` are those of the launch."""
        source = self.source
        return Lowered(
            name=source.name,
            ext=source.ext,
            language=source.language.name,
            digest=source.hash(),
            signature=source.signature,
            options=self.options,
            parameters=parameters,
            text=self.text,
        )


def is_supported_version(version: str) -> bool:
    """Return whether this version of Triton can be stopped after its front end, and resumed there from a text."""
    major, minor = (int(part) for part in version.split(".")[:2])
    return KNOWN_FROM <= (major, minor) < (KNOWN_FROM[0] + 1, 0)


def run_front_end(function: Any, arguments: Mapping[str, Any], **launch: Any) -> FrontEndResult:
    """Run Triton's front end on a ``@triton.jit`` function, for the active driver's current device.

    Args:
        function: the function.
        arguments: the call's arguments, by parameter.
        launch: grid and compiler options.

    Raises:
        UnreadableText: this Triton cannot be stopped after its front end.
        Exception: whatever the front end raises.
    """
    _load_type_lookup()
    # Launches of the function itself, in other threads, must not meet a compiler that stops.
    lowered = copy.copy(function)
    caches = lowered.create_binder()
    lowered.device_caches = defaultdict(lambda: caches)
    lowered.pre_run_hooks = []
    # Hooks of the application are told about its own launches only.
    lowered._call_hook = lambda *_, **__: None
    texts = _texts.setdefault(function, _LoweredTexts())

    def run_until_text(source: Any, target: Any, options: Mapping[str, Any], **_: Any) -> Any:
        text = _make_text(source, target, options, texts)
        raise _FrontEndFinished(FrontEndResult(source, dict(options), text))

    lowered.compile = run_until_text
    try:
        lowered.warmup(**arguments, **launch)
    except _FrontEndFinished as finished:
        return finished.result
    raise UnreadableText("Triton's launch does not call the function's compiler")


def _make_text(source: Any, target: Any, given_options: Mapping[str, Any], texts: _LoweredTexts) -> str:
    """Return a source's text, as the first half of Triton's ``compile`` makes it."""
    from triton._C.libtriton import ir
    from triton.compiler import make_backend

    backend = make_backend(target)
    options = backend.parse_options(dict(given_options))
    if (known := texts.find_text(source, options)) is not None:
        return known
    read: set[str] = set()
    context = ir.context()
    ir.load_dialects(context)
    backend.load_dialects(context)
    given = (
        target,
        _ObservedOptions(options, read),
        backend.get_codegen_implementation(options),
        backend.get_module_map(),
        context,
    )
    try:
        inspect.signature(source.make_ir).bind(*given)
    except TypeError as error:
        raise UnreadableText(str(error)) from error
    text = str(source.make_ir(*given))
    texts.keep_text(source, options, read, text)
    return text


def _load_type_lookup() -> None:
    """Make Triton load its lookup of argument types now, with a stand-in for torch.

    Triton imports torch for this, which takes two seconds and 200 MiB. A front end has no tensors, so it does not need
    torch unless the user's module imports it.
    """
    if "torch" in sys.modules:
        return
    from triton._C import libtriton

    look_up = getattr(libtriton, "native_specialize_impl", None)
    if look_up is None:
        return
    from triton.backends.compiler import BaseBackend

    # If this version's function has other parameters, it raises TypeError here, and Triton imports torch later.
    with _provide_module("torch", Tensor=type("Tensor", (), {})), suppress(TypeError):
        look_up(BaseBackend, 1, False, True, True)


@contextmanager
def _provide_module(name: str, **members: Any) -> Iterator[None]:
    """Make imports find a module with these members while the block runs."""
    module = ModuleType(name)
    vars(module).update(members)
    sys.modules[name] = module
    try:
        yield
    finally:
        del sys.modules[name]


def compile_lowered(lowered: Lowered, target: Any) -> Any:
    """Compile a front end's text and return Triton's kernel.

    Raises:
        UnreadableText: this Triton cannot read the text.
        Exception: whatever the compiler raises.
    """
    import triton
    from triton.backends.compiler import Language
    from triton.compiler import ASTSource

    class Source(ASTSource):  # type: ignore[misc]
        """A source whose module is read from the text."""

        def __init__(self) -> None:
            self.fn = None
            self.name, self.ext = lowered.name, lowered.ext
            self.language = Language[lowered.language]
            self.signature = lowered.signature
            self.constants: dict[Any, Any] = {}
            self.attrs: dict[Any, Any] = {}

        def hash(self) -> str:
            """Return the digest of the source that the text was made from."""
            return lowered.digest

        def make_ir(self, *args: Any) -> Any:
            """Return the module; the last argument is its context."""
            return _parse_module(lowered, args[-1])

    return triton.compile(Source(), target=target, options=dict(lowered.options))


def _parse_module(lowered: Lowered, context: Any) -> Any:
    from triton._C.libtriton import ir

    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory, f"source.{lowered.ext}")
        file.write_text(lowered.text)
        try:
            module = ir.parse_mlir_module(str(file), context)
        except (AttributeError, TypeError, RuntimeError) as error:
            raise UnreadableText(str(error)) from error
    # The module must keep its context alive.
    module.context = context
    return module


def _freeze_lists(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(_freeze_lists(item) for item in value)
    return {key: _freeze_lists(item) for key, item in value.items()} if isinstance(value, dict) else value
