"""Workers of tests: forked from a process that has imported what their role needs.

A worker's imports take 0.2 s of CPU, and tests start over two thousand. A forked worker is a process like any other:
with a session, an environment, descriptors and a directory of its own. Tests of processes start workers as users do.
"""
