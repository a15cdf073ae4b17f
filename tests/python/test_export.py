"""Exported files: their text, what they ask of the compiler, their parameters and errors."""

from __future__ import annotations

import ast
import inspect
import re

import pytest
import torch
from torch import nn

from exported_emulation import ROOT, export_layer, geometry, load_exported
from tconv.cli import main
from tconv.export_model import model_of_problem
from tconv.problems import select_problems


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
    standard = {"contextlib", "functools", "hashlib", "inspect", "math", "re", "struct", "subprocess", "tempfile"}
    assert imported == standard | {"torch", "unittest"}
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
    module.accepted = lambda *flags: flags
    assert "-gencode=arch=compute_90a,code=sm_90a" in module.compiler_flags("hopper")
    assert "--sharedmem32=0" in module.compiler_flags("hopper")
    assert not any("90" in flag or "sharedmem" in flag for flag in module.compiler_flags("ampere"))


def test_what_load_inline_is_asked(exported, monkeypatch):
    module = load_exported(exported)
    asked = {}

    def load_inline(name, cpp_sources, cuda_sources, **options):
        architectures = module.cpp_extension._get_cuda_arch_flags(["-O3"])
        asked.update(options, name=name, cpp=cpp_sources[0], cuda=cuda_sources[0], architectures=architectures)

    monkeypatch.setattr(module.cpp_extension, "load_inline", load_inline)
    monkeypatch.setattr(module, "accepted", lambda *flags: flags)
    made = module.LAYERS[0]["sets"]
    module.compile_set(module.pieces_for(module.FORWARD, made["hopper", "tf32"]), "hopper")
    assert asked["functions"] == ["run", "workspace"]
    assert asked["architectures"] == []  # none of PyTorch's own beside these
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
