"""Optuna's samplers as search strategies of ktuned."""

from ktuned_optuna.samplers import CmaEs, Gp, NsgaII, Tpe
from ktuned_optuna.strategy import OptunaStrategy

__all__ = ["CmaEs", "Gp", "NsgaII", "OptunaStrategy", "Tpe"]
