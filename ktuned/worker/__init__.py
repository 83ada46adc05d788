"""The inside of a worker process: everything that can hang, crash or block.

The daemon never imports this package; it starts ``python -m ktuned.worker`` and speaks frames with it.
"""
