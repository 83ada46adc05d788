"""Starting candidates' processes."""

import os
import socket
from pathlib import Path

import pytest

from ktuned.backends import cpu
from ktuned.judging.candidate import Born, send_message
from ktuned.judging.candidate_process import CandidateProcess, Ended, Nursery
from ktuned.model import JudgeVerdict


def test_what_was_not_enforced_is_known_after_the_end(tmp_path: Path) -> None:
    """A verdict is made when the candidate's process has been killed."""
    ours, theirs = socket.socketpair()
    process = CandidateProcess(ours, str(tmp_path / "scratch"))
    pid = os.spawnlp(os.P_NOWAIT, "sleep", "sleep", "100")
    with theirs:
        send_message(theirs, Born(pid, pid, ("files could be read",)))
        process.await_birth()
        process.kill()
    assert process.not_enforced == ("files could be read",)


@pytest.mark.timeout(50)
def test_a_process_whose_referee_is_gone_ends() -> None:
    """This process adopts no descendants, so the candidate's process is another's child, as if the referee had died."""
    nursery = Nursery("tvm_ffi", cpu.device())
    try:
        with pytest.raises(RuntimeError, match="could not be started") as failure:
            nursery.take_next()
        assert isinstance(failure.value.__cause__, Ended)
        assert failure.value.__cause__.verdict is JudgeVerdict.CRASHED
    finally:
        nursery.close()
