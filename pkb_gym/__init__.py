"""pkb-gym: the 87 multi-GPU problems of ParallelKernelBench as Gymnasium environments."""

from pkb_gym.envs.registration import register_problem, register_with_gymnasium

__all__ = ["register_problem"]
__version__ = "0.1.0"

register_with_gymnasium()
