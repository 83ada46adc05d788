"""What kernel files say: kernels, spaces, tensors, and the digests of what they mean.

Kernel files import :mod:`ktuned`; workers import this package's modules: ``kernel``, ``space``, ``tensors``
(the vocabulary), ``loading`` (from a file to kernels) and ``digest`` (from a kernel to plain values).
"""
