"""A checkpoint that the nodes of a cluster prune gets the same bytes as here, whichever of them is lost on the way."""

import itertools
import os
import random
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file
from typer.testing import CliRunner

import lamplighter as ll
from checkpoint.made import contents, counted, save_sharded, weights
from lamplighter.checkpoint import cluster, comparison, prune, shares
from lamplighter.checkpoint.checkpoint import Checkpoint
from lamplighter.checkpoint.cluster_tasks import SAME_FOLDER, Filler, Origin, open_origin
from lamplighter.checkpoint.comparison import compare
from lamplighter.checkpoint.threads import thread_count
from lamplighter.cli.app import app
from lamplighter.experiments.sweeps import connected
from strategies import keeps, models

METHODS = ("lamp", "global", "uniform", "uniform+", "er", "erk")
pytestmark = pytest.mark.filterwarnings("ignore:.*left without any weight")


class Here:
    """A cluster without nodes: tasks are carried out here, in any order, each of them twice."""

    threads = 2

    def __init__(self, seed=0):
        self.chance = random.Random(seed)
        self.count = 0

    def run(self, tasks, done):
        tasks = list(tasks)
        self.chance.shuffle(tasks)
        for task in tasks:
            self.count += 1
            task.carry_out()
            done(task, task.carry_out())


@pytest.fixture
def here(monkeypatch):
    """No cluster is joined: what stands in for one."""
    found = Here()

    @contextmanager
    def joined(address, threads):
        yield None if address is None else found

    monkeypatch.setattr(prune, "joined", joined)
    monkeypatch.setattr(comparison, "joined", joined)
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)  # of hundreds of tiny shares, it would take the time
    return found


def names(folder):
    """What is in a folder."""
    return sorted(path.name for path in folder.iterdir())


def assert_same_outcome(source, folder, **options):
    """The same bytes, or the same error, with the cluster and without."""
    ending = "" if source.is_dir() else ".safetensors"
    outcomes = []
    for name, ray in (("local", None), ("spread", "auto")):
        target = folder / f"{name}{ending}"
        try:
            report = ll.prune_checkpoint(source, target, force=True, ray=ray, **options)
        except ll.LamplighterError as error:
            outcomes.append((error.message, error.hint))
        else:
            files = contents(target) if target.is_dir() else target.read_bytes()
            outcomes.append((files, report.layers, report.reached, report.bytes_written))
    assert outcomes[0] == outcomes[1]
    return outcomes[0]


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data(), tensors=models(), method=st.sampled_from(METHODS), share=st.sampled_from([1, 24, 100, 1 << 20]))
def test_whatever_the_weights_and_the_shares(tmp_path, monkeypatch, here, data, tensors, method, share):
    monkeypatch.setattr(shares, "SHARE", share)
    tensors = {name: tensor.contiguous() for name, tensor in tensors.items()}
    total = sum(tensor.numel() for tensor in tensors.values())
    sparsity = 1 - data.draw(keeps(total)) / total
    save_file(tensors, tmp_path / "in.safetensors")
    options = {"sparsity": sparsity, "method": method, "include": list(tensors)}
    assert_same_outcome(tmp_path / "in.safetensors", tmp_path, **options)


@pytest.mark.parametrize("method", METHODS)
def test_ties_over_many_shares_go_to_the_later_entries(tmp_path, monkeypatch, here, method):
    monkeypatch.setattr(shares, "SHARE", 400)
    generator = torch.Generator().manual_seed(0)
    few = (torch.randn(40, 30, generator=generator) * 2).round() / 4
    tied = {f"layers.{n}.weight": few.to(d) for n, d in enumerate((torch.bfloat16, torch.float32, torch.float64))}
    tied |= {"ones.weight": -torch.ones(30, 30), "copy.weight": tied["layers.1.weight"].clone()}
    save_file(tied, tmp_path / "in.safetensors")
    for sparsity in (0.1, 0.7):  # at the first, some layers are cut at zero
        assert_same_outcome(tmp_path / "in.safetensors", tmp_path, sparsity=sparsity, method=method)
    assert here.count > 50


def test_names_that_share_a_tensor_and_files_of_torch(tmp_path, monkeypatch, here):
    monkeypatch.setattr(shares, "SHARE", 300)
    tensors = weights() | {"turned.weight": torch.randn(12, 9).T}
    tensors["same.weight"] = tensors["model.layers.1.mlp.weight"]
    torch.save(tensors, tmp_path / "in.bin")
    assert_same_outcome(tmp_path / "in.bin", tmp_path, sparsity=0.6)


def test_a_plan_is_the_same(tmp_path, monkeypatch, here):
    monkeypatch.setattr(shares, "SHARE", 300)
    source = save_sharded(tmp_path / "in", weights(), 3)
    assert compare(source, sparsity=0.7, methods=METHODS, ray="auto") == compare(source, sparsity=0.7, methods=METHODS)
    assert here.count > 10


def test_errors_call_a_checkpoint_as_the_user_does(tmp_path, monkeypatch, here):
    monkeypatch.chdir(tmp_path)
    save_file(weights(), "in.safetensors")

    def run(tasks, done):
        raise ll.LamplighterError(f"{tmp_path}/in.safetensors cannot be read: no reason", "hint")

    monkeypatch.setattr(here, "run", run)
    with pytest.raises(ll.LamplighterError) as caught:
        ll.prune_checkpoint("in.safetensors", "out.safetensors", sparsity=0.5, ray="auto")
    assert (caught.value.message, caught.value.hint) == ("in.safetensors cannot be read: no reason", "hint")


def test_a_share_of_very_many_layers_is_shared_out():
    assert [len(each) for each in shares.in_shares(range(1200), lambda item: 0, 10)] == [512, 512, 176]


def test_a_node_that_finds_another_checkpoint_says_so(tmp_path):
    save_file(weights(), tmp_path / "in.safetensors")
    origin = Origin.of(Checkpoint(tmp_path / "in.safetensors"))
    assert open_origin(origin).keys() == weights().keys()
    for change, said in (
        (lambda path: os.utime(path, (1, 1)), "finds another checkpoint at"),
        (Path.unlink, "on node .* cannot be found|on node .*there is no"),
    ):
        change(tmp_path / "in.safetensors")
        open_origin.cache_clear()
        with pytest.raises(ll.LamplighterError, match=said) as caught:
            open_origin(origin)
        assert caught.value.hint == SAME_FOLDER


def test_a_node_that_does_not_find_the_file_that_it_is_to_fill_says_so(tmp_path):
    with pytest.raises(ll.LamplighterError, match="does not find") as caught:
        Filler(tmp_path / "out", 10, {})
    assert caught.value.hint == SAME_FOLDER
    (tmp_path / "out").write_bytes(b"12345")
    with pytest.raises(ll.LamplighterError, match=r"finds 5 bytes at .*out, expected 10"):
        Filler(tmp_path / "out", 10, {})
    assert (tmp_path / "out").read_bytes() == b"12345"


def test_a_node_without_the_package_says_so(monkeypatch):
    work = cluster._shipped()
    monkeypatch.setitem(sys.modules, "lamplighter.version", None)
    assert "cannot import lamplighter" in work("0.1.0", [])


def test_each_task_runs_one_thread_unless_more_are_asked_for():
    assert (thread_count(None, spread=True), thread_count(3, spread=True)) == (1, 3)


def test_ray_is_imported_only_for_a_cluster(tmp_path):
    save_file(weights(), tmp_path / "in.safetensors")
    code = f"""
import sys
from lamplighter.cli.app import app
app(["prune", {str(tmp_path / "in.safetensors")!r}, "--dry-run", "--sparsity", "0.5"], standalone_mode=False)
print("RAY", [name for name in sys.modules if name.partition(".")[0] == "ray" or "experiments" in name])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout.splitlines()[-1] == "RAY []"


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("nonsense", "cannot connect to a Ray cluster at nonsense: expected auto, local or host:port"),
        ("127.0.0.1:1", "cannot connect to a Ray cluster at 127.0.0.1:1: .*refused"),
        (True, "ray is True, expected auto, local or host:port"),
    ],
)
def test_addresses_without_a_cluster_are_refused_before_anything_is_read(tmp_path, address, said):
    save_file(weights(), tmp_path / "in.safetensors")
    with pytest.raises(ll.LamplighterError, match=said):
        ll.prune_checkpoint(tmp_path / "in.safetensors", tmp_path / "out.safetensors", sparsity=0.5, ray=address)
    assert names(tmp_path) == ["in.safetensors"]


def test_the_extra_is_named_where_ray_is_missing(tmp_path, monkeypatch):
    save_file(weights(), tmp_path / "in.safetensors")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    done = CliRunner().invoke(app, ["plan", str(tmp_path / "in.safetensors"), "--sparsity", "0.5", "--ray", "auto"])
    assert done.exit_code == 1
    assert "pruning on a cluster needs ray" in done.stderr
    assert 'pip install "lamplighter[ray]"' in done.stderr


NODE = {"num_cpus": 1, "num_gpus": 0, "object_store_memory": 80_000_000}


@pytest.fixture(scope="module")
def nodes():
    """A Ray cluster of two nodes on this machine, one core each, and a connection to it."""
    from ray.cluster_utils import Cluster

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        found = Cluster()
        try:
            found.add_node(**NODE, include_dashboard=False)
            found.second = found.add_node(**NODE)
            with connected(found.address):
                yield found
        finally:
            found.shutdown()


@pytest.fixture
def small_shares(monkeypatch):
    """Shares that cut small layers into parts."""
    monkeypatch.setattr(shares, "SHARE", 400)


def test_two_nodes_write_the_bytes_that_are_written_here(nodes, small_shares, tmp_path):
    sources = [save_sharded(tmp_path / "several", weights(), 3), tmp_path / "mixed.safetensors"]
    save_file(weights(first=2), sources[1])
    for dtype in (torch.bfloat16, torch.float32):
        sources.append(tmp_path / f"{dtype}.safetensors")
        save_file({name: tensor.to(dtype) for name, tensor in weights().items()}, sources[-1])
    (sources[0] / "tokenizer.json").write_text("{}")
    for source in sources:
        files, *_ = assert_same_outcome(source, tmp_path, sparsity=0.8, include=counted(weights()))
        assert files
    for method in METHODS[1:]:
        assert_same_outcome(sources[1], tmp_path, sparsity=0.5, include=counted(weights()), method=method)
    for pattern in ("2:4", "row"):
        options = {"pattern": pattern, "method": "uniform", "include": "*.mlp.*weight"}
        assert_same_outcome(sources[0], tmp_path, sparsity=0.5, **options)


def test_progress_counts_the_bytes_that_are_read_and_written(nodes, small_shares, tmp_path):
    tensors = {"a.weight": torch.randn(64, 64), "b.weight": torch.randn(64, 64).bfloat16(), "norm.bias": torch.ones(99)}
    save_file(tensors, tmp_path / "in.safetensors")
    for ray in (None, nodes.address):
        told = {"reading": [], "writing": []}
        ll.prune_checkpoint(
            tmp_path / "in.safetensors",
            tmp_path / "out.safetensors",
            sparsity=0.5,
            force=True,
            ray=ray,
            progress=lambda stage, done, total, told=told: told[stage].append((done, total)),
        )
        # Both layers to count, the one of 32 bits once more, everything to write.
        assert told["reading"][-1] == (2 * 16384 + 8192, 2 * 16384 + 8192)
        assert told["writing"][-1] == (16384 + 8192 + 396, 16384 + 8192 + 396)
    assert len(told["reading"]) > 50
    assert [done for done, _ in told["writing"]] == sorted(done for done, _ in told["writing"])


def test_errors_on_a_node_are_told_as_they_are_here(nodes, small_shares, tmp_path, monkeypatch):
    tensors = weights()
    for name in ("model.layers.3.mlp.weight", "model.layers.10.mlp.weight"):
        tensors[name][3:5, 3] = float("nan")
    save_file(tensors, tmp_path / "broken.safetensors")
    (tmp_path / "out").mkdir()
    message, _ = assert_same_outcome(tmp_path / "broken.safetensors", tmp_path / "out", sparsity=0.5)
    assert message.startswith("NaN or infinite values in model.layers.3.mlp.weight (2), model.layers.10")
    monkeypatch.chdir(tmp_path)
    changes = (lambda path: os.truncate(path, 2000), os.unlink, lambda path: os.utime(path, (1, 1)))
    for change, stage in itertools.product(changes, ("reading", "writing")):
        messages = []
        for ray in (None, "auto"):
            save_file(weights(), "in.safetensors")
            left = [change]

            def meddle(now, done, total, left=left, stage=stage):
                if now == stage and left:
                    left.pop()("in.safetensors")

            with pytest.raises(ll.LamplighterError) as caught:
                ll.prune_checkpoint(
                    "in.safetensors", "out/out.safetensors", sparsity=0.5, ray=ray, progress=meddle, threads=1
                )
            messages.append(caught.value.message)
        assert messages[0] == messages[1]
        assert messages[0].startswith("in.safetensors ")
    assert list((tmp_path / "out").iterdir()) == []


def test_other_versions_and_demands_that_cannot_be_met_are_refused(nodes, tmp_path, monkeypatch):
    save_file(weights(), tmp_path / "in.safetensors")
    with pytest.raises(ll.LamplighterError, match="no node of the cluster has 2 CPUs for a task") as caught:
        ll.prune_checkpoint(tmp_path / "in.safetensors", None, sparsity=0.5, ray="auto", threads=2, dry_run=True)
    assert caught.value.hint == "its nodes have: 1, 1"
    monkeypatch.setattr(cluster, "__version__", "9.9.9")
    with pytest.raises(ll.LamplighterError, match=r"has lamplighter .*, but here it is 9\.9\.9") as caught:
        ll.prune_checkpoint(tmp_path / "in.safetensors", tmp_path / "out.safetensors", sparsity=0.5, ray="auto")
    assert caught.value.hint == "install the same version on all nodes"
    assert names(tmp_path) == ["in.safetensors"]


def test_an_interrupt_leaves_nothing(nodes, small_shares, tmp_path):
    source = save_sharded(tmp_path / "in", weights(), 3)

    def interrupt(stage, done, total):
        if stage == "writing" and done:
            assert len(list(tmp_path.glob(".out.*.lamp-part/*.safetensors"))) == 3
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ll.prune_checkpoint(source, tmp_path / "out", sparsity=0.5, ray="auto", progress=interrupt)
    assert names(tmp_path) == ["in"]
    assert_same_outcome(source, tmp_path, sparsity=0.5)


def large(folder):
    """Some 40 MB in two shards, and what pruning them here gives."""
    generator = torch.Generator().manual_seed(0)
    tensors = {f"layers.{n}.weight": torch.randn(1024, 1024, generator=generator) for n in range(8)}
    tensors |= {f"layers.{n}.proj.weight": tensors[f"layers.{n}.weight"][:512].bfloat16() for n in range(8)}
    source = save_sharded(folder / "in", tensors, 2)
    ll.prune_checkpoint(source, folder / "local", sparsity=0.9)
    return source, contents(folder / "local")


@pytest.mark.slow
@pytest.mark.parametrize("stage", ["reading", "writing"])
def test_a_node_that_is_killed_makes_no_difference(nodes, tmp_path, monkeypatch, stage):
    import ray

    monkeypatch.setattr(shares, "SHARE", 1 << 18)
    source, expected = large(tmp_path)
    killed = []

    def kill_a_node_at_work(now, done, total):
        if now == stage and done > total / 4 and not killed and ray.available_resources().get("CPU", 0) == 0:
            killed.append(done)
            nodes.remove_node(nodes.second, allow_graceful=False)

    try:
        ll.prune_checkpoint(source, tmp_path / "out", sparsity=0.9, ray="auto", progress=kill_a_node_at_work)
        assert killed, "no moment was found at which both nodes were at work"
        assert contents(tmp_path / "out") == expected
    finally:
        nodes.second = nodes.add_node(**NODE)
        nodes.wait_for_nodes()


@pytest.mark.slow
def test_processes_that_are_killed_make_no_difference(nodes, tmp_path, monkeypatch):
    monkeypatch.setattr(shares, "SHARE", 1 << 18)
    source, expected = large(tmp_path)
    killed = []

    def kill_workers(stage, done, total):
        if done > total / 3 and stage not in killed:
            found = [pid for pid in workers(nodes) if kill(pid)]
            killed.extend([stage] * bool(found))

    ll.prune_checkpoint(source, tmp_path / "out", sparsity=0.9, ray="auto", progress=kill_workers)
    assert killed == ["reading", "writing"]
    assert contents(tmp_path / "out") == expected


@pytest.mark.slow
def test_an_interrupt_ends_the_tasks_that_are_handed_out(nodes, tmp_path, monkeypatch):
    monkeypatch.setattr(shares, "SHARE", 1 << 14)
    monkeypatch.setattr(cluster, "_AHEAD", 1000)
    source, _ = large(tmp_path)

    def interrupt(stage, done, total):
        if stage == "writing" and done:
            assert workers(nodes)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ll.prune_checkpoint(source, tmp_path / "out", sparsity=0.9, ray="auto", progress=interrupt)
    time.sleep(0.3)  # a process is called by its task a little longer
    assert workers(nodes) == []
    assert names(tmp_path) == ["in", "local"]


def workers(nodes):
    """The processes of the cluster that carry out tasks just now."""
    raylets = {each.process.pid for node in nodes.list_all_nodes() for each in node.all_processes["raylet"]}
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            title = (path / "cmdline").read_bytes()
            parent = int((path / "stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
        if title.startswith(b"ray::lamp prune") and parent in raylets:
            found.append(int(path.name))
    return found


def kill(pid):
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.slow
def test_the_command_joins_a_cluster_and_leaves_nothing_when_interrupted(nodes, tmp_path):
    source, expected = large(tmp_path)
    code = "from lamplighter.checkpoint import shares; shares.SHARE = 1 << 16; from lamplighter.cli import main; main()"
    words = ["prune", source, "-o", tmp_path / "out", "--sparsity", "0.9", "--ray", nodes.address]
    command = [sys.executable, "-c", code, *map(str, words)]
    begun = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    while begun.poll() is None and not list(tmp_path.glob(".out.*")):
        time.sleep(0.01)
    begun.send_signal(signal.SIGINT)
    begun.communicate(timeout=60)
    assert begun.returncode not in {0, None}
    assert names(tmp_path) == ["in", "local"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "sparsity asked 0.9" in done.stdout
    assert done.stderr == ""
    assert contents(tmp_path / "out") == expected


@pytest.mark.slow
def test_the_command_starts_a_cluster_of_its_own(tmp_path):
    source, expected = large(tmp_path)
    words = ["prune", source, "-o", tmp_path / "out", "--sparsity", "0.9", "--ray", "local", "--threads", "2"]
    command = [sys.executable, "-m", "lamplighter", *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=200)
    assert (done.returncode, done.stderr) == (0, "")
    assert contents(tmp_path / "out") == expected
