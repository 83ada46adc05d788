"""Judges programs that are not trusted: see ``docs/judge.md``.

Start reading at :mod:`~ktuned.judging.referee`, which decides. It has each candidate launched by a process of its own
(:mod:`~ktuned.judging.candidate_process` outside it, :mod:`~ktuned.judging.candidate` inside) on memory that both share
(:mod:`~ktuned.judging.arena`), in a :mod:`~ktuned.judging.sandbox`.
"""

from ktuned.judging.candidate import PlainUnit
from ktuned.judging.candidate_process import Ended, Nursery, make_cheating
from ktuned.judging.referee import Referee, make_ended_result, make_refusal
