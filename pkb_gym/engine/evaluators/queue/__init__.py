"""The queue of evaluations that the service of a node and the pool of a cluster share.

It joins equal requests, serves clients in turn, bounds what waits and runs, keeps answers, and takes up the evaluations
of an earlier process again. It knows neither HTTP nor Ray, and imports records and errors of the engine alone.
"""
