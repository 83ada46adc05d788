"""``python -m ktuned.worker READ_FD WRITE_FD DAEMON_PID``: started by the daemon, of no use by hand."""

import sys

from ktuned.worker.main import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
