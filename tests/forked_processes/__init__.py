"""Daemons and workers of tests: forked from processes that have imported and looked up what such a one needs.

The imports and the look-ups of a daemon take 0.4 s of CPU, a worker's 0.2 s, its first probe 0.3 s, and tests start
hundreds of daemons and over two thousand workers. A forked one is a process like any other: with a session, an
environment, descriptors and a directory of its own. Tests of starts have theirs started as users do.
"""
