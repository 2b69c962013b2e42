"""Gangs of rank processes: how they are started, talked to, frozen and ended."""
