"""Placement of a model on a cluster: partitioned forms, their proofs, the choice among them, a file for each rank."""

from superopt.placement.cluster import Cluster, cluster_of, read_cluster
from superopt.placement.plan import Plan, check_ranks, place, write_plan

__all__ = ["Cluster", "Plan", "check_ranks", "cluster_of", "place", "read_cluster", "write_plan"]
