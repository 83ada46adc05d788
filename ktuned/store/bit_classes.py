"""Same bits: configs that leave equal outputs, and the price of allowing only those of one class. No IO.

A config's *bits* are the digests of its outputs, one for each input that it was launched on, always in the same order:
the inputs of its measurement, then hard inputs, which are made to show differences, then other random numbers. An input
that a kernel does not have gives an empty digest. Configs with equal bits form a *class*. With exact numerics, only the
class of the *anchor* may win: the anchor is the declared default, or a config that was chosen in its place.

Equal digests are evidence, but no proof. A config that was given up early was only launched on the first input: it may
be known to differ from a class, but belongs to none. A config whose outputs differ between launches is
*nondeterministic*, and has no class.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from ktuned.model import Bits, Config, FrozenStruct, Numerics, Outcome, Scalar
from ktuned.protocol import Trial

MOST_LETTERS = 26


class BitClass(FrozenStruct):
    """A class of configs.

    Attributes:
        letter: its name.
        bits: the bits of all its configs.
        configs: how many configs were measured.
        best: the fastest config.
        best_us: the fastest config's latency.
        is_anchor: whether it is the anchor's class.
    """

    letter: str
    bits: Bits
    configs: int
    best: Config
    best_us: float
    is_anchor: bool = False


class BitClasses(FrozenStruct):
    """The classes of one context.

    Attributes:
        classes: the anchor's class, then the others from the fastest to the slowest.
        inputs: number of inputs on which outputs are compared.
        nondeterministic: number of nondeterministic configs.
        splitting: knobs that change bits.
        keeping: knobs that were not seen to change bits.
        fastest_us: latency of the fastest config of all.
    """

    classes: tuple[BitClass, ...] = ()
    inputs: int = 0
    nondeterministic: int = 0
    splitting: tuple[str, ...] = ()
    keeping: tuple[str, ...] = ()
    fastest_us: float | None = None

    @classmethod
    def from_trials(cls, trials: Iterable[Trial]) -> BitClasses:
        """Sort a context's trials into classes."""
        measured = [one for one in trials if one.outcome is Outcome.MEASURED and one.latency_us is not None]
        known = [
            (found.bits, one) for one in measured if (found := one.detail.numerics).bits and not found.nondeterministic
        ]
        most = max((len(bits) for bits, _ in known), default=0)
        groups: defaultdict[Bits, list[Trial]] = defaultdict(list)
        for bits, one in sorted(known, key=lambda pair: -len(pair[0])):
            # A config with fewer inputs may belong to a class that it agrees with. If it differs from all, it is a new
            # class.
            if len(bits) == most or not any(len(full) > len(bits) and full[: len(bits)] == bits for full in groups):
                groups[bits].append(one)
        members = [
            (bits, group, any(one.detail.numerics.same_bits for one in group), min(group, key=_read_latency_us))
            for bits, group in groups.items()
        ]
        members.sort(key=lambda member: (not member[2], _read_latency_us(member[3])))
        classes = tuple(
            BitClass(_choose_letter(place), bits, len(group), best.config, _read_latency_us(best), is_anchor)
            for place, (bits, group, is_anchor, best) in enumerate(members)
        )
        splitting, keeping = _sort_knobs([(one.config, bits) for bits, group in groups.items() for one in group])
        inputs = max((sum(map(bool, one.bits)) for one in classes), default=0)
        nondeterministic = sum(one.detail.numerics.nondeterministic for one in measured)
        fastest_us = min(map(_read_latency_us, measured), default=None)
        return cls(classes, inputs, nondeterministic, splitting, keeping, fastest_us)

    def name_class(self, found: Numerics) -> str:
        """Return the letter of a trial's class; ``A/B?`` if several are possible, empty if nothing is known."""
        if found.nondeterministic:
            return "nondeterministic"
        bits = found.bits
        able = [one.letter for one in self.classes if bits and one.bits[: len(bits)] == bits[: len(one.bits)]]
        if not able:
            return ""
        is_sure = any(one.bits == bits for one in self.classes) or len(bits) >= len(self.classes[0].bits)
        return able[0] if is_sure else f"{'/'.join(able)}?"

    @property
    def price(self) -> str:
        """The price of allowing only the anchor's bits, in words; empty if it is unknown."""
        if not self.classes or not self.classes[0].is_anchor:
            return ""
        return describe_price(self.classes[0].best_us, self.fastest_us)

    def describe_classes(self) -> list[str]:
        """Return what is known of the classes, in lines of text."""
        if not self.classes and not self.nondeterministic:
            return []
        shown = [
            f"{one.letter} {'(the anchor) ' if one.is_anchor else ''}{one.configs}, best {one.best_us:.4g} µs"
            for one in self.classes
        ]
        count = f"{len(shown)} class{'es' if len(shown) != 1 else ''} of equal bits on {self.inputs} inputs"
        said = [f"{count}: {'; '.join(shown)}"] if shown else []
        if self.nondeterministic:
            said.append(f"{self.nondeterministic} nondeterministic: their outputs differ between launches")
        knobs = [f"bits change with {', '.join(self.splitting)}"] if self.splitting else []
        knobs += [f"not with {', '.join(self.keeping)}"] if self.keeping and self.splitting else []
        return [line for line in (*said, self.price, ", ".join(knobs)) if line]


def describe_price(exact_us: float, fastest_us: float | None) -> str:
    """Return the price of allowing only the anchor's bits, in words.

    Args:
        exact_us: latency of the fastest config with the anchor's bits.
        fastest_us: latency of the fastest config of all.
    """
    if fastest_us is None or exact_us <= fastest_us:
        return f"exact costs nothing: the fastest config, {exact_us:.4g} µs, has the anchor's bits"
    percent = 100 * (exact_us / fastest_us - 1)
    shown = f"{percent:.2g}" if percent < 100 else f"{percent:.0f}"
    return f"exact costs {shown} %: {exact_us:.4g} against {fastest_us:.4g} µs"


def _read_latency_us(trial: Trial) -> float:
    assert trial.latency_us is not None
    return trial.latency_us


def _choose_letter(place: int) -> str:
    return chr(ord("A") + place) if place < MOST_LETTERS else f"#{place + 1}"


def _sort_knobs(known: Sequence[tuple[Config, Bits]]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the knobs that change bits, and those that do not, by comparing configs that differ in a single knob."""
    splitting, keeping = [], []
    for knob in sorted({name for config, _ in known for name in config}):
        groups: defaultdict[tuple[tuple[str, Scalar], ...], list[Bits]] = defaultdict(list)
        for config, bits in known:
            groups[tuple(sorted(pair for pair in config.items() if pair[0] != knob))].append(bits)
        compared = [group for group in groups.values() if len(group) > 1]
        if any(len(set(group)) > 1 for group in compared):
            splitting.append(knob)
        elif compared:
            keeping.append(knob)
    return tuple(splitting), tuple(keeping)
