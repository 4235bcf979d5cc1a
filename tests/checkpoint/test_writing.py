"""All or nothing: what goes wrong while a checkpoint is written leaves an error and no file."""

import errno
import fcntl
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections import namedtuple
from contextlib import contextmanager
from fractions import Fraction
from pathlib import Path
from types import MappingProxyType

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import lamplighter as ll
from checkpoint.made import contents, save_sharded, weights
from lamplighter.checkpoint import renaming, staging
from lamplighter.checkpoint.writing import ShardWriter, size_of, staged
from lamplighter.errors import LamplighterError


@pytest.fixture
def source(tmp_path):
    """A checkpoint in a file."""
    save_file(weights(), tmp_path / "in.safetensors")
    return tmp_path / "in.safetensors"


def test_a_shard_is_what_the_library_reads(tmp_path):
    entries = [("b", "F32", (2, 3)), ("a", "BF16", (4,)), ("empty", "I64", (0, 3)), ("c", "BOOL", ())]
    values = {"b": torch.randn(2, 3), "a": torch.randn(4).bfloat16(), "c": torch.tensor(True)}
    path = tmp_path / "x.safetensors"
    with ShardWriter(path, entries, {"format": "pt", "é": "ü"}) as writer:
        for name, value in values.items():
            data = value.reshape(-1).view(torch.uint8).numpy().tobytes()
            writer.write_at(name, len(data) // 2, data[len(data) // 2 :])
            writer.write(name, data[: len(data) // 2])
    assert path.stat().st_size == size_of(entries, {"format": "pt", "é": "ü"})
    found = load_file(path)
    assert list(ll.Checkpoint(path)) == ["b", "a", "empty", "c"]
    assert all(torch.equal(found[name], value) for name, value in values.items())
    assert found["empty"].shape == (0, 3)


def test_a_shard_with_bytes_missing_is_not_closed(tmp_path):
    writer = ShardWriter(tmp_path / "x.safetensors", [("a", "U8", (4,))], {})
    writer.write("a", b"123")
    with pytest.raises(AssertionError, match="1 bytes"):
        writer.close()
    writer.abandon()


def test_in_and_out_must_be_apart(source, tmp_path):
    folder = save_sharded(tmp_path / "model", weights(), 2)
    (tmp_path / "link.safetensors").symlink_to(source)
    os.link(source, tmp_path / "hard.safetensors")
    before = contents(tmp_path)
    for src, dst in [
        (source, source),
        (source, tmp_path / "link.safetensors"),
        (tmp_path / "link.safetensors", source),
        (source, tmp_path / "hard.safetensors"),
        (folder, folder),
        (folder, folder / "."),
        (folder, folder / "pruned"),
        (folder, tmp_path),
    ]:
        with pytest.raises(LamplighterError, match=r"is the checkpoint that is read|lies in the other"):
            ll.prune_checkpoint(src, dst, sparsity=0.5, force=True)
    assert contents(tmp_path) == before


def test_what_is_there_is_replaced_only_with_force(source, tmp_path):
    target = tmp_path / "out.safetensors"
    target.write_text("precious")
    with pytest.raises(LamplighterError, match="exists") as caught:
        ll.prune_checkpoint(source, target, sparsity=0.5)
    assert "--force" in str(caught.value)
    assert target.read_text() == "precious"
    ll.prune_checkpoint(source, target, sparsity=0.5, force=True)
    assert load_file(target).keys() == weights().keys()


def test_a_folder_that_is_no_checkpoint_is_never_replaced(tmp_path):
    folder = save_sharded(tmp_path / "in", weights(), 2)
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "diary.txt").write_text("precious")
    with pytest.raises(LamplighterError, match="a folder without a checkpoint"):
        ll.prune_checkpoint(folder, tmp_path / "home", sparsity=0.5, force=True)
    with pytest.raises(LamplighterError, match="the result is a folder, but"):
        ll.prune_checkpoint(folder, tmp_path / "in" / ".." / "home" / "diary.txt", sparsity=0.5, force=True)
    assert (tmp_path / "home" / "diary.txt").read_text() == "precious"


def test_too_little_room_is_noticed_before_anything_is_read(source, tmp_path, monkeypatch):
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(staging.shutil, "disk_usage", lambda path: usage(10**6, 10**6 - 100, 100))
    monkeypatch.setattr("lamplighter.checkpoint.prune.survey", lambda *_, **__: pytest.fail("reading was begun"))
    with pytest.raises(LamplighterError, match="100 are free on its disk"):
        ll.prune_checkpoint(source, tmp_path / "out.safetensors", sparsity=0.5)


@pytest.mark.parametrize("kind", ["file", "folder"])
@pytest.mark.parametrize("call", ["pwrite", "fsync", "open"])
@pytest.mark.parametrize("moment", [0, 1, 4])
def test_a_disk_that_is_full_leaves_an_error_and_no_file(tmp_path, monkeypatch, kind, call, moment):
    if kind == "file":
        save_file(weights(), tmp_path / "in.safetensors")
    else:
        save_sharded(tmp_path / "in", weights(), 2)
    before, plain, calls = contents(tmp_path), getattr(os, call), []

    def full(*arguments, **options):
        if call == "open" and not arguments[1] & os.O_WRONLY:
            return plain(*arguments, **options)
        calls.append(arguments)
        if len(calls) > moment:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return plain(*arguments, **options)

    monkeypatch.setattr(os, call, full)
    ending = ".safetensors" if kind == "file" else ""
    failed = None
    try:
        ll.prune_checkpoint(tmp_path / f"in{ending}", tmp_path / f"out{ending}", sparsity=0.5, chunk=256)
    except LamplighterError as error:
        failed = error
    monkeypatch.undo()
    if failed is None:
        assert len(calls) <= moment or call == "fsync"  # a folder that cannot be flushed is no reason to give up
    else:
        assert "No space left on device" in failed.message
        assert f"{tmp_path / 'out'}" in failed.message
        assert "lamp-part" not in failed.message
        assert contents(tmp_path) == before


def lamp(*arguments, **options):
    return subprocess.run(
        [sys.executable, "-m", "lamplighter", *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        **options,
    )


def test_a_file_that_may_not_grow_leaves_an_error_and_no_file(source, tmp_path):
    def limit():
        resource.setrlimit(resource.RLIMIT_FSIZE, (3000, 3000))

    done = lamp("prune", source, "-o", tmp_path / "out.safetensors", "--sparsity", 0.5, preexec_fn=limit)
    assert done.returncode == 1
    assert "cannot be written: File too large" in done.stderr
    assert "hint:" in done.stderr
    assert os.listdir(tmp_path) == ["in.safetensors"]  # noqa: PTH208


@contextmanager
def as_nobody():
    """Without a superuser's rights, if this is one."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.fixture
def public():
    """A folder that anybody may look into."""
    folder = Path(tempfile.mkdtemp(prefix="lamp-test-"))
    folder.chmod(0o755)
    yield folder
    folder.chmod(0o755)
    shutil.rmtree(folder)


def test_a_file_that_may_not_be_read_is_named(public):
    save_file({"a.weight": torch.randn(4, 4)}, public / "in.safetensors")
    (public / "in.safetensors").chmod(0)
    with as_nobody(), pytest.raises(LamplighterError, match=r"in\.safetensors cannot be read: Permission denied"):
        ll.prune_checkpoint(public / "in.safetensors", public / "out.safetensors", sparsity=0.5)


def test_a_place_that_may_not_be_written_to_is_named(public):
    save_file({"a.weight": torch.randn(4, 4)}, public / "in.safetensors")
    (public / "in.safetensors").chmod(0o644)
    (public / "locked").mkdir(mode=0o555)
    with as_nobody(), pytest.raises(LamplighterError, match=r"out\.safetensors cannot be written: Permission denied"):
        ll.prune_checkpoint(public / "in.safetensors", public / "locked" / "out.safetensors", sparsity=0.5)
    assert list((public / "locked").iterdir()) == []
    with pytest.raises(LamplighterError, match="there is no folder"):
        ll.prune_checkpoint(public / "in.safetensors", public / "absent" / "out.safetensors", sparsity=0.5)


def test_debris_of_killed_processes_is_removed_but_not_what_others_write(source, tmp_path):
    left = tmp_path / ".out.safetensors.0123abcd.lamp-part"
    busy = tmp_path / ".out.safetensors.89abcdef.lamp-part"
    alike = tmp_path / ".out.safetensors.lamp-part"
    for path in (left, busy, alike):
        path.write_text("half")
    with busy.open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        ll.prune_checkpoint(source, tmp_path / "out.safetensors", sparsity=0.5)
    assert not left.exists()
    assert busy.exists()
    assert alike.exists()


def test_old_and_new_folders_change_places_in_one_step(tmp_path, monkeypatch):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    if not renaming.exchange(tmp_path / "a", tmp_path / "b"):
        pytest.skip("this file system has no such step")
    monkeypatch.setattr(staging, "_replace_in_steps", lambda *_: pytest.fail("it was done in steps"))
    folder = save_sharded(tmp_path / "in", weights(), 2)
    for sparsity in (0.2, 0.6):
        ll.prune_checkpoint(folder, tmp_path / "out", sparsity=sparsity, force=True)
    assert sorted(os.listdir(tmp_path)) == ["a", "b", "in", "out"]  # noqa: PTH208


def test_nothing_is_written_when_the_source_changes_meanwhile(source, tmp_path):
    def touch(stage, done, total):
        if stage == "writing" and done == total:
            os.utime(source, (1, 1))

    with pytest.raises(LamplighterError, match=r"in\.safetensors was changed while it was read"):
        ll.prune_checkpoint(source, tmp_path / "out.safetensors", sparsity=0.5, progress=touch)
    assert os.listdir(tmp_path) == ["in.safetensors"]  # noqa: PTH208


def test_without_an_exchange_the_old_one_is_moved_aside_and_put_back(tmp_path, monkeypatch):
    monkeypatch.setattr(staging, "exchange", lambda one, other: False)
    folder = save_sharded(tmp_path / "in", weights(), 2)
    ll.prune_checkpoint(folder, tmp_path / "out", sparsity=0.2)
    old = contents(tmp_path / "out")
    ll.prune_checkpoint(folder, tmp_path / "out", sparsity=0.6, force=True)
    assert contents(tmp_path / "out") != old
    assert sorted(os.listdir(tmp_path)) == ["in", "out"]  # noqa: PTH208
    kept = contents(tmp_path / "out")
    (tmp_path / "out").rename(tmp_path / ".out.0123abcd.lamp-old")  # killed between the two steps
    with pytest.raises(LamplighterError, match="exists"):
        ll.prune_checkpoint(folder, tmp_path / "out", sparsity=0.9)
    assert contents(tmp_path / "out") == kept


@pytest.mark.parametrize("error", [OSError(errno.EIO, "no"), KeyboardInterrupt()])
def test_without_an_exchange_a_failed_second_step_puts_the_old_one_back(tmp_path, monkeypatch, error):
    monkeypatch.setattr(staging, "exchange", lambda one, other: False)
    folder = save_sharded(tmp_path / "in", weights(), 2)
    ll.prune_checkpoint(folder, tmp_path / "out", sparsity=0.2)
    before, rename = contents(tmp_path), Path.rename

    def fail(path, target):
        if path.name.endswith(".lamp-part"):
            raise error
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", fail)
    with pytest.raises((LamplighterError, KeyboardInterrupt)):
        ll.prune_checkpoint(folder, tmp_path / "out", sparsity=0.6, force=True)
    assert contents(tmp_path) == before


def test_a_temporary_file_is_locked_by_the_descriptor_that_made_it(tmp_path, monkeypatch):
    opened, plain = [], os.open
    monkeypatch.setattr(os, "open", lambda path, *rest: opened.append(str(path)) or plain(path, *rest))
    with staged(tmp_path / "x", folder=False, force=False, needed=1) as part:
        assert opened.count(str(part)) == 1
        part.write_text("new")


def test_few_files_are_open_at_once(tmp_path, monkeypatch):
    tensors = {f"{number}.weight": torch.randn(2, 2) for number in range(24)}
    folder = save_sharded(tmp_path / "in", tensors, 24)
    close, begin, most, now = ShardWriter.close, ShardWriter.__init__, [0], [0]

    def counted(writer, *arguments):
        begin(writer, *arguments)
        now[0] += 1
        most[0] = max(most[0], now[0])

    def slowly(writer):
        time.sleep(0.01)
        close(writer)
        now[0] -= 1

    monkeypatch.setattr(ShardWriter, "__init__", counted)
    monkeypatch.setattr(ShardWriter, "close", slowly)
    ll.prune_checkpoint(folder, tmp_path / "out", sparsity=0.5)
    assert 1 < most[0] <= 8


def test_what_was_asked_is_recorded_in_one_way_whatever_its_types(source, tmp_path):
    record = None
    for number, (include, density) in enumerate(
        [
            ({"*.mlp.weight", "*.conv.*", "*.zero.*"}, np.float32(0.25)),
            (frozenset({"*.zero.*", "*.mlp.weight", "*.conv.*"}), Fraction(1, 4)),
            (["*.conv.*", "*.mlp.weight", "*.zero.*"], 0.25),
        ]
    ):
        out = tmp_path / f"{number}.safetensors"
        options = {"min_density": density, "densities": MappingProxyType({"*.conv.*": density})}
        ll.prune_checkpoint(source, out, sparsity=0.5, include=include, **options)
        record = record or out.read_bytes()
        assert out.read_bytes() == record
    with pytest.raises(LamplighterError, match=r"max_density\['x'\] is 2"):
        ll.prune_checkpoint("absent", None, sparsity=0.5, max_density={"x": 2}, dry_run=True)


def test_a_name_that_is_taken_meanwhile_is_not_overwritten(tmp_path):
    target = tmp_path / "out.safetensors"

    def write():
        with staged(target, folder=False, force=False, needed=1) as part:
            part.write_text("new")
            target.write_text("precious")

    with pytest.raises(LamplighterError, match="has appeared meanwhile"):
        write()
    assert target.read_text() == "precious"
    assert os.listdir(tmp_path) == ["out.safetensors"]  # noqa: PTH208


def test_renaming_where_the_system_has_no_such_step(tmp_path, monkeypatch):
    monkeypatch.setattr(renaming, "_renameat2", lambda *_: False)
    (tmp_path / "a").write_text("a")
    assert renaming.move_new(tmp_path / "a", tmp_path / "b")
    (tmp_path / "a").write_text("a")
    assert not renaming.move_new(tmp_path / "a", tmp_path / "b")
    assert not renaming.exchange(tmp_path / "a", tmp_path / "b")


def test_reading_and_writing_less_than_was_asked_for_goes_on(source, tmp_path, monkeypatch):
    ll.prune_checkpoint(source, tmp_path / "whole.safetensors", sparsity=0.5)
    read, write = os.preadv, os.pwrite
    monkeypatch.setattr(os, "preadv", lambda file, rooms, place: read(file, [rooms[0][:7]], place))
    monkeypatch.setattr(os, "pwrite", lambda file, data, place: write(file, data[:5], place))
    ll.prune_checkpoint(source, tmp_path / "pieces.safetensors", sparsity=0.5)
    assert (tmp_path / "whole.safetensors").read_bytes() == (tmp_path / "pieces.safetensors").read_bytes()


def test_an_interrupt_leaves_nothing(source, tmp_path, monkeypatch):
    def interrupt(stage, done, total):
        if stage == "writing" and done:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ll.prune_checkpoint(source, tmp_path / "out.safetensors", sparsity=0.5, chunk=64, progress=interrupt)
    assert os.listdir(tmp_path) == ["in.safetensors"]  # noqa: PTH208


def test_a_dry_run_reports_and_writes_nothing(source, tmp_path):
    report = ll.prune_checkpoint(source, tmp_path / "out.safetensors", sparsity=0.5, dry_run=True)
    assert os.listdir(tmp_path) == ["in.safetensors"]  # noqa: PTH208
    assert report.destination is None
    written = ll.prune_checkpoint(source, tmp_path / "out.safetensors", sparsity=0.5)
    assert written.layers == report.layers
    assert written.bytes_written == report.bytes_written == (tmp_path / "out.safetensors").stat().st_size
    assert json.loads(json.dumps(report.as_data()))["kept"] == report.kept == report.total - round(0.5 * report.total)
