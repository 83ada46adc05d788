"""The distributions of this repository: their directories and packages."""

from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
PROJECTS = {
    "ktuned": (ROOT, "ktuned"),
    "ktuned-client": (ROOT / "client", "ktuned_client"),
    "ktuned-command": (ROOT / "plugins/command", "ktuned_command"),
    "ktuned-cutedsl": (ROOT / "plugins/cutedsl", "ktuned_cutedsl"),
    "ktuned-inductor": (ROOT / "plugins/inductor", "ktuned_inductor"),
    "ktuned-mcp": (ROOT / "plugins/mcp", "ktuned_mcp"),
    "ktuned-nvrtc": (ROOT / "plugins/nvrtc", "ktuned_nvrtc"),
    "ktuned-optuna": (ROOT / "plugins/optuna", "ktuned_optuna"),
    "ktuned-ray": (ROOT / "plugins/ray", "ktuned_ray"),
    "ktuned-team": (ROOT / "plugins/team", "ktuned_team"),
    "ktuned-tilelang": (ROOT / "plugins/tilelang", "ktuned_tilelang"),
    "ktuned-torch": (ROOT / "plugins/torch", "ktuned_torch"),
    "ktuned-triton": (ROOT / "plugins/triton", "ktuned_triton"),
    "ktuned-tvm-ffi": (ROOT / "plugins/tvm_ffi", "ktuned_tvm_ffi"),
}
