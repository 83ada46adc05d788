"""Backends, toolchains and devices of each interpreter, and changes of them."""

from ktuned.devices.environments import Environments
from ktuned.devices.machine import Machine, explain_unmeasurable
from ktuned.devices.probes import Probes
from ktuned.devices.toolchain_survey import SurveyIntervals, ToolchainSurvey
