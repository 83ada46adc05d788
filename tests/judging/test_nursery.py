"""Starting candidates' processes."""

import pytest

from ktuned.backends import cpu
from ktuned.judging.candidate_process import Ended, Nursery
from ktuned.model import JudgeVerdict


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
