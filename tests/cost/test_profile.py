"""The profile store and recorded profiles: they survive crashes, other processes and bad disks."""

import gzip
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from superopt.cost import (
    DeviceProfileStore,
    MeasurementKey,
    MeasurementRecord,
    load_profile,
    read_profile,
    write_profile,
)
from superopt.cost.device_profile import _parsed, cache_directory
from superopt.cost.operator_time_predictor import traits_of
from superopt.ir.errors import InvalidModel, UsageError

HEADER = {"device": "test", "threads": 1}


def records(count, op="Relu"):
    return [
        MeasurementRecord(
            MeasurementKey(op, "{}", "float32", (f"float32[{n}]",)), 100.0 + n, 110.0 + n, 0.01, 0, n, 8 * n
        )
        for n in range(1, count + 1)
    ]


def test_a_profile_is_what_was_written_and_the_same_bytes_each_time(tmp_path):
    rows = records(5)
    write_profile(tmp_path / "a.jsonl.gz", HEADER, rows)
    write_profile(tmp_path / "b.jsonl.gz", HEADER, reversed(rows))
    assert (tmp_path / "a.jsonl.gz").read_bytes() == (tmp_path / "b.jsonl.gz").read_bytes()
    profile = read_profile(tmp_path / "a.jsonl.gz")
    assert set(profile.records.values()) == set(rows)
    assert profile.header["device"] == "test"
    assert load_profile(str(tmp_path / "a.jsonl.gz")).records == profile.records


def test_a_profile_that_was_read_is_kept_for_the_next_process_and_a_damaged_copy_is_not_believed(tmp_path, monkeypatch):
    monkeypatch.setenv("SUPEROPT_CACHE", str(tmp_path / "cache"))
    write_profile(tmp_path / "p.jsonl.gz", HEADER, records(5))
    _parsed.cache_clear()
    written = read_profile(tmp_path / "p.jsonl.gz")
    (kept,) = (tmp_path / "cache" / "profiles").iterdir()
    whole = kept.read_bytes()
    for content in (whole, whole[:-9], whole.replace(b"float32[3]", b"float32[4]"), b""):
        kept.write_bytes(content)
        _parsed.cache_clear()
        again = read_profile(tmp_path / "p.jsonl.gz")
        assert again == written
        assert [traits_of(r.key) for r in again.records.values()] == [
            traits_of(r.key) for r in written.records.values()
        ]


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text.replace('"ns":101.0', '"ns":1.0'),
        lambda text: text.split("\n", 1)[1],
        lambda text: text[: len(text) // 2],
        lambda text: text.replace("superopt.profile/1", "superopt.profile/99"),
        lambda text: "[]\n" + text,
        lambda text: "",
        lambda text: "[" * 100_000,
    ],
)
def test_a_damaged_profile_is_refused_with_the_way_out(tmp_path, damage):
    path = tmp_path / "p.jsonl.gz"
    write_profile(path, HEADER, records(3))
    path.write_bytes(gzip.compress(damage(gzip.decompress(path.read_bytes()).decode()).encode()))
    with pytest.raises(InvalidModel, match="record it again"):
        read_profile(path)


def test_what_is_not_gzip_or_not_there_is_refused(tmp_path):
    (tmp_path / "p.gz").write_bytes(b"\x1f\x8b\x00garbage")
    with pytest.raises(InvalidModel):
        read_profile(tmp_path / "p.gz")
    with pytest.raises(UsageError, match="no such profile"):
        read_profile(tmp_path / "missing.gz")
    with pytest.raises(UsageError, match="profiles:"):
        load_profile("no-such-device")


def test_the_cache_directory_follows_the_environment(monkeypatch, tmp_path):
    monkeypatch.delenv("SUPEROPT_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_directory() == tmp_path / "xdg" / "superopt"
    monkeypatch.setenv("SUPEROPT_CACHE", str(tmp_path / "own"))
    assert cache_directory() == tmp_path / "own"


def test_without_a_home_directory_there_is_a_cache_for_this_process(monkeypatch, tmp_path, caplog):
    """A container's user may have no name, and then no home."""

    def home():
        raise RuntimeError("Could not determine home directory.")

    for name in ("SUPEROPT_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(Path, "home", home)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert cache_directory() == cache_directory()
    assert cache_directory().parents[1] == tmp_path
    assert [r.getMessage().partition(": ")[2] for r in caplog.records] == [
        "there is no home directory; SUPEROPT_CACHE names another folder"
    ]


def test_a_store_remembers_across_openings(tmp_path):
    first = DeviceProfileStore("dev/ice: 1", HEADER, tmp_path)
    for row in records(3):
        first.add(row)
    again = DeviceProfileStore("dev/ice: 1", HEADER, tmp_path)
    assert set(again.records) == set(records(3))
    assert again.get(records(1)[0].key.text) == records(1)[0]
    assert again.path.parent == tmp_path


def test_two_processes_share_a_store(tmp_path, caplog):
    script = (
        "import sys\n"
        "from pathlib import Path\n"
        "from superopt.cost import MeasurementKey, MeasurementRecord, DeviceProfileStore\n"
        "store = DeviceProfileStore('shared', {}, Path(sys.argv[1]))\n"
        "for n in range(150):\n"
        "    store.add(MeasurementRecord(MeasurementKey(sys.argv[2], '{}', 'float32', ('x' * n,)), 1.0, 1.0))\n"
    )
    running = [subprocess.Popen([sys.executable, "-c", script, str(tmp_path), op]) for op in ("A", "B")]
    assert [p.wait(timeout=60) for p in running] == [0, 0]
    assert len(DeviceProfileStore("shared", {}, tmp_path)) == 300
    assert not caplog.records


@pytest.mark.parametrize(
    "junk",
    [b"{", b'{"op": 1}', b"\xff\xfe", b"null", b'{"op":"Relu","attrs":"","dtype":"","shapes":[],"ns":-5,"ns_cold":1}'],
)
def test_a_damaged_line_is_dropped_and_the_rest_kept(tmp_path, junk, caplog):
    store = DeviceProfileStore("s", HEADER, tmp_path)
    for row in records(2):
        store.add(row)
    with open(store.path, "ab") as file:
        file.write(junk)  # cut short: no newline
    store.add(records(3)[2])  # another process goes on appending
    again = DeviceProfileStore("s", HEADER, tmp_path)
    assert set(again.records) == set(records(3))
    assert [r.getMessage() for r in caplog.records] == [
        f"{store.path}: 1 damaged lines are dropped; they are measured again"
    ]
    caplog.clear()
    assert len(DeviceProfileStore("s", HEADER, tmp_path)) == 3  # it was repaired
    assert not caplog.records


@pytest.mark.parametrize("content", [b"not json\n", b"\x00" * 100, b"[]\n", b'{"schema": "other"}\n'])
def test_a_file_that_is_no_profile_is_set_aside(tmp_path, content, caplog):
    path = DeviceProfileStore("s", HEADER, tmp_path).path
    path.write_bytes(content)
    store = DeviceProfileStore("s", HEADER, tmp_path)
    assert "is not a profile" in caplog.text
    store.add(records(1)[0])
    assert len(DeviceProfileStore("s", HEADER, tmp_path)) == 1
    assert [p.read_bytes() for p in tmp_path.glob("*.damaged-*")] == [content]


def test_a_store_without_a_place_to_write_says_so_once_and_carries_on(tmp_path, caplog):
    (tmp_path / "file").write_text("in the way")
    store = DeviceProfileStore("s", HEADER, tmp_path / "file" / "below")
    for row in records(3):
        store.add(row)
    assert len(store) == 3
    assert [r.getMessage() for r in caplog.records] == [
        f"superopt keeps nothing for its next run in {tmp_path}/file/below: Not a directory; SUPEROPT_CACHE names "
        "another folder"
    ]


def test_a_full_disk_is_a_warning(tmp_path, caplog):
    store = DeviceProfileStore("s", HEADER, tmp_path)
    store.path = type(store.path)("/dev/full")
    if not store.path.exists():
        pytest.skip("this system has no /dev/full")
    store.add(records(1)[0])
    assert "No space left on device" in caplog.text
    assert store.get(records(1)[0].key.text) is not None


def test_the_store_is_json_lines(tmp_path):
    store = DeviceProfileStore("s", HEADER, tmp_path)
    store.add(records(1)[0])
    head, row = [json.loads(line) for line in store.path.read_text().splitlines()]
    assert head["schema"] == "superopt.profile/1"
    assert {
        "op",
        "attrs",
        "dtype",
        "precision",
        "layout",
        "shapes",
        "impl",
        "ns",
        "ns_cold",
        "iqr",
        "workspace",
        "flops",
        "bytes",
    } == set(row)
