"""A lane's share of a device beside an application. Events in, a pause out; no IO.

*A case.* A training program makes steps of 300 ms on a GPU, and loads data for two seconds after each hundred. The GPU
gives time to one process after the other, so while a lane works, a step takes up to twice as long. When the program
loads data, the lane costs it nothing.

*The rule.* After each config, the lane's worker looks whether it has the device for itself
(:func:`~ktuned.measuring.is_device_free`). A config that had it for itself costs nothing, and the next one follows at
once. The time of any other config is *taken* from the application. A lane takes at most :data:`DUTY` of the time. The
application has most of the device meanwhile, and loses about a quarter of that. Time that is not taken is saved, up to
:data:`MOST_SAVED_S`. When nothing is left, the lane waits until all of that is saved again, and takes it all at once.
While it waits, it looks at the device every :data:`LOOK_S`, and goes on as soon as the application leaves it.

*Why all at once.* One config after each step would make each step longer. Whole batches make one step in five longer,
so that the median step does not change as long as a step is shorter than twice :data:`MOST_SAVED_S`. A longer step is
made longer by a quarter of :data:`MOST_SAVED_S` each time.

*Why not ask the application.* It could report its launches. But a program that launches nothing may wait for its GPU,
and only the device knows which.
"""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic

DUTY = 0.2
"""Share of the time that a lane may take from an application. On an H100 a step of 10 ms took 1.39 times as long while
another process kept the GPU busy. With this share, the mean step of ``benchmarks/beside.py`` took 1.07 times as long
on two H200s, and the median step 1.02 times."""

MOST_SAVED_S = 1.0
"""Time that can be saved, and that may be taken all at once: five seconds' worth."""

LOOK_S = 0.5
"""Interval at which a waiting lane looks whether the application has left the device. A look delays it by one turn of
the GPU, some milliseconds."""

LOOKS = 5
"""Looks at the device, 20 ms apart, that must all find it free. A step leaves it free for some milliseconds."""


class DeviceShare:
    """The time that lanes may take from applications on one device; all of it is saved at first.

    >>> now = [0.0]
    >>> share = DeviceShare(lambda: now[0])
    >>> share.record_use(0.7), share.pause_s
    (None, 0.0)
    >>> share.record_use(0.5), round(share.pause_s, 1)
    (None, 6.0)
    >>> share.record_use(0.0), share.pause_s
    (None, 0.0)
    """

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._at = clock()
        self._saved_s = MOST_SAVED_S
        self._is_saving = False
        self._is_left = False

    def record_use(self, taken_s: float) -> None:
        """Record that a lane has used the device, and has taken so much time from an application; 0 if it was free."""
        self._save()
        # A hung config may have taken minutes. Its debt is limited, so that the tuning comes to an end.
        self._saved_s = max(-MOST_SAVED_S, self._saved_s - taken_s)
        self._is_saving = self._is_saving or self._saved_s <= 0
        self._is_left = taken_s == 0

    @property
    def pause_s(self) -> float:
        """How long a lane should leave the device alone, in seconds, unless it finds the device free before."""
        self._save()
        self._is_saving = self._is_saving and self._saved_s < MOST_SAVED_S
        return (MOST_SAVED_S - self._saved_s) / DUTY if self._is_saving and not self._is_left else 0.0

    def _save(self) -> None:
        now = self._clock()
        self._saved_s, self._at = min(MOST_SAVED_S, self._saved_s + DUTY * (now - self._at)), now
