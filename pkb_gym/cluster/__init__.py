"""Evaluations on the machines of a Ray cluster.

    RayEvaluator ─> Pool, one detached actor ─> compile tasks on any node
                                             ─> Gang actors, one to a placement group: shared ones check, exclusive ones
                                                time and profile

Ray is imported when a cluster is first used. Between processes goes the JSON text of records, and artifacts
of the trusted compile step as bytes; nothing that a candidate made is unpickled.
"""
