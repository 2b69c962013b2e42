"""Rules whose bound is a theorem's: no right kernel exceeds them, whatever its order of summation.

u is the unit roundoff of the output's dtype. A rounded number is off by u / (1 + u) of itself at most. A floating sum
of n numbers, in any order, is off by (n - 1) u sum |x_i| at most, and by n u sum |x_i| where the numbers are themselves
rounded: C.-P. Jeannerod and S. M. Rump, "Improved error bounds for inner products in floating-point arithmetic", SIAM
Journal on Matrix Analysis and Applications 34 (2013), 338-344; these bounds have no terms of second order.

Errors of float32 accumulators are far below the last rounding to 16 bits: with probability 1 - 2 exp(-t^2 / 2) they
are below t sqrt(n) 2^-24 sum |a_i b_i| (N. J. Higham and T. Mary, "A new approach to probabilistic rounding error
analysis", SIAM Journal on Scientific Computing 41 (2019), A2815-A2835), which the slack of the rules named here covers
for t = 9.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class ProvenBound:
    """The reason why a rule refuses no right kernel.

    Attributes:
        problems: their names.
        outputs: their names; empty for all.
        reason: why.
        kinds: comparisons of the rule that it holds for; see `rule_shares.Kind`.
        log_chance: natural logarithm of one element's chance of being refused.
    """

    problems: tuple[str, ...]
    outputs: tuple[str, ...]
    reason: str
    kinds: tuple[str, ...] = ("elements",)
    log_chance: float = -math.inf


PROVEN: Sequence[ProvenBound] = (
    ProvenBound(
        ("AllReduce", "Reduce", "ReduceScatter"),
        (),
        "W u sum |x_r| is allowed, and a sum of W numbers is off by (W - 1) u sum |x_r| at most.",
    ),
    ProvenBound(
        ("MoELoRAGroupGemmBackward",),
        (),
        "G u sum |g_s| is allowed, and a sum of G numbers is off by (G - 1) u sum |g_s| at most.",
    ),
    ProvenBound(
        ("GemmAllReduce", "GemmReduceScatter"),
        (),
        "W rounded partial products in any order are off by W u sum |C_r|; besides, half a rounding step of a typical "
        "element is allowed, for float32 accumulators that need a hundredth of it.",
    ),
    ProvenBound(
        ("LayerNormBackward",),
        ("d_beta",),
        "W rounded partial sums in any order are off by W u sum |p_r|; besides, 4 2^-24 W B is allowed for float32 "
        "accumulators, whose error has a tenth of that for its standard deviation.",
    ),
    ProvenBound(
        ("LayerNormBackward",),
        ("d_gamma",),
        "As d_beta; the products' own rounding is off by 0.41 u |q| (standard deviation), and 3.5 u sqrt(sum q^2), 8.5 "
        "standard deviations of their sum, are allowed.",
        log_chance=math.log(2) - 8.5**2 / 2,
    ),
    ProvenBound(
        ("RopeAllGather",),
        (),
        "Two rounded products and their rounded sum are off by 2 u (|x c| + |x' s|) at most, which is allowed.",
    ),
    ProvenBound(
        ("TPRMSNorm",),
        (),
        "Two roundings to 16 bits come to 7.9e-3 of the element at most, float32 sums of squares, all positive, to "
        "n W 2^-24 = 2.4e-4: together less than 1e-2.",
    ),
    ProvenBound(
        ("QuantizedGradAllReduce",),
        (),
        "Codes come out alike but where a quotient lies within 2^-13 of a border, where either is allowed; float32 "
        "divisions are off by 127 * 3 * 2^-24 = 2.3e-5 at most. The last rounding is off by u / (1 + u) = 3.89e-3 of "
        "the mean; 4e-3 is allowed, and 0.05 of a code's step for float32 sums.",
    ),
    ProvenBound(
        ("LoadBalancingLoss",),
        (),
        "Without a mask, mean probabilities are rounded by u = 3.9e-3 of each at most, and those of single tokens, "
        "which average out, by less than 1e-3 in the mean; 5e-3 is allowed. With a mask only the latter are: n tokens "
        "leave 1.3e-3 / sqrt(n) (standard deviation), and what does not average out came to 5e-5; 1.5e-4 and seven "
        "deviations are allowed.",
        log_chance=math.log(2) - 7**2 / 2,
    ),
    ProvenBound(
        ("ClipGradNorm", "ClipGradNormEP"),
        ("total_norm",),
        "A norm that is as near the exact one as the baseline's passes, and so does one within 1e-4 of either; float32 "
        "sums in blocks of a million are off by less.",
    ),
    ProvenBound(
        ("DDP", "ZeRO1", "ZeRO2", "FSDPStep"),
        (),
        "A mean gradient g differs by up to 2 (2 W - 1) roundings of its W parts and their sums, 0.012 of its rms "
        "(standard deviation, W = 4), and Adam's own eight roundings by 0.005 of each change. Allowed are 22 standard "
        "deviations for the first moment and 30 for a change; for the second, whose error grows with g as well, 9.",
        log_chance=math.log(2) - 9**2 / 2,
    ),
    ProvenBound(
        ("GemvDecode",),
        ("logits",),
        "Three roundings at most, u of the product and 2 u of the logit; to exceed the bound, a product must be 9 of "
        "its standard deviations, and the bias nearly its negative.",
        log_chance=math.log(2) - 9**2 / 2,
    ),
    ProvenBound(
        ("RingAttention",),
        ("out",),
        "Everything is float32 until the result is rounded: were each element to fall to the neighbour, a row would be "
        "off by 2 u = 7.8e-3; 2e-2 are allowed.",
        kinds=("rows",),
    ),
    ProvenBound(
        ("GaussianSplatting",),
        ("means2d", "depths"),
        "Four float32 roundings move a place in a camera's frame by 7e-7 at most, a depth of 0.25 and more by 3e-6 of "
        "itself, and a centre by 435 / depth times as much at size published: by 1e-3 only where the depth is below "
        "0.3 and all of them pull in one direction. 2 % of the centres may be off by more.",
        kinds=("count",),
    ),
    ProvenBound(
        ("GNNFeatureExchangeBackward",),
        (),
        "A float32 sum of k rows is off by (k - 1) u sum |x|, u = 2^-24, at most, which is below 1e-5 sqrt(k) up to "
        "k = 32; a seed has 8 rows on average. Sums that long would need all their roundings to pull in one direction.",
        log_chance=math.log(2) - 9**2 / 2,
    ),
    ProvenBound(
        ("ContrastiveLoss",),
        (),
        "Roundings of W blocks, of W - 1 sums of them and of the kernel's own result come to (2.5 + W / 2) u at most "
        "where blocks are alike, and (4 + W / 2) u is allowed. Those of logits, of which few count, leave 0.5 u "
        "(standard deviation) at most. Were the others uniform, all together would exceed it once in 10^11 losses on "
        "2 ranks, in 10^13 on 4.",
        log_chance=-13 * math.log(10),
    ),
    ProvenBound(
        ("GradAccLoss",),
        (),
        "Each rounding of counts, products and sums is counted by the rule with its largest error, u.",
    ),
    ProvenBound(
        ("BlockedFP8Quantize",),
        ("y_global",),
        "A float32 quotient, by division or by a reciprocal, is off by 1.5 * 2^-23 = 1.8e-7 of itself at most; on "
        "either side of a border it may be off by 2e-6.",
    ),
    ProvenBound(
        ("BlockedFP8Quantize",),
        ("s_global",),
        "A scale is a maximum over 448: two float32 roundings, 1.2e-7, at most; 1e-5 is allowed.",
    ),
    ProvenBound(
        ("GNNNegativeScoring",),
        (),
        "A float32 sigmoid may be off by 2^-21 of itself, 8 roundings, before ties of its rounded values count.",
    ),
    ProvenBound(
        ("DistributedKNN",),
        ("sims",),
        "A float32 dot product, rounded once, is off by a step at most; a step and a half is allowed.",
    ),
    ProvenBound(
        ("DistributedKNN",),
        ("labels",),
        "A label's similarity may be a whole step from that of its sample; float32 dot products that are rounded once "
        "are off by half a step.",
    ),
    ProvenBound(
        ("KalmanFilterOptimizer",),
        ("lambda_next",),
        "Three float64 roundings, 3.4e-16; 1e-11 is allowed.",
    ),
    ProvenBound(
        ("VocabParallelCrossEntropy",),
        ("loss",),
        "The shifted logit, the logarithm and the loss are rounded, each by 2^-8 of the loss at most, the candidate's "
        "loss too, and the sum of exponentials W times; a rounding more of the sum is allowed.",
    ),
    ProvenBound(
        ("VocabParallelCrossEntropy",),
        ("vocab_parallel_logits",),
        "One difference of two given numbers, rounded once: every right kernel has the same bits.",
    ),
    ProvenBound(
        ("FusedMoE", "MoEBalanced", "MoEWide", "MoENarrow"),
        (),
        "Logits below 8 are rounded by 2^-6 at most, which moves a row by 2 % (the logarithm of a weight p1 moves by "
        "d1 - sum p_j d_j), weights by 2^-8, and the MLPs' own roundings by 0.7 %: 3.1 % if all of them pull in one "
        "direction; 3.2 % are allowed.",
        kinds=("rows",),
    ),
    ProvenBound(
        ("FusedMoELoRA",),
        (),
        "The router's roundings move a row by 2.4 % at most, as for the layer without branches; those of the MLPs, and "
        "of weights that are merged with their branches, by 0.7 and 1.2 %, independent of each other: 3.8 %; 4 % are "
        "allowed.",
        kinds=("rows",),
    ),
    ProvenBound(
        ("ImportanceSamplingLoss",),
        ("per_token_logprobs", "per_token_loss"),
        "Logits of 8 .. 16 are rounded by 0.031, the label's by 0.004, and the logarithm, of at least 4, by 0.016 on "
        "either side: 1.7e-2 of it, where 2e-2 are allowed. A ratio moves by as much, 0.07, and is rounded; 0.15 is "
        "allowed.",
    ),
    ProvenBound(
        ("ImportanceSamplingLoss",),
        ("loss", "metrics"),
        "Sums over a rank's tokens are rounded, and so are W - 1 additions: W u = 1.6e-2 of the sum of magnitudes at "
        "most; 2e-2 are allowed, 4e-2 for the mean ratio. The smallest and the largest ratio move by the rounding of "
        "two logarithms, 0.06 at most; 0.15 is allowed.",
    ),
    ProvenBound(
        ("FP8ReduceScatterGrads",),
        ("out_shard",),
        "W - 1 additions on either side are off by 2 (W - 1) u = 2.4e-2 of the mean addend; 2e-2 and an eighth of the "
        "largest addend over W, 3.1e-2 of the mean one at least, are allowed, for the one rank whose quotient lies at "
        "a border.",
    ),
    ProvenBound(
        ("KimiDeltaAttention",),
        ("out",),
        "Of 4 u |out|, two kernels need half for their last rounding. The roundings of the two parts exceed the rest "
        "where both parts are more than 6.4 times the row's rms, with opposite signs. Each part is a sum of normal "
        "values v with weights that are the same along the row, and the row's 128 elements are as large in the mean: "
        "the chance is exp(-53).",
        log_chance=-50,
    ),
    ProvenBound(
        ("CSOAttention",),
        ("out",),
        "2 u |out| covers the last rounding of two kernels. Probabilities that are rounded, by u at most, move an "
        "element by 2^(1/2) u of its standard deviation, since values are normal and the weights the same along a row; "
        "18 times that are allowed, for rows whose 128 elements are as large in the mean: the chance is exp(-80).",
        log_chance=-75,
    ),
    ProvenBound(
        ("Conv3dAllReduce",),
        ("out",),
        "The W partial sums are normal, of standard deviation W^(-1/2), since inputs are. The roundings of them, of "
        "their pieces and running sums, and of the sum with the bias, each 0.41 u of a number (standard deviation), "
        "must come to 0.16 rms(out), or without bias to that and 1e-2 |out|: for two kernels at W = 4 the integral "
        "over the partial sums is exp(-53).",
        log_chance=-50,
    ),
    ProvenBound(
        ("FP8AllGatherParams",),
        ("full",),
        "A float32 quotient at the border of two codes, one in 10^5, may take either, which is allowed; 3 % of them "
        "may. All other elements have the same bits: one product of a code and the scale, rounded once.",
        kinds=("elements", "count", "norm"),
    ),
)


def proven_bound(problem: str, output: str, kind: str) -> ProvenBound | None:
    """The reason for one output's comparisons of a kind, or None."""
    return next(
        (
            entry
            for entry in PROVEN
            if problem in entry.problems and kind in entry.kinds and (not entry.outputs or output in entry.outputs)
        ),
        None,
    )
