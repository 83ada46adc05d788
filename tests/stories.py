"""Stories: what happens and what is seen then, in words."""

import re
from collections.abc import Callable


def check_story(story: str, take_step: Callable[[str], object]) -> None:
    """Take each step, ``event`` or ``event: what is seen``; steps are separated by semicolons and line ends."""
    for step in re.split(r";|\n", story.strip()):
        event, *expected = re.split(": |:$", step.strip(), maxsplit=1)
        assert [take_step(event)] == expected or not expected, step
