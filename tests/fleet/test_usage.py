from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ktuned.fleet.usage import Usage

USE_CPU_PROGRAM = "import time\nwhile time.process_time() < {seconds}: pass\n"


def write_process(root: Path, pid: int, times: str = "0 0 0 0", children: str = "", name: str = "x") -> None:
    """Write a process into a fake /proc."""
    task = root / f"proc/{pid}/task/{pid}"
    task.mkdir(parents=True)
    (task / "children").write_text(children)
    fields = " ".join(["S", *["0"] * 10, times, *["0"] * 5])
    (root / f"proc/{pid}/stat").write_text(f"{pid} ({name}) {fields}\n")


def write_machine(root: Path, ticks: str, stalled_us: int | None = None) -> None:
    """Write the whole machine's figures into a fake /proc."""
    (root / "proc/pressure").mkdir(parents=True, exist_ok=True)
    (root / "proc/stat").write_text(f"cpu  {ticks} 7 7\ncpu0 1 1 1 1 1 1 1 1\n")
    if stalled_us is not None:
        some = f"some avg10=0.00 avg60=0.00 avg300=0.00 total={stalled_us}\n"
        (root / "proc/pressure/cpu").write_text(f"{some}full avg10=0.00 avg60=0.00 avg300=0.00 total=5\n")


def test_others_use_what_is_busy_and_not_ours(tmp_path: Path) -> None:
    """Niced time counts; ours are the daemon, its descendants, and those that have ended."""
    write_process(tmp_path, 10, "10 5 3 2", children="11 12 ", name="a daemon) (")
    write_process(tmp_path, 11, "100 0 0 0", children="13")
    write_process(tmp_path, 12, "0 0 0 50")
    write_process(tmp_path, 13, "30 0 0 0")
    write_process(tmp_path, 99, "1000 0 0 0")
    usage = Usage(tmp_path, 10)
    write_machine(tmp_path, "1000 100 200 5000 100 10 10 10", stalled_us=1_000_000)
    before = usage.read_cpu_use(0)
    assert before is not None
    assert (before.own, before.busy, before.total) == (200, 1330, 6430)
    assert usage.list_own_pids() == {10, 11, 12, 13}

    write_machine(tmp_path, "1200 400 200 5500 100 10 10 10", stalled_us=1_500_000)
    (tmp_path / "proc/11/stat").write_text((tmp_path / "proc/11/stat").read_text().replace("100", "400"))
    after = usage.read_cpu_use(2_000_000)
    assert after is not None
    assert after.share_of_others_since(before) == pytest.approx(200 / 1000)
    assert after.pressure_since(before) == pytest.approx(0.25)
    assert after.share_of_others_since(after) == 0.0
    assert after.pressure_since(after) is None


def test_use_that_the_kernel_does_not_report_is_unknown(tmp_path: Path) -> None:
    """Without pressure only the pressure is unknown; without /proc there is no reading. Neither is an error."""
    usage = Usage(tmp_path, 10)
    assert usage.read_cpu_use(0) is None
    write_machine(tmp_path, "1 2 3")
    assert usage.read_cpu_use(0) is None
    write_machine(tmp_path, "1 2 3 4 5 6 7 8")
    use = usage.read_cpu_use(0)
    assert use is not None
    assert (use.stalled_us, use.own, use.pressure_since(use)) == (None, 0, None)


@pytest.mark.parametrize(
    ("supplies", "expected"),
    [
        ({}, False),
        ({"AC": "type=Mains online=0"}, False),
        ({"BAT0": "type=Battery status=Discharging"}, True),
        ({"BAT0": "type=Battery status=Charging", "BAT1": "type=Battery status=Discharging"}, True),
        ({"BAT0": "type=Battery status=Full", "AC": "type=Mains online=1"}, False),
        ({"mouse": "type=Battery scope=Device status=Discharging"}, False),
    ],
)
def test_a_machine_is_on_battery_while_its_own_battery_discharges(
    tmp_path: Path, supplies: dict[str, str], expected: bool
) -> None:
    for name, facts in supplies.items():
        directory = tmp_path / "sys/class/power_supply" / name
        directory.mkdir(parents=True)
        for fact in facts.split():
            key, _, value = fact.partition("=")
            (directory / key).write_text(f"{value}\n")
    assert Usage(tmp_path).is_on_battery() is expected


def test_this_machine_tells_ours_from_others() -> None:
    """A child's work is ours while it runs and after it has ended."""
    own_usage, other_usage = Usage(), Usage(pid=1 if os.getpid() != 1 else 2)
    before = own_usage.read_cpu_use(0)
    subprocess.run([sys.executable, "-c", USE_CPU_PROGRAM.format(seconds=0.5)], check=True)
    after = own_usage.read_cpu_use(1_000_000)
    assert before is not None
    assert after is not None
    tick = os.sysconf("SC_CLK_TCK")
    assert after.own - before.own >= 0.4 * tick
    assert os.getpid() in own_usage.list_own_pids()
    assert isinstance(other_usage.list_own_pids(), set)
