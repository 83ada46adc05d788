"""A compiler that waits for something holds up no other project."""

from __future__ import annotations

from pathlib import Path

from tests.e2e.harness import UNHURRIED, Daemon, make_kernel_text


def test_a_compiler_that_waits_for_a_pipe_leaves_slot_and_quiet_to_others(tmp_path: Path) -> None:
    """Another kernel is compiled, measured and decided while the first one's compiler still waits."""
    stalled = make_kernel_text("space([dict(us=50.0, does='compile_hang')])", name="stalled", deadlines=UNHURRIED)
    other = make_kernel_text("space([dict(us=50.0), dict(us=60.0)])", name="other", early_stop="100.0")
    with Daemon(tmp_path, config="compile_slots = 1\n") as daemon:
        daemon.client.call("tune", path=str(daemon.write_kernel(stalled, "tune_stalled.py")))
        daemon.wait_until(daemon.compile_log.exists, "the first compile to begin")
        assert daemon.run_ktuned("tune", str(daemon.write_kernel(other, "tune_other.py"))).returncode == 0
        assert daemon.look_up("other").status == "fresh"
        assert [job["state"] for job in daemon.client.call("jobs", kernel="stalled")["jobs"]] == ["running"]
