"""ktuned's drop-in for ``torch.compile``'s max-autotune, and the backend that measures what it recorded.

This module imports nothing, because Inductor's compile workers import a module of this package.
"""
