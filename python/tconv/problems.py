"""The project's problem file: transposed convolutions by name, for tests and benchmarks.

Importing this module needs PyTorch only when tensors are asked for.
"""

from __future__ import annotations

import fnmatch
import functools
import json
import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

    import torch

KERNELBENCH = "kernelbench"
MODELS = "models"
INFERENCE = "inference"
SUITES = (KERNELBENCH, MODELS, INFERENCE, "all")

# Layers as a user runs them: one sample.
INFERENCE_NAMES = (
    "DCGAN.g3",
    "pix2pix_unet256.up5",
    "StyleGAN2ADA_dense.up64",
    "UNet.up3",
    "nnUNet3d.up2",
    "MaskRCNN.conv5_mask_infer",
    "SAM.up1_n1",
    "SAM.up2_n1",
    "HiFiGAN_v1.up0_infer",
    "HiFiGAN_v1.up3_infer",
    "BigVGAN_v2_aliasfree.act_C96",
    "EnCodec24k.up2",
    "DAC44k.up3",
    "FSRCNN.x2_1080p",
    "CenterNet_dla34.dla2",
    "WaveGlow.upsample_infer",
)

# The layers that started this project.
DEFAULT_NAMES = ("kb65", "kb69", "kb75")

# Multiply-adds of a problem that keeps PyTorch busy for 20 to 500 milliseconds on two cores.
CPU_MULTIPLY_ADDS = 2_500_000_000

_INPUT_STRIDES = (None, "channels_last")
_WEIGHT_STRIDES = (None, "transposed", "expanded")


@dataclass(frozen=True)
class Problem:
    """One transposed convolution: sizes, and the strides in which a model passes its tensors."""

    name: str
    batch: int
    in_channels: int
    out_channels: int
    input: tuple[int, ...]
    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    output_padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int = 1
    source: str = ""
    note: str = ""
    input_strides: str | None = None
    weight_strides: str | None = None
    post_crop: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        rank = len(self.input)
        for field in ("kernel", "stride", "padding", "output_padding", "dilation"):
            if len(getattr(self, field)) != rank:
                raise ValueError(f"{self.name}: {field} must have {rank} values, got {getattr(self, field)}")
        if not 1 <= rank <= 3:
            raise ValueError(f"{self.name}: input must have 1 to 3 sizes, got {self.input}")
        if self.input_strides not in _INPUT_STRIDES:
            raise ValueError(f"{self.name}: input_strides must be channels_last or absent, got {self.input_strides}")
        if self.weight_strides not in _WEIGHT_STRIDES:
            raise ValueError(f"{self.name}: weight_strides must be one of {_WEIGHT_STRIDES}, got {self.weight_strides}")

    @property
    def rank(self) -> int:
        return len(self.input)

    @property
    def suite(self) -> str:
        return KERNELBENCH if self.source.startswith("KernelBench") else MODELS

    @property
    def output(self) -> tuple[int, ...]:
        """Output sizes: (I - 1) s - 2 p + d (K - 1) + q + 1 on each axis."""
        axes = zip(self.input, self.kernel, self.stride, self.padding, self.output_padding, self.dilation, strict=True)
        return tuple((i - 1) * s - 2 * p + d * (k - 1) + q + 1 for i, k, s, p, q, d in axes)

    @property
    def input_shape(self) -> tuple[int, ...]:
        return (self.batch, self.in_channels, *self.input)

    @property
    def weight_shape(self) -> tuple[int, ...]:
        return (self.in_channels, self.out_channels // self.groups, *self.kernel)

    @property
    def output_shape(self) -> tuple[int, ...]:
        return (self.batch, self.out_channels, *self.output)

    @property
    def multiply_adds(self) -> int:
        """Multiply-adds of the forward pass; each gradient takes as many."""
        return math.prod(self.input_shape) * math.prod(self.weight_shape[1:])

    @property
    def elements(self) -> int:
        """Elements of input, weight and output together, each counted once; none where there is nothing to do."""
        if self.batch == 0:
            return 0
        weight = math.prod(self.kernel) if self.weight_strides == "expanded" else math.prod(self.weight_shape)
        return math.prod(self.input_shape) + weight + math.prod(self.output_shape)

    def arguments(self) -> dict[str, Any]:
        """The keyword arguments of `conv_transpose*d` besides the tensors."""
        return {
            "stride": self.stride,
            "padding": self.padding,
            "output_padding": self.output_padding,
            "groups": self.groups,
            "dilation": self.dilation,
        }

    def describe(self) -> str:
        """The problem in one short line."""

        def sizes(values: Iterable[int]) -> str:
            return "x".join(map(str, values))

        text = f"n{self.batch} c{self.in_channels}->{self.out_channels} i{sizes(self.input)} k{sizes(self.kernel)}"
        for letter, values, usual in (
            ("s", self.stride, 1),
            ("p", self.padding, 0),
            ("op", self.output_padding, 0),
            ("d", self.dilation, 1),
        ):
            if any(value != usual for value in values):
                text += f" {letter}{sizes(values)}"
        return text + (f" g{self.groups}" if self.groups != 1 else "")

    def scaled(self, multiply_adds: float = CPU_MULTIPLY_ADDS) -> Problem:
        """The problem cut to about `multiply_adds`: fewer samples first, then less space.

        Channels, kernel, stride, dilation and groups stay, so that the same code runs; a problem that is small
        already is returned as it is, and one whose channels alone are too much stays larger than asked for.
        """
        if self.multiply_adds <= multiply_adds:
            return self
        batch = max(1, int(self.batch * multiply_adds / self.multiply_adds))
        cut = replace(self, batch=batch)
        if cut.multiply_adds > multiply_adds:
            cut = replace(cut, input=cut._shrunken_space(multiply_adds))
        return cut

    def _shrunken_space(self, multiply_adds: float) -> tuple[int, ...]:
        # The last axis must still give one output, and below four cells a layer is all edge.
        least = [
            min(i, max(4, -(-(2 * p - d * (k - 1) - q) // s) + 1))
            for i, k, s, p, q, d in zip(
                self.input, self.kernel, self.stride, self.padding, self.output_padding, self.dilation, strict=True
            )
        ]
        sizes = list(self.input)
        per_cell = self.multiply_adds / math.prod(self.input)
        free = [axis for axis in range(self.rank) if sizes[axis] > least[axis]]
        while free and math.prod(sizes) * per_cell > multiply_adds:
            factor = (multiply_adds / (math.prod(sizes) * per_cell)) ** (1 / len(free))
            for axis in free:
                sizes[axis] = max(least[axis], math.floor(sizes[axis] * factor))
            free = [axis for axis in free if sizes[axis] > least[axis]]
        return tuple(sizes)

    def make_input(
        self,
        dtype: torch.dtype | None = None,
        device: torch.device | str = "cpu",
        *,
        channels_last: bool = False,
        generator: torch.Generator | None = None,
    ) -> torch.Tensor:
        """A random normal input in the strides that the model passes (channels-last if asked for)."""
        import torch

        if channels_last or self.input_strides == "channels_last":
            shape = (self.batch, *self.input, self.in_channels)
            dense = torch.randn(shape, dtype=dtype, device=device, generator=generator)
            return dense.movedim(-1, 1)
        return torch.randn(self.input_shape, dtype=dtype, device=device, generator=generator)

    def make_weight(
        self,
        dtype: torch.dtype | None = None,
        device: torch.device | str = "cpu",
        *,
        channels_last: bool = False,
        generator: torch.Generator | None = None,
    ) -> torch.Tensor:
        """A random weight in the strides that the model passes, scaled so that outputs are of the order of one."""
        import torch

        # An output sums over about kernel/stride taps per axis.
        terms = self.in_channels // self.groups * math.prod(self.kernel) / math.prod(self.stride)
        scale = 1 / math.sqrt(max(1.0, terms))

        def normal(*shape: int) -> torch.Tensor:
            return torch.randn(shape, dtype=dtype, device=device, generator=generator) * scale

        in_channels, out_channels, *kernel = self.weight_shape
        if self.weight_strides == "transposed":
            return normal(out_channels, in_channels, *kernel).transpose(0, 1)
        if self.weight_strides == "expanded":
            return normal(1, 1, *kernel).expand(self.weight_shape)
        if channels_last:
            return normal(in_channels, *kernel, out_channels).movedim(-1, 1)
        return normal(*self.weight_shape)

    def make_bias(
        self,
        dtype: torch.dtype | None = None,
        device: torch.device | str = "cpu",
        *,
        generator: torch.Generator | None = None,
    ) -> torch.Tensor:
        """A random normal bias."""
        import torch

        return torch.randn(self.out_channels, dtype=dtype, device=device, generator=generator)


def problem_file() -> Path:
    """Where the problem file is: in the package, or in the source checkout around it."""
    here = Path(__file__).resolve().parent
    candidates = (here / "problems.json", here.parent.parent / "benchmarks" / "problems.json")
    for path in candidates:
        if path.is_file():
            return path
    raise FileNotFoundError("problems.json is missing; looked for " + " and ".join(map(str, candidates)))


def problem_from(entry: dict[str, Any]) -> Problem:
    """A problem from an entry of the problem file; its stated output must be what its sizes give."""
    fields = {key: tuple(value) if isinstance(value, list) else value for key, value in entry.items()}
    stated = fields.pop("output", None)
    problem = Problem(**fields)
    if stated is not None and stated != problem.output:
        raise ValueError(f"{problem.name}: output must be {problem.output}, got {stated}")
    return problem


@functools.cache
def load_problems(path: Path | None = None) -> tuple[Problem, ...]:
    """All problems of the file, in its order."""
    with (path or problem_file()).open(encoding="utf-8") as file:
        entries = json.load(file)["problems"]
    return tuple(problem_from(entry) for entry in entries)


def select_problems(patterns: Iterable[str] = (), suite: str | None = None) -> list[Problem]:
    """Problems by name or glob (case-insensitive), or those of a suite, in the file's order.

    Raises LookupError, with names that come close, when a pattern selects nothing.
    """
    problems = load_problems()
    patterns = list(patterns)
    if suite is not None:
        if suite not in SUITES:
            raise LookupError(f"suite must be one of {', '.join(SUITES)}, got {suite!r}")
        if suite == INFERENCE:
            problems = tuple(replace(p, batch=1) for p in problems if p.name in INFERENCE_NAMES)
        else:
            problems = tuple(p for p in problems if suite in ("all", p.suite))
    if not patterns:
        return list(problems)
    chosen: set[str] = set()
    for pattern in patterns:
        found = {p.name for p in problems if fnmatch.fnmatchcase(p.name.lower(), pattern.lower())}
        if not found:
            raise LookupError(_nothing_found(pattern, problems))
        chosen |= found
    return [p for p in problems if p.name in chosen]


def _nothing_found(pattern: str, problems: Iterable[Problem]) -> str:
    import difflib

    names = {p.name.lower(): p.name for p in problems}
    close = [names[n] for n in difflib.get_close_matches(pattern.lower(), names, n=3, cutoff=0.5)]
    close += [name for lower, name in names.items() if pattern.lower() in lower and name not in close][:3]
    hint = f"; did you mean {', '.join(close)}?" if close else "; `python -m tconv explain --list` shows the names"
    return f"no problem is called {pattern!r}{hint}"
