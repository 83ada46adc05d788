"""A Triton function as its first representation (TTIR, before any pass), which a process that imports nothing compiles.

One worker imports the module, calls Triton's front end for each config, and is done in some 40 ms; all that takes time
follows from the text. Triton's own ``compile`` does both halves, so that the machine code, its key and its metadata are
those of a compile in one piece.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Self
from weakref import WeakKeyDictionary

from ktuned_triton.launch_plan import Parameter

KNOWN_FROM = (3, 6)
"""The first version of Triton whose compiler takes a source that makes its own module; others compile in one piece."""


SIZES = ("num_warps", "num_stages", "maxnreg")
"""Options that the front end hands on without reading them, unless a function asks for one: configs that differ in
nothing else have one text, which is made once."""

MAX_TEXTS = 256
"""Texts of a function that are kept: some 10 MB."""


class Unreadable(Exception):
    """This Triton does not read the text; the function is to be compiled in one piece."""


class _Stopped(BaseException):
    """Ends Triton's compiler behind its front end; no handler of its own may keep it."""

    def __init__(self, text: str) -> None:
        self.text = text


class _Options:
    """A compiler's options, which note what is read of them."""

    __slots__ = ("_options", "_read")

    def __init__(self, options: Any, read: set[str]) -> None:
        self._options = options
        self._read = read

    def __getattr__(self, name: str) -> Any:
        # All of them at once, as `vars` has them, is every size as well.
        self._read.update(SIZES if name == "__dict__" else (name,))
        return getattr(self._options, name)


@dataclass(frozen=True)
class _Made:
    """A text, and the options that it follows from: all but the sizes that were not read."""

    unread: frozenset[str]
    deciding: Mapping[str, Any]
    text: str


class _LoweredTexts:
    """A function's texts, by Triton's digest of the source."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, ...], list[_Made]] = {}
        self._count = 0

    def find(self, source: Any, options: Any) -> str | None:
        """Return the text that a source has with these options, if it has been made."""
        given = vars(options)
        for made in self._known.get(_identity(source), ()):
            if {name: value for name, value in given.items() if name not in made.unread} == made.deciding:
                return made.text
        return None

    def keep(self, source: Any, options: Any, read: set[str], text: str) -> None:
        """Keep a lowered text; of the sizes only those that were ``read`` decide it."""
        if self._count == MAX_TEXTS:
            self._known.clear()
            self._count = 0
        unread = frozenset(SIZES) - read
        deciding = {name: value for name, value in vars(options).items() if name not in unread}
        self._known.setdefault(_identity(source), []).append(_Made(unread, deciding, text))
        self._count += 1


def _identity(source: Any) -> tuple[str, ...]:
    """Return what stands for a source: Triton's digest, in which 1 is the same constant as "1", and their types."""
    return source.hash(), *(type(value).__name__ for value in source.constants.values())


_texts: WeakKeyDictionary[Any, _LoweredTexts] = WeakKeyDictionary()


@dataclass(frozen=True)
class Lowered:
    """A function for one config, without Python.

    Attributes:
        name: the function's.
        ext: the representation: ``ttir``, or ``ttgir`` of a function that is written in Gluon.
        language: Triton's name of the language.
        digest: Triton's digest of the source that it was made from, a part of its key.
        signature: a type for each parameter.
        options: the compiler's options.
        parameters: the launch's.
        text: the representation.
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
        """Return it as it travels.

        Raises:
            TypeError: an option does not travel.
        """
        return json.dumps(asdict(self)).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Read :meth:`to_bytes`'s data; lists become tuples again, which Triton's key shows."""
        fields: dict[str, Any] = json.loads(data)
        frozen = {name: _frozen(fields[name]) for name in ("signature", "options")}
        parameters = tuple(Parameter(**parameter) for parameter in fields["parameters"])
        return cls(**{**fields, **frozen, "parameters": parameters})


@dataclass(frozen=True)
class Front:
    """Result of Triton's front end: its own source, the compiler's options, and the text."""

    source: Any
    options: Mapping[str, Any]
    text: str

    def lowered(self, parameters: tuple[Parameter, ...]) -> Lowered:
        """Return what travels of it, with the parameters of the launch."""
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


def is_known(version: str) -> bool:
    """Return whether a version of Triton can be stopped behind its front end, and started there."""
    major, minor = (int(part) for part in version.split(".")[:2])
    return KNOWN_FROM <= (major, minor) < (KNOWN_FROM[0] + 1, 0)


def front(function: Any, device: int, arguments: Mapping[str, Any], **launch: Any) -> Front:
    """Run Triton's front end on a ``@triton.jit`` function for a device of the active driver.

    Raises:
        Exception: whatever it raises.
    """
    _know_types()
    # It makes the function's cache for this device, and with it the reference to the compiler.
    _ = function.device_caches[device]
    compiler = function.compile
    texts = _texts.setdefault(function, _LoweredTexts())
    found: list[Front] = []

    def stopping(source: Any, target: Any, options: Mapping[str, Any], **more: Any) -> Any:
        make = source.make_ir

        def make_ir(target: Any, options: Any, *args: Any) -> Any:
            text = texts.find(source, options)
            if text is None:
                read: set[str] = set()
                text = str(make(target, _Options(options, read), *args))
                texts.keep(source, options, read, text)
            raise _Stopped(text)

        source.make_ir = make_ir
        try:
            return compiler(source, target=target, options=options, **more)
        except _Stopped as stopped:
            found.append(Front(source, dict(options), stopped.text))
            raise
        finally:
            del source.make_ir

    function.compile = stopping
    try:
        function.warmup(**arguments, **launch)
    except _Stopped:
        return found[0]
    finally:
        function.compile = compiler
    raise Unreadable("Triton's compiler does not call its source's make_ir")


def _know_types() -> None:
    """Have Triton look up the types of arguments, which imports torch for its tensors: two seconds and 200 MiB.

    A front end has no tensors, and where the user's module does without torch, nothing else needs it.
    """
    if "torch" in sys.modules:
        return
    from triton._C import libtriton

    look_up = getattr(libtriton, "native_specialize_impl", None)
    if look_up is None:
        return
    from triton.backends.compiler import BaseBackend

    # Called in another way by another version, it imports torch when it is needed.
    with _stand_in("torch", Tensor=type("Tensor", (), {})), suppress(TypeError):
        look_up(BaseBackend, 1, False, True, True)


@contextmanager
def _stand_in(name: str, **members: Any) -> Iterator[None]:
    """Have an import find a module with these members, for no longer than the block."""
    module = ModuleType(name)
    vars(module).update(members)
    sys.modules[name] = module
    try:
        yield
    finally:
        del sys.modules[name]


def compiled(lowered: Lowered, target: Any) -> Any:
    """Return Triton's kernel.

    Raises:
        Unreadable: this Triton does not read the text.
        Exception: whatever the compiler raises.
    """
    import triton
    from triton.backends.compiler import Language
    from triton.compiler import ASTSource

    class Source(ASTSource):  # type: ignore[misc]
        """A source that makes its module of the text."""

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
            return _parsed(lowered, args[-1])

    return triton.compile(Source(), target=target, options=dict(lowered.options))


def _parsed(lowered: Lowered, context: Any) -> Any:
    from triton._C.libtriton import ir

    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory, f"source.{lowered.ext}")
        file.write_text(lowered.text)
        try:
            module = ir.parse_mlir_module(str(file), context)
        except (AttributeError, TypeError, RuntimeError) as error:
            raise Unreadable(str(error)) from error
    # The module takes ownership of it.
    module.context = context
    return module


def _frozen(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(_frozen(item) for item in value)
    return {key: _frozen(item) for key, item in value.items()} if isinstance(value, dict) else value
