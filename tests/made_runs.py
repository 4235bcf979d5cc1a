"""Runs as `lamp run` leaves them, with records that are made up: nothing is trained."""

from dataclasses import replace

from lamplighter.experiments.records import Record
from lamplighter.experiments.spec import Spec
from lamplighter.experiments.store import RECORDS, append_line, open_run
from lamplighter.training.settings import Settings

SPEC = Spec("mine", "a-network", "cifar10", Settings(steps=500), Settings(steps=400))
SIZES = {"first.weight": 1000, "last.weight": 9000}


def make_run(root, spec, values, *, sizes=None, budgets=None, **about):
    """A run with a record for each round of `values`: what was tested, a fraction or a perplexity."""
    sizes = SIZES if sizes is None else sizes
    run = open_run(root, spec)
    for index, value in values.items():
        kept = {name: round(size * spec.density(index)) for name, size in sizes.items()}
        kept = kept if budgets is None else budgets[index]
        known = {"metric": "accuracy", "device": "NVIDIA H200", "together": 2, "seconds": 360.0, "steps": 400}
        known |= {"value": value, "loss": 1.0, "train_loss": 0.5, "total": sum(sizes.values())}
        record = Record(round=index, kept=sum(kept.values()), budgets=kept, sizes=sizes, **(known | about))
        append_line(run.folder / RECORDS, record.to_line())
    return run


def make_runs(root, spec, dense, pruned, **about):
    """The dense runs, seed -> value, and the others, method -> seed -> round -> value."""
    for seed, value in dense.items():
        make_run(root, replace(spec, seed=seed).shared, {0: value}, **about)
    for method, seeds in pruned.items():
        for seed, values in seeds.items():
            make_run(root, replace(spec, method=method, seed=seed), values, **about)
