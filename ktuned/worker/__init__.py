"""The inside of a worker process: everything that can hang, crash or block.

The daemon never imports this package. It starts ``python -m ktuned.worker`` and exchanges frames with it.

Start reading at :mod:`~ktuned.worker.main`, the loop. The main operations are :mod:`~ktuned.worker.inspect`,
:mod:`~ktuned.worker.explore`, :mod:`~ktuned.worker.compile` and :mod:`~ktuned.worker.bench`.

The bench takes each config through the steps of :mod:`~ktuned.worker.config_run`, in the process state of
:mod:`~ktuned.worker.process_state`. :mod:`ktuned.checking` finds out whether the config is right, and
:mod:`ktuned.measuring` how fast it is.
"""
