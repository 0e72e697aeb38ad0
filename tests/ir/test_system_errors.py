"""What the system refuses for want of something: the machine is blamed, and the remedy named."""

from __future__ import annotations

import errno
import os
import resource

import pytest
from onnxruntime.capi.onnxruntime_pybind11_state import Fail

from superopt.ir.errors import (
    InvalidModel,
    MachineLimit,
    ResourceLimit,
    SuperoptError,
    UsageError,
    superopt_error,
    system_limits,
)
from superopt.runtime.onnx_runtime import translated

FILES = resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def system(number: int, *where: str) -> OSError:
    return OSError(number, os.strerror(number), *where)


@pytest.mark.parametrize(
    ("error", "kind", "said"),
    [
        (system(errno.EMFILE), MachineLimit, f"too many open files: this process may have {FILES}; raise the limit"),
        (system(errno.ENOSPC, "/tmp/x"), MachineLimit, "/tmp/x: no space left on the disk; free disk space"),
        (system(errno.EDQUOT), MachineLimit, "the disk quota is used up; free disk space"),
        (system(errno.ENOMEM), ResourceLimit, "out of memory; try --memory-limit"),
        (MemoryError(), ResourceLimit, "out of memory; try --memory-limit"),
        (ImportError("Exception caught: std::bad_alloc"), ResourceLimit, "out of memory; try --memory-limit"),
        (RuntimeError("can't start new thread"), MachineLimit, "no further thread can be started; free memory"),
        (RecursionError(), InvalidModel, "nested too deeply"),
        (system(errno.EACCES, "x"), UsageError, "x: Permission denied"),
        (SystemError("error return without exception set"), SuperoptError, "internal error: SystemError: error return"),
        (KeyError("x"), SuperoptError, "internal error: KeyError: 'x'; please report it"),
        (UsageError("as it is"), UsageError, "as it is"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)
def test_exceptions_in_words(error: Exception, kind: type[SuperoptError], said: str) -> None:
    found = superopt_error(error)
    assert type(found) is kind
    assert str(found).startswith(said)


@pytest.mark.parametrize(("limit", "option"), [(resource.RLIMIT_DATA, "ulimit -d"), (resource.RLIMIT_AS, "ulimit -v")])
@pytest.mark.parametrize("error", [SystemError("error return without exception set"), MemoryError()])
def test_a_limit_of_memory_is_named(error: Exception, limit: int, option: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python raises SystemError where memory ends at a place that has no exception for it."""
    least = {limit: 150 << 20}
    unlimited = resource.RLIM_INFINITY
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (least.get(kind, unlimited), unlimited))
    found = superopt_error(error)
    assert found.exit_code == ResourceLimit.exit_code
    assert str(found) == (
        f"out of memory; this process may take 150 MiB: raise the limit ({option}), or try --memory-limit"
    )


def test_what_is_no_limit_passes() -> None:
    with pytest.raises(FileNotFoundError), system_limits():
        os.stat("/nowhere")


def test_a_limit_that_the_runtime_quotes_is_not_the_model_s_fault() -> None:
    with pytest.raises(MachineLimit, match=r"^m\.onnx: too many open files") as caught, translated("m.onnx"):
        raise Fail('[ONNXRuntimeError] : 1 : FAIL : open file "w" fail, errcode = 24 - Too many open files')
    assert isinstance(caught.value.__cause__, OSError)  # by which the service tells it from others
    assert caught.value.__cause__.errno == errno.EMFILE
    with pytest.raises(InvalidModel), translated("m.onnx"):
        raise Fail("[ONNXRuntimeError] : 1 : FAIL : something else")
