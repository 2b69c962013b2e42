"""Room for gangs: placement groups, the actors in them, and how many fit on the cluster's nodes."""

from __future__ import annotations

import math
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from pkb_gym.cluster.gang import MORE_THREADS, GangActor
from pkb_gym.cluster.records import GangSpec, Purpose, to_text
from pkb_gym.cluster.settings import PoolSettings
from pkb_gym.engine.records.config import Device

Resources = Mapping[str, float]
"""Name -> amount, as Ray counts them."""


@dataclass(frozen=True)
class PlacedGang:
    """A gang and the room that it holds.

    Attributes:
        actor: Actor of the gang.
        group: Placement group of the actor.
    """

    actor: Any
    group: Any

    def has_room(self) -> bool:
        """Whether the cluster has found room for it."""
        from ray.util.placement_group import placement_group_table

        return bool(placement_group_table(self.group).get("state") == "CREATED")

    def remove(self) -> None:
        """Ends the actor at once and hands its room back; calling it again changes nothing."""
        import ray
        from ray.util.placement_group import remove_placement_group

        ray.kill(self.actor, no_restart=True)
        remove_placement_group(self.group)


def place_gang(spec: GangSpec, settings: PoolSettings) -> PlacedGang:
    """Requests room on one node and an actor in it; returns before the cluster has granted either."""
    import ray
    from ray.util.placement_group import placement_group
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    needed = gang_resources(spec.device, spec.world_size, settings)
    name = f"{group_prefix(settings.pool)}{spec.purpose}:{secrets.token_hex(4)}"
    group = placement_group([dict(needed)], strategy="STRICT_PACK", name=name)
    actor_class = ray.remote(GangActor).options(
        num_cpus=needed.get("CPU", 0),
        num_gpus=needed.get("GPU", 0),
        max_concurrency=spec.slots + MORE_THREADS,
        max_restarts=0,  # the pool starts another one, where there is room
        scheduling_strategy=PlacementGroupSchedulingStrategy(group),
    )
    return PlacedGang(actor_class.remote(to_text(spec)), group)


def group_prefix(pool: str) -> str:
    """First part of the names of a pool's placement groups."""
    return f"pkb:{pool}:"


def remove_groups(pool: str) -> int:
    """Hands back all room that an earlier process of a pool left behind; returns the number of placement groups."""
    from ray.util.placement_group import get_placement_group, placement_group_table, remove_placement_group

    prefix = group_prefix(pool)
    left = [
        entry["name"]
        for entry in placement_group_table().values()
        if entry["name"].startswith(prefix) and entry["state"] != "REMOVED"
    ]
    for name in left:
        remove_placement_group(get_placement_group(name))
    return len(left)


def gang_resources(device: Device, world_size: int, settings: PoolSettings) -> dict[str, float]:
    """Resources that one gang reserves on its node."""
    cpus = world_size * settings.cpus_per_rank
    if device == "cuda":
        return {"GPU": world_size, "CPU": cpus}
    return {"CPU": max(cpus, 0.001)}  # a placement group of nothing is refused


def node_resources() -> list[Resources]:
    """Resources of each node that is alive."""
    import ray

    return [node["Resources"] for node in ray.nodes() if node["Alive"]]


def gpus_of(nodes: Iterable[Resources]) -> int:
    """GPUs of the node that has the most."""
    return int(max((node.get("GPU", 0) for node in nodes), default=0))


@dataclass(frozen=True)
class LaneLimits:
    """Most gangs of one device and world size, by purpose."""

    shared: int
    exclusive: int

    def of(self, purpose: Purpose) -> int:
        """The limit of a purpose."""
        return self.shared if purpose == "shared" else self.exclusive


def lane_limits(nodes: Iterable[Resources], device: Device, world_size: int, settings: PoolSettings) -> LaneLimits:
    """Limits of the number of gangs: those of the settings, or the number that fits on the nodes.

    A compile needs a processor beside the gangs of the CPU device, so that nothing waits for itself.
    """
    needed = gang_resources(device, world_size, settings)
    listed = list(nodes)
    fits = sum(_times(node, needed) for node in listed)
    cpus = sum(node.get("CPU", 0) for node in listed)
    if fits > 1 and cpus - fits * needed.get("CPU", 0) < settings.compile_cpus:
        fits -= math.ceil(min(settings.compile_cpus / needed["CPU"], fits - 1)) if needed.get("CPU") else 0
    shared, exclusive = settings.shared_most, settings.exclusive_most
    if shared is None:
        shared = max(settings.shared_least, fits // 4 or 1) if fits > 1 or (exclusive or 0) > 1 else 0
    if exclusive is None:
        exclusive = max(settings.exclusive_least, fits - shared, 1)
    return LaneLimits(shared, exclusive)


def _times(node: Resources, needed: Resources) -> int:
    """The number of times that an amount fits on a node."""
    return math.floor(min(node.get(name, 0) / amount for name, amount in needed.items() if amount))
