"""The problems of pkb-gym as a taskset of verifiers, whose tool `submit` has kernels judged by `pkb serve`."""

from pkb_verifiers.taskset import KernelTaskset

__all__ = ["KernelTaskset"]
