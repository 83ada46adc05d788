"""``python -m ktuned`` is the ``ktuned`` command."""

import sys

from ktuned.cli import main

if __name__ == "__main__":
    sys.exit(main())
