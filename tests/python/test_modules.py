"""Layers: PyTorch's in constructor, parameters, state, text and errors."""

import copy
import io
import pickle

import pytest
import torch
from torch import nn

import tconv

OURS = {1: tconv.ConvTranspose1d, 2: tconv.ConvTranspose2d, 3: tconv.ConvTranspose3d}
THEIRS = {1: nn.ConvTranspose1d, 2: nn.ConvTranspose2d, 3: nn.ConvTranspose3d}
OURS_LAZY = {1: tconv.LazyConvTranspose1d, 2: tconv.LazyConvTranspose2d, 3: tconv.LazyConvTranspose3d}
ranks = pytest.mark.parametrize("rank", [1, 2, 3])


def pair(rank, *arguments, **options):
    """Both layers, made from the same seed."""
    made = []
    for kind in (OURS[rank], THEIRS[rank]):
        torch.manual_seed(5)
        made.append(kind(*arguments, **options))
    return made


@ranks
def test_the_same_seed_makes_the_same_layer(rank):
    ours, theirs = pair(rank, 4, 6, 3, stride=2, padding=1, output_padding=1, groups=2, dilation=1)
    assert list(ours.state_dict()) == list(theirs.state_dict()) == ["weight", "bias"]
    for name, value in theirs.state_dict().items():
        assert torch.equal(ours.state_dict()[name], value)
    assert repr(ours) == repr(theirs)
    x = torch.randn(2, 4, *(5,) * rank)
    torch.testing.assert_close(ours(x), theirs(x))
    torch.testing.assert_close(ours(x[0]), theirs(x[0]))
    theirs.load_state_dict(ours.state_dict())
    ours.load_state_dict(theirs.state_dict())


@ranks
def test_options(rank):
    ours, theirs = pair(rank, 4, 6, 3, 2, bias=False, dtype=torch.float64, device="cpu")
    assert ours.bias is None and ours.weight.dtype == torch.float64 and repr(ours) == repr(theirs)
    assert OURS[rank](4, 6, 3, device="meta")(torch.empty(2, 4, *(5,) * rank, device="meta")).is_meta
    assert isinstance(ours, THEIRS[rank])
    for options in ({"groups": 3}, {"groups": 0}, {"padding_mode": "reflect"}):
        for kind in (THEIRS[rank], OURS[rank]):
            with pytest.raises(ValueError):
                kind(4, 6, 3, **options)


@ranks
def test_output_size(rank):
    ours, theirs = pair(rank, 4, 6, 3, stride=3, padding=1)
    x = torch.randn(2, 4, *(5,) * rank)
    for length in (13, 14, 15):
        torch.testing.assert_close(ours(x, output_size=[length] * rank), theirs(x, output_size=[length] * rank))
        assert ours(x, output_size=(2, 6, *(length,) * rank)).shape == (2, 6, *(length,) * rank)
    for length in (12, 16):
        with pytest.raises(ValueError, match="requested an output size"):
            ours(x, output_size=[length] * rank)
    with pytest.raises(ValueError):
        ours(x, output_size=[13] * (rank + 3))


@ranks
def test_lazy_layers(rank):
    lazy = OURS_LAZY[rank](6, 3, stride=2)
    assert "Lazy" in repr(lazy) and isinstance(lazy.weight, nn.parameter.UninitializedParameter)
    x = torch.randn(2, 4, *(5,) * rank)
    y = lazy(x)
    assert type(lazy) is OURS[rank] and lazy.in_channels == 4
    torch.testing.assert_close(y, THEIRS[rank].forward(lazy, x))


@ranks
def test_copies(rank):
    layer = OURS[rank](4, 6, 3, stride=2)
    x = torch.randn(2, 4, *(5,) * rank)
    stream = io.BytesIO()
    torch.save(layer, stream)
    stream.seek(0)
    for other in (
        copy.deepcopy(layer),
        pickle.loads(pickle.dumps(layer)),
        torch.load(stream, weights_only=False),
    ):
        assert type(other) is OURS[rank] and other.weight is not layer.weight
        assert torch.equal(other(x), layer(x))


def test_moving_to_other_types_and_layouts():
    layer = tconv.ConvTranspose2d(4, 6, 3, stride=2)
    x = torch.randn(2, 4, 5, 5)
    assert layer.to(torch.float64)(x.double()).dtype == torch.float64
    assert layer.to(torch.bfloat16)(x.bfloat16()).dtype == torch.bfloat16
    layer = layer.to(torch.float32, memory_format=torch.channels_last)
    assert layer(x).is_contiguous(memory_format=torch.channels_last)


def test_tracing():
    model = nn.Sequential(tconv.ConvTranspose2d(4, 6, 3, stride=2), nn.ReLU(), tconv.ConvTranspose2d(6, 3, 2, stride=2))
    x = torch.randn(2, 4, 5, 5)
    torch.testing.assert_close(torch.fx.symbolic_trace(model)(x), model(x))
    torch.testing.assert_close(torch.jit.trace(model, x)(x[:1]), model(x[:1]))


def test_training_reduces_the_loss_as_pytorchs_does():
    losses = []
    for kind in (tconv.ConvTranspose2d, nn.ConvTranspose2d):
        torch.manual_seed(3)
        layer = kind(3, 4, 4, stride=2, padding=1)
        optimizer = torch.optim.Adam(layer.parameters(), lr=0.05)
        x, target = torch.randn(4, 3, 6, 6), torch.randn(4, 4, 12, 12)
        for _ in range(10):
            optimizer.zero_grad()
            loss = (layer(x) - target).square().mean()
            loss.backward()
            optimizer.step()
        losses.append(loss.item())
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)


def test_version():
    assert tconv.__version__.count(".") == 2
