"""``python -m ktuned.worker READ_FD WRITE_FD DAEMON_PID``: started by the daemon, of no use by hand."""

import sys

from ktuned.worker.main import run

if __name__ == "__main__":
    run(sys.argv[1:])
