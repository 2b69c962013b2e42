"""The memory of one GPU under a command: estimates by arithmetic, with nothing measured.

states        weights, gradients and Adam's moments, shared over the processes that shard
gathered      FSDP2 and ZeRO-3: two layers and what lies outside of layers, weights and gradients in bfloat16
activations   checkpoints of all layers and one layer in full, for one micro-batch
logits        8 bytes for each token of the vocabulary and each trained token: bfloat16, its gradient, and a copy
context       CUDA context, NCCL and fragmentation
"""

from __future__ import annotations

from pkb_gym.training.inputs.model_shape import ModelShape
from pkb_gym.training.rehearsal.plan import Generation, Learning, Plan

CONTEXT_BYTES = 3e9
LOGIT_BYTES = 8


def states_bytes(shape: ModelShape, plan: Plan) -> float:
    """Bytes of weights, gradients and optimizer of a process."""
    learning, launch = plan.learning, plan.launch
    assert learning is not None
    sharers = launch.processes if launch.sharding in ("fsdp1", "fsdp2", "zero3") else 1
    if plan.lora_rank is not None:
        return (plan.weight_bytes * shape.parameters + 16 * _adapter_parameters(shape, plan.lora_rank)) / sharers
    if launch.sharding == "zero2":  # weights and gradients in bfloat16 on each, the rest shared
        return 4 * shape.parameters + 12 * shape.parameters / launch.processes
    buckets = 4 * shape.parameters if launch.sharding == "ddp" else 0
    return learning.bytes_per_parameter * shape.parameters / sharers + buckets


def gathered_bytes(shape: ModelShape, plan: Plan) -> float:
    """Bytes of weights and gradients that a process has gathered from the others."""
    if plan.launch.sharding not in ("fsdp1", "fsdp2", "zero3"):
        return 0.0
    return 2 * 2 * (2 * shape.layer_parameters + shape.outer_parameters)


def activation_bytes(shape: ModelShape, learning: Learning, tokens: int) -> float:
    """Bytes of activations of a micro-batch.

    Args:
        shape: Shape of the model.
        learning: Settings of learning.
        tokens: Length of a sequence.
    """
    layer = 2 * (16 * shape.hidden + 6 * shape.feed_forward)
    checkpoints = 2 * shape.hidden * shape.layers + layer
    return learning.micro_batch * tokens * (checkpoints if learning.checkpoints_gradients else layer * shape.layers)


def logit_bytes(shape: ModelShape, learning: Learning, tokens: int) -> float:
    """Bytes of logits of a micro-batch.

    Args:
        shape: Shape of the model.
        learning: Settings of learning.
        tokens: Number of trained tokens of a sequence.
    """
    return LOGIT_BYTES * learning.micro_batch * tokens * shape.vocabulary


def cache_bytes(shape: ModelShape, sequences: int, tokens: int) -> float:
    """Bytes of keys and values of sequences of so many tokens."""
    return shape.cache_bytes_per_token * sequences * tokens


def vllm_room(shape: ModelShape, generation: Generation, gpu_bytes: float) -> float:
    """Bytes that vLLM's share leaves for keys and values, beside weights and its own 2 GB; negative for none.

    Args:
        shape: Shape of the model.
        generation: Settings of generation.
        gpu_bytes: Memory of a GPU in bytes.
    """
    weights = 2 * shape.parameters / generation.tensor_parallel
    return generation.memory_share * gpu_bytes - weights - 2e9


def _adapter_parameters(shape: ModelShape, rank: int) -> float:
    """Parameters of LoRA on all linear layers of a decoder with gated feed-forward."""
    own, pairs = shape.heads * shape.head_dim, shape.key_value_heads * shape.head_dim
    attention = 2 * (shape.hidden + own) + 2 * (shape.hidden + pairs)
    return float(rank * shape.layers * (attention + 3 * (shape.hidden + shape.feed_forward)))
