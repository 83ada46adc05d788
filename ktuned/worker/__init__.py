"""The inside of a worker process: everything that can hang, crash or block.

The daemon never imports this package. It starts ``python -m ktuned.worker`` and exchanges frames with it.

Start reading at :mod:`~ktuned.worker.main`, the loop. The main operations are :mod:`~ktuned.worker.inspect`,
:mod:`~ktuned.worker.explore`, :mod:`~ktuned.worker.compile` and :mod:`~ktuned.worker.bench`. A config is measured on
the data of :mod:`~ktuned.worker.problem`, within :mod:`~ktuned.worker.guards`, in the process state of
:mod:`~ktuned.worker.process_state`, for as long as :mod:`~ktuned.worker.race` says.
"""
