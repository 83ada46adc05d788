"""The daemon's side of the workers: processes that can be killed at any moment, pools of them, lanes."""
