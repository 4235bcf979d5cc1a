"""A sweep makes what the local runner makes, whichever of its nodes is lost on the way."""

import json
import subprocess
import sys
import threading
import time
from dataclasses import replace

import pytest
import torch
import typer.testing
from safetensors.torch import load_file

from lamplighter.cli.app import app
from lamplighter.data.prepare import prepare
from lamplighter.errors import LamplighterError
from lamplighter.experiments.recipes import Recipe, find_recipe
from lamplighter.experiments.runner import Request, carry_out
from lamplighter.experiments.spec import DENSE
from lamplighter.experiments.starting import Place
from lamplighter.experiments.store import find_runs, held, open_run
from lamplighter.experiments.sweeps import (
    Demand,
    Site,
    Task,
    _check_demand,
    _wait_for_others,
    connected,
    find_ready,
    find_site,
    finished_rounds,
    split,
    sweep,
)

ONE_CORE = Demand(cpus=1, gpus=0)


def runs_of(request):
    """What a request comes to: (method, seed), the dense ones first."""
    return [(spec.method, spec.seed) for spec in (*request.dense, *request.pruned)]


def test_a_request_is_split_into_one_task_for_each_run():
    request = Request(find_recipe("vgg16-cifar10-rewind"), ("lamp", "erk"), (0, 3), (1, 2))
    tasks = split(request)
    assert [(task.spec.method, task.spec.seed) for task in tasks] == runs_of(request)
    assert [runs_of(task.request) for task in tasks] == [[name] for name in runs_of(request)]
    assert [task.spec for task in tasks] == request.dense + request.pruned
    assert [task.rounds for task in tasks] == [(0,)] * 2 + [(1, 2)] * 4
    assert [task.after and task.after.id for task in tasks] == [None, None] + [
        request.dense[place].id for place in (0, 0, 1, 1)
    ]
    assert {task.request.recipe.spec.plan for task in tasks} == {"rewind"}


def test_methods_start_as_soon_as_the_dense_network_of_their_seed_is_there():
    first, second, *methods = split(Request(find_recipe("vgg16-cifar10"), ("lamp", "erk"), (0, 3), (1, 2)))
    assert find_ready([first, second, *methods], []) == [first, second]
    assert find_ready(methods, [first, second]) == []
    assert find_ready(methods, [second]) == methods[:2]
    assert find_ready(methods[2:], methods[:2]) == methods[2:]


@pytest.mark.parametrize("name", ["conv6-cifar10-snip", "resnet50-imagenet-profile"])
def test_what_starts_from_no_dense_training_waits_for_none(name):
    tasks = split(Request(find_recipe(name), ("lamp", "erk"), (0, 1), (3,)))
    assert [task.after for task in tasks] == [None] * 4
    assert DENSE not in {task.spec.method for task in tasks}


def test_the_tasks_one_after_another_make_what_the_request_makes(tiny, run_tiny, images, silent, tmp_path):
    recipe = tiny("vgg16-cifar10-rewind")
    expected = run_tiny(recipe, images, tmp_path / "whole", together=1)
    request = Request(recipe, ("lamp", "erk"), (0,), (1, 2))
    place = Place(tmp_path / "split", images, torch.device("cpu"))
    assert finished_rounds(request, place.root) == 0
    for number, task in enumerate(split(request), start=1):
        assert not task.is_finished(place.root)
        carry_out(task.request, place, silent)
        assert task.is_finished(place.root)
        assert finished_rounds(request, place.root) == (1, 3, 5)[number - 1]
    assert_same_runs([open_run(place.root, run.spec) for run in expected], expected)


def test_a_dense_run_without_its_rewind_point_is_not_finished(tiny, run_tiny, images, tmp_path):
    run_tiny(replace(tiny("vgg16-cifar10-rewind"), spec=tiny("vgg16-cifar10").spec), images, tmp_path, rounds=(1,))
    recipe = tiny("vgg16-cifar10")
    dense, _ = split(Request(recipe, ("lamp",), (0,), (1,)))
    assert dense.is_finished(tmp_path)
    rewinding = replace(recipe, spec=replace(recipe.spec, plan="rewind", rewind_step=1))
    dense, _ = split(Request(rewinding, ("lamp",), (0,), (1,)))
    assert not dense.is_finished(tmp_path)


def task_of(recipe, root):
    """A task whose dense network is not needed."""
    task = split(Request(recipe, ("lamp",), (0,), (1,)))[-1]
    return Task(task.request, task.spec), open_run(root, task.spec)


def test_a_run_that_another_process_lets_go_of_is_waited_for(tiny, tmp_path):
    task, run = task_of(tiny("vgg16-cifar10"), tmp_path)
    is_held, let_go = threading.Event(), threading.Event()

    def hold():
        with held(run):
            is_held.set()
            let_go.wait(30)

    holder = threading.Thread(target=hold)
    holder.start()
    is_held.wait(30)
    threading.Timer(0.5, let_go.set).start()
    began = time.monotonic()
    _wait_for_others(task, Site(tmp_path, tmp_path, patience=30))
    assert 0.4 < time.monotonic() - began < 20
    holder.join()


def test_a_run_that_another_process_does_not_let_go_of_is_an_error(tiny, tmp_path):
    task, run = task_of(tiny("vgg16-cifar10"), tmp_path)
    with held(run), pytest.raises(LamplighterError, match="another process has been working on it"):
        _wait_for_others(task, Site(tmp_path, tmp_path, patience=0.3))


def test_a_dense_network_that_cannot_be_seen_is_an_error(tiny, tmp_path):
    task = split(Request(tiny("vgg16-cifar10"), ("lamp",), (0,), (1,)))[-1]
    with pytest.raises(LamplighterError, match="same folder") as caught:
        _wait_for_others(task, Site(tmp_path, tmp_path, patience=0.3))
    assert str(open_run(tmp_path, task.after).folder) in str(caught.value)


def test_nodes_are_told_absolute_paths(tiny, images, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    spec = tiny("vgg16-cifar10").spec
    assert find_site(spec, tmp_path / "prepared", tmp_path / "runs") == Site(tmp_path / "runs", tmp_path / "prepared")
    (tmp_path / "prepared").rename("data")
    relative = type(tmp_path)("runs")
    assert find_site(spec, None, relative) == Site(tmp_path / "runs", tmp_path / "data")
    assert find_site(spec, tmp_path / "source", relative) == Site(tmp_path / "runs", tmp_path / "data")


@pytest.mark.parametrize(
    "code",
    [
        "import lamplighter.experiments.sweeps",
        "from lamplighter.cli.app import app; app(['run', '--list'], standalone_mode=False)",
    ],
)
def test_ray_is_imported_only_to_connect(code):
    check = "import sys; print('RAY', [name for name in sys.modules if name.partition('.')[0] == 'ray'])"
    command = [sys.executable, "-c", f"{code}\n{check}"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout.splitlines()[-1] == "RAY []"


@pytest.mark.parametrize(("address", "reason"), [("127.0.0.1:1", "refused"), ("nonsense", "expected auto, local or")])
def test_an_address_without_a_cluster_is_refused_at_once(address, reason):
    began = time.monotonic()
    message = f"cannot connect to a Ray cluster at {address}: .*{reason}"
    with pytest.raises(LamplighterError, match=message), connected(address):
        pass
    assert time.monotonic() - began < 30


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--gpus-per-task", "0.5"), "--gpus-per-task is for sweeps"),
        (("--cpus-per-task", "2"), "--cpus-per-task is for sweeps"),
        (("--ray", "auto", "--device", "cuda:1"), "Ray chooses"),
        (("--ray", "auto", "--device", "cpu", "--gpus-per-task", "1"), "train on cpu, and to take 1 GPUs"),
        (("--ray", "auto", "--device", "cuda", "--gpus-per-task", "0"), "train on cuda, and to take 0 GPUs"),
    ],
)
def test_options_that_contradict_each_other_are_refused(arguments, message, tmp_path):
    places = ["--data", str(tmp_path), "--out", str(tmp_path / "runs")]
    done = typer.testing.CliRunner().invoke(app, ["run", "vgg16-cifar10", *arguments, *places])
    assert done.exit_code == 1
    assert message in done.stderr
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("nodes", "demand", "gpus"),
    [
        ([{"CPU": 2.0}], Demand(), 0),
        ([{"CPU": 2.0}, {"CPU": 8.0, "GPU": 4.0}], Demand(), 1),
        ([{"CPU": 2.0}, {"CPU": 8.0, "GPU": 4.0}], Demand(cpus=2, gpus=0.25), 0.25),
        ([{"CPU": 2.0}, {"CPU": 8.0, "GPU": 4.0}], Demand(gpus=2), 2),
        ([{"CPU": 8.0}, {"CPU": 1.0, "GPU": 1.0}], Demand(cpus=2, gpus=0.25), None),
        ([{"CPU": 8.0, "GPU": 2.0}], Demand(gpus=1.5), None),
        ([], Demand(), None),
    ],
)
def test_a_demand_that_no_single_node_can_meet_is_refused(nodes, demand, gpus, monkeypatch):
    import ray

    dead = {"Alive": False, "Resources": {"CPU": 99.0, "GPU": 99.0}}
    monkeypatch.setattr(ray, "nodes", lambda: [dead, *({"Alive": True, "Resources": each} for each in nodes)])
    if gpus is None:
        with pytest.raises(LamplighterError, match=r"for a task|a task is to take"):
            _check_demand(demand)
    else:
        assert _check_demand(demand) == replace(demand, gpus=gpus)


class Follower:
    """Remembers the rounds that it is told of, and calls `then` after each."""

    def __init__(self, then=lambda: None):
        self.rounds = []
        self.steps = []
        self.then = then

    def phase(self, title, steps):
        self.total = steps

    def step(self, done):
        self.steps.append(done)

    def finished(self, run, record):
        self.rounds.append((run.spec.method, run.spec.seed, record.round))
        self.then()


def assert_same_runs(found, expected):
    for mine, other in zip(found, expected, strict=True):
        assert mine.spec == other.spec
        assert [replace(r, seconds=0) for r in mine.records] == [replace(r, seconds=0) for r in other.records]
        for record in other.records:
            a, b = (load_file(run.state_path(record.round)) for run in (mine, other))
            assert a.keys() == b.keys()
            assert all(torch.equal(a[name], b[name]) for name in a)


@pytest.fixture
def cluster(monkeypatch):
    """A Ray cluster of two nodes on this machine, one core each, and a connection to it; its second node."""
    from ray.cluster_utils import Cluster

    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    node = {"num_cpus": 1, "num_gpus": 0, "object_store_memory": 80_000_000}
    nodes = Cluster()
    try:
        nodes.add_node(**node, include_dashboard=False)
        nodes.second = nodes.add_node(**node)
        with connected(nodes.address):
            yield nodes
    finally:
        nodes.shutdown()


@pytest.mark.slow
def test_a_sweep_on_two_nodes_makes_what_the_local_runner_makes(cluster, tiny, run_tiny, images, tmp_path):
    recipe, seeds = tiny("vgg16-cifar10-rewind"), (0, 1)
    expected = run_tiny(recipe, images, tmp_path / "here", seeds=seeds, together=1)
    request, site = Request(recipe, ("lamp", "erk"), seeds, (1, 2)), Site(tmp_path / "there", tmp_path / "prepared")
    follower = Follower()
    found = sweep(request, site, ONE_CORE, follower, poll=0.1)
    assert_same_runs(found, expected)
    assert sorted(follower.rounds) == sorted((r.spec.method, r.spec.seed, x.round) for r in expected for x in r.records)
    assert (follower.total, follower.steps[-1]) == (6, 6)
    assert len(find_runs(site.root)) == 6
    again = Follower()
    assert sweep(request, site, ONE_CORE, again) == found
    assert (again.total, again.rounds) == (0, [])


@pytest.mark.slow
def test_a_sweep_that_loses_a_node_ends_in_the_same_bits(cluster, tiny, run_tiny, images, tmp_path):
    recipe, seeds, rounds = tiny("vgg16-cifar10", dense=5, retrain=60), (0, 1), (1, 2, 3, 4, 5)
    expected = run_tiny(recipe, images, tmp_path / "here", seeds=seeds, rounds=rounds, together=1)
    request, site = Request(recipe, ("lamp", "erk"), seeds, rounds), Site(tmp_path / "there", tmp_path / "prepared")
    killed = []

    def kill_a_node_at_work():
        made = [len(open_run(site.root, spec).records) for spec in request.pruned]
        under_way = [count for count in made if 0 < count < len(rounds)]
        if not killed and len(under_way) == 2:  # one on each of the nodes
            killed.append(made)
            cluster.remove_node(cluster.second, allow_graceful=False)

    follower = Follower(then=kill_a_node_at_work)
    found = sweep(request, site, ONE_CORE, follower, poll=0.1)
    assert killed, "no moment was found at which both nodes were at work"
    assert_same_runs(found, expected)
    assert len(follower.rounds) == len(set(follower.rounds)) == 2 + 4 * len(rounds)


@pytest.mark.slow
def test_an_error_in_a_task_names_its_run_and_ends_the_sweep(cluster, tiny, images, tmp_path, monkeypatch):
    import ray

    cancelled = []
    monkeypatch.setattr(ray, "cancel", lambda ref, **options: cancelled.append(ref))
    request = Request(tiny("vgg16-cifar10"), ("lampe",), (0,), (1,))
    site = Site(tmp_path / "there", tmp_path / "prepared")
    with pytest.raises(LamplighterError, match="lampe") as caught:
        sweep(request, site, ONE_CORE, Follower(), poll=0.1)
    assert cancelled == [], "cancelling a task that is just ending can abort the process"
    (spec,) = request.pruned
    assert caught.value.message.startswith(f"vgg16-cifar10/{spec.id}: ")
    with pytest.raises(LamplighterError, match="no node of the cluster has 3 CPUs and 0 GPUs"):
        sweep(request, site, Demand(cpus=3), Follower())
    with pytest.raises(LamplighterError, match=r"no node of the cluster has 1 CPUs and 0\.25 GPUs"):
        sweep(request, site, Demand(gpus=0.25), Follower())


@pytest.mark.slow
def test_an_interrupt_ends_the_tasks_and_a_sweep_goes_on_from_there(cluster, tiny, run_tiny, images, tmp_path):
    recipe, rounds = tiny("vgg16-cifar10", dense=5, retrain=60), tuple(range(1, 11))
    request, site = Request(recipe, ("lamp",), (0,), rounds), Site(tmp_path / "there", tmp_path / "prepared")

    def interrupt():
        if finished_rounds(request, site.root) > 1:  # the task of the pruned network is under way
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sweep(request, site, ONE_CORE, Follower(then=interrupt), poll=0.1)
    time.sleep(3)
    made = finished_rounds(request, site.root)
    time.sleep(5)
    assert finished_rounds(request, site.root) == made < 1 + len(rounds)
    found = sweep(request, site, ONE_CORE, Follower(), poll=0.1)
    assert_same_runs(found, run_tiny(recipe, images, tmp_path / "here", methods=("lamp",), rounds=rounds, together=1))


@pytest.mark.slow
def test_the_command_starts_a_cluster_and_prints_only_data(write_images, tmp_path):
    for split_name in ("train", "test"):
        path = tmp_path / "source" / f"{split_name}-00000-of-00001.parquet"
        write_images(path, [place % 10 for place in range(100)])
    with pytest.warns(UserWarning, match="not the complete dataset"):
        prepare("cifar10", tmp_path / "source", tmp_path / "prepared")
    short = ("--scale", "1e-5", "--seeds", "1", "--rounds", "1", "--methods", "lamp", "--device", "cpu")
    places = ("--data", str(tmp_path / "prepared"), "--out", str(tmp_path / "runs"))
    command = [sys.executable, "-m", "lamplighter", "run", "vgg16-cifar10", *short, *places, "--ray", "local", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=250)
    assert done.returncode == 0, done.stderr
    assert [(run.spec.method, len(run.records)) for run in find_runs(tmp_path / "runs")] == [(DENSE, 1), ("lamp", 1)]
    assert [json.loads(line)["round"] for line in done.stdout.splitlines()] == [0, 1]
    assert done.stderr == ""


def test_the_recipe_of_a_test_reaches_the_workers_as_a_spec(tiny):
    request = Request(tiny("vgg16-cifar10"), ("lamp",), (0,), (1,))
    assert all(isinstance(task.request.recipe, Recipe) for task in split(request))
    assert {task.spec.options["width"] for task in split(request)} == {4}
