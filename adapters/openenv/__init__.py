"""pkb-gym as an OpenEnv environment: action, observation, state and client; the server needs pkb-gym itself."""

from pkb_openenv.client import KernelEnv
from pkb_openenv.models import KernelAction, KernelObservation, PKBState

__all__ = ["KernelAction", "KernelEnv", "KernelObservation", "PKBState"]
