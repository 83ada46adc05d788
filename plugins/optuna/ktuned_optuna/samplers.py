"""The samplers of Optuna that have a strategy's name; a project adds any other with a subclass of three lines."""

from __future__ import annotations

from optuna.samplers import BaseSampler, CmaEsSampler, GPSampler, NSGAIISampler, TPESampler

from ktuned_optuna.strategy import OptunaStrategy, silence_optuna

FIRST = 16
"""Random configs before a model is used."""


class Tpe(OptunaStrategy):
    """Tree-structured Parzen estimators over all knobs together; configs under way count as slow ones."""

    def sampler(self, seed: int) -> BaseSampler:
        """Make the sampler, with a seed."""
        with silence_optuna():
            return TPESampler(seed=seed, multivariate=True, constant_liar=True, n_startup_trials=FIRST)


class NsgaII(OptunaStrategy):
    """A genetic algorithm."""

    def sampler(self, seed: int) -> BaseSampler:
        """Make the sampler, with a seed."""
        return NSGAIISampler(seed=seed, population_size=FIRST)


class CmaEs(OptunaStrategy):
    """An evolution strategy that adapts its covariance; it needs the package ``cmaes``."""

    def sampler(self, seed: int) -> BaseSampler:
        """Make the sampler, with a seed."""
        with silence_optuna():
            return CmaEsSampler(seed=seed, n_startup_trials=FIRST, warn_independent_sampling=False)


class Gp(OptunaStrategy):
    """A Gaussian process; it needs SciPy and torch."""

    def sampler(self, seed: int) -> BaseSampler:
        """Make the sampler, with a seed."""
        with silence_optuna():
            return GPSampler(seed=seed, n_startup_trials=FIRST)
