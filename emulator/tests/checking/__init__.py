"""Tests of `rank_emulator.checking`."""
