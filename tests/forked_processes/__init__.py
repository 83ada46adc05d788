"""Daemons and workers of tests, forked from processes that have done their imports and look-ups.

Imports and look-ups take a daemon 0.4 s of CPU, a worker 0.2 s and its first probe 0.3 s, and tests start hundreds
of daemons and over two thousand workers. A forked process has its own session, environment, descriptors and
directory. Tests of starts start their processes as users do.
"""
