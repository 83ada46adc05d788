"""How a config is measured: its time, and everything else that its launches show.

A timer (:mod:`~ktuned.measuring.host_timer`, :mod:`~ktuned.measuring.cuda_timer`) launches a config as often as the
race (:mod:`~ktuned.measuring.race`) asks for samples: only as long as the config can still win. What it launches are
:mod:`~ktuned.measuring.timed_launches`, some of which are compared with the launch that was judged right. Observers
(:mod:`~ktuned.measuring.launch_observer`) measure everything but the time: cores, contention, energy, the kernel file's
own metrics. :mod:`~ktuned.measuring.results` makes the config's result of all that.

The rules are without IO: the race, samples, noise.
"""

from ktuned.measuring.contention import ContentionWatch
from ktuned.measuring.core_count import CoreCounter
from ktuned.measuring.costs import Costs, FileMetrics
from ktuned.measuring.cuda_timer import EVENTS, CudaTimer
from ktuned.measuring.energy import EnergyMeter
from ktuned.measuring.free_device import is_device_free
from ktuned.measuring.host_timer import HostTimer
from ktuned.measuring.launch_observer import LaunchObserver, ObserverGroup
from ktuned.measuring.noise import Noise
from ktuned.measuring.peaks import measure_peaks
from ktuned.measuring.race import RaceRules
from ktuned.measuring.results import (
    add_check_errors,
    ends_batch,
    make_disputed_result,
    make_failed_result,
    make_raised_result,
    make_timed_result,
)
from ktuned.measuring.samples import Samples
from ktuned.measuring.timed_launches import FINALIST_COMPARED, SURE_COMPARED, TimedLaunches, WrongLaunch

Timer = HostTimer | CudaTimer
"""Times launches, for as many samples as the race asks for."""
