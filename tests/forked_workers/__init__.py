"""Workers of tests that assemble a daemon: forked from a process that has imported what their role needs.

A worker's imports take 0.2 s of CPU, and such tests start over a thousand. A forked worker is a process like any other:
with a session, an environment, descriptors and a directory of its own. Tests of processes, and daemons of tests, start
workers as users do.
"""

from tests.forked_workers.starting import start_process

__all__ = ["start_process"]
