"""``python -m ktuned.worker ROLE READ_FD WRITE_FD DAEMON_PID PLACES``, as the daemon starts it."""

import sys

from ktuned.worker.main import run

if __name__ == "__main__":
    run(sys.argv[1:])
