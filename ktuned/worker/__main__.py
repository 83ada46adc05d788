"""``python -m ktuned.worker ROLE READ_FD WRITE_FD DAEMON_PID PLACES``, as the daemon starts it."""

import os
import sys

from ktuned.worker import bytecode

if __name__ == "__main__":
    bytecode.use(os.environ)
    with bytecode.written():
        from ktuned.worker.main import run
    run(sys.argv[1:])
