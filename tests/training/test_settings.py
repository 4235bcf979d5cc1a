"""Settings are checked when they are made, and give the learning rate of every step."""

import pytest

from lamplighter.errors import LamplighterError
from lamplighter.training.settings import Settings, learning_rate


def test_the_defaults_are_the_papers():
    settings = Settings(steps=1)
    assert (settings.optimizer, settings.lr, settings.weight_decay, settings.batch) == ("adamw", 3e-4, 0.01, 100)
    assert (settings.padding, settings.flip, settings.precision) == (4, True, "fp32")


def test_the_rate_is_constant_by_default():
    settings = Settings(steps=100, lr=0.5)
    assert {learning_rate(settings, step) for step in range(100)} == {0.5}


def test_the_rate_rises_linearly_and_then_drops_tenfold():
    settings = Settings(steps=10, lr=1.0, warmup=4, drops=(0.5, 0.75))
    rates = [learning_rate(settings, step) for step in range(10)]
    assert rates == pytest.approx([0.25, 0.5, 0.75, 1.0, 1.0, 0.1, 0.1, 0.1, 0.01, 0.01])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"optimizer": "adamx"}, "optimizer is 'adamx'"),
        ({"precision": "fp16"}, "precision is 'fp16'"),
        ({"steps": -1}, "steps is -1, expected 0 or more"),
        ({"batch": 0}, "batch is 0, expected 1 or more"),
        ({"drops": (80,)}, "drops are (80,), expected fractions"),
    ],
)
def test_what_makes_no_sense_is_refused(options, message):
    with pytest.raises(LamplighterError) as caught:
        Settings(**{"steps": 1} | options)
    assert message in caught.value.message
