"""Sources to begin with: for each problem and language one that is right, naive, and names the next steps.

`make_starter` writes them: native kernels where a naive one is known or can be made, else the reference's own steps.
"""

from __future__ import annotations

from pkb_gym.starters.starter import SUFFIXES, TITLES, Starter, make_starter

__all__ = ["SUFFIXES", "TITLES", "Starter", "make_starter"]
