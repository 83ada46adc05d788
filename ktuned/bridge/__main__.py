"""``python -m ktuned.bridge SOCKET_FD DAEMON_PID``, as the daemon starts it."""

import sys

from ktuned.bridge.call_server import main

if __name__ == "__main__":
    main(sys.argv[1:])
