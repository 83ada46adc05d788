"""Samples for the tests of measuring."""

from collections.abc import Iterable

from ktuned.measuring.samples import Samples


def make_samples(values: Iterable[float]) -> Samples:
    """Return samples, in µs, taken in this order."""
    samples = Samples()
    for value in values:
        samples.add_sample(value)
    return samples
