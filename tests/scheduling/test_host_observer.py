from __future__ import annotations

from pathlib import Path

import pytest

from ktuned.fleet.usage import Usage
from ktuned.scheduling.host_observer import HostObserver
from ktuned.worker.probe import count_gpu_users
from tests.daemon_parts import Parts

pytestmark = pytest.mark.anyio


def write_proc_files(root: Path, busy: int, idle: int, stalled_us: int) -> None:
    """Write a machine's figures into a made-up /proc."""
    (root / "proc/pressure").mkdir(parents=True, exist_ok=True)
    (root / "proc/stat").write_text(f"cpu  {busy} 0 0 {idle} 0 0 0 0 0 0\n")
    (root / "proc/pressure/cpu").write_text(f"some avg10=0.00 avg60=0.00 avg300=0.00 total={stalled_us}\n")


def make_observer(parts: Parts, usage: Usage | None = None) -> HostObserver:
    """Return an observer of the parts' machine."""
    return HostObserver(
        fleet=parts.fleet,
        machine=parts.machine,
        environments=lambda: [parts.environment],
        usage=usage,
    )


async def test_reading_is_of_the_time_since_the_last_one(parts: Parts, tmp_path: Path) -> None:
    """The first one knows nothing of the CPUs; a battery is seen at once; without GPUs no one is asked of them."""
    root = tmp_path / "machine"
    write_proc_files(root, busy=1000, idle=1000, stalled_us=0)
    watched = make_observer(parts, Usage(root, 1))
    first = await watched.read_host_use()
    assert (first.others, first.pressure, first.on_battery, first.gpu_users) == (0.0, 0.0, False, {})
    battery = root / "sys/class/power_supply/BAT0"
    battery.mkdir(parents=True)
    (battery / "type").write_text("Battery\n")
    (battery / "status").write_text("Discharging\n")
    write_proc_files(root, busy=1300, idle=1700, stalled_us=10**12)
    second = await watched.read_host_use()
    assert second.others == pytest.approx(0.3)
    assert second.pressure == 1.0
    assert second.on_battery


async def test_this_machine_can_be_read(parts: Parts) -> None:
    """Whatever this machine is and does, there is a reading, with shares from 0 to 1."""
    watched = make_observer(parts)
    await watched.read_host_use()
    reading = await watched.read_host_use()
    assert 0.0 <= reading.others <= 1.0
    assert reading.pressure is None or 0.0 <= reading.pressure <= 1.0


def test_gpus_that_are_not_there_are_told() -> None:
    """Without NVML or its driver there are no users, and a reason; with it there are counts."""
    counts = count_gpu_users([1])
    assert all(users >= 0 for users in counts.users.values())
    assert counts.users == {} or counts.absence == ""
    if not Path("/dev/nvidiactl").exists():
        assert counts.absence
