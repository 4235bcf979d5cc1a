"""Many trials at once train as each would alone."""

import pytest
import torch

from lamplighter.errors import LamplighterError
from lamplighter.models.efficientnet import efficientnet_b0
from lamplighter.models.resnet import resnet20
from lamplighter.training.fit import fit
from lamplighter.training.recording import recording_length
from lamplighter.training.settings import Settings
from lamplighter.training.trial import Trial, halved_names
from lamplighter.training.trials import fit_many


def differ(a, b):
    """The largest difference between two networks' states."""
    pairs = zip(a.state_dict().values(), b.state_dict().values(), strict=True)
    return max((x.double() - y.double()).abs().max().item() for x, y in pairs)


def run(trial, steps):
    for _ in range(steps):
        trial.step()


@pytest.mark.parametrize("optimizer", ["adamw", "adam", "sgd"])
@pytest.mark.parametrize("clip", [None, 0.5])
def test_a_trial_ends_where_fit_does(images, network, random_masks, optimizer, clip):
    settings = Settings(steps=6, batch=16, optimizer=optimizer, lr=1e-3, warmup=2, drops=(0.7,), clip=clip)
    model, other = network(), network()
    masks = random_masks(model)
    expected = fit(model, images, settings, masks, seed=3)
    trial = Trial(other, images, settings, masks, 3)
    run(trial, 6)
    (losses,) = trial.finish()
    torch.testing.assert_close(losses[:3], expected.losses[:3], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(losses, expected.losses, rtol=2e-3, atol=2e-3)
    assert differ(model, other) < 2e-3
    assert all(not other.get_parameter(name)[~mask].any() for name, mask in masks.items())


def test_warming_up_leaves_no_trace(images, network, random_masks):
    settings = Settings(steps=4, batch=16)
    models = [network(), network()]
    for model, warm_up in zip(models, (0, 3), strict=True):
        trial = Trial(model, images, settings, random_masks(model), 3)
        run(trial, warm_up)
        trial.reset()
        run(trial, 4)
        trial.finish()
    assert differ(*models) == 0


def test_the_network_is_untouched_until_the_end(images, network):
    model, other = network(), network()
    parameters = list(model.parameters())
    trial = Trial(model, images, Settings(steps=2, batch=16), None, 0)
    run(trial, 2)
    assert differ(model, other) == 0
    trial.finish()
    assert differ(model, other) > 0
    assert all(a is b for a, b in zip(parameters, model.parameters(), strict=True))


def test_in_bf16_matrices_are_kept_in_bf16_beside_their_masters(images, network):
    model, other = network(), network()
    settings = Settings(steps=3, batch=16, precision="bf16")
    trial = Trial(model, images, settings, None, 1)
    run(trial, 3)
    (losses,) = trial.finish()
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    torch.testing.assert_close(losses, fit(other, images, settings, seed=1).losses, rtol=0.01, atol=0.01)
    # fp32 masters: some weights are not bf16 numbers.
    assert any((p.detach() != p.detach().bfloat16().float()).any() for p in model.parameters() if p.dim() > 1)


def test_weights_tied_to_an_embedding_are_not_halved(language_model):
    names = halved_names(language_model())
    assert "layers.0.attention.query.weight" in names
    assert "layers.0.feedforward.ff1.bias" in names
    assert not {"embedding.weight", "layers.0.norm1.weight", "layers.0.attention.content_bias"} & names


def test_a_language_model_trains_as_a_trial_too(text, language_model):
    settings = Settings(steps=8, batch=4, length=20, lr=1e-3)
    model, other = language_model(), language_model()
    expected = fit(model, text, settings)
    trial = Trial(other, text, settings, None, 0)
    run(trial, 3)
    trial.reset()
    run(trial, 8)
    torch.testing.assert_close(trial.finish()[0], expected.losses, rtol=1e-5, atol=1e-5)
    assert other.head.weight is other.embedding.weight


def test_without_recording_trials_run_one_after_another_as_fit(images, network, random_masks):
    settings = Settings(steps=4, batch=16)
    together, alone = [network(0), network(1)], [network(0), network(1)]
    masks = [random_masks(together[0]), None]
    found = fit_many(together, images, settings, masks, [5, 6])
    for model, own, seed, result in zip(alone, masks, (5, 6), found, strict=True):
        assert torch.equal(fit(model, images, settings, own, seed=seed).losses, result.losses)
    assert [differ(a, b) for a, b in zip(together, alone, strict=True)] == [0, 0]


# Adam divides by the size of the gradient: where that is all rounding, two runs may walk apart, a step of lr each way.
@pytest.mark.parametrize(("rule", "apart"), [("sgd", 1e-5), ("adamw", 2 * 4 * 1e-3)])
@pytest.mark.parametrize("make", [None, resnet20], ids=["vgg16", "resnet20"])
def test_stacked_networks_train_as_each_would_alone(images, network, random_masks, make, rule, apart):
    settings = Settings(steps=4, batch=16, lr=1e-3, optimizer=rule)

    def models():
        if make is None:
            return [network(0), network(1), network(2)]
        torch.manual_seed(0)
        return [make(10, width=4) for _ in range(3)]

    together, alone = models(), models()
    # Not any masks: where one leaves a channel next to constant, batch norm magnifies every rounding 300 times.
    masks = [random_masks(together[0]), None, random_masks(together[2], 2)]
    found = fit_many(together, images, settings, masks, [5, 6, 7], method="stacked")
    for model, other, own, seed, result in zip(alone, together, masks, (5, 6, 7), found, strict=True):
        expected = fit(model, images, settings, own, seed=seed)
        torch.testing.assert_close(result.losses, expected.losses, rtol=1e-3, atol=1e-3)
        torch.testing.assert_close(result.losses[:1], expected.losses[:1], rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(result.losses[:2], expected.losses[:2], rtol=1e-4, atol=1e-4)
        assert differ(model, other) < apart
        for name, mask in (own or {}).items():
            assert not other.get_parameter(name)[~mask].any()


def test_stacked_networks_train_in_bf16(images, network):
    settings = Settings(steps=3, batch=16, precision="bf16")
    together, alone = [network(0), network(1)], [network(0), network(1)]
    found = fit_many(together, images, settings, [None, None], [5, 6], method="stacked")
    expected = fit_many(alone, images, settings, [None, None], [5, 6])
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a.losses, b.losses, rtol=0.02, atol=0.02)


def test_stacked_networks_may_draw_at_random(images):
    torch.manual_seed(0)
    models = [efficientnet_b0(10, stages=((1, 8, 2, 2, 3),), drop_path=0.5) for _ in range(2)]
    found = fit_many(models, images, Settings(steps=2, batch=8), [None, None], [1, 2], method="stacked")
    assert all(result.losses.isfinite().all() for result in found)


def test_trials_and_phases_of_any_length_share_one_compilation(images, network, monkeypatch):
    """Compiling takes a minute on a GPU: it must happen once, not for every trial of every round."""
    from torch._dynamo.testing import CompileCounterWithBackend

    counter = CompileCounterWithBackend("eager")

    def compile_whole(function, settings):
        return torch.compile(function, backend=counter, dynamic=False, fullgraph=True)

    monkeypatch.setattr("lamplighter.training.trial.compiled", compile_whole)
    monkeypatch.setattr("lamplighter.training.stack.compiled", compile_whole)
    for steps in (2, 3):
        for seed in range(2):
            run(Trial(network(seed), images, Settings(steps=steps, batch=16), None, seed), 2)
    assert counter.frame_count == 1
    for steps in (2, 3):
        models, settings = [network(0), network(1)], Settings(steps=steps, batch=16)
        fit_many(models, images, settings, [None, None], [0, 1], method="stacked")
    assert counter.frame_count == 2
    torch.compiler.reset()


def test_what_cannot_be_stacked_is_refused(text, images, language_model, network):
    settings = Settings(steps=1, batch=4, length=20)
    with pytest.raises(LamplighterError, match="stacked training is for images"):
        fit_many([language_model()], text, settings, [None], [0], method="stacked")
    with pytest.raises(LamplighterError, match="cannot clip"):
        fit_many([network()], images, Settings(steps=1, batch=4, clip=1.0), [None], [0], method="stacked")


def test_arguments_that_do_not_match_are_refused(images, network):
    with pytest.raises(LamplighterError, match="1 models, 2 masks and 1 seeds"):
        fit_many([network()], images, Settings(steps=1), [None, None], [0])
    with pytest.raises(LamplighterError, match="method is 'threads'"):
        fit_many([network()], images, Settings(steps=1), [None], [0], method="threads")


@pytest.mark.parametrize(("steps", "length"), [(2000, 10), (1500, 10), (63, 9), (13, 1), (1, 1), (0, 1)])
def test_recordings_divide_the_steps(steps, length):
    assert recording_length(steps) == length
