"""The report on a candidate's outputs."""

from __future__ import annotations

from typing import Literal

from pkb_gym.engine.records.base import Record


class Mismatch(Record):
    """One wrong output of one rank in one call."""

    trial: int
    """Number of the input set."""
    rank: int
    """Number of the rank whose output is wrong."""
    output: str
    """Leaf: `out`, or `grads[2]` for a list's element."""
    reason: Literal["values", "shape_or_dtype", "input_modified"]
    """Kind of the mismatch."""
    shape: tuple[int, ...]
    """Shape of the expected output, or of the modified input."""
    dtype: str
    """Dtype of the expected output, or of the modified input."""
    wrong_elements: int
    """Number of elements that the rule marks."""
    elements: int
    """Number of elements of the output."""
    bounding_box: tuple[tuple[int, int], ...] | None = None
    """First and last index with a wrong element, for each dimension."""
    worst_index: tuple[int, ...] | None = None
    """Index of the element that is farthest off."""
    got: str | None = None
    """The worst element as the candidate has it."""
    expected: str | None = None
    """The worst element as the baseline has it; shape and dtype where those differ."""
    rule: str
    """The rule it was held to."""
    unwritten_elements: int = 0
    """Wrong elements that hold the bytes which lay there before the call. Where ranks begin and end a call at times of
    their own, such bytes may also be a peer's arguments out of turn."""
    called_with: str = ""
    """The rank's arguments other than tensors in this call, and which tensors are None, have no elements, or hold NaN
    or infinities; empty where there are none."""

    def __str__(self) -> str:
        """One line for the agent."""
        where = f"rank {self.rank}, {self.output} {self.shape} {self.dtype}, trial {self.trial}"
        if self.reason == "shape_or_dtype":
            return f"{where}: expected {self.expected}, got {self.got}{self._call()}"
        share = 100 * self.wrong_elements / max(1, self.elements)
        what = "were modified" if self.reason == "input_modified" else "differ"
        line = f"{where}: {self.wrong_elements} of {self.elements} elements {what} ({share:.3g} %)"
        if self.bounding_box and len(self.bounding_box):
            line += ", indices [" + ", ".join(f"{low}..{high}" for low, high in self.bounding_box) + "]"
        if self.worst_index is not None:
            line += f"; worst {list(self.worst_index)}: got {self.got}, expected {self.expected}"
        return f"{line}; rule: {self.rule}{self._call()}"

    def _call(self) -> str:
        return f"; called with {self.called_with}" if self.called_with else ""


class Race(Record):
    """A breach of the call contract by a kernel; see `docs/native-abi.md`."""

    kind: Literal[
        "early_read", "early_write", "late_read", "late_output", "missing_wait", "reuse", "unordered", "unknown"
    ]
    """An argument was read ("early_read") or an output written ("early_write") before its rank's call had begun; a
    tensor was read ("late_read") or an output written ("late_output") after its rank's call had finished; a rank did
    not wait for data of this call ("missing_wait"); scratch or a signal was used again while a peer needed it
    ("reuse"); two accesses to the same bytes, one of them a write, are ordered by nothing, by the detector of emulated
    ranks or Triton's GSan ("unordered"); one of these, but which is not known ("unknown")."""
    rank: int | None = None
    """Rank that reads, or of GSan makes the later access; None where another rank's part is not known."""
    owner: int | None = None
    """Rank that owns the tensor, or that was not waited for; None for "reuse" and "unknown"."""
    tensor: str | None = None
    """Argument or output, of "unordered" any memory by its name; None for "missing_wait", "reuse" and "unknown", and of
    GSan."""
    evidence: str
    """The wrong output: what it shows of the poison, or another call's values; of "unordered" both accesses with their
    lines, of GSan the later one."""

    def __str__(self) -> str:
        """The breach, and its remedy."""
        who = "a peer" if self.rank is None else f"rank {self.rank}"
        return _RACES[self.kind].format(who=who, owner=self.owner, tensor=self.tensor)


_RACES = {
    "early_read": "{who} read rank {owner}'s `{tensor}` before rank {owner}'s call had begun: wait for it first, by a "
    "barrier at the start of the call or a signal from rank {owner}",
    "early_write": "a peer wrote rank {owner}'s `{tensor}` before rank {owner}'s call had begun: wait for it first, by "
    "a barrier at the start of the call or a signal from rank {owner}",
    "late_read": "{who} read rank {owner}'s `{tensor}` after rank {owner}'s call had finished: rank {owner} must not "
    "return before, so let it wait for a barrier at the end of the call or a signal from its readers",
    "late_output": "rank {owner}'s `{tensor}` was still written after rank {owner}'s call had finished: the call must "
    "not return on a rank before its outputs are complete, those that peers write included",
    "missing_wait": "{who} went on before rank {owner}, which was late, had sent its data: wait for a signal of rank "
    "{owner} that belongs to this call (compare it with comm.epoch)",
    "reuse": "{who} was slower than the others, and got the data of another call or step: scratch or signals are used "
    "again while a peer still needs them; alternate between two halves of the scratch, or wait for a signal of "
    "the reader before they are overwritten",
    "unordered": "two accesses to `{tensor}`, one of them a write, are ordered by nothing: no signal, barrier or fence "
    "leads from the one to the other",
    "unknown": "{who}'s outputs are right when all ranks have time to wait for each other, and wrong when they do not: "
    "a wait is missing, or peers' memory was read before their call had begun or after it had finished, or scratch was "
    "reused too early",
}


class CheckReport(Record):
    """Comparison of every output of every rank with the expected one."""

    trials: int
    """Calls that were compared before timing."""
    outputs_compared: int
    """Leaves times ranks times trials."""
    outputs_right: int
    """Outputs without a mismatch."""
    elements_compared: int
    """Elements of all compared outputs."""
    elements_right: int
    """Elements that no rule marks."""
    mismatches: tuple[Mismatch, ...]
    """The first few, worst first."""
    earned_share: float | None = None
    """Share, in [0, 1], of outputs that are right on every rank in a call, over the first calls of the block that
    failed, without the outputs that a kernel gets right without any work or without its peers (docs/rewards.md). None
    where everything was right, and in records older than this field."""
    nothing_written: bool = False
    """Whether all wrong outputs hold what lay there before the call, and none was earned. False in records older than
    this field."""

    @property
    def passed(self) -> bool:
        """Whether everything was right."""
        return not self.mismatches and self.outputs_right == self.outputs_compared

    @property
    def right_share(self) -> float:
        """Right elements among all compared, in [0, 1]."""
        return self.elements_right / self.elements_compared if self.elements_compared else 1.0
