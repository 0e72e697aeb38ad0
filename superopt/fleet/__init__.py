"""Many tasks on many processes: this one, others of this machine, a Dask cluster's, or those of an MPI job.

A :class:`WorkerPool` is opened from a setting and runs :class:`WorkerTask` objects: pure functions of their arguments,
so that what comes of them is the same for any number of workers, after any worker was killed, and in a run that goes on
where another stopped. Behind it is a ``concurrent.futures.Executor``, whichever (docs/decisions/0028-fleet.md).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from superopt.ir.lazy_names import lazy_names

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
    **dict.fromkeys(("TaskOutcome", "TaskResultStore", "WorkerPool", "WorkerTask"), "worker_pool"),
}

if not TYPE_CHECKING:  # the command asks :mod:`superopt.fleet.mpi` where it runs before anything else
    __getattr__, __dir__ = lazy_names(__name__, _HOMES)
