"""The ranks of an MPI job as an executor (extra ``mpi``): rank 0 is the client, the others work for it.

MPI ends the whole job when one rank dies. Tasks run in child processes of the ranks (:mod:`.child`), so that a task
that crashes is tried again; a rank that dies ends the run, which goes on when it is started again.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from superopt.ir.errors import BackendUnavailable, SuperoptError

if TYPE_CHECKING:
    from concurrent.futures import Executor

__all__ = ["client", "executor", "ranks"]

_RANKS = (("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"), ("PMI_SIZE", "PMI_RANK"))  # Open MPI; MPICH and its kin
_open: list[Executor] = []  # rank 0's, for as long as its command runs


def ranks() -> int:
    """How many ranks ``mpiexec`` started; 1 without it."""
    return _world()[0]


def _world() -> tuple[int, int]:
    """Ranks, and this one's number."""
    for size, rank in _RANKS:
        if os.environ.get(size, "").isdecimal():
            return int(os.environ[size]), int(os.environ.get(rank) or 0)
    return 1, 0


@contextmanager
def client() -> Iterator[bool]:
    """What a command runs within: true where it is to be run, false in a rank that has worked for rank 0.

    Raises:
        BackendUnavailable: mpi4py is missing, or is made for another MPI than the one that started this.
    """
    size, rank = _world()
    if size == 1:
        yield True
        return
    try:
        futures = _futures(size)
    except SuperoptError:
        if rank:  # rank 0 says it
            sys.exit(BackendUnavailable.exit_code)
        raise
    with futures.MPICommExecutor() as made:
        if made is None:
            yield False
            return
        _open.append(made)
        try:
            yield True
        finally:
            _open.clear()


def executor() -> Executor:
    """The executor of rank 0.

    Raises:
        BackendUnavailable: this process was not started as a client.
    """
    if not _open:
        raise BackendUnavailable(
            "under mpiexec only the superopt command can use the other ranks", hint="mpiexec -n 3 superopt …"
        )
    return _open[0]


def _futures(size: int) -> Any:
    try:
        from mpi4py import MPI, futures
    except (ImportError, RuntimeError) as error:
        raise BackendUnavailable(
            f"mpiexec started {size} ranks, and superopt needs mpi4py to use them: {error}",
            hint="pip install 'superopt[mpi]', or start superopt without mpiexec",
        ) from None
    if size != MPI.COMM_WORLD.size:
        made_for = MPI.Get_library_version().split()[0]
        raise BackendUnavailable(
            f"mpiexec started {size} ranks, and mpi4py sees {MPI.COMM_WORLD.size}: {made_for} "
            "is not the MPI of this mpiexec", hint="use the mpiexec of the MPI that mpi4py is made for",
        )  # fmt: skip
    return futures
