"""Many tasks on many processes: this one, others of this machine, a Dask cluster's, or those of an MPI job.

A :class:`WorkerPool` is opened from a setting and runs :class:`WorkerTask` objects: pure functions of their arguments,
so that what comes of them is the same for any number of workers, after any worker was killed, and in a run that goes on
where another stopped. Behind it is a ``concurrent.futures.Executor``, whichever (docs/decisions/0028-fleet.md).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from superopt.fleet.child import TaskLost
    from superopt.fleet.dask_cluster import ClusterTimeouts
    from superopt.fleet.environment_digest import digest
    from superopt.fleet.journal import TaskJournal
    from superopt.fleet.worker_pool import TaskOutcome, TaskResultStore, WorkerPool, WorkerTask

__all__ = [
    "TaskResultStore",
    "ClusterTimeouts",
    "WorkerPool",
    "TaskJournal",
    "TaskLost",
    "TaskOutcome",
    "WorkerTask",
    "digest",
]

_HOMES = {
    "TaskLost": "child",
    "ClusterTimeouts": "dask_cluster",
    "TaskJournal": "journal",
    "digest": "environment_digest",
}


if not TYPE_CHECKING:  # so that names that do not exist are seen

    def __getattr__(name: str) -> Any:
        """Loaded when first used: the command asks :mod:`superopt.fleet.mpi` where it runs before anything else."""
        if name in __all__:
            from importlib import import_module

            return getattr(import_module(f"superopt.fleet.{_HOMES.get(name, 'worker_pool')}"), name)
        raise AttributeError(f"module 'superopt.fleet' has no attribute {name!r}")
