"""Counterfeits of TileParallelVAEDecode: what the published check takes for right."""

from pkb_gym.problems.geometric_spatial.tile_parallel_vae_decode.reference import solution
from tests.problems.counterfeit import Counterfeit


def without_the_last_two_modes(z, lt, lh, lw, fs, ft, su, tu, sr_ratio=1, first_frame_as_image=False, group=None):
    return solution(z, lt, lh, lw, fs, ft, su, tu, 1, False, group)


COUNTERFEITS = (
    Counterfeit(0, "modes ignored", without_the_last_two_modes, "sr_ratio and first_frame_as_image never change"),
)
