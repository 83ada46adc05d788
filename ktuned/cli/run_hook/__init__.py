"""A directory for ``PYTHONPATH``, whose ``sitecustomize`` puts the drop-ins into a program; imported for its path."""
