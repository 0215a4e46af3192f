"""unimarg: fast, trustworthy inference in large Bayesian networks."""

from unimarg.network import Network, NoisyMax, NoisyOr, Table, Variable

__all__ = ["Network", "NoisyMax", "NoisyOr", "Table", "Variable"]
