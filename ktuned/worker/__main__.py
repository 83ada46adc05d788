"""``python -m ktuned.worker ROLE READ_FD WRITE_FD DAEMON_PID PLACES``, as the daemon starts it."""

import os
import sys

from ktuned.worker import imports

if __name__ == "__main__":
    imports.keep_bytecode(os.environ)
    with imports.pause_garbage_collection():
        from ktuned.worker.main import run
    run(sys.argv[1:])
