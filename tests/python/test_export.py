"""Exported files: their text, their parameters and errors, and their kernels under the CPU emulator."""

from __future__ import annotations

import ast
import copy
import inspect
import re
import struct
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

import tconv
from exported_emulation import ROOT, load_emulated, load_exported
from tconv import export_record, exporter
from tconv.cli import main
from tconv.export_model import model_of_file, model_of_module, model_of_problem
from tconv.export_source import ExportError, rewritten_source
from tconv.problems import select_problems

MODEL = '''
import math
import torch
import torch.nn as nn
import torch.nn.functional as F

SCALE = 2.0
batch = 3


def double(x):
    return x * SCALE


def unused():
    return batch


class Model(nn.Module):
    """Two layers, and what lies between them."""

    def __init__(self, channels, bias=True):
        super(Model, self).__init__()
        self.first = nn.ConvTranspose2d(channels, 6, 3, stride=2, bias=bias)
        self.second = torch.nn.ConvTranspose2d(6, 2, 2)
        self.scale = nn.Parameter(torch.randn(1))

    def forward(self, x):
        return F.relu(self.second(double(self.first(x)))) * self.scale + math.pi


def get_inputs():
    return [torch.rand(batch, 4, 5, 6)]


def get_init_inputs():
    return [4]
'''


def few_values(shape, dtype=torch.float32):
    """Numbers whose products and sums are exact in every type."""
    return (torch.randint(-8, 9, shape) / 8).to(dtype)


def write_model(folder: Path, text: str = MODEL) -> Path:
    path = folder / "model.py"
    path.write_text(text)
    return path


def export_layer(layer: nn.Module, shape: tuple[int, ...], folder: Path) -> Path:
    path = folder / "exported.py"
    tconv.export(layer, torch.zeros(shape, dtype=layer.weight.dtype), path)
    return path


def check_layer(module, layer: nn.Module, shape: tuple[int, ...]) -> None:
    """Output and gradients of ModelNew against the layer in float64."""
    new = module.ModelNew().to(layer.weight.dtype)
    with torch.no_grad():
        for parameter in new.parameters():
            parameter.copy_(few_values(parameter.shape))
    old = copy.deepcopy(layer).double()
    old.load_state_dict(new.state_dict())
    x = few_values(shape, layer.weight.dtype).requires_grad_()
    x64 = x.detach().double().requires_grad_()
    y, y64 = new(x), old(x64)
    grad = few_values(y.shape)
    y.backward(grad.to(y.dtype))
    y64.backward(grad.double())
    pairs = [(y, y64), (x.grad, x64.grad)]
    pairs += [(a.grad, b.grad) for a, b in zip(new.parameters(), old.parameters(), strict=True)]
    rounding = {torch.float16: 2**-11, torch.bfloat16: 2**-8}.get(layer.weight.dtype, 0)
    for got, expected in pairs:
        torch.testing.assert_close(got.double(), expected, rtol=rounding, atol=0)


# --- Kernels, on the CPU ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("layer", "shape", "gpu", "tf32"),
    [
        (nn.ConvTranspose2d(24, 40, 3, 2, 1, 1), (2, 24, 5, 7), "hopper", True),
        (nn.ConvTranspose2d(24, 20, 4, 2, 1, bias=False), (2, 24, 5, 7), "ampere", True),
        (nn.ConvTranspose2d(8, 12, (3, 5), (2, 3), (1, 2), groups=2, dilation=(2, 1)), (2, 8, 5, 7), "hopper", False),
        (nn.ConvTranspose1d(6, 6, 4, 2, 1, groups=6), (2, 6, 33), "ampere", False),
        (nn.ConvTranspose3d(3, 5, 3, 2, 1, 1).double(), (2, 3, 3, 4, 5), "hopper", False),
    ],
    ids=["tile-hopper", "tile-ampere", "direct-grouped", "depthwise-1d", "3d-fp64"],
)
def test_kernels_compute_forward_and_gradients_for_any_batch(layer, shape, gpu, tf32, tmp_path):
    module = load_emulated(export_layer(layer, shape, tmp_path), gpu, tf32=tf32)
    for batch in (shape[0], 1, 5):
        check_layer(module, layer, (batch, *shape[1:]))
    # All of these were computed by the kernels that were made for the layer.
    assert module.call_of.cache_info().currsize == 3
    call = module.call_of(shape, tuple(layer.weight.shape), *geometry(layer))
    assert call.made_for is module.LAYERS[0]


def test_few_pixels_and_large_weights_for_any_batch(tmp_path):
    layer = nn.ConvTranspose2d(256, 192, 4, 2, 1)
    path = export_layer(layer, (2, 256, 2, 2), tmp_path)
    assert "forward, columns" in path.read_text()
    module = load_emulated(path, "hopper", tf32=True)
    new = module.ModelNew()
    with torch.no_grad():
        for parameter in new.parameters():
            parameter.copy_(few_values(parameter.shape))
        layer.load_state_dict(new.state_dict())
        for batch in (2, 1, 5):
            x = few_values((batch, 256, 2, 2))
            torch.testing.assert_close(new(x).double(), layer.double()(x.double()), rtol=0, atol=0)


def geometry(layer: nn.Module) -> tuple:
    return (layer.stride, layer.padding, layer.output_padding, layer.dilation, layer.groups)


def test_other_sizes_types_and_biases_are_right(tmp_path):
    layer = nn.ConvTranspose2d(6, 4, (3, 2), 2, (1, 0), groups=2, dilation=(2, 1), bias=False)
    module = load_emulated(export_layer(layer, (1, 6, 4, 5), tmp_path))
    check_layer(module, layer, (2, 6, 3, 8))  # the general kernels
    for dtype in (torch.float64, torch.bfloat16, torch.float16):
        check_layer(module, copy.deepcopy(layer).to(dtype), (1, 6, 3, 4))
    # A bias where the exported layer has none, and empty and single samples.
    new = module.ModelNew(bias=True)
    plain = module.ModelNew(bias=False)
    plain.load_state_dict({"weight": new.weight})
    x = few_values((2, 6, 4, 5))
    torch.testing.assert_close(new(x), plain(x) + new.bias.view(-1, 1, 1))
    assert new(x[:0]).shape == (0, *new(x).shape[1:])
    torch.testing.assert_close(new(x[0]), new(x)[0])
    new(x[:0]).sum().backward()
    assert torch.equal(new.weight.grad, torch.zeros_like(new.weight))
    # Gaps, odd addresses, and a size that is asked for.
    torch.testing.assert_close(new(x.mT.contiguous().mT), new(x))
    torch.testing.assert_close(new(torch.cat([x.flatten()[:1], x.flatten()])[1:].view_as(x)), new(x))
    larger = new(x, output_size=[size + 1 for size in new(x).shape[2:]])
    torch.testing.assert_close(larger[:, :, :-1, :-1], new(x))


def test_gradients_can_be_differentiated(tmp_path):
    layer = nn.ConvTranspose1d(2, 2, 3, 2, 1).double()
    module = load_emulated(export_layer(layer, (1, 2, 3), tmp_path))
    new = module.ModelNew(dtype=torch.float64)
    x = torch.randn(1, 2, 3, dtype=torch.float64, requires_grad=True)

    def compute(x, weight, bias):
        return torch.func.functional_call(new, {"weight": weight, "bias": bias}, (x,))

    assert torch.autograd.gradgradcheck(compute, (x, new.weight, new.bias))


# --- The file --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    path = tmp_path_factory.mktemp("exported") / "kb75.py"
    assert main(["export", "--problem", "kb75", "-o", str(path)]) == 0
    return path


def test_a_file_stands_alone(exported):
    text = exported.read_text()
    tree = ast.parse(text)
    imported = {
        name.split(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in ([node.module] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names])
    }
    assert imported == {"contextlib", "functools", "hashlib", "inspect", "math", "re", "struct", "subprocess", "torch"}
    code = ast.unparse(tree)
    assert "functional" not in code
    assert "nn.ConvTranspose" not in code.replace(ast.get_docstring(tree), "").replace('"""nn.ConvTranspose', "")
    assert max(map(len, text.splitlines())) <= 120
    # KernelBench's static checker takes these for a way back to PyTorch, wherever they stand.
    assert not re.search(r"\b(try\s*:|except\s*:|except\s+\w+|pass\b)", re.sub(r"(#|//).*", "", text))
    # KernelBench puts statements in front of a file before it runs it.
    compile("import os\n" + text, "exported", "exec")


def test_the_top_of_a_file_explains_plan_and_mathematics(exported):
    words = ast.get_docstring(ast.parse(exported.read_text()))
    assert "O = (I - 1) s - 2 p + d (K - 1) + q + 1" in words
    assert "n16 c32->64 i128x256 k3x5 s2x3 p1x2 d2x1 g4" in words
    assert "Output [16, 64, 257, 766]; phases along each axis: height 2 (1 with taps), width 3.\n" in words
    for direction in ("forward: direct", "grad_input: tile", "grad_weight: reduce"):
        assert direction in words
    assert "\nThe kinds of kernel:\n    tile: a matrix product on tensor cores" in words
    assert "[Hopper, TF32" in words
    assert "[8.0 and later, TF32" in words


def test_every_piece_has_its_files_and_functions(exported):
    module = load_exported(exported)
    (made,) = module.LAYERS
    assert set(made["sets"]) == {(gpu, kind) for gpu in ("hopper", "ampere") for kind in ("tf32", "strict")}
    directions = ("forward", "grad_input", "grad_weight", "grad_bias")
    general = [tuple(f"{name}_{element}" for name in directions) for element in ("F64", "F32", "F16", "BF16")]
    for pieces in [*made["sets"].values(), *general]:
        for group in (directions[:1], directions[1:]):
            names = ("begin", *module.pieces_for(directions.index(group[0]), pieces))
            text = module.expand("\n".join(module.PIECES[name] for name in names))
            assert '#include "' not in text
            assert 'extern "C"' not in text
            for name in directions:
                signature = f"int {name}(const Tensors& tensors, const Layer& layer, void* stream) {{"
                assert text.count(signature) == (name in group)
    portable = module.expand("\n".join(module.PIECES[name] for name in made["sets"]["ampere", "tf32"]))
    assert "wgmma.mma_async.sync.aligned.m64" not in portable


@pytest.mark.parametrize(
    ("capability", "toolkit", "expected"),
    [
        ((9, 0), (12, 0), "hopper"),
        ((9, 0), (13, 0), "hopper"),
        ((9, 0), (11, 8), "ampere"),
        ((8, 0), (11, 7), "ampere"),
        ((8, 9), (12, 4), "ampere"),
        ((12, 0), (13, 0), "ampere"),
        ((7, 5), (11, 7), "general"),
    ],
)
def test_the_kernels_fit_gpu_and_compiler(exported, capability, toolkit, expected):
    module = load_exported(exported)
    assert module.choose_gpu(capability, toolkit) == expected
    assert any("90a" in flag for flag in module.compiler_flags("hopper"))
    assert not any("90" in flag for flag in module.compiler_flags("ampere"))


def test_what_load_inline_is_asked(exported, monkeypatch):
    module = load_exported(exported)
    asked = {}

    def load_inline(name, cpp_sources, cuda_sources, **options):
        asked.update(options, name=name, cpp=cpp_sources[0], cuda=cuda_sources[0])

    monkeypatch.setattr(module.cpp_extension, "load_inline", load_inline)
    made = module.LAYERS[0]["sets"]
    module.compile_set(module.pieces_for(module.FORWARD, made["hopper", "tf32"]), "hopper")
    assert asked["functions"] == ["run", "workspace"]
    assert "no_implicit_headers" not in asked  # this one does not know the option
    assert "-gencode=arch=compute_90a,code=sm_90a" in asked["extra_cuda_cflags"]
    assert "std::string run(int direction" in asked["cpp"]
    assert "struct Layer {" in asked["cpp"]
    assert "tconv_direct<<<" not in asked["cuda"]
    assert "namespace forward_kernel {" in asked["cuda"]
    assert "grad_weight(" not in asked["cuda"]  # compiled when gradients are first asked for
    first = asked["name"]
    module.compile_set(module.pieces_for(module.FORWARD, made["ampere", "tf32"]), "ampere")
    assert asked["name"] != first


@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("bias", [True, False])
def test_the_same_seed_gives_the_same_parameters(rank, bias, tmp_path):
    kind = getattr(nn, f"ConvTranspose{rank}d")
    arguments = (6, 4, (3, 2, 4)[:rank], 2, 1, 0, 2, bias, 1)
    module = load_exported(export_layer(kind(*arguments), (1, 6, *[4] * rank), tmp_path))
    torch.manual_seed(7)
    old = kind(*arguments)
    torch.manual_seed(7)
    new = module.ModelNew(*arguments)
    assert list(old.state_dict()) == list(new.state_dict())
    for name, value in old.state_dict().items():
        assert torch.equal(value, new.state_dict()[name])
    assert str(new).split("(", 1)[1] == str(old).split("(", 1)[1]
    assert torch.equal(torch.rand(3), torch.rand(3)) is False
    new.load_state_dict(old.state_dict())


def test_errors_say_what_was_expected(exported):
    module = load_exported(exported)
    model = module.ModelNew()
    with pytest.raises(RuntimeError, match="runs on NVIDIA GPUs: expected a CUDA tensor, got one on cpu"):
        model(torch.rand(2, 32, 128, 256))
    with pytest.raises(RuntimeError, match="expected an input of 32 channels, got 31"):
        model(torch.rand(2, 31, 128, 256))
    with pytest.raises(RuntimeError, match=r"expected an input of 3 \(unbatched\) or 4 dimensions"):
        model(torch.rand(32, 128))
    with pytest.raises(RuntimeError, match=r"input and weight must have one type and device, got torch\.float64"):
        model(torch.rand(2, 32, 128, 256).double())
    with pytest.raises(TypeError, match=r"expected float64, float32, float16 or bfloat16, got torch\.int64"):
        model(torch.ones(2, 32, 128, 256, dtype=torch.int64))
    with pytest.raises(ValueError, match="only the padding_mode 'zeros' is supported, got 'reflect'"):
        module.ConvTranspose2d(4, 4, 3, padding_mode="reflect")
    with pytest.raises(ValueError, match="channels must be divisible by groups"):
        module.ConvTranspose2d(4, 6, 3, groups=4)
    with pytest.raises(ValueError, match="output_padding must be smaller than stride or dilation"):
        module.ConvTranspose2d(4, 6, 3, output_padding=1)
    with pytest.raises(ValueError, match="kernel_size must be 2 numbers of at least 1"):
        module.ConvTranspose2d(4, 6, (3, 3, 3))
    with pytest.raises(RuntimeError, match="gives an output of the size"):
        module.ConvTranspose2d(4, 6, 3, padding=4)(torch.rand(1, 4, 2, 2))


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("kb64", "stride padding output_padding groups bias"),
        ("kb69", "stride padding output_padding dilation groups bias"),
        ("kb72", "stride padding output_padding groups bias"),
        ("kb74", "stride padding dilation bias"),
        ("kb75", "stride padding dilation groups bias"),
        ("kb78", "stride padding bias"),
    ],
)
def test_problems_of_kernelbench_have_its_models_arguments(name, arguments):
    problem = select_problems([name])[0]
    source = model_of_problem(problem, "float32", bias=False).source
    scope = {"torch": torch, "nn": nn, f"ConvTranspose{problem.rank}d": getattr(nn, f"ConvTranspose{problem.rank}d")}
    exec(source, scope)
    parameters = inspect.signature(scope["ModelNew"]).parameters.values()
    positional = [p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
    assert positional == ["in_channels", "out_channels", "kernel_size", *arguments.split()]
    assert {"stride", "padding", "output_padding", "dilation", "groups"} < {p.name for p in parameters}
    attribute = "conv1d_transpose" if problem.rank == 1 else f"conv_transpose{problem.rank}d"
    assert list(scope["ModelNew"]().state_dict()) == [attribute + ".weight"]


# --- Models ----------------------------------------------------------------------------------------------------------


def test_a_model_keeps_all_but_its_layers(tmp_path):
    path = write_model(tmp_path)
    found = model_of_file(path)
    assert [layer.problem.describe() for layer in found.layers] == ["n3 c4->6 i5x6 k3x3 s2x2", "n3 c6->2 i11x13 k2x2"]
    assert "self.first = ConvTranspose2d(channels, 6, 3, stride=2, bias=bias)" in found.source
    assert "self.second = ConvTranspose2d(6, 2, 2)" in found.source
    assert "super(ModelNew, self).__init__()" in found.source
    assert "def double(x):" in found.source
    assert "SCALE = 2.0" in found.source
    assert "import math" in found.source
    for gone in ("unused", "batch = 3", "get_inputs", "class Model("):
        assert gone not in found.source

    output = tmp_path / "model_new.py"
    assert main(["export", "--model", str(path), "-o", str(output)]) == 0
    module = load_emulated(output)
    original = load_exported(path)
    torch.manual_seed(0)
    old = original.Model(*original.get_init_inputs())
    torch.manual_seed(0)
    new = module.ModelNew(*original.get_init_inputs())
    x = original.get_inputs()[0]
    torch.testing.assert_close(new(x), old(x))
    assert list(new.state_dict()) == list(old.state_dict())


def test_a_module_in_memory_is_exported_by_its_source(tmp_path):
    original = load_exported(write_model(tmp_path))
    sys.modules["model"] = original
    try:
        found = model_of_module(original.Model(4), torch.rand(2, 4, 3, 3))
    finally:
        del sys.modules["model"]
    assert "class ModelNew(nn.Module)" in found.source
    assert found.layers[0].problem.batch == 2


def test_names_are_replaced_wherever_they_come_from():
    source = (
        "from torch.nn import ConvTranspose1d, Linear\nfrom torch import nn\n\n"
        "class Up(ConvTranspose1d):\n    pass\n\n"
        "class Net(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        "        self.up = nn.Sequential(Up(1, 2, 3), Linear(2, 2))\n"
    )
    text = rewritten_source(source, "Net")
    assert "from torch.nn import Linear" in text
    assert "ConvTranspose1d, " not in text
    assert "class Up(ConvTranspose1d):" in text
    assert "class ModelNew(nn.Module):" in text
    renamed = source.replace("ConvTranspose1d, Linear", "ConvTranspose1d as Deconv, Linear").replace("(Conv", "(De")
    assert "from torch.nn import Linear\nDeconv = ConvTranspose1d\n" in rewritten_source(renamed, "Net")
    text = rewritten_source("import torch.nn as layers\n\nclass Net(layers.ConvTranspose3d):\n    pass\n", "Net")
    assert "class ModelNew(ConvTranspose3d):" in text


def test_a_sequence_of_layers_is_exported(tmp_path):
    model = nn.Sequential(nn.ConvTranspose2d(2, 4, 2, 2), nn.Sequential(nn.BatchNorm2d(4), nn.ReLU()))
    model.add_module("last", nn.ConvTranspose2d(4, 1, 3, bias=False))
    tconv.export(model, torch.rand(2, 2, 3, 4), tmp_path / "exported.py")
    module = load_emulated(tmp_path / "exported.py", tf32=False)
    new = module.ModelNew()
    new.load_state_dict(model.state_dict())
    x = torch.rand(2, 2, 3, 4)
    torch.testing.assert_close(new(x), model(x))
    with pytest.raises(ExportError, match="got MultiheadAttention in it: write a class"):
        tconv.export(nn.Sequential(*model, nn.MultiheadAttention(4, 2)), x, tmp_path / "o.py")


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (MODEL.replace("ConvTranspose2d", "Conv2d"), "Model has no transposed convolution"),
        ("class Model: pass", "lacks get_inputs, get_init_inputs"),
        ("import nothing_of_that_name", "could not be run: ModuleNotFoundError"),
        (MODEL.replace("self.second(double(self.first(x)))", "x"), "did not call its transposed convolution"),
        (MODEL.replace("rand(batch, 4, 5, 6)", "rand(batch, 4, 5)"), "takes an input of"),
        (MODEL.replace("rand(batch, 4, 5, 6)", "rand(batch, 3, 5, 6)"), "takes an input of 4 channels, got the size"),
        (MODEL.replace("5, 6)", "5, 6).half()"), "input and weight must have one type, got torch.float16"),
        (MODEL.replace("2, bias=bias", "2, padding_mode='reflect'"), 'Only "zeros" padding mode is supported'),
        (MODEL.replace("nn.ConvTranspose2d(channels, ", "nn.LazyConvTranspose2d("), "write ConvTranspose2d with its"),
        (MODEL.replace("return [4]", "return []"), "could not be made: TypeError"),
        (
            MODEL.replace("torch.nn.ConvTranspose2d", "getattr(nn, 'ConvTranspose2d')"),
            "second is not made in the model's own file: it must be written there as nn.ConvTranspose2d",
        ),
        (MODEL.replace("double", "dense"), "the exported file has a dense of its own"),
    ],
)
def test_bad_models_get_a_sentence(text, complaint, tmp_path, capsys):
    if complaint == "takes an input of":
        text = text.replace("rand(batch, 4, 5)", "rand(batch, 4)")
    assert main(["export", "--model", str(write_model(tmp_path, text)), "-o", str(tmp_path / "o.py")]) == 2
    assert complaint in capsys.readouterr().err
    assert not (tmp_path / "o.py").exists()


def test_bad_requests_get_a_sentence(tmp_path, capsys):
    output = ["-o", str(tmp_path / "o.py")]
    for request, complaint in (
        (["--problem", "no_such_problem"], "no_such_problem"),
        ([], "name a problem"),
        (["--input", "4", "--kernel", "3", "--in-channels", "3", "--groups", "2"], "groups"),
        (["--model", str(write_model(tmp_path)), "--bias"], "--model brings its own sizes"),
        (["--problem", "kb75", "--in-channels", "4"], "--problem brings its own sizes"),
        (["--model", str(tmp_path / "missing.py")], "missing.py could not be read"),
        (["--problem", "kb75", "-o", str(tmp_path / "no" / "o.py")], "o.py could not be written: No such file"),
    ):
        assert main(["export", *output, *request]) == 2
        assert complaint in capsys.readouterr().err
    layer = nn.ConvTranspose2d(2, 2, 3)
    layer.padding_mode = "circular"
    with pytest.raises(ExportError, match="only the padding_mode 'zeros' can be exported"):
        tconv.export(layer, torch.rand(1, 2, 4, 4), tmp_path / "o.py")
    with pytest.raises(ExportError, match="has no transposed convolution"):
        tconv.export(nn.Linear(2, 2), torch.rand(1, 2), tmp_path / "o.py")
    with pytest.raises(ExportError, match="has lazy layers without sizes"):
        tconv.export(nn.LazyConvTranspose2d(2, 3), torch.rand(1, 2, 4, 4), tmp_path / "o.py")
    for norm in (nn.utils.spectral_norm, nn.utils.parametrizations.spectral_norm):
        with pytest.raises(ExportError, match="under spectral_norm can't be exported"):
            tconv.export(nn.Sequential(norm(nn.ConvTranspose2d(2, 3, 2))), torch.rand(1, 2, 4, 4), tmp_path / "o.py")
    original = load_exported(write_model(tmp_path))

    class Outer(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = original.Model(4)

        def forward(self, x):
            return self.inner(x)

    with pytest.raises(ExportError, match="Model, which owns a transposed convolution, must be defined in the file of"):
        tconv.export(Outer(), torch.rand(1, 4, 3, 3), tmp_path / "o.py")


# --- Records ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["kb57", "kb64", "kb72", "kb77", "kb81", "BigVGAN*", "UNet.up3"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_parameters_depend_on_the_batch_as_stated(name, dtype):
    """What the planner records for other batches is what the expressions say, wherever it chooses the same kernel."""
    problem = select_problems([name])[0]
    compared = 0
    for direction in export_record.DIRECTIONS:
        question = {"gpu": "hopper", "direction": direction, "dtype": dtype, "precision": "tf32", "bias": False}
        base = export_record.record(problem, **question)
        for batch in (1, problem.batch + 1, 3 * problem.batch):
            other = export_record.record(replace(problem, batch=batch), **question)
            for one, two in zip(base.launches, other.launches, strict=False):
                if one.config != two.config or one.entry not in export_record.BATCH_RULES:
                    continue
                compared += 1
                fixed = set(export_record.BATCH_RULES[one.entry].members)
                values, others = export_record.launch_values(one), export_record.launch_values(two)
                varies = {name.split("[")[0] for name in fixed} | {"parts"}
                varies |= set(export_record.BATCH_STRIDES) if batch == 1 or problem.batch == 1 else set()
                for member, value in values.items():
                    assert value == others[member] or member in varies, (one.entry, member, value, others[member])
                if export_record.BATCH_RULES[one.entry].grid is None and "finish" not in one.entry:
                    parts = values.get("parts", 1), others.get("parts", 1)
                    assert one.grid[0] * parts[1] == two.grid[0] * parts[0]
    assert compared >= 1


def test_structures_are_read_by_their_declarations():
    text = (
        "struct Inner {\n  int a;\n  long long b[2];  // a comment; with a semicolon\n};\n"
        "struct Outer {\n  const void* first;\n  int x, y;\n  Inner inner[2];\n  float* last;\n};\n"
    )
    distance = export_record.MARKER_DISTANCE
    inner = struct.pack("<iiqq", 1, 0, 2, 3)
    data = struct.pack("<Qii", distance + 8, 4, 5) + inner + inner + struct.pack("<Q", 5 * distance)
    values = {field.name: value for field, value in export_record.read_parameters("Outer", data, text)}
    assert values == {
        "first": "at(tensors.input, 8)",
        "x": 4,
        "y": 5,
        "inner": [[1, [2, 3]], [1, [2, 3]]],
        "last": "static_cast<float*>(tensors.workspace)",
    }
    with pytest.raises(ValueError, match="must point at a marker"):
        export_record.read_parameters("Outer", data[:-8] + struct.pack("<Q", 9 * distance), text)


def test_parameters_are_those_of_the_branch_that_is_compiled():
    text = (
        "#define kWide 1\n#define kMany 2\n#if kWide\nusing Chosen = Wide;\n#ifdef OTHER\nint a;\n#endif\n#else\n"
        "using Chosen = Narrow;\n#ifdef OTHER\nint b;\n#endif\n#endif\n#if kMany\nint c;\n#else\nint d;\n#endif\n"
        "void kernel(const __grid_constant__ Chosen params);\n"
    )
    assert export_record.parameter_type("kernel", export_record.taken_branches(text)) == "Wide"
    narrow = export_record.taken_branches(text.replace("kWide 1", "kWide 0"))
    assert export_record.parameter_type("kernel", narrow) == "Narrow"
    assert [name for name in "abcd" if f"int {name};" in narrow] == ["b", "c", "d"]  # what is not known stays


def test_long_lines_are_broken_and_mean_the_same():
    numbers = ", ".join(map(str, range(100)))
    text = export_record.wrap(f'int a[] = {{{numbers}}};\n#define A {{{numbers}}}\nasm("{numbers}");')
    assert max(map(len, text.splitlines())) <= 120
    assert text.replace("\\\n", "").count("99") == 3
    assert text.replace(" \\\n    ", " ").count(numbers) == 1
    assert "".join(text.replace('"\n    "', "").split()).count("".join(numbers.split())) == 2
    assert exporter.raw("x") == 'r"""\nx\n"""\n'


# --- Examples --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["asymmetric", "kb65", "kb69", "kb75", "kb75_bias"])
def test_examples_have_the_parameters_of_pytorch(name):
    module = load_exported(ROOT / "examples" / "load_inline" / f"{name}.py")
    torch.manual_seed(1)
    new = module.ModelNew(*module.get_init_inputs())
    layer = next(child for child in new.modules() if isinstance(child, module.ConvTransposeNd))
    torch.manual_seed(1)
    old = getattr(nn, f"ConvTranspose{layer.rank}d")(
        layer.in_channels,
        layer.out_channels,
        layer.kernel_size,
        *(layer.stride, layer.padding, layer.output_padding, layer.groups),
        bias=name in ("asymmetric", "kb75_bias"),
        dilation=layer.dilation,
    )
    assert list(layer.state_dict()) == list(old.state_dict())
    assert all(torch.equal(value, old.state_dict()[key]) for key, value in layer.state_dict().items())
    call = module.call_of(module.get_inputs()[0].shape, layer.weight.shape, *geometry(layer))
    assert call.made_for is module.LAYERS[0]
    assert call.made_for["bias"] == (layer.bias is not None)
