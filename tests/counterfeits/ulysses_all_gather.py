"""Counterfeits of UlyssesAllGather: there are none."""

COUNTERFEITS = ()
