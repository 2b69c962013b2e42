"""Generation by transformers from weights that FSDP2 shards, which is refused for models of some size.

FSDP2 gathers each layer for each token anew, so that a reply of n tokens moves all weights n times over the links: for
7 billion parameters in bfloat16, 14 GB a token and process, or 35 ms at the 400 GB/s of NVLink, whatever the batch.
vLLM gathers the weights once a step. ZeRO-3 gathers them once for all tokens, where they fit into one GPU.
"""

from __future__ import annotations

from pkb_gym.engine.errors import ConfigError

MAX_PARAMETERS = 3_000_000_000
"""Number of parameters from which on a run would do little else."""


def refuse_sharded_generation(parameters: int, *, is_fsdp2: bool, use_vllm: bool) -> None:
    """Refuses a run whose generation would gather all weights for each token.

    Args:
        parameters: Number of parameters of the policy.
        is_fsdp2: Whether FSDP2 shards the weights.
        use_vllm: Whether vLLM generates.

    Raises:
        ConfigError: FSDP2 shards a model of more than 3 billion parameters, and transformers generate.
    """
    if is_fsdp2 and not use_vllm and parameters > MAX_PARAMETERS:
        raise ConfigError(
            f"FSDP2 gathers the weights for each token anew, and {parameters / 1e9:.1f} billion parameters are too "
            "many for that (3 at most): give --use_vllm (grpo_vllm_colocate.yaml), which gathers them once a step"
        )
