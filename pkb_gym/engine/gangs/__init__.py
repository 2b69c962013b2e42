"""Gangs of ranks, as the evaluator's process runs them: how they are started, confined, watched and ended.

Holds the evaluator's handles on zygotes, candidates' gangs and reference gangs. What the ranks themselves run is in
`rankside` and `reference`. May import `reference`, for its orders, and the rooms below it.
"""
