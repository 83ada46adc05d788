"""Samples of the protocol's maps, and of the values that commands read from them."""

from __future__ import annotations

from typing import Any

import msgspec

from ktuned.protocol import KERNELS, STATUS, Answer, JobInfo, KernelsAnswer, ListedTrial, StatusAnswer, read_jobs

KERNEL = "project:gemm"
PROBLEM = {"M": 64, "dtype": "float32"}
DEVICE = "cpu-model"


def make_job_map(number: int = 1, **changes: Any) -> dict[str, Any]:
    job: dict[str, Any] = {
        "id": number,
        "kernel": KERNEL,
        "problem": PROBLEM,
        "device": DEVICE,
        "state": "running",
        "priority": 400,
        "reason": "asked",
        "plan": {"trials": 1000, "time_limit_s": None, "deadlines": {}},
        "created": 1000.0,
        "started": 1000.0,
        "finished": None,
        "done": 0,
        "total": 4,
        "best_us": None,
        "default_us": None,
        "reference_us": None,
        "outcomes": {},
        "message": "",
        "cost": {},
    }
    full: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(msgspec.convert(job | changes, JobInfo)))
    return full


def make_job_info(number: int = 1, **changes: Any) -> JobInfo:
    (job,) = read_jobs([make_job_map(number, **changes)])
    return job


def make_trial_map(number: int = 1, outcome: str = "measured", **changes: Any) -> dict[str, Any]:
    trial: dict[str, Any] = {
        "id": number,
        "job": 1,
        "kernel": KERNEL,
        "problem": PROBLEM,
        "device": DEVICE,
        "config": {"BM": number},
        "outcome": outcome,
        "latency_us": 100.0 if outcome == "measured" else None,
        "spread_us": 1.0 if outcome == "measured" else None,
        "compile_s": 1.5,
        "lane_s": 0.25,
        "message": "" if outcome == "measured" else f"why it is {outcome}\nmore of it",
        "artifact": None,
        "digest": "d" * 8,
        "updated": 1000.0,
        "metrics": {},
        "winner": False,
        "objectives": [],
        "facts": {},
        "class": "",
        "detail": {},
    }
    return trial | changes


def make_listed_trial(number: int = 1, outcome: str = "measured", **changes: Any) -> ListedTrial:
    return msgspec.convert(make_trial_map(number, outcome, **changes), ListedTrial)


def make_trial_event(trial: dict[str, Any], done: int, **changes: Any) -> dict[str, Any]:
    """Return the event that reports a trial."""
    event: dict[str, Any] = {
        "type": "trial_done",
        "kernel": trial["kernel"],
        "job": trial["job"],
        "trial": trial,
        "done": done,
        "total": 4,
        "outcomes": {trial["outcome"]: done},
        "best_us": trial["latency_us"],
        "default_us": None,
    }
    return event | changes


def make_state_event(kind: str, job: dict[str, Any]) -> dict[str, Any]:
    """Return a ``job_queued``, ``job_started`` or ``job_done`` event."""
    return {"type": kind, "kernel": job["kernel"], "job": job["id"], "job_state": job}


def make_answer_map(**changes: Any) -> dict[str, Any]:
    answer: dict[str, Any] = {
        "kernel": KERNEL,
        "problem": PROBLEM,
        "device": DEVICE,
        "status": "fresh",
        "config": {"BM": 32, "fast": True},
        "latency_us": 12.5,
        "artifact": None,
        "age_s": 3.0,
        "decided": 1.7e9,
        "file": "/p/tune_gemm.py",
        "message": "",
        "generation": 1,
    }
    return answer | changes


def make_answer(**changes: Any) -> Answer:
    return msgspec.convert(make_answer_map(**changes), Answer)


def make_kernel_map(name: str = KERNEL, **changes: Any) -> dict[str, Any]:
    kernel: dict[str, Any] = {
        "kernel": name,
        "project": name.partition(":")[0],
        "file": "/src/tune_gemm.py",
        "line": 7,
        "backend": "tvm_ffi",
        "digest": "d",
        "sources": [],
        "problems": [{"M": 64}],
        "default": {"BM": 32},
        "specialize": None,
        "space": {"kind": "cartesian", "size": 2, "axes": {"BM": [32, 64]}, "constrained": True},
        "plan": {},
    }
    return kernel | changes


def make_kernels_answer(*names: str, **changes: Any) -> KernelsAnswer:
    return KERNELS.read_answer({"kernels": [make_kernel_map(name) for name in names], **changes})


def make_standing_map(**changes: Any) -> dict[str, Any]:
    """Return an entry of a kernel's ``why``: the state of a winner."""
    standing: dict[str, Any] = {
        "problem": {"M": 64},
        "device": DEVICE,
        "objective": "latency",
        "status": "fresh",
        "decided": 1000.0,
        "trial": 1,
        "changes": [],
        "message": "",
        "notices": [],
    }
    return standing | changes


def make_status(**changes: Any) -> StatusAnswer:
    return STATUS.read_answer(make_status_map(**changes))


def make_status_map(**changes: Any) -> dict[str, Any]:
    status: dict[str, Any] = {
        "pid": 4242,
        "version": "0.1.0",
        "protocol": 1,
        "socket": "/run/k/ktuned.sock",
        "home": "/home/k",
        "uptime_s": 75.0,
        "rss_bytes": 40 * 1024**2,
        "cpu_s": 1.5,
        "epoch": 7,
        "seq": 0,
        "idle": {"exit_s": 0.0, "busy": []},
        "rates": {"requests": 0.5, "lookups": 0.0, "trials": 2.5},
        "gate": "open",
        "compile_slots": 2,
        "server": {"connections": 1, "pending": 0, "answered": 3, "refused": 0},
        "policy": "always",
        "paused": [],
        "cluster": None,
        "lanes": [{"device": "cpu:0", "model": DEVICE, "state": "open", "reason": "", "job": None, "worker_pid": 4243}],
        "workers": [{"pid": 4243, "role": "bench", "environment": "python", "state": "idle", "age_s": 5.0}],
        "channels": {"compile": {"used": 1, "size": 8}},
        "jobs": {"queued": 0, "running": 1},
        "store": {"trials": 5, "winners": 1, "jobs": 2, "bytes": 4096, "notice": ""},
        "artifacts": {"count": 3, "bytes": 2048, "cap_bytes": 1024**3},
        "environments": [
            {
                "python": "/venv/bin/python",
                "error": None,
                "backends": {
                    "tvm_ffi": {
                        "version": "0.1.0",
                        "fingerprint": {},
                        "devices": [{"name": "cpu:0", "model": DEVICE, "target": "x86", "fingerprint": {}}],
                        "absent": None,
                        "error": None,
                    }
                },
            }
        ],
        "roots": [{"path": "/src", "name": "project", "python": "/venv/bin/python"}],
        "notices": [],
    }
    return status | changes
