"""Attempts -> figures: how often an agent is right, how fast its kernels are, and how sure that is.

Modules here import `pkb_gym.engine.records`, `pkb_gym.rewards` and numpy; neither torch nor transformers.
"""

from pkb_gym.metrics.best import BestKernel, best_kernels
from pkb_gym.metrics.comparison import AgentComparison, compare
from pkb_gym.metrics.estimates import Estimate, estimate
from pkb_gym.metrics.figures import AgentFigures, agent_figures
from pkb_gym.metrics.outcomes import AttemptOutcome, outcome_of
from pkb_gym.metrics.pass_at_k import pass_at_every_k, pass_at_k
from pkb_gym.metrics.results import AgentResults, results_by_agent
from pkb_gym.metrics.sources import read_results

__all__ = [
    "AgentComparison",
    "AgentFigures",
    "AgentResults",
    "AttemptOutcome",
    "BestKernel",
    "Estimate",
    "agent_figures",
    "best_kernels",
    "compare",
    "estimate",
    "outcome_of",
    "pass_at_every_k",
    "pass_at_k",
    "read_results",
    "results_by_agent",
]
