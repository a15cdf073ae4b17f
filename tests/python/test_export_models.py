"""Models that are exported: what of their source stays, and what is refused."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import tconv
from exported_emulation import load_emulated, load_exported
from tconv.cli import main
from tconv.export_model import model_of_file, model_of_module
from tconv.export_source import ExportError, rewritten_source

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


def write_model(folder: Path, text: str = MODEL) -> Path:
    path = folder / "model.py"
    path.write_text(text)
    return path


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


def test_imports_may_share_a_statement(tmp_path):
    path, output = tmp_path / "model.py", tmp_path / "o.py"
    for before, after in (
        ("import torch\nimport torch.nn as nn\n", "import torch, torch.nn as nn\n"),
        ("import torch.nn.functional as F\n", "import torch, torch.nn.functional as F\n"),
        ("import torch.nn as nn\n", "from torch import nn, Tensor\n"),
    ):
        path.write_text(MODEL.replace(before, after))
        assert main(["export", "--model", str(path), "-o", str(output)]) == 0, after
        load_exported(output)
    path.write_text(MODEL.replace("import math\n", "import cmath as math\n"))
    assert main(["export", "--model", str(path), "-o", str(output)]) == 2


ANNOTATED = """
from __future__ import annotations
from dataclasses import dataclass
from typing import Optional
import torch
from torch import nn, Tensor

@dataclass
class Sizes:
    channels: int = 4
    kernel: Optional[int] = 3

class Model(nn.Module):
    def __init__(self, sizes: Optional[Sizes] = None):
        super().__init__()
        sizes = sizes or Sizes()
        self.up = nn.ConvTranspose2d(sizes.channels, 2, sizes.kernel)

    def forward(self, x: Tensor) -> Tensor:
        return self.up(x)

def get_inputs():
    return [torch.from_numpy(torch.rand(2, 4, 3, 3).numpy())]  # does not work on the meta device

def get_init_inputs():
    return []
"""


def test_types_that_are_named_come_along(tmp_path):
    path, output = write_model(tmp_path, ANNOTATED), tmp_path / "o.py"
    assert main(["export", "--model", str(path), "-o", str(output)]) == 0
    exec(output.read_text(), {})
    assert "The layer: n2 c4->2 i3x3 k3x3 with bias, float32" in output.read_text()


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
