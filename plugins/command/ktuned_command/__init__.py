"""Backend for programs: argv and environment from the config, the objective from the clock or the output."""

from ktuned_command.backend import Command, CommandOnCuda
from ktuned_command.build import Build
from ktuned_command.program import Program

__all__ = ["Build", "Command", "CommandOnCuda", "Program"]
