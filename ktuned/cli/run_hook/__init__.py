"""A directory for ``PYTHONPATH`` whose ``sitecustomize`` installs the drop-ins in a program; imported for its path."""
