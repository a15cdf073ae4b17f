"""nn.ConvTranspose2d: its transposed convolutions as CUDA kernels, in one file.

ModelNew takes the arguments of the original, has the same parameters from the same seed, and computes the same outputs
and gradients. It needs an NVIDIA GPU, PyTorch 1.13 or later, CUDA 11.7 or later with nvcc, and no other package.
Kernels are compiled by torch.utils.cpp_extension.load_inline when they are first needed, the gradients apart from
forward, and kept on disk by PyTorch. Written by tconv 0.1.0 (python -m tconv export).

What follows: Python that compiles, checks and calls (Compiling, Calls, Gradients), the layer in place of
nn.ConvTranspose (The layer), the model itself (The model), and the CUDA source (Data): PIECES has, for each direction
and kind of GPU, the constants of a layer's kernels and the function that launches them, FILES the device code that
they include.

The index mathematics. Along each axis, with input length I, kernel K, stride s, padding p, output padding q and
dilation d,

    O = (I - 1) s - 2 p + d (K - 1) + q + 1
    y[o] = b + sum of x[i] w[k] over the taps k with  o + p = i s + k d  and  0 <= i < I

The weight is [in_channels, out_channels / groups, K...]. Write o + p = c s + r: the cell c and the residue r. With
g = gcd(s, d), taps reach o only if g divides r; they are k = k0 + t (s / g), t = 0, 1, ..., and tap k reads
i = (o + p - k0 d) / s - t (d / g). So every residue, a phase, is a dense correlation of its own few taps, and no zeros
are inserted anywhere. The gradient of the input is the same map read the other way, dx[i] = sum over k of
w[k] dy[i s - p + k d]; the gradient of the weight is dw[k] = sum over samples and i of x[i] dy[i s - p + k d]; that of
the bias is the sum of dy.

The layer: n8 c24->40 i48x80 k3x5 s2x3 p1x2 op1x2 d2x3 with bias, float32
(n samples, c channels, i input, k kernel, s stride, p padding, op output padding, d dilation, g groups).
Output [8, 40, 98, 248]; phases along each axis: height 2 (1 with taps), width 3 (1 with taps).
For these sizes, and any batch, it is computed as follows; other sizes and types by general kernels.
    forward: tile (1 phases x 40 channels by 1x1x2x28 cells, depth 8x9 of 24x15, streams to warpgroups 1x1x1 of
        40x64, 600 blocks (3 per multiprocessor), 57 KiB shared, weights packed) [Hopper, TF32]
    forward: tile (1 phases x 40 channels by 1x1x2x28 cells, depth 8x6 of 24x15, streams to warpgroups 1x1x1 of
        40x64, 600 blocks (2 per multiprocessor), 87 KiB shared, weights packed) [Hopper, strict]
    forward: tile (1 phases x 16 channels by 1x1x6x42 cells, depth 8x15 of 24x15, warps 1x2x4 of 16x128, 432 blocks
        (1 per multiprocessor), 38 KiB shared, weights in place) [8.0 and later, TF32]
    forward: tile (1 phases x 16 channels by 1x1x1x28 cells, depth 8x15 of 24x15, warps 1x2x4 of 16x16, 3600 blocks
        (2 per multiprocessor), 28 KiB shared, weights packed) [8.0 and later, strict]
    grad_input: tile (24 channels by 1x1x3x20 cells, depth 8x15 of 40x15 in 1x1 planes, warps 1x2x4 of 32x32, 512
        blocks (2 per multiprocessor), 52 KiB shared, weights packed) [Hopper, TF32]
    grad_input: tile (32 channels by 1x1x6x40 cells, depth 8x15 of 40x15 in 1x1 planes, streams to warpgroups 1x2x1
        of 32x128, 128 blocks (1 per multiprocessor), 217 KiB shared, weights packed) [Hopper, strict]
    grad_input: tile (16 channels by 1x1x4x16 cells, depth 8x15 of 40x15 in 1x1 planes, warps 1x1x4 of 16x64, 960
        blocks (3 per multiprocessor), 30 KiB shared, weights packed) [8.0 and later, TF32]
    grad_input: tile (16 channels by 1x1x2x16 cells, depth 8x15 of 40x15 in 1x1 planes, warps 1x2x4 of 16x16, 1920
        blocks (2 per multiprocessor), 27 KiB shared, weights packed) [8.0 and later, strict]
    grad_weight: reduce (64 out channels by 1x1x5 taps x 24 channels; 1x1x1x88 pixels at a time, warpgroups 1x1x1 of
        64x120 and 8 warps that load, copies of 1 and 4, 44 parts, 132 blocks (1 per multiprocessor), 195 KiB
        shared) [Hopper, TF32]
    grad_weight: reduce (64 out channels by 1x1x5 taps x 24 channels; 1x1x1x88 pixels at a time, warpgroups 1x1x1 of
        64x120 and 8 warps that load, copies of 1 and 4, 44 parts, 132 blocks (1 per multiprocessor), 204 KiB
        shared) [Hopper, strict]
    grad_weight: reduce (32 in channels by 1x1x5 taps x 40 channels; 1x1x4x16 pixels at a time, warps 2x1x1 of
        16x208, vectors of 4 and 1, 72 parts, 216 blocks (2 per multiprocessor), 45 KiB shared) [8.0 and later,
        TF32]
    grad_weight: reduce (16 out channels by 1x3x5 taps x 8 channels; 1x1x2x28 pixels at a time, warps 1x1x3 of
        16x48, vectors of 1 and 2, 24 parts, 216 blocks (2 per multiprocessor), 24 KiB shared) [8.0 and later,
        strict]

The kinds of kernel:
    tile: a matrix product on tensor cores: rows are output channels (of several phases, where that fills a tile),
        columns are cells of the output, and the depth is (tap, input channel). A block keeps a patch of the input
        in shared memory, in which a tap is one shift, and reads weights that a first small kernel has put in its
        order.
    reduce: a matrix product on tensor cores whose depth is the pixels: rows are input channels, columns (tap,
        output channel). Pixels are cut into parts so that few weights fill the GPU; a second kernel adds them in
        order.
    general: a thread gathers the taps of its outputs from memory; it takes every layer, in 64-bit offsets.
"""

import contextlib
import functools
import hashlib
import inspect
import math
import re
import struct
import subprocess
import tempfile
from unittest import mock

import torch
from torch import nn
from torch.utils import cpp_extension

FORWARD, GRAD_INPUT, GRAD_WEIGHT, GRAD_BIAS = range(4)
ELEMENTS = {torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16"}


# --- Compiling ------------------------------------------------------------------------------------------------------


def expand(text):
    """The text with every file of FILES that it includes in its place, once in each namespace that it opens."""

    def lines_of(text, done):
        for line in text.splitlines():
            found = re.match(r'\s*#\s*include\s+"([^"]+)"', line)
            if found is None:
                yield line
            elif found[1] not in done:
                done.add(found[1])
                yield from lines_of(FILES[found[1]], done)

    lines, done = [], set()
    for line in text.splitlines():
        if line.startswith("namespace ") and line.endswith("{"):
            done = set()
        lines.extend(lines_of(line, done))
    return "\n".join(lines) + "\n"


@functools.lru_cache(None)
def toolkit_version():
    """The version of nvcc, such as (12, 4)."""
    home = cpp_extension.CUDA_HOME
    if home is None:
        raise RuntimeError("no CUDA toolkit was found: install nvcc 11.7 or later, or set CUDA_HOME")
    text = subprocess.run([home + "/bin/nvcc", "--version"], stdout=subprocess.PIPE, check=True).stdout.decode()
    return tuple(map(int, re.search(r"release (\d+)\.(\d+)", text).groups()))


@functools.lru_cache(None)
def accepted(*flags):
    """The flags, if nvcc takes them; none otherwise."""
    if cpp_extension.CUDA_HOME is None:
        return ()
    with tempfile.TemporaryDirectory() as folder, open(folder + "/empty.cu", "w"):
        command = [cpp_extension.CUDA_HOME + "/bin/nvcc", *flags, "-ptx", "empty.cu", "-o", "empty.ptx"]
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        failed = subprocess.run(command, cwd=folder, **quiet).returncode
    return () if failed else flags


def capability_of(device):
    return torch.cuda.get_device_capability(device)


def choose_gpu(capability, toolkit):
    """Which kernels a GPU gets: Hopper's own, those for 8.0 and later, or the general ones."""
    if capability == (9, 0) and toolkit >= (12, 0):
        return "hopper"
    return "ampere" if capability >= (8, 0) else "general"


def compiler_flags(gpu):
    flags = ["-O3", "-std=c++17", "--expt-relaxed-constexpr", "-w"]
    if gpu == "hopper":
        # Shared memory by pointers of 64 bits, as NVRTC has them: ptxas orders the products better.
        return [*flags, "-gencode=arch=compute_90a,code=sm_90a", *accepted("-Xcicc", "--sharedmem32=0")]
    if gpu == "ampere":  # code for 8.x, and PTX for what is newer than the compiler
        return [*flags, "-gencode=arch=compute_80,code=[sm_80,compute_80]"]
    return flags


def pieces_for(direction, pieces):
    """Those of a layer's four pieces that are compiled together: forward alone, so that a model that is never trained
    waits for nothing else, and the gradients."""
    return (pieces[0], "end_forward") if direction == FORWARD else (*pieces[1:], "end_gradients")


@functools.lru_cache(None)
def compile_set(pieces, gpu):
    """Compiles a set of pieces. PyTorch keeps the result on disk."""
    text = expand("\n".join(PIECES[name] for name in ("begin", *pieces)))
    host = expand(HOST)
    flags = compiler_flags(gpu)
    name = "tconv_" + hashlib.sha256("\n".join([text, host, *flags]).encode()).hexdigest()[:16]
    # Many versions of PyTorch add flags for the GPU that they see, even where others are given: 9.0 besides 9.0a.
    as_they_are = contextlib.nullcontext()
    if any("-gencode" in flag for flag in flags):
        as_they_are = mock.patch.object(cpp_extension, "_get_cuda_arch_flags", lambda *_: [], create=True)
    options = {}
    if "no_implicit_headers" in inspect.signature(cpp_extension.load_inline).parameters:
        options["no_implicit_headers"] = True  # none of PyTorch's headers is needed: seconds instead of many
    with as_they_are:
        return cpp_extension.load_inline(
            name,
            [host],
            [text],
            functions=["run", "workspace"],
            extra_cuda_cflags=flags,
            with_cuda=True,
            with_pytorch_error_handling=False,
            **options,
        )


# --- Calls ----------------------------------------------------------------------------------------------------------


MIXED_SWITCHES = contextlib.suppress(RuntimeError)  # the older switch can't tell what the newer one was set to


def tf32_allowed():
    """PyTorch's switch: torch.backends.cudnn.allow_tf32, or the newer one, which knows convolutions apart."""
    with MIXED_SWITCHES:
        return torch._C._get_cudnn_allow_tf32()
    return torch.backends.cudnn.conv.fp32_precision == "tf32"


class Call:
    """What a call with these sizes needs: worked out once, looked up afterwards."""

    def __init__(self, input_shape, weight_shape, stride, padding, output_padding, dilation, groups):
        rank = len(stride)
        name = f"ConvTranspose{rank}d"
        if len(input_shape) != rank + 2:
            expected = f"{rank + 1} (unbatched) or {rank + 2} dimensions"
            raise RuntimeError(f"{name}: expected an input of {expected}, got the size {tuple(input_shape)}")
        if input_shape[1] != weight_shape[0]:
            raise RuntimeError(f"{name}: expected an input of {weight_shape[0]} channels, got {input_shape[1]}")
        sizes = zip(input_shape[2:], weight_shape[2:], stride, padding, output_padding, dilation)
        axes = [(i, k, s, d, p, (i - 1) * s - 2 * p + d * (k - 1) + q + 1) for i, k, s, p, q, d in sizes]
        output = tuple(axis[5] for axis in axes)
        if min(output) < 1 or min(input_shape[1:]) < 1:
            raise RuntimeError(
                f"{name}: an input of the size {tuple(input_shape)} gives an output of the size {output}"
            )
        channels = weight_shape[1] * groups
        axes = [(1, 1, 1, 1, 0, 1)] * (3 - rank) + axes
        self.numbers = [input_shape[0], input_shape[1], channels, groups, *(number for axis in axes for number in axis)]
        self.shapes = {
            FORWARD: [input_shape[0], channels, *output],
            GRAD_INPUT: list(input_shape),
            GRAD_WEIGHT: list(weight_shape),
            GRAD_BIAS: [channels],
        }
        self.made_for = next((made for made in LAYERS if made["numbers"] == self.numbers[1:]), None)
        if self.made_for is not None and self.numbers[0] > self.made_for["most_samples"]:
            self.made_for = None
        self.layer = struct.pack("22q", *self.numbers)
        self.known = {}

    def prepared(self, direction, tensor):
        """What runs a direction on a tensor's device and type: the compiled set, whether it adds a bias (None: if there
        is one), and the elements of its workspace. Compiled when it is first asked for."""
        key = (direction, tensor.device, tensor.dtype, tf32_allowed())
        found = self.known.get(key)
        if found is None:
            require_gpu(tensor)
            kernels, bias = self.choose(*key)
            workspace = -(-kernels.workspace(direction, self.layer) // tensor.element_size())
            found = self.known[key] = (kernels, bias, workspace)
        return found

    def choose(self, direction, device, dtype, tf32):
        gpu = choose_gpu(capability_of(device), toolkit_version())
        element, made = ELEMENTS[dtype], self.made_for
        if gpu == "general" or made is None or made["dtype"] != element:
            names = ("forward_", "grad_input_", "grad_weight_", "grad_bias_")
            return compile_set(pieces_for(direction, [name + element for name in names]), gpu), None
        precision = "tf32" if tf32 and dtype == torch.float32 else "strict"
        return compile_set(pieces_for(direction, made["sets"][gpu, precision]), gpu), made["bias"]

    def compute(self, direction, first, second, bias=None):
        """Reads input and weight, output gradient and weight, input and output gradient, or the output gradient."""
        if self.numbers[0] == 0:
            require_gpu(first)
            return first.new_zeros(self.shapes[direction])
        kernels, adds_bias, size = self.prepared(direction, first)
        result = first.new_empty(self.shapes[direction])
        later = None
        if direction == FORWARD and adds_bias is not None and adds_bias != (bias is not None):
            # The kernel was made for a layer that has a bias, or for one that has none.
            later, bias = (bias, None) if bias is not None else (None, first.new_zeros(self.shapes[GRAD_BIAS]))
        first, a = dense(first)
        second, b = dense(second)
        bias, c = (None, 0) if bias is None else dense(bias)
        out = result.data_ptr()
        workspace = first.new_empty(size) if size else None
        if direction == FORWARD:
            addresses = (a, b, c, out)
        elif direction == GRAD_INPUT:
            addresses = (out, b, 0, a)
        elif direction == GRAD_WEIGHT:
            addresses = (a, out, 0, b)
        else:
            addresses = (0, 0, out, a)
        launch(kernels, direction, (*addresses, workspace.data_ptr() if size else 0), self.layer, first.device)
        if later is not None:
            result += later.detach().reshape(-1, *[1] * (result.dim() - 2))
        return result


def require_gpu(tensor):
    if not tensor.is_cuda:
        raise RuntimeError(
            f"this layer runs on NVIDIA GPUs: expected a CUDA tensor, got one on {tensor.device}. "
            "Move the model and its input with .cuda()"
        )


def launch(kernels, direction, addresses, layer, device):
    stream = torch._C._cuda_getCurrentRawStream(device.index)  # torch.cuda.current_stream() makes an object of it
    failure = kernels.run(direction, *addresses, layer, device.index, stream)
    if failure:
        raise RuntimeError("a transposed convolution could not be launched: " + failure)


def dense(tensor):
    """A tensor without gaps, aligned as the kernels' vectors of 16 bytes need it, and its address."""
    address = tensor.data_ptr()
    if address % 16 or not tensor.is_contiguous():
        tensor = tensor.contiguous() if address % 16 == 0 else tensor.clone(memory_format=torch.contiguous_format)
        address = tensor.data_ptr()
    return tensor, address


call_of = functools.lru_cache(4096)(Call)


# --- Gradients ------------------------------------------------------------------------------------------------------
# The three operations are linear in each tensor, and each one's gradients are the other two: backward can be
# differentiated again.


def conv_transpose(x, weight, bias, call):
    """The output. Kernels run first, and autograd hears of it while they do: a GPU that waits has no other work."""
    result = call.compute(FORWARD, x, weight, bias)
    if torch.is_grad_enabled() and (
        x.requires_grad or weight.requires_grad or (bias is not None and bias.requires_grad)
    ):
        return ConvTransposeFunction.apply(x, weight, bias, call, [result])
    return result


class ConvTransposeFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, bias, call, results):
        ctx.save_for_backward(x, weight)
        ctx.call = call
        return results.pop()

    @staticmethod
    def backward(ctx, grad):
        x, weight = ctx.saved_tensors
        wants = ctx.needs_input_grad
        return (
            GradInputFunction.apply(grad, weight, ctx.call) if wants[0] else None,
            GradWeightFunction.apply(x, grad, ctx.call) if wants[1] else None,
            GradBiasFunction.apply(grad, ctx.call) if wants[2] else None,
            None,
            None,
        )


class GradInputFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx, grad, weight, call):
        ctx.save_for_backward(grad, weight)
        ctx.call = call
        return call.compute(GRAD_INPUT, grad, weight)

    @staticmethod
    def backward(ctx, x):
        grad, weight = ctx.saved_tensors
        wants = ctx.needs_input_grad
        return (
            conv_transpose(x, weight, None, ctx.call) if wants[0] else None,
            GradWeightFunction.apply(x, grad, ctx.call) if wants[1] else None,
            None,
        )


class GradWeightFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, grad, call):
        ctx.save_for_backward(x, grad)
        ctx.call = call
        return call.compute(GRAD_WEIGHT, x, grad)

    @staticmethod
    def backward(ctx, weight):
        x, grad = ctx.saved_tensors
        wants = ctx.needs_input_grad
        return (
            GradInputFunction.apply(grad, weight, ctx.call) if wants[0] else None,
            conv_transpose(x, weight, None, ctx.call) if wants[1] else None,
            None,
        )


class GradBiasFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx, grad, call):
        ctx.shape = grad.shape
        return call.compute(GRAD_BIAS, grad, grad)

    @staticmethod
    def backward(ctx, bias):
        return bias.reshape(-1, *[1] * (len(ctx.shape) - 2)).expand(ctx.shape), None


# --- The layer ------------------------------------------------------------------------------------------------------


class ConvTransposeNd(nn.Module):
    """nn.ConvTranspose: its arguments, parameters, initialisation and state, with the kernels of this file."""

    rank = 0
    last = (None, None)  # sizes and types of the last call, and what it needed

    def __init__(
        self,
        in_channels,
        out_channels,
        kernel_size,
        stride=1,
        padding=0,
        output_padding=0,
        groups=1,
        bias=True,
        dilation=1,
        padding_mode="zeros",
        device=None,
        dtype=None,
    ):
        super().__init__()
        if padding_mode != "zeros":
            raise ValueError(f"only the padding_mode 'zeros' is supported, got {padding_mode!r}")
        if groups < 1 or in_channels % groups or out_channels % groups:
            raise ValueError(f"channels must be divisible by groups, got {in_channels}, {out_channels} and {groups}")
        self.in_channels = in_channels
        self.out_channels = out_channels
        self.kernel_size = self.per_axis("kernel_size", kernel_size, 1)
        self.stride = self.per_axis("stride", stride, 1)
        self.padding = self.per_axis("padding", padding, 0)
        self.output_padding = self.per_axis("output_padding", output_padding, 0)
        self.dilation = self.per_axis("dilation", dilation, 1)
        self.groups = groups
        self.padding_mode = padding_mode
        for q, s, d in zip(self.output_padding, self.stride, self.dilation):
            if q >= max(s, d):
                raise ValueError(f"output_padding must be smaller than stride or dilation, got {q}, {s} and {d}")
        kwargs = {"device": device, "dtype": dtype}
        self.weight = nn.Parameter(torch.empty(in_channels, out_channels // groups, *self.kernel_size, **kwargs))
        self.register_parameter("bias", nn.Parameter(torch.empty(out_channels, **kwargs)) if bias else None)
        self.reset_parameters()

    def per_axis(self, name, value, least):
        values = (value,) * self.rank if isinstance(value, int) else tuple(value)
        if len(values) != self.rank or min(values) < least:
            raise ValueError(f"{name} must be {self.rank} numbers of at least {least}, got {value}")
        return values

    def reset_parameters(self):
        # As nn.ConvTranspose does it, so that the same seed gives the same parameters.
        nn.init.kaiming_uniform_(self.weight, a=math.sqrt(5))
        if self.bias is not None:
            bound = 1 / math.sqrt(self.weight[0].numel())
            nn.init.uniform_(self.bias, -bound, bound)

    def extra_repr(self):
        text = f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size}, stride={self.stride}"
        for name, usual in (("padding", 0), ("output_padding", 0), ("dilation", 1)):
            if any(value != usual for value in getattr(self, name)):
                text += f", {name}={getattr(self, name)}"
        text += f", groups={self.groups}" if self.groups != 1 else ""
        return text + (", bias=False" if self.bias is None else "")

    def output_padding_for(self, x, output_size):
        """The output_padding that makes the output as large as asked for."""
        wanted = tuple(output_size)[-self.rank :]
        none = (0,) * self.rank
        call = call_of(x.shape, self.weight.shape, self.stride, self.padding, none, self.dilation, self.groups)
        least = call.shapes[FORWARD][2:]
        found = tuple(size - smallest for size, smallest in zip(wanted, least))
        if len(wanted) != self.rank or any(not 0 <= q < s for q, s in zip(found, self.stride)):
            raise ValueError(
                f"output_size must be from {tuple(least)} on, by less than the stride, got {tuple(output_size)}"
            )
        return found

    def forward(self, x, output_size=None):
        weight, bias = self._parameters.get("weight"), self._parameters.get("bias")
        if weight is None:  # worked out anew for every call, as under weight_norm
            weight = self.weight
        if torch.is_autocast_enabled() and x.is_cuda and x.dtype != torch.float64:
            dtype = torch.get_autocast_gpu_dtype()
            x, weight, bias = x.to(dtype), weight.to(dtype), None if bias is None else bias.to(dtype)
        # A call like the last one was checked then: short kernels wait for what is done here.
        asked = (x.shape, x.dtype, x.device, weight.shape, weight.dtype, weight.device)
        asked += (self.stride, self.padding, self.output_padding, self.dilation, self.groups, output_size)
        known, call = self.last
        if asked != known:
            if x.dim() == self.rank + 1:
                return self.forward(x.unsqueeze(0), output_size).squeeze(0)
            call = self.checked_call(x, weight, output_size)
            self.__dict__["last"] = (asked, call)
        if bias is not None and (bias.dtype != x.dtype or bias.device != x.device):
            self.refuse("bias", bias, x)
        return conv_transpose(x, weight, bias, call)

    def checked_call(self, x, weight, output_size):
        if x.dtype not in ELEMENTS:
            raise TypeError(f"expected float64, float32, float16 or bfloat16, got {x.dtype}")
        if weight.dtype != x.dtype or weight.device != x.device:
            self.refuse("weight", weight, x)
        padding = self.output_padding if output_size is None else self.output_padding_for(x, output_size)
        return call_of(x.shape, weight.shape, self.stride, self.padding, padding, self.dilation, self.groups)

    def __getstate__(self):  # copies work out their own
        return {name: value for name, value in self.__dict__.items() if name != "last"}

    def refuse(self, name, tensor, x):
        raise RuntimeError(
            f"input and {name} must have one type and device, got {x.dtype} on {x.device} and "
            f"{tensor.dtype} on {tensor.device}"
        )


class ConvTranspose1d(ConvTransposeNd):
    rank = 1


class ConvTranspose2d(ConvTransposeNd):
    rank = 2


class ConvTranspose3d(ConvTransposeNd):
    rank = 3


# --- The model --------------------------------------------------------------------------------------------------------


class ModelNew(nn.Module):
    def __init__(
        self,
        in_channels=24,
        out_channels=40,
        kernel_size=(3, 5),
        stride=(2, 3),
        padding=(1, 2),
        output_padding=(1, 2),
        dilation=(2, 3),
        bias=True,
        *,
        groups=1,
    ):
        super().__init__()
        self.conv_transpose2d = ConvTranspose2d(
            in_channels=in_channels,
            out_channels=out_channels,
            kernel_size=kernel_size,
            stride=stride,
            padding=padding,
            output_padding=output_padding,
            dilation=dilation,
            bias=bias,
            groups=groups,
        )

    def forward(self, x):
        return self.conv_transpose2d(x)


def get_inputs():
    return [torch.rand(8, 24, 48, 80)]


def get_init_inputs():
    return []


# --- Data -------------------------------------------------------------------------------------------------------------
# The layers that kernels were made for. Their numbers: channels in and out, groups, and for each axis
# (depth, height, width) input, kernel, stride, dilation, padding and output. Their sets: pieces, by GPU and
# precision.
LAYERS = [
    {
        "numbers": [24, 40, 1, 1, 1, 1, 1, 0, 1, 48, 3, 2, 2, 1, 98, 80, 5, 3, 3, 2, 248],
        "dtype": "F32",
        "bias": True,
        "most_samples": 1048576,
        "sets": {
            ("hopper", "tf32"): (
                "forward_hopper_tf32",
                "grad_input_hopper_tf32",
                "grad_weight_hopper_tf32",
                "grad_bias_F32",
            ),
            ("hopper", "strict"): (
                "forward_hopper_strict",
                "grad_input_hopper_strict",
                "grad_weight_hopper_strict",
                "grad_bias_F32",
            ),
            ("ampere", "tf32"): (
                "forward_ampere_tf32",
                "grad_input_ampere_tf32",
                "grad_weight_ampere_tf32",
                "grad_bias_F32",
            ),
            ("ampere", "strict"): (
                "forward_ampere_strict",
                "grad_input_ampere_strict",
                "grad_weight_ampere_strict",
                "grad_bias_F32",
            ),
        },
    },
]

HOST = r"""
// What Python calls: pointers and sizes as numbers. Sizes, types and devices were checked there.
#include <pybind11/pybind11.h>

#include <cstring>
#include <string>

#include "interface.h"

using Address = unsigned long long;

static Layer layer_of(const std::string& bytes) {
  Layer layer;
  std::memcpy(&layer, bytes.data(), sizeof(layer));
  return layer;
}

static void* pointer(Address address) { return reinterpret_cast<void*>(address); }

// An empty text, or what went wrong.
std::string run(int direction, Address input, Address weight, Address bias, Address output, Address workspace,
                const std::string& layer, int device, Address stream) {
  const Tensors tensors = {pointer(input), pointer(weight), pointer(bias), pointer(output), pointer(workspace)};
  const int error = launch_on(device, direction, tensors, layer_of(layer), pointer(stream));
  return error == 0 ? std::string() : error_text(error);
}

long long workspace(int direction, const std::string& layer) { return workspace_bytes(direction, layer_of(layer)); }
"""

# Kernels, each in a namespace of its own, and the functions that launch them.
PIECES = {}
PIECES["begin"] = r"""
#include "interface.h"
#include "launch.cuh"
"""
PIECES["forward_hopper_tf32"] = r"""
// forward, tile: 1 phases x 40 channels by 1x1x2x28 cells, depth 8x9 of 24x15, streams to warpgroups 1x1x1 of 40x64,
// 600 blocks (3 per multiprocessor), 57 KiB shared, weights packed
namespace forward_2_kernel {
#include "tile_params.cuh"
using Element = float;
__device__ constexpr TileShape kShape = {static_cast<TileMath>(0), 4, 24, 40, {1, 3, 5}, {1, 2, 3}, {1, 2, 3},
    true, false, {1, 3, 5}, {1, 1, 1}, {1, 1, 1}, {1, 2, 3}, {1, 1, 1}, {0ULL, 18446744073709551600ULL,
    18446744073709551600ULL}, {0ULL, 0ULL, 0ULL}, {1, 1, 1}, {1, 1, 1}, {1, 1, 2, 28}, 40, true, true, 40, 4, 0, 3,
    4, 1, 5, 1, false, 2147483647, 0, 1, 0, 0, false, false, false, 1, 8, 1, 1, 1, 1, 2, 1, 9, 0, true, 3, true,
    false, 1, {0, 0, 0}, false, false, true, false, false, false};
__device__ constexpr int kFixedBackCells[] = {272, 144, 16, 268, 140, 12, 264, 136, 8, 260, 132, 4, 256, 128, 0, };
__device__ constexpr unsigned kFixedBackRows[] = {1u, 1u, 1u, 1u, 1u, 1u, 1u, 1u, 1u, 1u, 1u, 1u, 1u, 1u, 1u, };
__constant__ int kBackCells[] = {272, 144, 16, 268, 140, 12, 264, 136, 8, 260, 132, 4, 256, 128, 0, };
__constant__ unsigned kBackRows[] = {1u, 1u, 1u, 1u, 1u, 1u, 1u, 1u, 1u, 1u, 1u, 1u, 1u, 1u, 1u, };
#define kClusterAttribute
#define kMaps 0
#define kTensorCopies 0
#define kWeights 0
#define kUnevenPlanes 0
#define kStores 0
__device__ __forceinline__ void multiply(float (&d)[5][4], const unsigned (&a)[4], unsigned long long b) {
  asm volatile("{ .reg .pred p; setp.ne.b32 p, 1, 0; wgmma.mma_async.sync.aligned.m64n40k8.f32.tf32.tf32 {%0, %1, "
    "%2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19}, {%20, %21, %22, %23}, %24, "
    "p, 1, 1; }"
 : "+f"(d[0][0]), "+f"(d[0][1]), "+f"(d[0][2]), "+f"(d[0][3]), "+f"(d[1][0]), "+f"(d[1][1]), "+f"(d[1][2]),
    "+f"(d[1][3]), "+f"(d[2][0]), "+f"(d[2][1]), "+f"(d[2][2]), "+f"(d[2][3]), "+f"(d[3][0]), "+f"(d[3][1]),
    "+f"(d[3][2]), "+f"(d[3][3]), "+f"(d[4][0]), "+f"(d[4][1]), "+f"(d[4][2]), "+f"(d[4][3])
 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}
#include "tile_stream.cuh"
constexpr int kSamples = kShape.tile[0];  // of a block
constexpr int kMostBlocks = kShape.most_blocks;  // of a launch
#undef kClusterAttribute
#undef kMaps
#undef kTensorCopies
#undef kWeights
#undef kUnevenPlanes
#undef kStores
}  // namespace forward_2_kernel

namespace forward_1_kernel {
#include "tile_params.cuh"
using Element = float;
__device__ constexpr TileShape kShape = {static_cast<TileMath>(0), 4, 24, 40, {1, 3, 5}, {1, 2, 3}, {1, 2, 3},
    true, false, {1, 3, 5}, {1, 1, 1}, {1, 1, 1}, {1, 2, 3}, {1, 1, 1}, {0ULL, 18446744073709551600ULL,
    18446744073709551600ULL}, {0ULL, 0ULL, 0ULL}, {1, 1, 1}, {1, 1, 1}, {1, 1, 2, 28}, 40, true, true, 40, 4, 0, 3,
    4, 1, 5, 1, false, 2147483647, 0, 1, 0, 0, false, false, false, 1, 8, 1, 1, 1, 1, 2, 1, 9, 0, true, 3, true,
    false, 1, {0, 0, 0}, false, false, true, false, false, false};
__device__ constexpr int kFixedBackCells[] = {272, 144, 16, 268, 140, 12, 264, 136, 8, 260, 132, 4, 256, 128, 0, };
__device__ constexpr unsigned kFixedBackRows[] = {1u, 1u, 1u, 1u, 1u, 1u, 1u, 1u, 1u, 1u, 1u, 1u, 1u, 1u, 1u, };
__constant__ int kBackCells[] = {272, 144, 16, 268, 140, 12, 264, 136, 8, 260, 132, 4, 256, 128, 0, };
__constant__ unsigned kBackRows[] = {1u, 1u, 1u, 1u, 1u, 1u, 1u, 1u, 1u, 1u, 1u, 1u, 1u, 1u, 1u, };
#define kClusterAttribute
#define kMaps 0
#define kTensorCopies 0
#define kWeights 0
#define kUnevenPlanes 0
#define kStores 0
__device__ __forceinline__ void multiply(float (&d)[5][4], const unsigned (&a)[4], unsigned long long b) {
  asm volatile("{ .reg .pred p; setp.ne.b32 p, 1, 0; wgmma.mma_async.sync.aligned.m64n40k8.f32.tf32.tf32 {%0, %1, "
    "%2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19}, {%20, %21, %22, %23}, %24, "
    "p, 1, 1; }"
 : "+f"(d[0][0]), "+f"(d[0][1]), "+f"(d[0][2]), "+f"(d[0][3]), "+f"(d[1][0]), "+f"(d[1][1]), "+f"(d[1][2]),
    "+f"(d[1][3]), "+f"(d[2][0]), "+f"(d[2][1]), "+f"(d[2][2]), "+f"(d[2][3]), "+f"(d[3][0]), "+f"(d[3][1]),
    "+f"(d[3][2]), "+f"(d[3][3]), "+f"(d[4][0]), "+f"(d[4][1]), "+f"(d[4][2]), "+f"(d[4][3])
 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}
#include "tile_pack_params.cuh"
constexpr bool kDenseTaps = true;
constexpr bool kRuns = false;
constexpr bool kRowRuns = true;
__device__ constexpr PackOrder kOrder = PackOrder::taps_of_rows;
#include "tile_pack.cuh"
constexpr int kSamples = kShape.tile[0];  // of a block
#undef kClusterAttribute
#undef kMaps
#undef kTensorCopies
#undef kWeights
#undef kUnevenPlanes
#undef kStores
}  // namespace forward_1_kernel

int forward(const Tensors& tensors, const Layer& layer, void* stream) {
  const long long batch = layer.batch;
  {
    const forward_1_kernel::TileParams params = {
        tensors.input,  // input
        tensors.weight,  // weight
        tensors.bias,  // bias
        tensors.output,  // output
        {92160, 3840, 3840, 80, 1},  // input_strides
        {600, 15, 15, 5, 1},  // weight_strides
        14400,  // weight_group_stride
        57600,  // weight_bytes
        {972160, 24304, 24304, 248, 1},  // output_strides
        static_cast<int>(batch),  // batch
        1,  // groups
        {1, 48, 80},  // input_size
        {1, 98, 248},  // output_size
        {0, 1, 2},  // pad
        {0, 0, 0},  // first_cell
        {static_cast<int>(ceil_div(batch, forward_1_kernel::kSamples)), 1, 25, 3},  // tiles
        {1, 1, 1},  // residue_blocks
        1,  // channel_blocks
    };
    const long long blocks = 24;
    const dim3 grid(static_cast<unsigned>(blocks), 1, 1);
    const int error = launch(forward_1_kernel::tconv_tile_pack, grid, 256, 2456,
                             false, stream, params, tensors.workspace);
    if (error != 0) return error;
  }
  {
    const forward_2_kernel::TileParams params = {
        tensors.input,  // input
        tensors.workspace,  // weight
        tensors.bias,  // bias
        tensors.output,  // output
        {92160, 3840, 3840, 80, 1},  // input_strides
        {600, 15, 15, 5, 1},  // weight_strides
        14400,  // weight_group_stride
        57600,  // weight_bytes
        {972160, 24304, 24304, 248, 1},  // output_strides
        static_cast<int>(batch),  // batch
        1,  // groups
        {1, 48, 80},  // input_size
        {1, 98, 248},  // output_size
        {0, 1, 2},  // pad
        {0, 0, 0},  // first_cell
        {static_cast<int>(ceil_div(batch, forward_2_kernel::kSamples)), 1, 25, 3},  // tiles
        {1, 1, 1},  // residue_blocks
        1,  // channel_blocks
    };
    const long long blocks = ceil_div(batch, forward_2_kernel::kSamples) * 75;
    const dim3 grid(static_cast<unsigned>(at_most(blocks, forward_2_kernel::kMostBlocks)), 1, 1);
    const int error = launch(forward_2_kernel::tconv_tile, grid, 256, 59248,
                             false, stream, params);
    if (error != 0) return error;
  }
  return 0;
}

long long forward_workspace(const Layer&) { return 57600; }
"""
PIECES["grad_input_hopper_tf32"] = r"""
// grad_input, tile: 24 channels by 1x1x3x20 cells, depth 8x15 of 40x15 in 1x1 planes, warps 1x2x4 of 32x32, 512
// blocks (2 per multiprocessor), 52 KiB shared, weights packed
namespace grad_input_2_kernel {
#include "tile_params.cuh"
using Element = float;
__device__ constexpr TileShape kShape = {static_cast<TileMath>(0), 4, 40, 24, {1, 3, 5}, {1, 2, 3}, {1, 2, 3},
    false, true, {1, 3, 5}, {1, 1, 1}, {1, 1, 1}, {1, 1, 1}, {1, 1, 1}, {0ULL, 0ULL, 0ULL}, {0ULL, 0ULL, 0ULL}, {1,
    1, 1}, {1, 1, 1}, {1, 1, 3, 20}, 24, false, false, 0, 0, 0, 0, 0, 1, 5, -1, false, 2147483647, 0, 1, 0, 0,
    false, false, false, 2, 4, 1, 2, 4, 1, 2, 1, 15, 3, true, 2, true, false, 1, {0, 0, 0}, false, false, false,
    false, false, false};
__device__ constexpr int kFixedBackCells[] = {0, 1, 2, 3, 4, 24, 25, 26, 27, 28, 48, 49, 50, 51, 52, };
__device__ constexpr unsigned kFixedBackRows[] = {3u, 3u, 3u, 3u, 3u, 3u, 3u, 3u, 3u, 3u, 3u, 3u, 3u, 3u, 3u, };
__constant__ int kBackCells[] = {0, 1, 2, 3, 4, 24, 25, 26, 27, 28, 48, 49, 50, 51, 52, };
__constant__ unsigned kBackRows[] = {3u, 3u, 3u, 3u, 3u, 3u, 3u, 3u, 3u, 3u, 3u, 3u, 3u, 3u, 3u, };
#define kClusterAttribute
#include "tile.cuh"
constexpr int kSamples = kShape.tile[0];  // of a block
constexpr int kMostBlocks = kShape.most_blocks;  // of a launch
#undef kClusterAttribute
}  // namespace grad_input_2_kernel

namespace grad_input_1_kernel {
#include "tile_params.cuh"
using Element = float;
__device__ constexpr TileShape kShape = {static_cast<TileMath>(0), 4, 40, 24, {1, 3, 5}, {1, 2, 3}, {1, 2, 3},
    false, true, {1, 3, 5}, {1, 1, 1}, {1, 1, 1}, {1, 1, 1}, {1, 1, 1}, {0ULL, 0ULL, 0ULL}, {0ULL, 0ULL, 0ULL}, {1,
    1, 1}, {1, 1, 1}, {1, 1, 3, 20}, 24, false, false, 0, 0, 0, 0, 0, 1, 5, -1, false, 2147483647, 0, 1, 0, 0,
    false, false, false, 2, 4, 1, 2, 4, 1, 2, 1, 15, 3, true, 2, true, false, 1, {0, 0, 0}, false, false, false,
    false, false, false};
__device__ constexpr int kFixedBackCells[] = {0, 1, 2, 3, 4, 24, 25, 26, 27, 28, 48, 49, 50, 51, 52, };
__device__ constexpr unsigned kFixedBackRows[] = {3u, 3u, 3u, 3u, 3u, 3u, 3u, 3u, 3u, 3u, 3u, 3u, 3u, 3u, 3u, };
__constant__ int kBackCells[] = {0, 1, 2, 3, 4, 24, 25, 26, 27, 28, 48, 49, 50, 51, 52, };
__constant__ unsigned kBackRows[] = {3u, 3u, 3u, 3u, 3u, 3u, 3u, 3u, 3u, 3u, 3u, 3u, 3u, 3u, 3u, };
#define kClusterAttribute
#include "tile_pack_params.cuh"
constexpr bool kDenseTaps = true;
constexpr bool kRuns = true;
constexpr bool kRowRuns = false;
__device__ constexpr PackOrder kOrder = PackOrder::taps_of_summed;
#include "tile_pack.cuh"
constexpr int kSamples = kShape.tile[0];  // of a block
#undef kClusterAttribute
}  // namespace grad_input_1_kernel

int grad_input(const Tensors& tensors, const Layer& layer, void* stream) {
  const long long batch = layer.batch;
  {
    const grad_input_1_kernel::TileParams params = {
        tensors.output,  // input
        tensors.weight,  // weight
        tensors.bias,  // bias
        tensors.input,  // output
        {972160, 24304, 24304, 248, 1},  // input_strides
        {15, 600, 15, 5, 1},  // weight_strides
        14400,  // weight_group_stride
        57600,  // weight_bytes
        {92160, 3840, 3840, 80, 1},  // output_strides
        static_cast<int>(batch),  // batch
        1,  // groups
        {1, 98, 248},  // input_size
        {1, 48, 80},  // output_size
        {0, 1, 2},  // pad
        {0, 0, 0},  // first_cell
        {static_cast<int>(ceil_div(batch, grad_input_1_kernel::kSamples)), 1, 16, 4},  // tiles
        {1, 1, 1},  // residue_blocks
        1,  // channel_blocks
    };
    const long long blocks = 20;
    const dim3 grid(static_cast<unsigned>(blocks), 1, 1);
    const int error = launch(grad_input_1_kernel::tconv_tile_pack, grid, 256, 2944,
                             false, stream, params, tensors.workspace);
    if (error != 0) return error;
  }
  {
    const grad_input_2_kernel::TileParams params = {
        tensors.output,  // input
        tensors.workspace,  // weight
        tensors.bias,  // bias
        tensors.input,  // output
        {972160, 24304, 24304, 248, 1},  // input_strides
        {15, 600, 15, 5, 1},  // weight_strides
        14400,  // weight_group_stride
        57600,  // weight_bytes
        {92160, 3840, 3840, 80, 1},  // output_strides
        static_cast<int>(batch),  // batch
        1,  // groups
        {1, 98, 248},  // input_size
        {1, 48, 80},  // output_size
        {0, 1, 2},  // pad
        {0, 0, 0},  // first_cell
        {static_cast<int>(ceil_div(batch, grad_input_2_kernel::kSamples)), 1, 16, 4},  // tiles
        {1, 1, 1},  // residue_blocks
        1,  // channel_blocks
    };
    const long long blocks = ceil_div(batch, grad_input_2_kernel::kSamples) * 64;
    const dim3 grid(static_cast<unsigned>(at_most(blocks, grad_input_2_kernel::kMostBlocks)), 1, 1);
    const int error = launch(grad_input_2_kernel::tconv_tile, grid, 256, 53760,
                             false, stream, params);
    if (error != 0) return error;
  }
  return 0;
}

long long grad_input_workspace(const Layer&) { return 76800; }
"""
PIECES["grad_weight_hopper_tf32"] = r"""
// grad_weight, reduce: 64 out channels by 1x1x5 taps x 24 channels; 1x1x1x88 pixels at a time, warpgroups 1x1x1 of
// 64x120 and 8 warps that load, copies of 1 and 4, 44 parts, 132 blocks (1 per multiprocessor), 195 KiB shared
namespace grad_weight_1_kernel {
#include "reduce_params.cuh"
using Element = float;
__device__ constexpr ReduceShape kShape = {static_cast<TileMath>(0), 4, 40, 24, {1, 3, 5}, {1, 1, 1}, {1, 1, 1},
    false, false, {1, 1, 5}, {false, false, false}, true, 1, 1, 24, 1, 5, 1, 1, {1, 1, 1, 4}, {1, 1, 1, 22}, 2, 2,
    1, 32, 32, 8, 8, 4, 4, 1, 4, 4, false, 0, 0, 0, 88, 3, 1, true, false};
__constant__ int kProductCells[] = {0, 48, 96, 144, 192, 240, 288, 336, 384, 432, 480, };
#define kTensorCopies 0
__device__ __forceinline__ void multiply(float (&d)[15][4], unsigned long long a, unsigned long long b) {
  asm volatile("{ .reg .pred p; setp.ne.b32 p, 1, 0; wgmma.mma_async.sync.aligned.m64n120k8.f32.tf32.tf32 {%0, %1, "
    "%2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, "
    "%25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, "
    "%47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59}, %60, %61, p, 1, 1; }"
 : "+f"(d[0][0]), "+f"(d[0][1]), "+f"(d[0][2]), "+f"(d[0][3]), "+f"(d[1][0]), "+f"(d[1][1]), "+f"(d[1][2]),
    "+f"(d[1][3]), "+f"(d[2][0]), "+f"(d[2][1]), "+f"(d[2][2]), "+f"(d[2][3]), "+f"(d[3][0]), "+f"(d[3][1]),
    "+f"(d[3][2]), "+f"(d[3][3]), "+f"(d[4][0]), "+f"(d[4][1]), "+f"(d[4][2]), "+f"(d[4][3]), "+f"(d[5][0]),
    "+f"(d[5][1]), "+f"(d[5][2]), "+f"(d[5][3]), "+f"(d[6][0]), "+f"(d[6][1]), "+f"(d[6][2]), "+f"(d[6][3]),
    "+f"(d[7][0]), "+f"(d[7][1]), "+f"(d[7][2]), "+f"(d[7][3]), "+f"(d[8][0]), "+f"(d[8][1]), "+f"(d[8][2]),
    "+f"(d[8][3]), "+f"(d[9][0]), "+f"(d[9][1]), "+f"(d[9][2]), "+f"(d[9][3]), "+f"(d[10][0]), "+f"(d[10][1]),
    "+f"(d[10][2]), "+f"(d[10][3]), "+f"(d[11][0]), "+f"(d[11][1]), "+f"(d[11][2]), "+f"(d[11][3]), "+f"(d[12][0]),
    "+f"(d[12][1]), "+f"(d[12][2]), "+f"(d[12][3]), "+f"(d[13][0]), "+f"(d[13][1]), "+f"(d[13][2]), "+f"(d[13][3]),
    "+f"(d[14][0]), "+f"(d[14][1]), "+f"(d[14][2]), "+f"(d[14][3])
 : "l"(a), "l"(b));
}
#include "reduce_sm90.cuh"
constexpr int kSamples = kShape.tile[0] * kShape.split[0];  // of a block
#undef kTensorCopies
}  // namespace grad_weight_1_kernel

namespace grad_weight_2_kernel {
#include "reduce_params.cuh"
using Element = float;
__device__ constexpr ReduceShape kShape = {static_cast<TileMath>(0), 4, 40, 24, {1, 3, 5}, {1, 1, 1}, {1, 1, 1},
    false, false, {1, 1, 5}, {false, false, false}, true, 1, 1, 24, 1, 5, 1, 1, {1, 1, 1, 4}, {1, 1, 1, 22}, 2, 2,
    1, 32, 32, 8, 8, 4, 4, 1, 4, 4, false, 0, 0, 0, 88, 3, 1, true, false};
constexpr int kPieces = 8;
#include "reduce_finish.cuh"
constexpr int kSamples = kShape.tile[0] * kShape.split[0];  // of a block
}  // namespace grad_weight_2_kernel

int grad_weight(const Tensors& tensors, const Layer& layer, void* stream) {
  const long long batch = layer.batch;
  {
    const grad_weight_1_kernel::ReduceParams params = {
        at(tensors.output, 996),  // rows
        tensors.input,  // columns
        tensors.workspace,  // packed_rows
        tensors.workspace,  // packed_columns
        static_cast<float*>(tensors.workspace),  // sums
        at(tensors.weight, 56),  // weight
        {972160, 24304, 24304, 496, 3},  // row_strides
        {92160, 3840, 3840, 80, 1},  // column_strides
        {14400, 15, 600, -15, -5, -1},  // weight_strides
        static_cast<int>(batch),  // batch
        1,  // groups
        {1, 49, 83},  // row_size
        {1, 48, 80},  // column_size
        {0, 1, 3},  // pad
        1,  // row_blocks
        1,  // column_blocks
        {1, 3, 1},  // tap_blocks
        {static_cast<int>(ceil_div(batch, grad_weight_1_kernel::kSamples)), 1, 49, 1},  // tiles
        {948352, 496, 496, 264},  // row_advance
        {88320, 0, 80, 88},  // column_advance
        44,  // parts
    };
    const long long blocks = 132;
    const dim3 grid(static_cast<unsigned>(blocks), 1, 1);
    const int error = launch(grad_weight_1_kernel::tconv_reduce, grid, 384, 200496,
                             false, stream, params);
    if (error != 0) return error;
  }
  {
    const grad_weight_2_kernel::ReduceParams params = {
        at(tensors.output, 996),  // rows
        tensors.input,  // columns
        tensors.workspace,  // packed_rows
        tensors.workspace,  // packed_columns
        static_cast<float*>(tensors.workspace),  // sums
        at(tensors.weight, 56),  // weight
        {972160, 24304, 24304, 496, 3},  // row_strides
        {92160, 3840, 3840, 80, 1},  // column_strides
        {14400, 15, 600, -15, -5, -1},  // weight_strides
        static_cast<int>(batch),  // batch
        1,  // groups
        {1, 49, 83},  // row_size
        {1, 48, 80},  // column_size
        {0, 1, 3},  // pad
        1,  // row_blocks
        1,  // column_blocks
        {1, 3, 1},  // tap_blocks
        {static_cast<int>(ceil_div(batch, grad_weight_2_kernel::kSamples)), 1, 49, 1},  // tiles
        {948352, 496, 496, 264},  // row_advance
        {88320, 0, 80, 88},  // column_advance
        44,  // parts
    };
    const long long blocks = 90;
    const dim3 grid(static_cast<unsigned>(blocks), 1, 1);
    const int error = launch(grad_weight_2_kernel::tconv_reduce_finish, grid, 256, 0,
                             true, stream, params);
    if (error != 0) return error;
  }
  return 0;
}

long long grad_weight_workspace(const Layer&) { return 8110080; }
"""
PIECES["forward_hopper_strict"] = r"""
// forward, tile: 1 phases x 40 channels by 1x1x2x28 cells, depth 8x6 of 24x15, streams to warpgroups 1x1x1 of 40x64,
// 600 blocks (2 per multiprocessor), 87 KiB shared, weights packed
namespace forward_2_kernel {
#include "tile_params.cuh"
using Element = float;
__device__ constexpr TileShape kShape = {static_cast<TileMath>(3), 4, 24, 40, {1, 3, 5}, {1, 2, 3}, {1, 2, 3},
    true, false, {1, 3, 5}, {1, 1, 1}, {1, 1, 1}, {1, 2, 3}, {1, 1, 1}, {0ULL, 18446744073709551600ULL,
    18446744073709551600ULL}, {0ULL, 0ULL, 0ULL}, {1, 1, 1}, {1, 1, 1}, {1, 1, 2, 28}, 40, true, true, 40, 4, 0, 4,
    4, 1, 5, 1, true, 264, 0, 1, 0, 0, false, false, false, 1, 8, 1, 1, 1, 1, 2, 1, 6, 0, true, 2, true, false, 1,
    {0, 0, 0}, false, false, true, false, false, false};
__device__ constexpr int kFixedBackCells[] = {272, 144, 16, 268, 140, 12, 264, 136, 8, 260, 132, 4, 256, 128, 0, };
__device__ constexpr unsigned kFixedBackRows[] = {1u, 1u, 1u, 1u, 1u, 1u, 1u, 1u, 1u, 1u, 1u, 1u, 1u, 1u, 1u, };
__constant__ int kBackCells[] = {272, 144, 16, 268, 140, 12, 264, 136, 8, 260, 132, 4, 256, 128, 0, };
__constant__ unsigned kBackRows[] = {1u, 1u, 1u, 1u, 1u, 1u, 1u, 1u, 1u, 1u, 1u, 1u, 1u, 1u, 1u, };
#define kClusterAttribute
#define kMaps 0
#define kTensorCopies 0
#define kWeights 0
#define kUnevenPlanes 0
#define kStores 0
__device__ __forceinline__ void multiply(float (&d)[5][4], const unsigned (&a)[4], unsigned long long b) {
  asm volatile("{ .reg .pred p; setp.ne.b32 p, 1, 0; wgmma.mma_async.sync.aligned.m64n40k8.f32.tf32.tf32 {%0, %1, "
    "%2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19}, {%20, %21, %22, %23}, %24, "
    "p, 1, 1; }"
 : "+f"(d[0][0]), "+f"(d[0][1]), "+f"(d[0][2]), "+f"(d[0][3]), "+f"(d[1][0]), "+f"(d[1][1]), "+f"(d[1][2]),
    "+f"(d[1][3]), "+f"(d[2][0]), "+f"(d[2][1]), "+f"(d[2][2]), "+f"(d[2][3]), "+f"(d[3][0]), "+f"(d[3][1]),
    "+f"(d[3][2]), "+f"(d[3][3]), "+f"(d[4][0]), "+f"(d[4][1]), "+f"(d[4][2]), "+f"(d[4][3])
 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}
#include "tile_stream.cuh"
constexpr int kSamples = kShape.tile[0];  // of a block
constexpr int kMostBlocks = kShape.most_blocks;  // of a launch
#undef kClusterAttribute
#undef kMaps
#undef kTensorCopies
#undef kWeights
#undef kUnevenPlanes
#undef kStores
}  // namespace forward_2_kernel

namespace forward_1_kernel {
#include "tile_params.cuh"
using Element = float;
__device__ constexpr TileShape kShape = {static_cast<TileMath>(3), 4, 24, 40, {1, 3, 5}, {1, 2, 3}, {1, 2, 3},
    true, false, {1, 3, 5}, {1, 1, 1}, {1, 1, 1}, {1, 2, 3}, {1, 1, 1}, {0ULL, 18446744073709551600ULL,
    18446744073709551600ULL}, {0ULL, 0ULL, 0ULL}, {1, 1, 1}, {1, 1, 1}, {1, 1, 2, 28}, 40, true, true, 40, 4, 0, 4,
    4, 1, 5, 1, true, 264, 0, 1, 0, 0, false, false, false, 1, 8, 1, 1, 1, 1, 2, 1, 6, 0, true, 2, true, false, 1,
    {0, 0, 0}, false, false, true, false, false, false};
__device__ constexpr int kFixedBackCells[] = {272, 144, 16, 268, 140, 12, 264, 136, 8, 260, 132, 4, 256, 128, 0, };
__device__ constexpr unsigned kFixedBackRows[] = {1u, 1u, 1u, 1u, 1u, 1u, 1u, 1u, 1u, 1u, 1u, 1u, 1u, 1u, 1u, };
__constant__ int kBackCells[] = {272, 144, 16, 268, 140, 12, 264, 136, 8, 260, 132, 4, 256, 128, 0, };
__constant__ unsigned kBackRows[] = {1u, 1u, 1u, 1u, 1u, 1u, 1u, 1u, 1u, 1u, 1u, 1u, 1u, 1u, 1u, };
#define kClusterAttribute
#define kMaps 0
#define kTensorCopies 0
#define kWeights 0
#define kUnevenPlanes 0
#define kStores 0
__device__ __forceinline__ void multiply(float (&d)[5][4], const unsigned (&a)[4], unsigned long long b) {
  asm volatile("{ .reg .pred p; setp.ne.b32 p, 1, 0; wgmma.mma_async.sync.aligned.m64n40k8.f32.tf32.tf32 {%0, %1, "
    "%2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19}, {%20, %21, %22, %23}, %24, "
    "p, 1, 1; }"
 : "+f"(d[0][0]), "+f"(d[0][1]), "+f"(d[0][2]), "+f"(d[0][3]), "+f"(d[1][0]), "+f"(d[1][1]), "+f"(d[1][2]),
    "+f"(d[1][3]), "+f"(d[2][0]), "+f"(d[2][1]), "+f"(d[2][2]), "+f"(d[2][3]), "+f"(d[3][0]), "+f"(d[3][1]),
    "+f"(d[3][2]), "+f"(d[3][3]), "+f"(d[4][0]), "+f"(d[4][1]), "+f"(d[4][2]), "+f"(d[4][3])
 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}
#include "tile_pack_params.cuh"
constexpr bool kDenseTaps = true;
constexpr bool kRuns = false;
constexpr bool kRowRuns = true;
__device__ constexpr PackOrder kOrder = PackOrder::taps_of_rows;
#include "tile_pack.cuh"
constexpr int kSamples = kShape.tile[0];  // of a block
#undef kClusterAttribute
#undef kMaps
#undef kTensorCopies
#undef kWeights
#undef kUnevenPlanes
#undef kStores
}  // namespace forward_1_kernel

int forward(const Tensors& tensors, const Layer& layer, void* stream) {
  const long long batch = layer.batch;
  {
    const forward_1_kernel::TileParams params = {
        tensors.input,  // input
        tensors.weight,  // weight
        tensors.bias,  // bias
        tensors.output,  // output
        {92160, 3840, 3840, 80, 1},  // input_strides
        {600, 15, 15, 5, 1},  // weight_strides
        14400,  // weight_group_stride
        57600,  // weight_bytes
        {972160, 24304, 24304, 248, 1},  // output_strides
        static_cast<int>(batch),  // batch
        1,  // groups
        {1, 48, 80},  // input_size
        {1, 98, 248},  // output_size
        {0, 1, 2},  // pad
        {0, 0, 0},  // first_cell
        {static_cast<int>(ceil_div(batch, forward_1_kernel::kSamples)), 1, 25, 3},  // tiles
        {1, 1, 1},  // residue_blocks
        1,  // channel_blocks
    };
    const long long blocks = 24;
    const dim3 grid(static_cast<unsigned>(blocks), 1, 1);
    const int error = launch(forward_1_kernel::tconv_tile_pack, grid, 256, 2456,
                             false, stream, params, tensors.workspace);
    if (error != 0) return error;
  }
  {
    const forward_2_kernel::TileParams params = {
        tensors.input,  // input
        tensors.workspace,  // weight
        tensors.bias,  // bias
        tensors.output,  // output
        {92160, 3840, 3840, 80, 1},  // input_strides
        {600, 15, 15, 5, 1},  // weight_strides
        14400,  // weight_group_stride
        57600,  // weight_bytes
        {972160, 24304, 24304, 248, 1},  // output_strides
        static_cast<int>(batch),  // batch
        1,  // groups
        {1, 48, 80},  // input_size
        {1, 98, 248},  // output_size
        {0, 1, 2},  // pad
        {0, 0, 0},  // first_cell
        {static_cast<int>(ceil_div(batch, forward_2_kernel::kSamples)), 1, 25, 3},  // tiles
        {1, 1, 1},  // residue_blocks
        1,  // channel_blocks
    };
    const long long blocks = ceil_div(batch, forward_2_kernel::kSamples) * 75;
    const dim3 grid(static_cast<unsigned>(at_most(blocks, forward_2_kernel::kMostBlocks)), 1, 1);
    const int error = launch(forward_2_kernel::tconv_tile, grid, 256, 89856,
                             true, stream, params);
    if (error != 0) return error;
  }
  return 0;
}

long long forward_workspace(const Layer&) { return 115200; }
"""
PIECES["grad_input_hopper_strict"] = r"""
// grad_input, tile: 32 channels by 1x1x6x40 cells, depth 8x15 of 40x15 in 1x1 planes, streams to warpgroups 1x2x1 of
// 32x128, 128 blocks (1 per multiprocessor), 217 KiB shared, weights packed
namespace grad_input_2_kernel {
#include "tile_params.cuh"
using Element = float;
__device__ constexpr TileShape kShape = {static_cast<TileMath>(3), 4, 40, 24, {1, 3, 5}, {1, 2, 3}, {1, 2, 3},
    false, true, {1, 3, 5}, {1, 1, 1}, {1, 1, 1}, {1, 1, 1}, {1, 1, 1}, {0ULL, 0ULL, 0ULL}, {0ULL, 0ULL, 0ULL}, {1,
    1, 1}, {1, 1, 1}, {1, 1, 6, 40}, 32, true, true, 32, 4, 2, 2, 2, 1, 5, -1, true, 132, 0, 4, 40, 0, false,
    false, false, 1, 16, 1, 2, 1, 1, 2, 1, 15, 0, true, 1, true, false, 1, {0, 0, 0}, false, false, true, false,
    false, false};
__device__ constexpr int kFixedBackCells[] = {0, 12, 24, 36, 48, 1056, 1068, 1080, 1092, 1104, 2112, 2124, 2136,
    2148, 2160, };
__device__ constexpr unsigned kFixedBackRows[] = {1u, 1u, 1u, 1u, 1u, 1u, 1u, 1u, 1u, 1u, 1u, 1u, 1u, 1u, 1u, };
__constant__ int kBackCells[] = {0, 12, 24, 36, 48, 1056, 1068, 1080, 1092, 1104, 2112, 2124, 2136, 2148, 2160, };
__constant__ unsigned kBackRows[] = {1u, 1u, 1u, 1u, 1u, 1u, 1u, 1u, 1u, 1u, 1u, 1u, 1u, 1u, 1u, };
#define kClusterAttribute
#define kMaps 0
#define kTensorCopies 0
#define kWeights 0
#define kUnevenPlanes 0
#define kStores 1
__device__ __forceinline__ void multiply(float (&d)[4][4], const unsigned (&a)[4], unsigned long long b) {
  asm volatile("{ .reg .pred p; setp.ne.b32 p, 1, 0; wgmma.mma_async.sync.aligned.m64n32k8.f32.tf32.tf32 {%0, %1, "
    "%2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15}, {%16, %17, %18, %19}, %20, p, 1, 1; }"
 : "+f"(d[0][0]), "+f"(d[0][1]), "+f"(d[0][2]), "+f"(d[0][3]), "+f"(d[1][0]), "+f"(d[1][1]), "+f"(d[1][2]),
    "+f"(d[1][3]), "+f"(d[2][0]), "+f"(d[2][1]), "+f"(d[2][2]), "+f"(d[2][3]), "+f"(d[3][0]), "+f"(d[3][1]),
    "+f"(d[3][2]), "+f"(d[3][3])
 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}
#include "tile_stream.cuh"
constexpr int kSamples = kShape.tile[0];  // of a block
constexpr int kMostBlocks = kShape.most_blocks;  // of a launch
#undef kClusterAttribute
#undef kMaps
#undef kTensorCopies
#undef kWeights
#undef kUnevenPlanes
#undef kStores
}  // namespace grad_input_2_kernel

namespace grad_input_1_kernel {
#include "tile_params.cuh"
using Element = float;
__device__ constexpr TileShape kShape = {static_cast<TileMath>(3), 4, 40, 24, {1, 3, 5}, {1, 2, 3}, {1, 2, 3},
    false, true, {1, 3, 5}, {1, 1, 1}, {1, 1, 1}, {1, 1, 1}, {1, 1, 1}, {0ULL, 0ULL, 0ULL}, {0ULL, 0ULL, 0ULL}, {1,
    1, 1}, {1, 1, 1}, {1, 1, 6, 40}, 32, true, true, 32, 4, 2, 2, 2, 1, 5, -1, true, 132, 0, 4, 40, 0, false,
    false, false, 1, 16, 1, 2, 1, 1, 2, 1, 15, 0, true, 1, true, false, 1, {0, 0, 0}, false, false, true, false,
    false, false};
__device__ constexpr int kFixedBackCells[] = {0, 12, 24, 36, 48, 1056, 1068, 1080, 1092, 1104, 2112, 2124, 2136,
    2148, 2160, };
__device__ constexpr unsigned kFixedBackRows[] = {1u, 1u, 1u, 1u, 1u, 1u, 1u, 1u, 1u, 1u, 1u, 1u, 1u, 1u, 1u, };
__constant__ int kBackCells[] = {0, 12, 24, 36, 48, 1056, 1068, 1080, 1092, 1104, 2112, 2124, 2136, 2148, 2160, };
__constant__ unsigned kBackRows[] = {1u, 1u, 1u, 1u, 1u, 1u, 1u, 1u, 1u, 1u, 1u, 1u, 1u, 1u, 1u, };
#define kClusterAttribute
#define kMaps 0
#define kTensorCopies 0
#define kWeights 0
#define kUnevenPlanes 0
#define kStores 1
__device__ __forceinline__ void multiply(float (&d)[4][4], const unsigned (&a)[4], unsigned long long b) {
  asm volatile("{ .reg .pred p; setp.ne.b32 p, 1, 0; wgmma.mma_async.sync.aligned.m64n32k8.f32.tf32.tf32 {%0, %1, "
    "%2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15}, {%16, %17, %18, %19}, %20, p, 1, 1; }"
 : "+f"(d[0][0]), "+f"(d[0][1]), "+f"(d[0][2]), "+f"(d[0][3]), "+f"(d[1][0]), "+f"(d[1][1]), "+f"(d[1][2]),
    "+f"(d[1][3]), "+f"(d[2][0]), "+f"(d[2][1]), "+f"(d[2][2]), "+f"(d[2][3]), "+f"(d[3][0]), "+f"(d[3][1]),
    "+f"(d[3][2]), "+f"(d[3][3])
 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}
#include "tile_pack_params.cuh"
constexpr bool kDenseTaps = true;
constexpr bool kRuns = true;
constexpr bool kRowRuns = false;
__device__ constexpr PackOrder kOrder = PackOrder::taps_of_summed;
#include "tile_pack.cuh"
constexpr int kSamples = kShape.tile[0];  // of a block
#undef kClusterAttribute
#undef kMaps
#undef kTensorCopies
#undef kWeights
#undef kUnevenPlanes
#undef kStores
}  // namespace grad_input_1_kernel

int grad_input(const Tensors& tensors, const Layer& layer, void* stream) {
  const long long batch = layer.batch;
  {
    const grad_input_1_kernel::TileParams params = {
        tensors.output,  // input
        tensors.weight,  // weight
        tensors.bias,  // bias
        tensors.input,  // output
        {972160, 24304, 24304, 248, 1},  // input_strides
        {15, 600, 15, 5, 1},  // weight_strides
        14400,  // weight_group_stride
        57600,  // weight_bytes
        {92160, 3840, 3840, 80, 1},  // output_strides
        static_cast<int>(batch),  // batch
        1,  // groups
        {1, 98, 248},  // input_size
        {1, 48, 80},  // output_size
        {0, 1, 2},  // pad
        {0, 0, 0},  // first_cell
        {static_cast<int>(ceil_div(batch, grad_input_1_kernel::kSamples)), 1, 8, 2},  // tiles
        {1, 1, 1},  // residue_blocks
        1,  // channel_blocks
    };
    const long long blocks = 40;
    const dim3 grid(static_cast<unsigned>(blocks), 1, 1);
    const int error = launch(grad_input_1_kernel::tconv_tile_pack, grid, 256, 1968,
                             false, stream, params, tensors.workspace);
    if (error != 0) return error;
  }
  {
    const grad_input_2_kernel::TileParams params = {
        tensors.output,  // input
        tensors.workspace,  // weight
        tensors.bias,  // bias
        tensors.input,  // output
        {972160, 24304, 24304, 248, 1},  // input_strides
        {15, 600, 15, 5, 1},  // weight_strides
        14400,  // weight_group_stride
        57600,  // weight_bytes
        {92160, 3840, 3840, 80, 1},  // output_strides
        static_cast<int>(batch),  // batch
        1,  // groups
        {1, 98, 248},  // input_size
        {1, 48, 80},  // output_size
        {0, 1, 2},  // pad
        {0, 0, 0},  // first_cell
        {static_cast<int>(ceil_div(batch, grad_input_2_kernel::kSamples)), 1, 8, 2},  // tiles
        {1, 1, 1},  // residue_blocks
        1,  // channel_blocks
    };
    const long long blocks = ceil_div(batch, grad_input_2_kernel::kSamples) * 16;
    const dim3 grid(static_cast<unsigned>(at_most(blocks, grad_input_2_kernel::kMostBlocks)), 1, 1);
    const int error = launch(grad_input_2_kernel::tconv_tile, grid, 384, 222272,
                             true, stream, params);
    if (error != 0) return error;
  }
  return 0;
}

long long grad_input_workspace(const Layer&) { return 153600; }
"""
PIECES["grad_weight_hopper_strict"] = r"""
// grad_weight, reduce: 64 out channels by 1x1x5 taps x 24 channels; 1x1x1x88 pixels at a time, warpgroups 1x1x1 of
// 64x120 and 8 warps that load, copies of 1 and 4, 44 parts, 132 blocks (1 per multiprocessor), 204 KiB shared
namespace grad_weight_1_kernel {
#include "reduce_params.cuh"
using Element = float;
__device__ constexpr ReduceShape kShape = {static_cast<TileMath>(3), 4, 40, 24, {1, 3, 5}, {1, 1, 1}, {1, 1, 1},
    false, false, {1, 1, 5}, {false, false, false}, true, 1, 1, 24, 1, 5, 1, 1, {1, 1, 1, 4}, {1, 1, 1, 22}, 2, 2,
    1, 32, 32, 8, 8, 4, 4, 1, 4, 3, false, 0, 0, 200, 88, 2, 1, true, false};
__constant__ int kProductCells[] = {0, 48, 96, 144, 192, 240, 288, 336, 384, 432, 480, };
#define kTensorCopies 0
__device__ __forceinline__ void multiply(float (&d)[15][4], unsigned long long a, unsigned long long b) {
  asm volatile("{ .reg .pred p; setp.ne.b32 p, 1, 0; wgmma.mma_async.sync.aligned.m64n120k8.f32.tf32.tf32 {%0, %1, "
    "%2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, "
    "%25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, "
    "%47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59}, %60, %61, p, 1, 1; }"
 : "+f"(d[0][0]), "+f"(d[0][1]), "+f"(d[0][2]), "+f"(d[0][3]), "+f"(d[1][0]), "+f"(d[1][1]), "+f"(d[1][2]),
    "+f"(d[1][3]), "+f"(d[2][0]), "+f"(d[2][1]), "+f"(d[2][2]), "+f"(d[2][3]), "+f"(d[3][0]), "+f"(d[3][1]),
    "+f"(d[3][2]), "+f"(d[3][3]), "+f"(d[4][0]), "+f"(d[4][1]), "+f"(d[4][2]), "+f"(d[4][3]), "+f"(d[5][0]),
    "+f"(d[5][1]), "+f"(d[5][2]), "+f"(d[5][3]), "+f"(d[6][0]), "+f"(d[6][1]), "+f"(d[6][2]), "+f"(d[6][3]),
    "+f"(d[7][0]), "+f"(d[7][1]), "+f"(d[7][2]), "+f"(d[7][3]), "+f"(d[8][0]), "+f"(d[8][1]), "+f"(d[8][2]),
    "+f"(d[8][3]), "+f"(d[9][0]), "+f"(d[9][1]), "+f"(d[9][2]), "+f"(d[9][3]), "+f"(d[10][0]), "+f"(d[10][1]),
    "+f"(d[10][2]), "+f"(d[10][3]), "+f"(d[11][0]), "+f"(d[11][1]), "+f"(d[11][2]), "+f"(d[11][3]), "+f"(d[12][0]),
    "+f"(d[12][1]), "+f"(d[12][2]), "+f"(d[12][3]), "+f"(d[13][0]), "+f"(d[13][1]), "+f"(d[13][2]), "+f"(d[13][3]),
    "+f"(d[14][0]), "+f"(d[14][1]), "+f"(d[14][2]), "+f"(d[14][3])
 : "l"(a), "l"(b));
}
#include "reduce_sm90.cuh"
constexpr int kSamples = kShape.tile[0] * kShape.split[0];  // of a block
#undef kTensorCopies
}  // namespace grad_weight_1_kernel

namespace grad_weight_2_kernel {
#include "reduce_params.cuh"
using Element = float;
__device__ constexpr ReduceShape kShape = {static_cast<TileMath>(3), 4, 40, 24, {1, 3, 5}, {1, 1, 1}, {1, 1, 1},
    false, false, {1, 1, 5}, {false, false, false}, true, 1, 1, 24, 1, 5, 1, 1, {1, 1, 1, 4}, {1, 1, 1, 22}, 2, 2,
    1, 32, 32, 8, 8, 4, 4, 1, 4, 3, false, 0, 0, 200, 88, 2, 1, true, false};
constexpr int kPieces = 8;
#include "reduce_finish.cuh"
constexpr int kSamples = kShape.tile[0] * kShape.split[0];  // of a block
}  // namespace grad_weight_2_kernel

int grad_weight(const Tensors& tensors, const Layer& layer, void* stream) {
  const long long batch = layer.batch;
  {
    const grad_weight_1_kernel::ReduceParams params = {
        at(tensors.output, 996),  // rows
        tensors.input,  // columns
        tensors.workspace,  // packed_rows
        tensors.workspace,  // packed_columns
        static_cast<float*>(tensors.workspace),  // sums
        at(tensors.weight, 56),  // weight
        {972160, 24304, 24304, 496, 3},  // row_strides
        {92160, 3840, 3840, 80, 1},  // column_strides
        {14400, 15, 600, -15, -5, -1},  // weight_strides
        static_cast<int>(batch),  // batch
        1,  // groups
        {1, 49, 83},  // row_size
        {1, 48, 80},  // column_size
        {0, 1, 3},  // pad
        1,  // row_blocks
        1,  // column_blocks
        {1, 3, 1},  // tap_blocks
        {static_cast<int>(ceil_div(batch, grad_weight_1_kernel::kSamples)), 1, 49, 1},  // tiles
        {948352, 496, 496, 264},  // row_advance
        {88320, 0, 80, 88},  // column_advance
        44,  // parts
    };
    const long long blocks = 132;
    const dim3 grid(static_cast<unsigned>(blocks), 1, 1);
    const int error = launch(grad_weight_1_kernel::tconv_reduce, grid, 384, 209824,
                             false, stream, params);
    if (error != 0) return error;
  }
  {
    const grad_weight_2_kernel::ReduceParams params = {
        at(tensors.output, 996),  // rows
        tensors.input,  // columns
        tensors.workspace,  // packed_rows
        tensors.workspace,  // packed_columns
        static_cast<float*>(tensors.workspace),  // sums
        at(tensors.weight, 56),  // weight
        {972160, 24304, 24304, 496, 3},  // row_strides
        {92160, 3840, 3840, 80, 1},  // column_strides
        {14400, 15, 600, -15, -5, -1},  // weight_strides
        static_cast<int>(batch),  // batch
        1,  // groups
        {1, 49, 83},  // row_size
        {1, 48, 80},  // column_size
        {0, 1, 3},  // pad
        1,  // row_blocks
        1,  // column_blocks
        {1, 3, 1},  // tap_blocks
        {static_cast<int>(ceil_div(batch, grad_weight_2_kernel::kSamples)), 1, 49, 1},  // tiles
        {948352, 496, 496, 264},  // row_advance
        {88320, 0, 80, 88},  // column_advance
        44,  // parts
    };
    const long long blocks = 90;
    const dim3 grid(static_cast<unsigned>(blocks), 1, 1);
    const int error = launch(grad_weight_2_kernel::tconv_reduce_finish, grid, 256, 0,
                             true, stream, params);
    if (error != 0) return error;
  }
  return 0;
}

long long grad_weight_workspace(const Layer&) { return 6488064; }
"""
PIECES["forward_ampere_tf32"] = r"""
// forward, tile: 1 phases x 16 channels by 1x1x6x42 cells, depth 8x15 of 24x15, warps 1x2x4 of 16x128, 432 blocks (1
// per multiprocessor), 38 KiB shared, weights in place
namespace forward_kernel {
#include "tile_params.cuh"
using Element = float;
__device__ constexpr TileShape kShape = {static_cast<TileMath>(0), 4, 24, 40, {1, 3, 5}, {1, 2, 3}, {1, 2, 3},
    true, false, {1, 3, 5}, {1, 1, 1}, {1, 1, 1}, {1, 2, 3}, {1, 1, 1}, {0ULL, 18446744073709551600ULL,
    18446744073709551600ULL}, {0ULL, 0ULL, 0ULL}, {1, 1, 1}, {1, 1, 1}, {1, 1, 6, 42}, 16, false, false, 0, 0, 0,
    0, 0, 1, 5, -1, false, 2147483647, 0, 1, 0, 0, false, false, false, 1, 16, 1, 2, 4, 1, 2, 1, 15, 3, true, 1,
    false, false, 1, {0, 0, 0}, false, false, false, false, false, false};
__device__ constexpr int kFixedBackCells[] = {96, 95, 94, 93, 92, 50, 49, 48, 47, 46, 4, 3, 2, 1, 0, };
__device__ constexpr unsigned kFixedBackRows[] = {1u, 1u, 1u, 1u, 1u, 1u, 1u, 1u, 1u, 1u, 1u, 1u, 1u, 1u, 1u, };
__constant__ int kBackCells[] = {96, 95, 94, 93, 92, 50, 49, 48, 47, 46, 4, 3, 2, 1, 0, };
__constant__ unsigned kBackRows[] = {1u, 1u, 1u, 1u, 1u, 1u, 1u, 1u, 1u, 1u, 1u, 1u, 1u, 1u, 1u, };
#define kClusterAttribute
#include "tile.cuh"
constexpr int kSamples = kShape.tile[0];  // of a block
constexpr int kMostBlocks = kShape.most_blocks;  // of a launch
#undef kClusterAttribute
}  // namespace forward_kernel

int forward(const Tensors& tensors, const Layer& layer, void* stream) {
  const long long batch = layer.batch;
  {
    const forward_kernel::TileParams params = {
        tensors.input,  // input
        tensors.weight,  // weight
        tensors.bias,  // bias
        tensors.output,  // output
        {92160, 3840, 3840, 80, 1},  // input_strides
        {600, 15, 15, 5, 1},  // weight_strides
        14400,  // weight_group_stride
        57600,  // weight_bytes
        {972160, 24304, 24304, 248, 1},  // output_strides
        static_cast<int>(batch),  // batch
        1,  // groups
        {1, 48, 80},  // input_size
        {1, 98, 248},  // output_size
        {0, 1, 2},  // pad
        {0, 0, 0},  // first_cell
        {static_cast<int>(ceil_div(batch, forward_kernel::kSamples)), 1, 9, 2},  // tiles
        {1, 1, 1},  // residue_blocks
        3,  // channel_blocks
    };
    const long long blocks = ceil_div(batch, forward_kernel::kSamples) * 54;
    const dim3 grid(static_cast<unsigned>(at_most(blocks, forward_kernel::kMostBlocks)), 1, 1);
    const int error = launch(forward_kernel::tconv_tile, grid, 256, 38912,
                             false, stream, params);
    if (error != 0) return error;
  }
  return 0;
}

long long forward_workspace(const Layer&) { return 0; }
"""
PIECES["grad_input_ampere_tf32"] = r"""
// grad_input, tile: 16 channels by 1x1x4x16 cells, depth 8x15 of 40x15 in 1x1 planes, warps 1x1x4 of 16x64, 960
// blocks (3 per multiprocessor), 30 KiB shared, weights packed
namespace grad_input_2_kernel {
#include "tile_params.cuh"
using Element = float;
__device__ constexpr TileShape kShape = {static_cast<TileMath>(0), 4, 40, 24, {1, 3, 5}, {1, 2, 3}, {1, 2, 3},
    false, true, {1, 3, 5}, {1, 1, 1}, {1, 1, 1}, {1, 1, 1}, {1, 1, 1}, {0ULL, 0ULL, 0ULL}, {0ULL, 0ULL, 0ULL}, {1,
    1, 1}, {1, 1, 1}, {1, 1, 4, 16}, 16, false, false, 0, 0, 0, 0, 0, 1, 5, -1, false, 2147483647, 0, 1, 0, 0,
    false, false, false, 1, 8, 1, 1, 4, 1, 2, 1, 15, 3, true, 3, true, false, 1, {0, 0, 0}, false, false, false,
    false, false, false};
__device__ constexpr int kFixedBackCells[] = {0, 1, 2, 3, 4, 20, 21, 22, 23, 24, 40, 41, 42, 43, 44, };
__device__ constexpr unsigned kFixedBackRows[] = {1u, 1u, 1u, 1u, 1u, 1u, 1u, 1u, 1u, 1u, 1u, 1u, 1u, 1u, 1u, };
__constant__ int kBackCells[] = {0, 1, 2, 3, 4, 20, 21, 22, 23, 24, 40, 41, 42, 43, 44, };
__constant__ unsigned kBackRows[] = {1u, 1u, 1u, 1u, 1u, 1u, 1u, 1u, 1u, 1u, 1u, 1u, 1u, 1u, 1u, };
#define kClusterAttribute
#include "tile.cuh"
constexpr int kSamples = kShape.tile[0];  // of a block
constexpr int kMostBlocks = kShape.most_blocks;  // of a launch
#undef kClusterAttribute
}  // namespace grad_input_2_kernel

namespace grad_input_1_kernel {
#include "tile_params.cuh"
using Element = float;
__device__ constexpr TileShape kShape = {static_cast<TileMath>(0), 4, 40, 24, {1, 3, 5}, {1, 2, 3}, {1, 2, 3},
    false, true, {1, 3, 5}, {1, 1, 1}, {1, 1, 1}, {1, 1, 1}, {1, 1, 1}, {0ULL, 0ULL, 0ULL}, {0ULL, 0ULL, 0ULL}, {1,
    1, 1}, {1, 1, 1}, {1, 1, 4, 16}, 16, false, false, 0, 0, 0, 0, 0, 1, 5, -1, false, 2147483647, 0, 1, 0, 0,
    false, false, false, 1, 8, 1, 1, 4, 1, 2, 1, 15, 3, true, 3, true, false, 1, {0, 0, 0}, false, false, false,
    false, false, false};
__device__ constexpr int kFixedBackCells[] = {0, 1, 2, 3, 4, 20, 21, 22, 23, 24, 40, 41, 42, 43, 44, };
__device__ constexpr unsigned kFixedBackRows[] = {1u, 1u, 1u, 1u, 1u, 1u, 1u, 1u, 1u, 1u, 1u, 1u, 1u, 1u, 1u, };
__constant__ int kBackCells[] = {0, 1, 2, 3, 4, 20, 21, 22, 23, 24, 40, 41, 42, 43, 44, };
__constant__ unsigned kBackRows[] = {1u, 1u, 1u, 1u, 1u, 1u, 1u, 1u, 1u, 1u, 1u, 1u, 1u, 1u, 1u, };
#define kClusterAttribute
#include "tile_pack_params.cuh"
constexpr bool kDenseTaps = true;
constexpr bool kRuns = true;
constexpr bool kRowRuns = false;
__device__ constexpr PackOrder kOrder = PackOrder::taps_of_summed;
#include "tile_pack.cuh"
constexpr int kSamples = kShape.tile[0];  // of a block
#undef kClusterAttribute
}  // namespace grad_input_1_kernel

int grad_input(const Tensors& tensors, const Layer& layer, void* stream) {
  const long long batch = layer.batch;
  {
    const grad_input_1_kernel::TileParams params = {
        tensors.output,  // input
        tensors.weight,  // weight
        tensors.bias,  // bias
        tensors.input,  // output
        {972160, 24304, 24304, 248, 1},  // input_strides
        {15, 600, 15, 5, 1},  // weight_strides
        14400,  // weight_group_stride
        57600,  // weight_bytes
        {92160, 3840, 3840, 80, 1},  // output_strides
        static_cast<int>(batch),  // batch
        1,  // groups
        {1, 98, 248},  // input_size
        {1, 48, 80},  // output_size
        {0, 1, 2},  // pad
        {0, 0, 0},  // first_cell
        {static_cast<int>(ceil_div(batch, grad_input_1_kernel::kSamples)), 1, 12, 5},  // tiles
        {1, 1, 1},  // residue_blocks
        2,  // channel_blocks
    };
    const long long blocks = 20;
    const dim3 grid(static_cast<unsigned>(blocks), 2, 1);
    const int error = launch(grad_input_1_kernel::tconv_tile_pack, grid, 256, 1968,
                             false, stream, params, tensors.workspace);
    if (error != 0) return error;
  }
  {
    const grad_input_2_kernel::TileParams params = {
        tensors.output,  // input
        tensors.workspace,  // weight
        tensors.bias,  // bias
        tensors.input,  // output
        {972160, 24304, 24304, 248, 1},  // input_strides
        {15, 600, 15, 5, 1},  // weight_strides
        14400,  // weight_group_stride
        57600,  // weight_bytes
        {92160, 3840, 3840, 80, 1},  // output_strides
        static_cast<int>(batch),  // batch
        1,  // groups
        {1, 98, 248},  // input_size
        {1, 48, 80},  // output_size
        {0, 1, 2},  // pad
        {0, 0, 0},  // first_cell
        {static_cast<int>(ceil_div(batch, grad_input_2_kernel::kSamples)), 1, 12, 5},  // tiles
        {1, 1, 1},  // residue_blocks
        2,  // channel_blocks
    };
    const long long blocks = ceil_div(batch, grad_input_2_kernel::kSamples) * 120;
    const dim3 grid(static_cast<unsigned>(at_most(blocks, grad_input_2_kernel::kMostBlocks)), 1, 1);
    const int error = launch(grad_input_2_kernel::tconv_tile, grid, 128, 30720,
                             false, stream, params);
    if (error != 0) return error;
  }
  return 0;
}

long long grad_input_workspace(const Layer&) { return 76800; }
"""
PIECES["grad_weight_ampere_tf32"] = r"""
// grad_weight, reduce: 32 in channels by 1x1x5 taps x 40 channels; 1x1x4x16 pixels at a time, warps 2x1x1 of 16x208,
// vectors of 4 and 1, 72 parts, 216 blocks (2 per multiprocessor), 45 KiB shared
namespace grad_weight_1_kernel {
#include "reduce_params.cuh"
using Element = float;
__device__ constexpr ReduceShape kShape = {static_cast<TileMath>(0), 4, 24, 40, {1, 3, 5}, {1, 1, 1}, {1, 1, 1},
    false, false, {1, 1, 5}, {false, false, false}, false, 1, 2, 40, 1, 5, 1, 1, {1, 1, 4, 1}, {1, 1, 1, 16}, 4, 1,
    0, 4, 8, 8, 0, 0, 0, 1, 1, 2, false, 0, 0, 0, 0, 2, 2, true, false};
__constant__ int kProductCells[] = {0, 80, 160, 240, 320, 400, 480, 560, };
#define kTensorCopies 0
#include "reduce.cuh"
constexpr int kSamples = kShape.tile[0] * kShape.split[0];  // of a block
#undef kTensorCopies
}  // namespace grad_weight_1_kernel

namespace grad_weight_2_kernel {
#include "reduce_params.cuh"
using Element = float;
__device__ constexpr ReduceShape kShape = {static_cast<TileMath>(0), 4, 24, 40, {1, 3, 5}, {1, 1, 1}, {1, 1, 1},
    false, false, {1, 1, 5}, {false, false, false}, false, 1, 2, 40, 1, 5, 1, 1, {1, 1, 4, 1}, {1, 1, 1, 16}, 4, 1,
    0, 4, 8, 8, 0, 0, 0, 1, 1, 2, false, 0, 0, 0, 0, 2, 2, true, false};
constexpr int kPieces = 8;
#include "reduce_finish.cuh"
constexpr int kSamples = kShape.tile[0] * kShape.split[0];  // of a block
}  // namespace grad_weight_2_kernel

int grad_weight(const Tensors& tensors, const Layer& layer, void* stream) {
  const long long batch = layer.batch;
  {
    const grad_weight_1_kernel::ReduceParams params = {
        tensors.input,  // rows
        at(tensors.output, 996),  // columns
        tensors.workspace,  // packed_rows
        tensors.workspace,  // packed_columns
        static_cast<float*>(tensors.workspace),  // sums
        tensors.weight,  // weight
        {92160, 3840, 3840, 80, 1},  // row_strides
        {972160, 24304, 24304, 496, 3},  // column_strides
        {14400, 600, 15, 15, 5, 1},  // weight_strides
        static_cast<int>(batch),  // batch
        1,  // groups
        {1, 48, 80},  // row_size
        {1, 49, 83},  // column_size
        {0, 1, 1},  // pad
        1,  // row_blocks
        1,  // column_blocks
        {1, 3, 1},  // tap_blocks
        {static_cast<int>(ceil_div(batch, grad_weight_1_kernel::kSamples)), 1, 12, 5},  // tiles
        {88576, 256, 256, 16},  // row_advance
        {950144, 2288, 1792, 48},  // column_advance
        72,  // parts
    };
    const long long blocks = 216;
    const dim3 grid(static_cast<unsigned>(blocks), 1, 1);
    const int error = launch(grad_weight_1_kernel::tconv_reduce, grid, 64, 46528,
                             false, stream, params);
    if (error != 0) return error;
  }
  {
    const grad_weight_2_kernel::ReduceParams params = {
        tensors.input,  // rows
        at(tensors.output, 996),  // columns
        tensors.workspace,  // packed_rows
        tensors.workspace,  // packed_columns
        static_cast<float*>(tensors.workspace),  // sums
        tensors.weight,  // weight
        {92160, 3840, 3840, 80, 1},  // row_strides
        {972160, 24304, 24304, 496, 3},  // column_strides
        {14400, 600, 15, 15, 5, 1},  // weight_strides
        static_cast<int>(batch),  // batch
        1,  // groups
        {1, 48, 80},  // row_size
        {1, 49, 83},  // column_size
        {0, 1, 1},  // pad
        1,  // row_blocks
        1,  // column_blocks
        {1, 3, 1},  // tap_blocks
        {static_cast<int>(ceil_div(batch, grad_weight_2_kernel::kSamples)), 1, 12, 5},  // tiles
        {88576, 256, 256, 16},  // row_advance
        {950144, 2288, 1792, 48},  // column_advance
        72,  // parts
    };
    const long long blocks = 90;
    const dim3 grid(static_cast<unsigned>(blocks), 1, 1);
    const int error = launch(grad_weight_2_kernel::tconv_reduce_finish, grid, 256, 0,
                             false, stream, params);
    if (error != 0) return error;
  }
  return 0;
}

long long grad_weight_workspace(const Layer&) { return 5750784; }
"""
PIECES["forward_ampere_strict"] = r"""
// forward, tile: 1 phases x 16 channels by 1x1x1x28 cells, depth 8x15 of 24x15, warps 1x2x4 of 16x16, 3600 blocks (2
// per multiprocessor), 28 KiB shared, weights packed
namespace forward_2_kernel {
#include "tile_params.cuh"
using Element = float;
__device__ constexpr TileShape kShape = {static_cast<TileMath>(3), 4, 24, 40, {1, 3, 5}, {1, 2, 3}, {1, 2, 3},
    true, false, {1, 3, 5}, {1, 1, 1}, {1, 1, 1}, {1, 2, 3}, {1, 1, 1}, {0ULL, 18446744073709551600ULL,
    18446744073709551600ULL}, {0ULL, 0ULL, 0ULL}, {1, 1, 1}, {1, 1, 1}, {1, 1, 1, 28}, 16, false, false, 0, 0, 0,
    0, 0, 1, 5, -1, false, 2147483647, 0, 1, 0, 0, false, false, false, 1, 2, 1, 2, 4, 1, 2, 1, 15, 3, true, 2,
    true, false, 1, {0, 0, 0}, false, false, false, false, false, false};
__device__ constexpr int kFixedBackCells[] = {68, 67, 66, 65, 64, 36, 35, 34, 33, 32, 4, 3, 2, 1, 0, };
__device__ constexpr unsigned kFixedBackRows[] = {1u, 1u, 1u, 1u, 1u, 1u, 1u, 1u, 1u, 1u, 1u, 1u, 1u, 1u, 1u, };
__constant__ int kBackCells[] = {68, 67, 66, 65, 64, 36, 35, 34, 33, 32, 4, 3, 2, 1, 0, };
__constant__ unsigned kBackRows[] = {1u, 1u, 1u, 1u, 1u, 1u, 1u, 1u, 1u, 1u, 1u, 1u, 1u, 1u, 1u, };
#define kClusterAttribute
#include "tile.cuh"
constexpr int kSamples = kShape.tile[0];  // of a block
constexpr int kMostBlocks = kShape.most_blocks;  // of a launch
#undef kClusterAttribute
}  // namespace forward_2_kernel

namespace forward_1_kernel {
#include "tile_params.cuh"
using Element = float;
__device__ constexpr TileShape kShape = {static_cast<TileMath>(3), 4, 24, 40, {1, 3, 5}, {1, 2, 3}, {1, 2, 3},
    true, false, {1, 3, 5}, {1, 1, 1}, {1, 1, 1}, {1, 2, 3}, {1, 1, 1}, {0ULL, 18446744073709551600ULL,
    18446744073709551600ULL}, {0ULL, 0ULL, 0ULL}, {1, 1, 1}, {1, 1, 1}, {1, 1, 1, 28}, 16, false, false, 0, 0, 0,
    0, 0, 1, 5, -1, false, 2147483647, 0, 1, 0, 0, false, false, false, 1, 2, 1, 2, 4, 1, 2, 1, 15, 3, true, 2,
    true, false, 1, {0, 0, 0}, false, false, false, false, false, false};
__device__ constexpr int kFixedBackCells[] = {68, 67, 66, 65, 64, 36, 35, 34, 33, 32, 4, 3, 2, 1, 0, };
__device__ constexpr unsigned kFixedBackRows[] = {1u, 1u, 1u, 1u, 1u, 1u, 1u, 1u, 1u, 1u, 1u, 1u, 1u, 1u, 1u, };
__constant__ int kBackCells[] = {68, 67, 66, 65, 64, 36, 35, 34, 33, 32, 4, 3, 2, 1, 0, };
__constant__ unsigned kBackRows[] = {1u, 1u, 1u, 1u, 1u, 1u, 1u, 1u, 1u, 1u, 1u, 1u, 1u, 1u, 1u, };
#define kClusterAttribute
#include "tile_pack_params.cuh"
constexpr bool kDenseTaps = true;
constexpr bool kRuns = false;
constexpr bool kRowRuns = true;
__device__ constexpr PackOrder kOrder = PackOrder::taps_of_rows;
#include "tile_pack.cuh"
constexpr int kSamples = kShape.tile[0];  // of a block
#undef kClusterAttribute
}  // namespace forward_1_kernel

int forward(const Tensors& tensors, const Layer& layer, void* stream) {
  const long long batch = layer.batch;
  {
    const forward_1_kernel::TileParams params = {
        tensors.input,  // input
        tensors.weight,  // weight
        tensors.bias,  // bias
        tensors.output,  // output
        {92160, 3840, 3840, 80, 1},  // input_strides
        {600, 15, 15, 5, 1},  // weight_strides
        14400,  // weight_group_stride
        57600,  // weight_bytes
        {972160, 24304, 24304, 248, 1},  // output_strides
        static_cast<int>(batch),  // batch
        1,  // groups
        {1, 48, 80},  // input_size
        {1, 98, 248},  // output_size
        {0, 1, 2},  // pad
        {0, 0, 0},  // first_cell
        {static_cast<int>(ceil_div(batch, forward_1_kernel::kSamples)), 1, 50, 3},  // tiles
        {1, 1, 1},  // residue_blocks
        3,  // channel_blocks
    };
    const long long blocks = 12;
    const dim3 grid(static_cast<unsigned>(blocks), 3, 1);
    const int error = launch(forward_1_kernel::tconv_tile_pack, grid, 256, 1968,
                             false, stream, params, tensors.workspace);
    if (error != 0) return error;
  }
  {
    const forward_2_kernel::TileParams params = {
        tensors.input,  // input
        tensors.workspace,  // weight
        tensors.bias,  // bias
        tensors.output,  // output
        {92160, 3840, 3840, 80, 1},  // input_strides
        {600, 15, 15, 5, 1},  // weight_strides
        14400,  // weight_group_stride
        57600,  // weight_bytes
        {972160, 24304, 24304, 248, 1},  // output_strides
        static_cast<int>(batch),  // batch
        1,  // groups
        {1, 48, 80},  // input_size
        {1, 98, 248},  // output_size
        {0, 1, 2},  // pad
        {0, 0, 0},  // first_cell
        {static_cast<int>(ceil_div(batch, forward_2_kernel::kSamples)), 1, 50, 3},  // tiles
        {1, 1, 1},  // residue_blocks
        3,  // channel_blocks
    };
    const long long blocks = ceil_div(batch, forward_2_kernel::kSamples) * 450;
    const dim3 grid(static_cast<unsigned>(at_most(blocks, forward_2_kernel::kMostBlocks)), 1, 1);
    const int error = launch(forward_2_kernel::tconv_tile, grid, 256, 29184,
                             false, stream, params);
    if (error != 0) return error;
  }
  return 0;
}

long long forward_workspace(const Layer&) { return 69120; }
"""
PIECES["grad_input_ampere_strict"] = r"""
// grad_input, tile: 16 channels by 1x1x2x16 cells, depth 8x15 of 40x15 in 1x1 planes, warps 1x2x4 of 16x16, 1920
// blocks (2 per multiprocessor), 27 KiB shared, weights packed
namespace grad_input_2_kernel {
#include "tile_params.cuh"
using Element = float;
__device__ constexpr TileShape kShape = {static_cast<TileMath>(3), 4, 40, 24, {1, 3, 5}, {1, 2, 3}, {1, 2, 3},
    false, true, {1, 3, 5}, {1, 1, 1}, {1, 1, 1}, {1, 1, 1}, {1, 1, 1}, {0ULL, 0ULL, 0ULL}, {0ULL, 0ULL, 0ULL}, {1,
    1, 1}, {1, 1, 1}, {1, 1, 2, 16}, 16, false, false, 0, 0, 0, 0, 0, 1, 5, -1, false, 2147483647, 0, 1, 0, 0,
    false, false, false, 1, 2, 1, 2, 4, 1, 2, 1, 15, 3, true, 2, true, false, 1, {0, 0, 0}, false, false, false,
    false, false, false};
__device__ constexpr int kFixedBackCells[] = {0, 1, 2, 3, 4, 20, 21, 22, 23, 24, 40, 41, 42, 43, 44, };
__device__ constexpr unsigned kFixedBackRows[] = {1u, 1u, 1u, 1u, 1u, 1u, 1u, 1u, 1u, 1u, 1u, 1u, 1u, 1u, 1u, };
__constant__ int kBackCells[] = {0, 1, 2, 3, 4, 20, 21, 22, 23, 24, 40, 41, 42, 43, 44, };
__constant__ unsigned kBackRows[] = {1u, 1u, 1u, 1u, 1u, 1u, 1u, 1u, 1u, 1u, 1u, 1u, 1u, 1u, 1u, };
#define kClusterAttribute
#include "tile.cuh"
constexpr int kSamples = kShape.tile[0];  // of a block
constexpr int kMostBlocks = kShape.most_blocks;  // of a launch
#undef kClusterAttribute
}  // namespace grad_input_2_kernel

namespace grad_input_1_kernel {
#include "tile_params.cuh"
using Element = float;
__device__ constexpr TileShape kShape = {static_cast<TileMath>(3), 4, 40, 24, {1, 3, 5}, {1, 2, 3}, {1, 2, 3},
    false, true, {1, 3, 5}, {1, 1, 1}, {1, 1, 1}, {1, 1, 1}, {1, 1, 1}, {0ULL, 0ULL, 0ULL}, {0ULL, 0ULL, 0ULL}, {1,
    1, 1}, {1, 1, 1}, {1, 1, 2, 16}, 16, false, false, 0, 0, 0, 0, 0, 1, 5, -1, false, 2147483647, 0, 1, 0, 0,
    false, false, false, 1, 2, 1, 2, 4, 1, 2, 1, 15, 3, true, 2, true, false, 1, {0, 0, 0}, false, false, false,
    false, false, false};
__device__ constexpr int kFixedBackCells[] = {0, 1, 2, 3, 4, 20, 21, 22, 23, 24, 40, 41, 42, 43, 44, };
__device__ constexpr unsigned kFixedBackRows[] = {1u, 1u, 1u, 1u, 1u, 1u, 1u, 1u, 1u, 1u, 1u, 1u, 1u, 1u, 1u, };
__constant__ int kBackCells[] = {0, 1, 2, 3, 4, 20, 21, 22, 23, 24, 40, 41, 42, 43, 44, };
__constant__ unsigned kBackRows[] = {1u, 1u, 1u, 1u, 1u, 1u, 1u, 1u, 1u, 1u, 1u, 1u, 1u, 1u, 1u, };
#define kClusterAttribute
#include "tile_pack_params.cuh"
constexpr bool kDenseTaps = true;
constexpr bool kRuns = true;
constexpr bool kRowRuns = false;
__device__ constexpr PackOrder kOrder = PackOrder::taps_of_summed;
#include "tile_pack.cuh"
constexpr int kSamples = kShape.tile[0];  // of a block
#undef kClusterAttribute
}  // namespace grad_input_1_kernel

int grad_input(const Tensors& tensors, const Layer& layer, void* stream) {
  const long long batch = layer.batch;
  {
    const grad_input_1_kernel::TileParams params = {
        tensors.output,  // input
        tensors.weight,  // weight
        tensors.bias,  // bias
        tensors.input,  // output
        {972160, 24304, 24304, 248, 1},  // input_strides
        {15, 600, 15, 5, 1},  // weight_strides
        14400,  // weight_group_stride
        57600,  // weight_bytes
        {92160, 3840, 3840, 80, 1},  // output_strides
        static_cast<int>(batch),  // batch
        1,  // groups
        {1, 98, 248},  // input_size
        {1, 48, 80},  // output_size
        {0, 1, 2},  // pad
        {0, 0, 0},  // first_cell
        {static_cast<int>(ceil_div(batch, grad_input_1_kernel::kSamples)), 1, 24, 5},  // tiles
        {1, 1, 1},  // residue_blocks
        2,  // channel_blocks
    };
    const long long blocks = 20;
    const dim3 grid(static_cast<unsigned>(blocks), 2, 1);
    const int error = launch(grad_input_1_kernel::tconv_tile_pack, grid, 256, 1968,
                             false, stream, params, tensors.workspace);
    if (error != 0) return error;
  }
  {
    const grad_input_2_kernel::TileParams params = {
        tensors.output,  // input
        tensors.workspace,  // weight
        tensors.bias,  // bias
        tensors.input,  // output
        {972160, 24304, 24304, 248, 1},  // input_strides
        {15, 600, 15, 5, 1},  // weight_strides
        14400,  // weight_group_stride
        57600,  // weight_bytes
        {92160, 3840, 3840, 80, 1},  // output_strides
        static_cast<int>(batch),  // batch
        1,  // groups
        {1, 98, 248},  // input_size
        {1, 48, 80},  // output_size
        {0, 1, 2},  // pad
        {0, 0, 0},  // first_cell
        {static_cast<int>(ceil_div(batch, grad_input_2_kernel::kSamples)), 1, 24, 5},  // tiles
        {1, 1, 1},  // residue_blocks
        2,  // channel_blocks
    };
    const long long blocks = ceil_div(batch, grad_input_2_kernel::kSamples) * 240;
    const dim3 grid(static_cast<unsigned>(at_most(blocks, grad_input_2_kernel::kMostBlocks)), 1, 1);
    const int error = launch(grad_input_2_kernel::tconv_tile, grid, 256, 28160,
                             false, stream, params);
    if (error != 0) return error;
  }
  return 0;
}

long long grad_input_workspace(const Layer&) { return 76800; }
"""
PIECES["grad_weight_ampere_strict"] = r"""
// grad_weight, reduce: 16 out channels by 1x3x5 taps x 8 channels; 1x1x2x28 pixels at a time, warps 1x1x3 of 16x48,
// vectors of 1 and 2, 24 parts, 216 blocks (2 per multiprocessor), 24 KiB shared
namespace grad_weight_1_kernel {
#include "reduce_params.cuh"
using Element = float;
__device__ constexpr ReduceShape kShape = {static_cast<TileMath>(3), 4, 40, 24, {1, 3, 5}, {1, 1, 1}, {1, 1, 1},
    false, false, {1, 3, 5}, {false, false, false}, false, 1, 1, 8, 1, 5, 3, 1, {1, 1, 2, 2}, {1, 1, 1, 14}, 1, 2,
    1, 16, 4, 8, 0, 0, 0, 1, 1, 2, false, 0, 0, 0, 0, 2, 2, true, false};
__constant__ int kProductCells[] = {0, 16, 32, 48, 64, 80, 96, };
#define kTensorCopies 0
#include "reduce.cuh"
constexpr int kSamples = kShape.tile[0] * kShape.split[0];  // of a block
#undef kTensorCopies
}  // namespace grad_weight_1_kernel

namespace grad_weight_2_kernel {
#include "reduce_params.cuh"
using Element = float;
__device__ constexpr ReduceShape kShape = {static_cast<TileMath>(3), 4, 40, 24, {1, 3, 5}, {1, 1, 1}, {1, 1, 1},
    false, false, {1, 3, 5}, {false, false, false}, false, 1, 1, 8, 1, 5, 3, 1, {1, 1, 2, 2}, {1, 1, 1, 14}, 1, 2,
    1, 16, 4, 8, 0, 0, 0, 1, 1, 2, false, 0, 0, 0, 0, 2, 2, true, false};
constexpr int kPieces = 4;
#include "reduce_finish.cuh"
constexpr int kSamples = kShape.tile[0] * kShape.split[0];  // of a block
}  // namespace grad_weight_2_kernel

int grad_weight(const Tensors& tensors, const Layer& layer, void* stream) {
  const long long batch = layer.batch;
  {
    const grad_weight_1_kernel::ReduceParams params = {
        at(tensors.output, 996),  // rows
        tensors.input,  // columns
        tensors.workspace,  // packed_rows
        tensors.workspace,  // packed_columns
        static_cast<float*>(tensors.workspace),  // sums
        at(tensors.weight, 56),  // weight
        {972160, 24304, 24304, 496, 3},  // row_strides
        {92160, 3840, 3840, 80, 1},  // column_strides
        {14400, 15, 600, -15, -5, -1},  // weight_strides
        static_cast<int>(batch),  // batch
        1,  // groups
        {1, 49, 83},  // row_size
        {1, 48, 80},  // column_size
        {0, 1, 3},  // pad
        3,  // row_blocks
        3,  // column_blocks
        {1, 1, 1},  // tap_blocks
        {static_cast<int>(ceil_div(batch, grad_weight_1_kernel::kSamples)), 1, 25, 3},  // tiles
        {948184, 328, 824, 84},  // row_advance
        {88264, -56, 104, 28},  // column_advance
        24,  // parts
    };
    const long long blocks = 216;
    const dim3 grid(static_cast<unsigned>(blocks), 1, 1);
    const int error = launch(grad_weight_1_kernel::tconv_reduce, grid, 96, 25120,
                             false, stream, params);
    if (error != 0) return error;
  }
  {
    const grad_weight_2_kernel::ReduceParams params = {
        at(tensors.output, 996),  // rows
        tensors.input,  // columns
        tensors.workspace,  // packed_rows
        tensors.workspace,  // packed_columns
        static_cast<float*>(tensors.workspace),  // sums
        at(tensors.weight, 56),  // weight
        {972160, 24304, 24304, 496, 3},  // row_strides
        {92160, 3840, 3840, 80, 1},  // column_strides
        {14400, 15, 600, -15, -5, -1},  // weight_strides
        static_cast<int>(batch),  // batch
        1,  // groups
        {1, 49, 83},  // row_size
        {1, 48, 80},  // column_size
        {0, 1, 3},  // pad
        3,  // row_blocks
        3,  // column_blocks
        {1, 1, 1},  // tap_blocks
        {static_cast<int>(ceil_div(batch, grad_weight_2_kernel::kSamples)), 1, 25, 3},  // tiles
        {948184, 328, 824, 84},  // row_advance
        {88264, -56, 104, 28},  // column_advance
        24,  // parts
    };
    const long long blocks = 45;
    const dim3 grid(static_cast<unsigned>(blocks), 1, 1);
    const int error = launch(grad_weight_2_kernel::tconv_reduce_finish, grid, 256, 0,
                             false, stream, params);
    if (error != 0) return error;
  }
  return 0;
}

long long grad_weight_workspace(const Layer&) { return 1990656; }
"""
PIECES["end_forward"] = r"""
int launch_direction(int, const Tensors& tensors, const Layer& layer, void* stream) {
  return forward(tensors, layer, stream);
}

long long workspace_bytes(int, const Layer& layer) { return forward_workspace(layer); }
"""
PIECES["end_gradients"] = r"""
int launch_direction(int direction, const Tensors& tensors, const Layer& layer, void* stream) {
  switch (direction) {
    case kGradInput: return grad_input(tensors, layer, stream);
    case kGradWeight: return grad_weight(tensors, layer, stream);
    default: return grad_bias(tensors, layer, stream);
  }
}

long long workspace_bytes(int direction, const Layer& layer) {
  switch (direction) {
    case kGradInput: return grad_input_workspace(layer);
    case kGradWeight: return grad_weight_workspace(layer);
    default: return grad_bias_workspace(layer);
  }
}
"""
PIECES["forward_F64"] = r"""
namespace forward_kernel {
struct F64; struct F32; struct F16; struct BF16;
using Element = F64;
using Index = long long;
constexpr int kBundle = 4;
constexpr bool kGradient = false;
#include "general.cuh"
#include "general_host.cuh"
}  // namespace forward_kernel

int forward(const Tensors& tensors, const Layer& layer, void* stream) {
  return forward_kernel::run(tensors.input, tensors.weight, tensors.bias, tensors.output, layer, stream);
}

long long forward_workspace(const Layer&) { return 0; }
"""
PIECES["grad_input_F64"] = r"""
namespace grad_input_kernel {
struct F64; struct F32; struct F16; struct BF16;
using Element = F64;
using Index = long long;
constexpr int kBundle = 4;
constexpr bool kGradient = true;
#include "general.cuh"
#include "general_host.cuh"
}  // namespace grad_input_kernel

int grad_input(const Tensors& tensors, const Layer& layer, void* stream) {
  return grad_input_kernel::run(tensors.output, tensors.weight, nullptr, tensors.input, layer, stream);
}

long long grad_input_workspace(const Layer&) { return 0; }
"""
PIECES["grad_weight_F64"] = r"""
namespace grad_weight_kernel {
struct F64; struct F32; struct F16; struct BF16;
using Element = F64;
using Index = long long;
#include "general_weight.cuh"
#include "general_weight_host.cuh"
}  // namespace grad_weight_kernel

int grad_weight(const Tensors& tensors, const Layer& layer, void* stream) {
  return grad_weight_kernel::run(tensors, layer, stream);
}

long long grad_weight_workspace(const Layer& layer) { return grad_weight_kernel::sums_bytes(layer); }
"""
PIECES["grad_bias_F64"] = r"""
namespace bias_first {
struct F64; struct F32; struct F16; struct BF16;
using In = F64;
using Out = F64;
using Index = long long;
constexpr bool kAcross = false;
constexpr int kRows = 2;
#include "grad_bias.cuh"
#include "grad_bias_host.cuh"
}  // namespace bias_first

namespace bias_second {
struct F64; struct F32; struct F16; struct BF16;
using In = F64;
using Out = F64;
using Index = long long;
constexpr bool kAcross = false;
constexpr int kRows = 2;
#include "grad_bias.cuh"
#include "grad_bias_host.cuh"
}  // namespace bias_second

// The gradient of the bias: the output's gradient summed per channel in parts, then the parts.
long long pixels_of_output(const Layer& layer) {
  return layer.axes[0].output * layer.axes[1].output * layer.axes[2].output;
}

// Parts enough to fill a large GPU, none shorter than is worth a block.
long long bias_parts(const Layer& layer) {
  const long long wanted = ceil_div(8 * 132, layer.out_channels);
  const long long worth = layer.batch * pixels_of_output(layer) / 4096;
  const long long parts = worth < wanted ? worth : wanted;
  return parts < 1 ? 1 : parts;
}

long long grad_bias_workspace(const Layer& layer) { return bias_parts(layer) * layer.out_channels * 8; }

int grad_bias(const Tensors& tensors, const Layer& layer, void* stream) {
  const long long pixels = pixels_of_output(layer);
  const long long parts = bias_parts(layer);
  const int error = bias_first::run(tensors.output, tensors.workspace, layer.out_channels, pixels, layer.batch,
                                    layer.out_channels * pixels, pixels, parts, stream);
  if (error != 0) return error;
  return bias_second::run(tensors.workspace, tensors.bias, layer.out_channels, parts, 1, 0, parts, 1, stream);
}
"""
PIECES["forward_F32"] = r"""
namespace forward_kernel {
struct F64; struct F32; struct F16; struct BF16;
using Element = F32;
using Index = long long;
constexpr int kBundle = 4;
constexpr bool kGradient = false;
#include "general.cuh"
#include "general_host.cuh"
}  // namespace forward_kernel

int forward(const Tensors& tensors, const Layer& layer, void* stream) {
  return forward_kernel::run(tensors.input, tensors.weight, tensors.bias, tensors.output, layer, stream);
}

long long forward_workspace(const Layer&) { return 0; }
"""
PIECES["grad_input_F32"] = r"""
namespace grad_input_kernel {
struct F64; struct F32; struct F16; struct BF16;
using Element = F32;
using Index = long long;
constexpr int kBundle = 4;
constexpr bool kGradient = true;
#include "general.cuh"
#include "general_host.cuh"
}  // namespace grad_input_kernel

int grad_input(const Tensors& tensors, const Layer& layer, void* stream) {
  return grad_input_kernel::run(tensors.output, tensors.weight, nullptr, tensors.input, layer, stream);
}

long long grad_input_workspace(const Layer&) { return 0; }
"""
PIECES["grad_weight_F32"] = r"""
namespace grad_weight_kernel {
struct F64; struct F32; struct F16; struct BF16;
using Element = F32;
using Index = long long;
#include "general_weight.cuh"
#include "general_weight_host.cuh"
}  // namespace grad_weight_kernel

int grad_weight(const Tensors& tensors, const Layer& layer, void* stream) {
  return grad_weight_kernel::run(tensors, layer, stream);
}

long long grad_weight_workspace(const Layer& layer) { return grad_weight_kernel::sums_bytes(layer); }
"""
PIECES["grad_bias_F32"] = r"""
namespace bias_first {
struct F64; struct F32; struct F16; struct BF16;
using In = F32;
using Out = F32;
using Index = long long;
constexpr bool kAcross = false;
constexpr int kRows = 2;
#include "grad_bias.cuh"
#include "grad_bias_host.cuh"
}  // namespace bias_first

namespace bias_second {
struct F64; struct F32; struct F16; struct BF16;
using In = F32;
using Out = F32;
using Index = long long;
constexpr bool kAcross = false;
constexpr int kRows = 2;
#include "grad_bias.cuh"
#include "grad_bias_host.cuh"
}  // namespace bias_second

// The gradient of the bias: the output's gradient summed per channel in parts, then the parts.
long long pixels_of_output(const Layer& layer) {
  return layer.axes[0].output * layer.axes[1].output * layer.axes[2].output;
}

// Parts enough to fill a large GPU, none shorter than is worth a block.
long long bias_parts(const Layer& layer) {
  const long long wanted = ceil_div(8 * 132, layer.out_channels);
  const long long worth = layer.batch * pixels_of_output(layer) / 4096;
  const long long parts = worth < wanted ? worth : wanted;
  return parts < 1 ? 1 : parts;
}

long long grad_bias_workspace(const Layer& layer) { return bias_parts(layer) * layer.out_channels * 8; }

int grad_bias(const Tensors& tensors, const Layer& layer, void* stream) {
  const long long pixels = pixels_of_output(layer);
  const long long parts = bias_parts(layer);
  const int error = bias_first::run(tensors.output, tensors.workspace, layer.out_channels, pixels, layer.batch,
                                    layer.out_channels * pixels, pixels, parts, stream);
  if (error != 0) return error;
  return bias_second::run(tensors.workspace, tensors.bias, layer.out_channels, parts, 1, 0, parts, 1, stream);
}
"""
PIECES["forward_F16"] = r"""
namespace forward_kernel {
struct F64; struct F32; struct F16; struct BF16;
using Element = F16;
using Index = long long;
constexpr int kBundle = 4;
constexpr bool kGradient = false;
#include "general.cuh"
#include "general_host.cuh"
}  // namespace forward_kernel

int forward(const Tensors& tensors, const Layer& layer, void* stream) {
  return forward_kernel::run(tensors.input, tensors.weight, tensors.bias, tensors.output, layer, stream);
}

long long forward_workspace(const Layer&) { return 0; }
"""
PIECES["grad_input_F16"] = r"""
namespace grad_input_kernel {
struct F64; struct F32; struct F16; struct BF16;
using Element = F16;
using Index = long long;
constexpr int kBundle = 4;
constexpr bool kGradient = true;
#include "general.cuh"
#include "general_host.cuh"
}  // namespace grad_input_kernel

int grad_input(const Tensors& tensors, const Layer& layer, void* stream) {
  return grad_input_kernel::run(tensors.output, tensors.weight, nullptr, tensors.input, layer, stream);
}

long long grad_input_workspace(const Layer&) { return 0; }
"""
PIECES["grad_weight_F16"] = r"""
namespace grad_weight_kernel {
struct F64; struct F32; struct F16; struct BF16;
using Element = F16;
using Index = long long;
#include "general_weight.cuh"
#include "general_weight_host.cuh"
}  // namespace grad_weight_kernel

int grad_weight(const Tensors& tensors, const Layer& layer, void* stream) {
  return grad_weight_kernel::run(tensors, layer, stream);
}

long long grad_weight_workspace(const Layer& layer) { return grad_weight_kernel::sums_bytes(layer); }
"""
PIECES["grad_bias_F16"] = r"""
namespace bias_first {
struct F64; struct F32; struct F16; struct BF16;
using In = F16;
using Out = F32;
using Index = long long;
constexpr bool kAcross = false;
constexpr int kRows = 2;
#include "grad_bias.cuh"
#include "grad_bias_host.cuh"
}  // namespace bias_first

namespace bias_second {
struct F64; struct F32; struct F16; struct BF16;
using In = F32;
using Out = F16;
using Index = long long;
constexpr bool kAcross = false;
constexpr int kRows = 2;
#include "grad_bias.cuh"
#include "grad_bias_host.cuh"
}  // namespace bias_second

// The gradient of the bias: the output's gradient summed per channel in parts, then the parts.
long long pixels_of_output(const Layer& layer) {
  return layer.axes[0].output * layer.axes[1].output * layer.axes[2].output;
}

// Parts enough to fill a large GPU, none shorter than is worth a block.
long long bias_parts(const Layer& layer) {
  const long long wanted = ceil_div(8 * 132, layer.out_channels);
  const long long worth = layer.batch * pixels_of_output(layer) / 4096;
  const long long parts = worth < wanted ? worth : wanted;
  return parts < 1 ? 1 : parts;
}

long long grad_bias_workspace(const Layer& layer) { return bias_parts(layer) * layer.out_channels * 8; }

int grad_bias(const Tensors& tensors, const Layer& layer, void* stream) {
  const long long pixels = pixels_of_output(layer);
  const long long parts = bias_parts(layer);
  const int error = bias_first::run(tensors.output, tensors.workspace, layer.out_channels, pixels, layer.batch,
                                    layer.out_channels * pixels, pixels, parts, stream);
  if (error != 0) return error;
  return bias_second::run(tensors.workspace, tensors.bias, layer.out_channels, parts, 1, 0, parts, 1, stream);
}
"""
PIECES["forward_BF16"] = r"""
namespace forward_kernel {
struct F64; struct F32; struct F16; struct BF16;
using Element = BF16;
using Index = long long;
constexpr int kBundle = 4;
constexpr bool kGradient = false;
#include "general.cuh"
#include "general_host.cuh"
}  // namespace forward_kernel

int forward(const Tensors& tensors, const Layer& layer, void* stream) {
  return forward_kernel::run(tensors.input, tensors.weight, tensors.bias, tensors.output, layer, stream);
}

long long forward_workspace(const Layer&) { return 0; }
"""
PIECES["grad_input_BF16"] = r"""
namespace grad_input_kernel {
struct F64; struct F32; struct F16; struct BF16;
using Element = BF16;
using Index = long long;
constexpr int kBundle = 4;
constexpr bool kGradient = true;
#include "general.cuh"
#include "general_host.cuh"
}  // namespace grad_input_kernel

int grad_input(const Tensors& tensors, const Layer& layer, void* stream) {
  return grad_input_kernel::run(tensors.output, tensors.weight, nullptr, tensors.input, layer, stream);
}

long long grad_input_workspace(const Layer&) { return 0; }
"""
PIECES["grad_weight_BF16"] = r"""
namespace grad_weight_kernel {
struct F64; struct F32; struct F16; struct BF16;
using Element = BF16;
using Index = long long;
#include "general_weight.cuh"
#include "general_weight_host.cuh"
}  // namespace grad_weight_kernel

int grad_weight(const Tensors& tensors, const Layer& layer, void* stream) {
  return grad_weight_kernel::run(tensors, layer, stream);
}

long long grad_weight_workspace(const Layer& layer) { return grad_weight_kernel::sums_bytes(layer); }
"""
PIECES["grad_bias_BF16"] = r"""
namespace bias_first {
struct F64; struct F32; struct F16; struct BF16;
using In = BF16;
using Out = F32;
using Index = long long;
constexpr bool kAcross = false;
constexpr int kRows = 2;
#include "grad_bias.cuh"
#include "grad_bias_host.cuh"
}  // namespace bias_first

namespace bias_second {
struct F64; struct F32; struct F16; struct BF16;
using In = F32;
using Out = BF16;
using Index = long long;
constexpr bool kAcross = false;
constexpr int kRows = 2;
#include "grad_bias.cuh"
#include "grad_bias_host.cuh"
}  // namespace bias_second

// The gradient of the bias: the output's gradient summed per channel in parts, then the parts.
long long pixels_of_output(const Layer& layer) {
  return layer.axes[0].output * layer.axes[1].output * layer.axes[2].output;
}

// Parts enough to fill a large GPU, none shorter than is worth a block.
long long bias_parts(const Layer& layer) {
  const long long wanted = ceil_div(8 * 132, layer.out_channels);
  const long long worth = layer.batch * pixels_of_output(layer) / 4096;
  const long long parts = worth < wanted ? worth : wanted;
  return parts < 1 ? 1 : parts;
}

long long grad_bias_workspace(const Layer& layer) { return bias_parts(layer) * layer.out_channels * 8; }

int grad_bias(const Tensors& tensors, const Layer& layer, void* stream) {
  const long long pixels = pixels_of_output(layer);
  const long long parts = bias_parts(layer);
  const int error = bias_first::run(tensors.output, tensors.workspace, layer.out_channels, pixels, layer.batch,
                                    layer.out_channels * pixels, pixels, parts, stream);
  if (error != 0) return error;
  return bias_second::run(tensors.workspace, tensors.bias, layer.out_channels, parts, 1, 0, parts, 1, stream);
}
"""

# Device code, by the names under which the pieces include it.
FILES = {}
FILES["general.cuh"] = r"""
// The kernel that takes every problem of the directions forward and grad_input: each thread gathers one pixel of a few
// channels from the taps that reach it. What is read is called input and what is written output, whichever of the
// layer's tensors that is. Only the element type and a few constants are compiled in, so that one compilation serves
// every shape.
//
// The config before this file states
//   Element                 F64, F32, F16 or BF16
//   Index                   int where positions, tap distances and products of residues fit, else long long
//   kBundle                 output channels of a thread
//   kGradient               whether outputs gather as the layer's inputs do: each from all its taps
#include "general_params.cuh"
#include "types.cuh"

using Sum = Element::Sum;
using Storage = Element::Storage;

// Loads in flight per thread; 64-bit positions leave no registers for more.
constexpr int kUnroll = sizeof(Index) == 8 ? 1 : 4;

// The taps that reach one output along one axis: taps first + t tap_step read inputs start - t input_step, begin <= t <
// end. (input_step is negative for a gradient.)
struct Reach {
  Index first;
  Index start;
  Index begin;
  Index end;
};

__device__ __forceinline__ Index first_tap(const GeneralAxis& axis, Index residue) {
  if (axis.inverse >= 0) {
    return residue / static_cast<Index>(axis.common) * static_cast<Index>(axis.inverse) %
           static_cast<Index>(axis.tap_step);
  }
  Index tap = 0;
  while (tap < axis.kernel && tap * axis.dilation % axis.stride != residue) ++tap;
  return tap;
}

// Layer input i reads the gradient at i stride - pad + t dilation with its tap t.
__device__ __forceinline__ Reach reach_of_gradient(const GeneralAxis& axis, Index output) {
  const Index dilation = static_cast<Index>(axis.dilation);
  Reach reach = {0, 0, 0, 0};
  reach.start = output * static_cast<Index>(axis.stride) - static_cast<Index>(axis.pad);
  if (reach.start < 0) reach.begin = (-reach.start - 1) / dilation + 1;
  const Index room = static_cast<Index>(axis.input) - reach.start;  // taps up to here fall inside
  const Index inside = room <= 0 ? 0 : (room - 1) / dilation + 1;
  reach.end = inside < static_cast<Index>(axis.kernel) ? inside : static_cast<Index>(axis.kernel);
  return reach;
}

__device__ __forceinline__ Reach reach_of(const GeneralAxis& axis, Index output) {
  if (kGradient) return reach_of_gradient(axis, output);
  const Index stride = static_cast<Index>(axis.stride);
  const Index position = output + static_cast<Index>(axis.pad);
  const Index cell = position / stride;
  const Index residue = position - cell * stride;
  Reach reach = {0, 0, 0, 0};
  if (residue % static_cast<Index>(axis.common) != 0) return reach;
  reach.first = first_tap(axis, residue);
  const Index input_step = static_cast<Index>(axis.input_step);
  const Index kernel = static_cast<Index>(axis.kernel);
  const Index offset = position - reach.first * static_cast<Index>(axis.dilation);
  // A multiple of the stride; below zero not even the first tap has an input.
  if (reach.first >= kernel || offset < 0) return reach;
  reach.start = offset / stride;
  const Index last = static_cast<Index>(axis.input) - 1;
  if (reach.start > last) reach.begin = (reach.start - last + input_step - 1) / input_step;
  const Index taps = (kernel - 1 - reach.first) / static_cast<Index>(axis.tap_step) + 1;
  const Index inside = reach.start / input_step + 1;
  reach.end = taps < inside ? taps : inside;
  return reach;
}

// Quotient of `rest` by `size`; `rest` keeps the remainder's place: position along the axis that varies faster.
__device__ __forceinline__ Index take(Index& rest, GeneralIndex size) {
  const Index count = static_cast<Index>(size);
  const Index whole = rest / count;
  const Index position = rest - whole * count;
  rest = whole;
  return position;
}

__device__ __forceinline__ void compute(const GeneralParams& p, Index work) {
  Index rest = work;
  Index bundle = 0;
  Index group = 0;
  if (p.channels_last != 0) {
    bundle = take(rest, p.bundles);
    group = take(rest, p.groups);
  }
  const Index column = take(rest, p.axes[2].output);
  const Index row = take(rest, p.axes[1].output);
  const Index plane = take(rest, p.axes[0].output);
  if (p.channels_last == 0) {
    bundle = take(rest, p.bundles);
    group = take(rest, p.groups);
  }
  const GeneralIndex sample = rest;

  const Reach d = reach_of(p.axes[0], plane);
  const Reach h = reach_of(p.axes[1], row);
  const Reach w = reach_of(p.axes[2], column);

  const GeneralIndex channel = static_cast<GeneralIndex>(bundle) * kBundle;  // within the group
  const GeneralIndex left = p.out_channels - channel;
  const Storage* const input = static_cast<const Storage*>(p.input) + sample * p.input_strides[0] +
                               group * p.in_channels * p.input_strides[1] + d.start * p.input_strides[2] +
                               h.start * p.input_strides[3] + w.start * p.input_strides[4];
  const Storage* const weight = static_cast<const Storage*>(p.weight) + group * p.weight_group_stride +
                                channel * p.weight_strides[1] + d.first * p.weight_strides[2] +
                                h.first * p.weight_strides[3] + w.first * p.weight_strides[4];

  Sum total[kBundle] = {};
  const Storage* x_plane = input - d.begin * p.axes[0].input_jump;
  const Storage* w_plane = weight + d.begin * p.axes[0].weight_jump;
  for (Index td = d.begin; td < d.end; ++td) {
    const Storage* x_row = x_plane - h.begin * p.axes[1].input_jump;
    const Storage* w_row = w_plane + h.begin * p.axes[1].weight_jump;
    for (Index th = h.begin; th < h.end; ++th) {
      const Storage* x_tap = x_row - w.begin * p.axes[2].input_jump;
      const Storage* w_tap = w_row + w.begin * p.axes[2].weight_jump;
      for (Index tw = w.begin; tw < w.end; ++tw) {
        const Storage* x = x_tap;
        const Storage* k = w_tap;
        // One sum per tap, then the sum of those: rounding grows with the longer of the two, not with their product.
        Sum partial[kBundle] = {};
#ifdef __CUDACC__
#pragma unroll kUnroll
#endif
        for (GeneralIndex ci = 0; ci < p.in_channels; ++ci) {
          const Sum value = Element::load(*x);
          for (int j = 0; j < kBundle; ++j) {
            if (j < left) partial[j] += value * Element::load(k[j * p.weight_strides[1]]);
          }
          x += p.input_strides[1];
          k += p.weight_strides[0];
        }
        for (int j = 0; j < kBundle; ++j) total[j] += partial[j];
        x_tap -= p.axes[2].input_jump;
        w_tap += p.axes[2].weight_jump;
      }
      x_row -= p.axes[1].input_jump;
      w_row += p.axes[1].weight_jump;
    }
    x_plane -= p.axes[0].input_jump;
    w_plane += p.axes[0].weight_jump;
  }

  const GeneralIndex out_channel = group * p.out_channels + channel;
  const Storage* const bias = static_cast<const Storage*>(p.bias);
  Storage* const output = static_cast<Storage*>(p.output) + sample * p.output_strides[0] +
                          out_channel * p.output_strides[1] + plane * p.output_strides[2] + row * p.output_strides[3] +
                          column * p.output_strides[4];
  for (int j = 0; j < kBundle; ++j) {
    if (j < left) {
      const Sum value = bias != nullptr ? total[j] + Element::load(bias[out_channel + j]) : total[j];
      output[j * p.output_strides[1]] = Element::store(value);
    }
  }
}

// Two blocks per multiprocessor: without a number the assembler prefers occupancy and spills.
__global__ void __launch_bounds__(256, 2) tconv_general(const GeneralParams p) {
  const GeneralIndex work = static_cast<GeneralIndex>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (work < p.work) compute(p, static_cast<Index>(work));
}
"""
FILES["general_params.cuh"] = r"""
// What the host hands to the general kernel; compiled by both.

#include "params.cuh"

using GeneralIndex = tconv_device::i64;

// One spatial axis. With common = gcd(stride, dilation), an output with residue r = (o + pad) mod stride has taps only
// when common divides r: taps first, first + tap_step, ... with first = (r / common) inverse mod tap_step. A gradient
// reads the other way, has all taps everywhere and uses the first six members only.
struct GeneralAxis {
  GeneralIndex input;
  GeneralIndex output;
  GeneralIndex kernel;
  GeneralIndex stride;
  GeneralIndex dilation;
  GeneralIndex pad;
  GeneralIndex common;      // gcd(stride, dilation)
  GeneralIndex tap_step;    // stride / common
  GeneralIndex input_step;  // dilation / common
  GeneralIndex inverse;  // of input_step modulo tap_step; -1: taps are searched, since the product above could overflow
  // From one tap of a phase to the next, in elements.
  GeneralIndex input_jump;   // backwards
  GeneralIndex weight_jump;  // forwards
};

struct GeneralParams {
  const void* input;
  const void* weight;
  const void* bias;  // null: none
  void* output;
  GeneralIndex input_strides[5];   // batch, channel, depth, height, width
  GeneralIndex weight_strides[5];  // input channel, output channel of a group, depth, height, width
  GeneralIndex weight_group_stride;
  GeneralIndex output_strides[5];
  GeneralIndex batch;
  GeneralIndex groups;
  GeneralIndex in_channels;   // of a group
  GeneralIndex out_channels;  // of a group
  GeneralIndex bundles;       // of output channels, in a group: what a thread computes
  GeneralAxis axes[3];
  GeneralIndex channels_last;  // not zero: neighbouring threads take neighbouring channels rather than columns
  GeneralIndex work;           // batch x groups x bundles x output pixels
};
"""
FILES["general_weight.cuh"] = r"""
// The kernels that take every grad_weight problem. A warp sums the products of a few input and a few output channels at
// one tap over a part of the pixels; parts are added up by a second kernel. Each order of a sum is fixed.
//
// The config before this file states
//   Element     F64, F32, F16 or BF16
//   Index       int where pixels and positions fit, else long long
#include "general_weight_params.cuh"
#include "types.cuh"

using Sum = Element::Sum;
using Storage = Element::Storage;
using tconv_device::i64;

__device__ __forceinline__ i64 weight_place(const GeneralWeightParams& p, i64 group, i64 ci, i64 co, i64 tap) {
  const i64 kw = tap % p.axes[2].kernel;
  const i64 kh = tap / p.axes[2].kernel % p.axes[1].kernel;
  const i64 kd = tap / p.axes[2].kernel / p.axes[1].kernel;
  return (group * p.in_channels + ci) * p.weight_strides[0] + co * p.weight_strides[1] + kd * p.weight_strides[2] +
         kh * p.weight_strides[3] + kw * p.weight_strides[4];
}

__global__ void __launch_bounds__(32 * kWeightWarps) tconv_general_weight(const GeneralWeightParams p) {
  constexpr int kSums = kWeightBundle * kWeightBundle;
  __shared__ Sum lanes_sums[kWeightWarps][kSums][33];
  const int lane = threadIdx.x % 32;
  const int warp = threadIdx.x / 32;
  const i64 work = static_cast<i64>(blockIdx.x) * kWeightWarps + warp;
  i64 rest = work;
  const i64 tap = rest % p.taps;
  rest /= p.taps;
  const i64 co = rest % p.out_bundles * kWeightBundle;
  rest /= p.out_bundles;
  const i64 ci = rest % p.in_bundles * kWeightBundle;
  rest /= p.in_bundles;
  const i64 group = rest % p.groups;
  const i64 part = rest / p.groups;
  const bool exists = work < p.work;

  Sum sum[kWeightBundle][kWeightBundle] = {};
  if (exists) {
    // Where the tap's output of pixel 0 lies.
    Index shift[3];
    i64 taps_left = tap;
    for (int axis = 2; axis >= 0; --axis) {
      const i64 k = taps_left % p.axes[axis].kernel;
      taps_left /= p.axes[axis].kernel;
      shift[axis] = static_cast<Index>(k * p.axes[axis].dilation - p.axes[axis].pad);
    }
    const Storage* const input =
        static_cast<const Storage*>(p.input) + (group * p.in_channels + ci) * p.input_strides[1];
    const Storage* const output =
        static_cast<const Storage*>(p.output) + (group * p.out_channels + co) * p.output_strides[1];
    const Index end = static_cast<Index>(p.pixels * (part + 1) / p.parts);
    for (Index pixel = static_cast<Index>(p.pixels * part / p.parts) + lane; pixel < end; pixel += 32) {
      Index left = pixel;
      const Storage* x = input;
      const Storage* dy = output;
      bool inside = true;
      for (int axis = 2; axis >= 0; --axis) {
        const Index size = static_cast<Index>(p.axes[axis].input);
        const Index at = left % size;
        left /= size;
        const Index position = at * static_cast<Index>(p.axes[axis].stride) + shift[axis];
        inside = inside && position >= 0 && position < p.axes[axis].output;
        x += at * p.input_strides[2 + axis];
        dy += position * p.output_strides[2 + axis];
      }
      if (!inside) continue;
      x += left * p.input_strides[0];
      dy += left * p.output_strides[0];
      Sum gradient[kWeightBundle];
      for (int j = 0; j < kWeightBundle; ++j) {
        gradient[j] = co + j < p.out_channels ? Element::load(dy[j * p.output_strides[1]]) : Sum(0);
      }
      for (int i = 0; i < kWeightBundle; ++i) {
        if (ci + i >= p.in_channels) continue;
        const Sum value = Element::load(x[i * p.input_strides[1]]);
        for (int j = 0; j < kWeightBundle; ++j) sum[i][j] += value * gradient[j];
      }
    }
  }
  for (int i = 0; i < kSums; ++i) lanes_sums[warp][i][lane] = sum[i / kWeightBundle][i % kWeightBundle];
  __syncwarp();
  const i64 my_ci = ci + lane / kWeightBundle;
  const i64 my_co = co + lane % kWeightBundle;
  if (!exists || lane >= kSums || my_ci >= p.in_channels || my_co >= p.out_channels) return;
  Sum total = 0;
  for (int i = 0; i < 32; ++i) total += lanes_sums[warp][lane][i];
  if (p.parts == 1) {
    static_cast<Storage*>(p.weight)[weight_place(p, group, my_ci, my_co, tap)] = Element::store(total);
  } else {
    const i64 weight = ((group * p.in_channels + my_ci) * p.out_channels + my_co) * p.taps + tap;
    static_cast<Sum*>(p.sums)[part * p.weights + weight] = total;
  }
}

__global__ void __launch_bounds__(256) tconv_general_weight_finish(const GeneralWeightParams p) {
  const i64 weight = static_cast<i64>(blockIdx.x) * 256 + threadIdx.x;
  if (weight >= p.weights) return;
  Sum total = 0;
  for (i64 part = 0; part < p.parts; ++part) total += static_cast<const Sum*>(p.sums)[part * p.weights + weight];
  i64 rest = weight;
  const i64 tap = rest % p.taps;
  rest /= p.taps;
  const i64 co = rest % p.out_channels;
  rest /= p.out_channels;
  const i64 ci = rest % p.in_channels;
  static_cast<Storage*>(p.weight)[weight_place(p, rest / p.in_channels, ci, co, tap)] = Element::store(total);
}
"""
FILES["general_weight_params.cuh"] = r"""
// What the host hands to the kernels that take every grad_weight problem; compiled by both.

#include "params.cuh"

constexpr int kWeightWarps = 4;   // of a block
constexpr int kWeightBundle = 4;  // channels of each tensor in a warp

struct GeneralWeightAxis {
  tconv_device::i64 input;
  tconv_device::i64 output;
  tconv_device::i64 kernel;
  tconv_device::i64 stride;
  tconv_device::i64 dilation;
  tconv_device::i64 pad;
};

struct GeneralWeightParams {
  const void* input;
  const void* output;
  void* weight;
  void* sums;  // [part][weight], the weights counted over [group][input channel][output channel][tap]
  tconv_device::i64 input_strides[5];
  tconv_device::i64 weight_strides[5];
  tconv_device::i64 output_strides[5];
  tconv_device::i64 groups;
  tconv_device::i64 in_channels;   // of a group
  tconv_device::i64 out_channels;  // of a group
  tconv_device::i64 in_bundles;
  tconv_device::i64 out_bundles;
  tconv_device::i64 taps;
  tconv_device::i64 pixels;  // batch x input pixels
  tconv_device::i64 weights;
  tconv_device::i64 parts;
  tconv_device::i64 work;  // warps
  GeneralWeightAxis axes[3];
};
"""
FILES["grad_bias.cuh"] = r"""
// Sums a tensor per channel, in an order that depends on its shape alone. A block sums one part of one channel, or of
// 32 where channels are neighbours in memory; the parts are summed by the same kernel, once more.
//
// The config before this file states
//   In, Out          F64, F32, F16 or BF16; sums are kept in In's type of sums
//   Index            int where the elements of a channel can be counted with it, else long long
//   kAcross          neighbouring threads take neighbouring channels
//   kRows            positions that vary: 1 (one run of memory), 2 (rows of it), 4
#include "grad_bias_params.cuh"
#include "types.cuh"

using Sum = In::Sum;

constexpr int kAtOnce = kAcross ? kBiasThreads / kBiasLanes : kBiasThreads;  // threads that share a channel

// A thread's way through the elements of its channel: a row of memory and a place in it, moved without a division.
struct Cursor {
  Index row;
  Index column;
  Index row_step;
  Index column_step;
  Index columns;

  __device__ __forceinline__ Cursor(const GradBiasParams& p, Index element) {
    columns = kRows == 1 ? 1 : static_cast<Index>(p.sizes[3]);
    row = element / columns;
    column = element - row * columns;
    row_step = kAtOnce / columns;
    column_step = kAtOnce - row_step * columns;
  }

  __device__ __forceinline__ void advance() {
    row += row_step;
    column += column_step;
    if (kRows > 1 && column >= columns) {
      column -= columns;
      ++row;
    }
  }

  __device__ __forceinline__ tconv_device::i64 place(const GradBiasParams& p) const {
    if (kRows == 1) return row * p.strides[3];
    tconv_device::i64 place = column * p.strides[3];
    if (kRows == 2) return place + row * p.strides[0];
    Index rest = row;
    for (int i = 2; i >= 0; --i) {
      const Index size = static_cast<Index>(p.sizes[i]);
      place += rest % size * p.strides[i];
      rest /= size;
    }
    return place;
  }
};

__global__ void __launch_bounds__(kBiasThreads) tconv_grad_bias(const GradBiasParams p) {
  __shared__ Sum sums[kBiasThreads];
  const int thread = threadIdx.x;
  const tconv_device::i64 part = blockIdx.x % p.parts;
  const tconv_device::i64 block = blockIdx.x / p.parts;
  const tconv_device::i64 channel = kAcross ? block * kBiasLanes + thread % kBiasLanes : block;
  const int first = kAcross ? thread / kBiasLanes : thread;

  Sum sum[4] = {};
  if (channel < p.channels) {
    const In::Storage* const input = static_cast<const In::Storage*>(p.input) + channel * p.channel_stride;
    const Index begin = static_cast<Index>(p.elements * part / p.parts);
    const Index end = static_cast<Index>(p.elements * (part + 1) / p.parts);
    Index element = begin + first;
    Cursor cursor(p, element);
    for (; element + 3 * kAtOnce < end; element += 4 * kAtOnce) {
#ifdef __CUDACC__
#pragma unroll
#endif
      for (int i = 0; i < 4; ++i) {
        sum[i] += In::load(input[cursor.place(p)]);
        cursor.advance();
      }
    }
    for (; element < end; element += kAtOnce) {
      sum[0] += In::load(input[cursor.place(p)]);
      cursor.advance();
    }
  }
  sums[thread] = (sum[0] + sum[1]) + (sum[2] + sum[3]);
  constexpr int kLeast = kAcross ? kBiasLanes : 1;
  for (int half = kBiasThreads / 2; half >= kLeast; half /= 2) {
    __syncthreads();
    if (thread < half) sums[thread] += sums[thread + half];
  }
  if (thread < kLeast && channel < p.channels) {
    static_cast<Out::Storage*>(p.output)[channel * p.parts + part] = Out::store(sums[thread]);
  }
}
"""
FILES["grad_bias_params.cuh"] = r"""
// What the host hands to the kernel that sums a tensor per channel; compiled by both.

#include "params.cuh"

constexpr int kBiasThreads = 256;
constexpr int kBiasLanes = 32;  // channels of a block where these are neighbours in memory

// An element of channel c is at c channel_stride + place, where the place is made of four positions, the last of them
// the fastest.
struct GradBiasParams {
  const void* input;
  void* output;  // [channel][part]
  tconv_device::i64 channels;
  tconv_device::i64 channel_stride;
  tconv_device::i64 sizes[4];
  tconv_device::i64 strides[4];
  tconv_device::i64 elements;  // of a channel
  tconv_device::i64 parts;
};
"""
FILES["params.cuh"] = r"""
// Types that host and device share. Both sides compile this file, so it includes nothing.

namespace tconv_device {

using i32 = int;
using u32 = unsigned int;
using i64 = long long;
using u64 = unsigned long long;
using u16 = unsigned short;
static_assert(sizeof(i32) == 4 && sizeof(i64) == 8 && sizeof(u16) == 2, "sizes that host and device agree on");

}  // namespace tconv_device
"""
FILES["ptx.cuh"] = r"""
// The instructions that the kernels use and CUDA C++ has no word for. Nothing here includes a header.

// Sixteen bytes of neighbouring channels: the unit of a tile.
struct alignas(16) Cell {
  unsigned word[4];
};

namespace ptx {

__device__ __forceinline__ unsigned shared_address(const void* pointer) {
  return static_cast<unsigned>(__cvta_generic_to_shared(pointer));
}

// The same value, of which the compiler knows nothing: it makes no second copy of the code that follows for a case that
// it could tell from the value.
__device__ __forceinline__ int opaque(int value) {
  asm volatile("" : "+r"(value));
  return value;
}

// Four 8x8 matrices of 16-bit pairs, one row of 16 bytes per lane's address.
__device__ __forceinline__ void load_matrices(unsigned (&out)[4], unsigned address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
               : "r"(address)
               : "memory");
}

// The same, each matrix with its rows and columns exchanged.
__device__ __forceinline__ void load_matrices_transposed(unsigned (&out)[4], unsigned address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
               : "r"(address)
               : "memory");
}

// The other way: matrices from registers.
__device__ __forceinline__ void store_matrices(unsigned address, const unsigned (&words)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(words[0]),
               "r"(words[1]), "r"(words[2]), "r"(words[3])
               : "memory");
}
// The same, each with its rows and columns exchanged; two take the addresses of the first
// sixteen lanes.
__device__ __forceinline__ void store_matrices_transposed(unsigned address, const unsigned (&words)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(words[0]),
               "r"(words[1]), "r"(words[2]), "r"(words[3])
               : "memory");
}
__device__ __forceinline__ void store_matrices_transposed(unsigned address, const unsigned (&words)[2]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x2.trans.shared.b16 [%0], {%1, %2};" ::"r"(address), "r"(words[0]),
               "r"(words[1])
               : "memory");
}

__device__ __forceinline__ void copy_16_async(unsigned shared, const void* global) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared), "l"(global) : "memory");
}

// As many bytes of the sixteen, a multiple of 4, and zeros.
__device__ __forceinline__ void copy_16_async(unsigned shared, const void* global, int bytes) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared), "l"(global), "r"(bytes) : "memory");
}

// Bytes (4, 8 or 16, both addresses aligned to them) or zeros.
template <int kBytes>
__device__ __forceinline__ void copy_async(unsigned shared, const void* global, bool wanted) {
  if constexpr (kBytes == 16) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared), "l"(global), "r"(wanted ? 16 : 0)
                 : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(shared), "l"(global), "n"(kBytes),
                 "r"(wanted ? kBytes : 0)
                 : "memory");
  }
}

__device__ __forceinline__ void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int kPending>  // groups of copies that may still be under way
__device__ __forceinline__ void wait_for_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

// Elements that are neighbours in memory, as words (two bytes alone in the low half of one), or zeros where `wanted` is
// zero.
template <int kBytes>
__device__ __forceinline__ void load_if(unsigned wanted, const void* global,
                                        unsigned (&out)[kBytes < 4 ? 1 : kBytes / 4]) {
  if constexpr (kBytes == 2) {
    unsigned short value;
    asm volatile("{ .reg .pred p; setp.ne.b32 p, %1, 0; mov.b16 %0, 0; @p ld.global.nc.u16 %0, [%2]; }"
                 : "=h"(value)
                 : "r"(wanted), "l"(global));
    out[0] = value;
  } else if constexpr (kBytes == 4) {
    asm volatile("{ .reg .pred p; setp.ne.b32 p, %1, 0; mov.b32 %0, 0; @p ld.global.nc.b32 %0, [%2]; }"
                 : "=r"(out[0])
                 : "r"(wanted), "l"(global));
  } else if constexpr (kBytes == 8) {
    asm volatile(
        "{ .reg .pred p; setp.ne.b32 p, %2, 0; mov.b32 %0, 0; mov.b32 %1, 0; @p ld.global.nc.v2.b32 {%0, %1}, [%3]; }"
        : "=r"(out[0]), "=r"(out[1])
        : "r"(wanted), "l"(global));
  } else {
    asm volatile(
        "{ .reg .pred p; setp.ne.b32 p, %4, 0; mov.b32 %0, 0; mov.b32 %1, 0; mov.b32 %2, 0; mov.b32 %3, 0;"
        " @p ld.global.nc.v4.b32 {%0, %1, %2, %3}, [%5]; }"
        : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
        : "r"(wanted), "l"(global));
  }
}

__device__ __forceinline__ Cell load_16(const void* global) {
  Cell cell;
  asm volatile("ld.global.nc.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(cell.word[0]), "=r"(cell.word[1]), "=r"(cell.word[2]), "=r"(cell.word[3])
               : "l"(global));
  return cell;
}

// Neighbours in memory by one store: left to itself, the compiler may take several, each with a part of every sector.
__device__ __forceinline__ void store_words(void* global, const unsigned (&words)[1]) {
  asm volatile("st.global.b32 [%0], %1;" ::"l"(global), "r"(words[0]) : "memory");
}
__device__ __forceinline__ void store_words(void* global, const unsigned (&words)[2]) {
  asm volatile("st.global.v2.b32 [%0], {%1, %2};" ::"l"(global), "r"(words[0]), "r"(words[1]) : "memory");
}
__device__ __forceinline__ void store_words(void* global, const unsigned (&words)[4]) {
  asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(global), "r"(words[0]), "r"(words[1]), "r"(words[2]),
               "r"(words[3])
               : "memory");
}

// Neighbouring bytes as words, two alone in the low half of one.
template <int kBytes>
__device__ __forceinline__ void load_shared(unsigned shared, unsigned (&out)[kBytes < 4 ? 1 : kBytes / 4]) {
  if constexpr (kBytes == 2) {
    unsigned short value;
    asm volatile("ld.shared.u16 %0, [%1];" : "=h"(value) : "r"(shared) : "memory");
    out[0] = value;
  } else if constexpr (kBytes == 4) {
    asm volatile("ld.shared.b32 %0, [%1];" : "=r"(out[0]) : "r"(shared) : "memory");
  } else if constexpr (kBytes == 8) {
    asm volatile("ld.shared.v2.b32 {%0, %1}, [%2];" : "=r"(out[0]), "=r"(out[1]) : "r"(shared) : "memory");
  } else {
    asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
                 : "r"(shared)
                 : "memory");
  }
}

__device__ __forceinline__ void store_16(unsigned shared, const Cell& cell) {
  asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(shared), "r"(cell.word[0]), "r"(cell.word[1]),
               "r"(cell.word[2]), "r"(cell.word[3])
               : "memory");
}

__device__ __forceinline__ void store_shared(unsigned shared, const unsigned (&words)[1]) {
  asm volatile("st.shared.b32 [%0], %1;" ::"r"(shared), "r"(words[0]) : "memory");
}
__device__ __forceinline__ void store_shared(unsigned shared, const unsigned (&words)[2]) {
  asm volatile("st.shared.v2.b32 [%0], {%1, %2};" ::"r"(shared), "r"(words[0]), "r"(words[1]) : "memory");
}
__device__ __forceinline__ void store_shared(unsigned shared, const unsigned (&words)[4]) {
  asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(shared), "r"(words[0]), "r"(words[1]), "r"(words[2]),
               "r"(words[3])
               : "memory");
}
__device__ __forceinline__ void store_shared_half(unsigned address, unsigned bits) {
  asm volatile("st.shared.b16 [%0], %1;" ::"r"(address), "h"(static_cast<unsigned short>(bits)) : "memory");
}

__device__ __forceinline__ unsigned load_shared_32(unsigned address) {
  unsigned word;
  asm volatile("ld.shared.b32 %0, [%1];" : "=r"(word) : "r"(address) : "memory");
  return word;
}
__device__ __forceinline__ void load_shared_64(unsigned address, unsigned (&words)[2]) {
  asm volatile("ld.shared.v2.b32 {%0, %1}, [%2];" : "=r"(words[0]), "=r"(words[1]) : "r"(address) : "memory");
}
__device__ __forceinline__ unsigned load_shared_16(unsigned address) {
  unsigned short bits;
  asm volatile("ld.shared.b16 %0, [%1];" : "=h"(bits) : "r"(address) : "memory");
  return bits;
}

// The same place of the shared memory of another block of the cluster.
__device__ __forceinline__ float load_from_block(unsigned address, int rank) {
  unsigned remote;
  float value;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(address), "r"(rank));
  asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(value) : "r"(remote));
  return value;
}

__device__ __forceinline__ void load_vector_from_block(unsigned address, int rank, float (&values)[4]) {
  unsigned remote;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(address), "r"(rank));
  asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(values[0]), "=f"(values[1]), "=f"(values[2]), "=f"(values[3])
               : "r"(remote));
}

__device__ __forceinline__ void cluster_barrier() {
  asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}

// Barriers in shared memory: a phase ends when as many threads have arrived as init_barrier said and all the bytes have
// come that were announced with expect_bytes (which arrives, too).
__device__ __forceinline__ void init_barrier(unsigned barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}
__device__ __forceinline__ void publish_barriers() {
  asm volatile("fence.mbarrier_init.release.cluster;\nfence.proxy.async.shared::cta;" ::: "memory");
}
__device__ __forceinline__ void expect_bytes(unsigned barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
__device__ __forceinline__ void arrive(unsigned barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
// Arrives once all copies have come that this thread has asked for with copy_async.
__device__ __forceinline__ void arrive_after_copies(unsigned barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}
__device__ __forceinline__ void wait_barrier(unsigned barrier, int parity) {
  unsigned done = 0;
  while (done == 0) {
    asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
                 : "=r"(done)
                 : "r"(barrier), "r"(parity)
                 : "memory");
  }
}

// Bytes (a multiple of 16, both addresses too) by the copy engine, announced to a barrier.
__device__ __forceinline__ void copy_bulk(unsigned shared, const void* global, int bytes, unsigned barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(shared),
               "l"(global), "r"(bytes), "r"(barrier)
               : "memory");
}
// The other way. What was asked for since the last commit_bulk() is a group; a thread waits until the engine has read
// all that it has asked for.
__device__ __forceinline__ void copy_bulk_out(void* global, unsigned shared, int bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(global), "r"(shared), "r"(bytes)
               : "memory");
}
__device__ __forceinline__ void commit_bulk() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
__device__ __forceinline__ void wait_for_bulk_reads() { asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory"); }
// Asks the copy engine to have bytes (a multiple of 16, as the address) in the L2 cache soon.
__device__ __forceinline__ void prefetch_bulk(const void* global, unsigned bytes) {
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(global), "r"(bytes) : "memory");
}
// A box of a tensor of five dimensions, announced to a barrier; `at` counts from the fastest one, and may lie outside.
__device__ __forceinline__ void copy_tensor(unsigned shared, const void* map, const int (&at)[5], unsigned barrier) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4, %5, "
      "%6}], [%7];" ::"r"(shared),
      "l"(map), "r"(at[0]), "r"(at[1]), "r"(at[2]), "r"(at[3]), "r"(at[4]), "r"(barrier)
      : "memory");
}
// The other way, as far as the box is inside: of the group that copy_bulk_out speaks of.
__device__ __forceinline__ void copy_tensor_out(const void* map, const int (&at)[5], unsigned shared) {
  asm volatile(
      "cp.async.bulk.tensor.5d.global.shared::cta.tile.bulk_group [%0, {%1, %2, %3, %4, %5}], [%6];" ::"l"(map),
      "r"(at[0]), "r"(at[1]), "r"(at[2]), "r"(at[3]), "r"(at[4]), "r"(shared)
      : "memory");
}
// A kernel that was launched while the one before it still ran waits here until its results are there. Before sm_90
// kernels of a stream never overlap.
__device__ __forceinline__ void wait_for_previous_kernel() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
// The next kernel may be launched: all blocks of this one run already.
__device__ __forceinline__ void let_next_kernel_start() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// Ordinary stores to shared memory, before the tensor cores read them by descriptor.
__device__ __forceinline__ void fence_for_async_proxy() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// What a warpgroup may use of the block's registers from here on, a multiple of 8.
template <int kRegisters>
__device__ __forceinline__ void give_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ __forceinline__ void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

__device__ __forceinline__ void fence_warpgroup() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void commit_warpgroup() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int kPending = 0>  // groups of products that may still be under way
__device__ __forceinline__ void wait_for_warpgroup() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

// A sum of products that were waited for: the compiler reads it after the wait, not before.
__device__ __forceinline__ float waited_for(float sum) {
  asm volatile("" : "+f"(sum));
  return sum;
}

// A barrier of the block's first threads alone.
template <int kThreads>
__device__ __forceinline__ void sync_first_threads() {
  asm volatile("barrier.sync 1, %0;" ::"n"(kThreads) : "memory");
}

// A barrier of one warpgroup of a block, of at most fourteen.
__device__ __forceinline__ void sync_warpgroup(int index) {
  asm volatile("barrier.sync %0, 128;" ::"r"(2 + index) : "memory");
}

// The nearest TF32 value: ties to even, as cuDNN does on sm_90, by one instruction where there is one, or away from
// zero.
__device__ __forceinline__ unsigned round_to_tf32(float value) {
  unsigned bits;
#if __CUDA_ARCH__ >= 900
  asm("cvt.rn.tf32.f32 %0, %1;" : "=r"(bits) : "f"(value));
#else
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(bits) : "f"(value));
#endif
  return bits;
}

__device__ __forceinline__ unsigned short round_to_f16(float value) {
  unsigned short bits;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
  return bits;
}

__device__ __forceinline__ unsigned short round_to_bf16(float value) {
  unsigned short bits;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(value));
  return bits;
}

// Two values as the halves of a word.
__device__ __forceinline__ unsigned pack_f16(float low, float high) {
  unsigned bits;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(high), "f"(low));
  return bits;
}
__device__ __forceinline__ unsigned pack_bf16(float low, float high) {
  unsigned bits;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(high), "f"(low));
  return bits;
}

__device__ __forceinline__ float widen_f16(unsigned short bits) {
  float value;
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
  return value;
}

__device__ __forceinline__ void multiply_tf32(float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

__device__ __forceinline__ void multiply_bf16(float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

__device__ __forceinline__ void multiply_f16(float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

}  // namespace ptx
"""
FILES["reduce.cuh"] = r"""
// grad_weight on tensor cores by single warps (sm_80 and later). The config before this file defines Element and
// kShape.
#include "reduce_warp.cuh"

#include "reduce_block.cuh"
"""
FILES["reduce_block.cuh"] = r"""
// The life of a block, whatever its teams multiply with: load a stage, multiply it while the next one is on its way,
// and at the end write the sums.

#include "reduce_stage.cuh"

// The sums of a thread in one row, as fragments hold them: pairs of neighbours.
__device__ __forceinline__ void store_row(const TeamTile& team, int tile, int half, float* row) {
#pragma unroll
  for (int run = 0; run < kTeamRuns; ++run) {
    const int first = (team.column_team * kShape.all_runs() + team.run_team * kTeamRuns + run) * kShape.run_columns();
#pragma unroll
    for (int column_tile = 0; column_tile < kColumnTiles; ++column_tile) {
      const float (&value)[4] = team.sum[tile][run][column_tile];
      const float2 pair = {value[2 * half], value[2 * half + 1]};
      *reinterpret_cast<float2*>(row + first + column_tile * 8 + threadIdx.x % 4 * 2) = pair;
    }
  }
}

// Sums that are parts go to the workspace as they lie.
__device__ __forceinline__ void store_parts(const ReduceParams& params, const ReduceBlock& block,
                                            const TeamTile& team) {
  ptx::let_next_kernel_start();
  float* const sums = params.sums + (static_cast<long long>(block.part) * reduce_tiles(params) + block.tile) *
                                        kShape.block_rows() * kShape.block_sums();
#pragma unroll
  for (int tile = 0; tile < kRowTiles; ++tile) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = team.row(tile, half);
      if (block.first_row + row < kShape.rows) store_row(team, tile, half, sums + row * kShape.block_sums());
    }
  }
}

// Writes the staged rows: those of every warp's tile, in the order of the weight. A thread has the same weights of some
// rows.
__device__ __forceinline__ void store_staged(const ReduceParams& params, const ReduceBlock& block, int tile, int half,
                                             const float* staged) {
  constexpr int kTaps = kShape.all_taps();
  constexpr int kColumns = kShape.loaded_columns();
  constexpr int kSums = kColumns * kTaps;
  constexpr int kRowsAtOnce = kSums < kThreads ? kThreads / kSums : 1;
  constexpr int kTeamSlots = kShape.warpgroup ? 32 : 8;
  const long long (&stride)[6] = params.weight_strides;
  Element* const weight = static_cast<Element*>(params.weight) + block.group * stride[0];
  const int first_slot = kRowsAtOnce > 1 ? threadIdx.x / kSums : 0;
  if (first_slot >= kRowsAtOnce) return;
#pragma unroll 1
  for (int at = threadIdx.x - first_slot * kSums; at < kSums; at += kThreads) {
    const int column = kShape.columns_first ? at % kColumns : at / kTaps;
    const int tap = kShape.columns_first ? at / kColumns : at % kTaps;
    const int w = tap % kShape.taps[2];
    const int h = tap / kShape.taps[2] % kShape.taps[1];
    const int d = tap / kShape.taps[2] / kShape.taps[1];
    if (block.first_column + column >= kShape.columns || block.first_tap[0] + d >= kShape.kernel[0] ||
        block.first_tap[1] + h >= kShape.kernel[1] || block.first_tap[2] + w >= kShape.kernel[2]) {
      continue;
    }
    Element* const target = weight + (block.first_column + column) * stride[2] + (block.first_tap[0] + d) * stride[3] +
                            (block.first_tap[1] + h) * stride[4] + (block.first_tap[2] + w) * stride[5];
    const float* const source = staged + kShape.sum_of(column, d, h, w);
#pragma unroll 4
    for (int slot = first_slot; slot < kShape.staged_rows(); slot += kRowsAtOnce) {  // [team][warp of it][row]
      const int row = block.first_row + slot / kTeamSlots * kRowTiles * kShape.tile_rows() +
                      slot % kTeamSlots / 8 * 16 + kShape.row_of(tile, half, slot % 8);
      if (row < kShape.rows) target[row * stride[1]] = to_storage(source[slot * kShape.staged_pitch()], Element());
    }
  }
}

// All warps stop here, wherever they come from.
__device__ __forceinline__ void meet() {
  if constexpr (kShape.loader_warps > 0) {
    ptx::sync_first_threads<kThreads>();
  } else {
    __syncthreads();
  }
}

// Sums that are whole are the result. A loop, although sums are then chosen by branches: the code that writes a half of
// a tile takes long to compile.
template <typename StoreRow>
__device__ __forceinline__ void store_result(const ReduceParams& params, const ReduceBlock& block, const float* staged,
                                             StoreRow&& stage) {
#pragma unroll 1
  for (int part = 0; part < 2 * kRowTiles; ++part) {
#pragma unroll
    for (int i = 0; i < 2 * kRowTiles; ++i) {
      if (i == part) stage(i / 2, i % 2);
    }
    meet();
    store_staged(params, block, part / 2, part % 2, staged);
    meet();
  }
}

__device__ __forceinline__ void store_sums(const ReduceParams& params, const ReduceBlock& block, const TeamTile& team,
                                           float* staged) {
  if constexpr (kShape.partial) {
    store_parts(params, block, team);
  } else {
    const int row_team = team.first_row / (kRowTiles * kShape.tile_rows());
    const int warp = kShape.warpgroup ? threadIdx.x / 32 % 4 : 0;
    const int slot = (row_team * (kShape.warpgroup ? 4 : 1) + warp) * 8 + threadIdx.x % 32 / 4;
    store_result(params, block, staged,
                 [&](int tile, int half) { store_row(team, tile, half, staged + slot * kShape.staged_pitch()); });
  }
}

// The stages of a part, and where they lie in shared memory.
struct Stages {
  unsigned shared;
  int begin;
  int end;

  __device__ __forceinline__ Stages(const ReduceParams& params, const ReduceBlock& block, unsigned shared_address)
      : shared(shared_address) {
    // Counted in 64 bits: parts times stages may be more than an int holds.
    const long long all = reduce_stages(params);
    begin = static_cast<int>(all * block.part / params.parts);
    end = static_cast<int>(all * (block.part + 1) / params.parts);
  }
  __device__ __forceinline__ unsigned at(int index) const { return shared + (index & 1) * kShape.stage_cells() * 16; }
};

// Makes this thread's stores to a stage visible to whoever multiplies it.
__device__ __forceinline__ void publish_stage() {
  if constexpr (kShape.warpgroup) ptx::fence_for_async_proxy();
}

constexpr int kBatches = kShape.batches();

// Each turn multiplies a stage and loads the next one, batch by batch; the first one only loads.
__device__ __forceinline__ void load_and_multiply(const ReduceParams& params, const ReduceBlock& block,
                                                  const Stages& stages, Loader& loader, TeamTile& team) {
  const int batches = ptx::opaque(kBatches);
  StageOrigin origin(params, stages.begin);
#pragma unroll 1
  for (int index = stages.begin - 1; index < stages.end; ++index) {
    const int products = index < stages.begin ? 0 : kShape.products();
    loader.prepare(params, block, origin);
    origin.advance(params);
#pragma unroll 1
    for (int batch = 0; batch < batches; ++batch) {
      if (index + 1 < stages.end) loader.fetch(params, ptx::opaque(batch));
      team.multiply_stage(stages.at(index), products * batch / kBatches, products * (batch + 1) / kBatches);
      if (ptx::opaque(index + 1 < stages.end) != 0) loader.store(stages.at(index + 1), ptx::opaque(batch));
    }
    publish_stage();
    team.end_stage();
    __syncthreads();
  }
}

// Stages in a ring, for divided labour: some warps load them, the others multiply. Each stage has a barrier that says
// that it is loaded, and one that says that all teams are done with it.
struct Ring {
  static constexpr int kStageBytes = kShape.stage_cells() * 16;

  unsigned stages;
  unsigned barriers;
  int slot = 0;
  int lap = 0;  // modulo 2

  __device__ __forceinline__ Ring(unsigned shared) : stages(shared), barriers(shared + kShape.table_cell() * 16) {}

  __device__ __forceinline__ unsigned stage() const { return stages + slot * kStageBytes; }
  __device__ __forceinline__ unsigned loaded() const { return barriers + slot * 16; }
  __device__ __forceinline__ unsigned done() const { return loaded() + 8; }
  __device__ __forceinline__ void advance() {
    if (++slot == kShape.stages) {
      slot = 0;
      lap ^= 1;
    }
  }

  // By one thread, before the others use the ring. Every thread of a warp arrives: racecheck, too, should see the
  // order.
  __device__ __forceinline__ void init() {
#pragma unroll 1
    for (int i = 0; i < kShape.stages; ++i) {
      ptx::init_barrier(barriers + i * 16, kShape.packed || kShape.boxes() ? 1 : 32 * kShape.loader_warps);
      ptx::init_barrier(barriers + i * 16 + 8, 32 * kShape.team_warps());
    }
    ptx::publish_barriers();
  }
};

// Lines that are arranged make room for copies at once, so that the next stage is always on its way. The first turns
// only copy.
__device__ __forceinline__ void load_stages(const ReduceParams& params, const ReduceBlock& block, const Stages& stages,
                                            Ring ring, int warp) {
  constexpr int kRawStages = kShape.raw_stages;
  StageOrigin origin(params, stages.begin);
  LineLoader loader(params, block, origin, warp, ring.stages + kShape.raw_cell() * 16);
  int slot = 0;
#pragma unroll 1
  for (int index = stages.begin - kRawStages; index < stages.end; ++index) {
    if (index >= stages.begin) {
      ptx::wait_for_copies<kRawStages - 1>();
      __syncwarp();
      ptx::wait_barrier(ring.done(), ring.lap ^ 1);
      loader.arrange(slot, ring.stage());
      publish_stage();
      ptx::arrive(ring.loaded());
      __syncwarp();  // all lanes have read the lines that the next copies overwrite
      ring.advance();
    }
    if (index + kRawStages < stages.end) loader.copy(params, block, origin, slot);
    ptx::commit_copies();
    loader.advance(params, origin.advance(params));
    slot = slot + 1 == kRawStages ? 0 : slot + 1;
  }
}

// Stages that were packed come whole, by the copy engine; one thread of a warp asks for them.
__device__ __forceinline__ void fetch_stages(const ReduceParams& params, const ReduceBlock& block, const Stages& stages,
                                             Ring ring) {
  constexpr int kRowBytes = kShape.row_cells() * 16;
  constexpr int kColumnBytes = kShape.column_cells() * 16;
  const long long all = reduce_stages(params);
  const char* rows =
      static_cast<const char*>(params.packed_rows) + (row_image(params, block) * all + stages.begin) * kRowBytes;
  const char* columns = static_cast<const char*>(params.packed_columns) +
                        (column_image(params, block) * all + stages.begin) * kColumnBytes;
  ptx::wait_for_previous_kernel();
#pragma unroll 1
  for (int index = stages.begin; index < stages.end; ++index) {
    ptx::wait_barrier(ring.done(), ring.lap ^ 1);
    if (threadIdx.x % 32 == 0) {
      ptx::expect_bytes(ring.loaded(), kRowBytes + kColumnBytes);
      ptx::copy_bulk(ring.stage(), rows, kRowBytes, ring.loaded());
      ptx::copy_bulk(ring.stage() + kRowBytes, columns, kColumnBytes, ring.loaded());
    }
    rows += kRowBytes;
    columns += kColumnBytes;
    ring.advance();
  }
}

#if kTensorCopies
using BlockParams = BoxReduceParams;
__device__ __forceinline__ const ReduceParams& reduce_params(const BlockParams& params) { return params.reduce; }

// Boxes of pixels as they lie in memory, zeros outside of the tensors.
__device__ __forceinline__ void copy_boxes(const BlockParams& block_params, const ReduceBlock& block,
                                           const StageOrigin& origin, unsigned target, unsigned loaded) {
  const int first_row = block.group * kShape.rows + block.first_row;
  const int first_column = block.group * kShape.columns + block.first_column;
#pragma unroll 1
  for (int row = 0; row < kShape.block_rows(); row += kShape.row_box) {
    const int at[5] = {first_row + row, origin.first[3], origin.first[2], origin.first[1], origin.first[0]};
    ptx::copy_tensor(target, &block_params.rows, at, loaded);
    target += kShape.row_box_bytes();
  }
  const StageStart<false> start(block_params.reduce, block, origin, 0);
#pragma unroll 1
  for (int tap = 0; tap < kShape.all_taps(); ++tap) {
    const int w = start.begin[3] + tap % kShape.taps[2] * kShape.tap_step[2];
    const int h = start.begin[2] + tap / kShape.taps[2] % kShape.taps[1] * kShape.tap_step[1];
    const int d = start.begin[1] + tap / kShape.taps[2] / kShape.taps[1] * kShape.tap_step[0];
#pragma unroll 1
    for (int column = 0; column < kShape.block_columns(); column += kShape.column_box) {
      const int at[5] = {first_column + column, w, h, d, start.begin[0]};
      ptx::copy_tensor(target, &block_params.columns, at, loaded);
      target += kShape.column_box_bytes();
    }
  }
}

// One thread of a warp asks for them.
__device__ __forceinline__ void fetch_boxes(const BlockParams& block_params, const ReduceBlock& block,
                                            const Stages& stages, Ring ring) {
  StageOrigin origin(block_params.reduce, stages.begin);
#pragma unroll 1
  for (int index = stages.begin; index < stages.end; ++index) {
    ptx::wait_barrier(ring.done(), ring.lap ^ 1);
    if (threadIdx.x % 32 == 0) {
      ptx::expect_bytes(ring.loaded(), Ring::kStageBytes);
      copy_boxes(block_params, block, origin, ring.stage(), ring.loaded());
    }
    __syncwarp();
    origin.advance(block_params.reduce);
    ring.advance();
  }
}
#else
using BlockParams = ReduceParams;
__device__ __forceinline__ const ReduceParams& reduce_params(const BlockParams& params) { return params; }
#endif

// A stage that single warps have read is free; a warpgroup's products of a stage are under way while the next one's are
// started.
__device__ __forceinline__ void multiply_stages(const Stages& stages, Ring ring, TeamTile& team) {
  unsigned former = 0;
#pragma unroll 1
  for (int index = stages.begin; index < stages.end; ++index) {
    ptx::wait_barrier(ring.loaded(), ring.lap);
    team.multiply_stage(ring.stage(), 0, kShape.products());
    if constexpr (kShape.warpgroup) {
      team.end_former_stage();
      if (index > stages.begin) ptx::arrive(former);
      former = ring.done();
    } else {
      ptx::arrive(ring.done());
    }
    ring.advance();
  }
  team.end_stage();
}

__global__ void __launch_bounds__(kThreads, kShape.blocks_per_multiprocessor)
    tconv_reduce(const __grid_constant__ BlockParams block_params) {
  const ReduceParams& params = reduce_params(block_params);
  extern __shared__ __align__(1024) unsigned char shared_memory[];
  const ReduceBlock block(params, blockIdx.x);
  const unsigned shared = ptx::shared_address(shared_memory);
  float* const staged = reinterpret_cast<float*>(shared_memory);
  if constexpr (kShape.loader_warps == 0) {
    Loader loader(params, block, reinterpret_cast<UnitPlace*>(shared_memory + kShape.table_cell() * 16));
    __syncthreads();
    const Stages stages(params, block, shared);
    TeamTile team(column_lead(params, block));
    load_and_multiply(params, block, stages, loader, team);
    store_sums(params, block, team, staged);
  } else {
    Ring ring(shared);
    if (threadIdx.x == 0) ring.init();
    __syncthreads();
    const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0);
    if (warp >= kShape.team_warps()) {
      if constexpr (kShape.team_registers > 0) ptx::give_registers<kShape.loader_registers>();
      const Stages stages(params, block, shared);
#if kTensorCopies
      if (warp == kShape.team_warps()) fetch_boxes(block_params, block, stages, ring);
#else
      if constexpr (kShape.packed) {
        if (warp == kShape.team_warps()) fetch_stages(params, block, stages, ring);
      } else {
        load_stages(params, block, stages, ring, warp - kShape.team_warps());
      }
#endif
      meet();
      if constexpr (!kShape.partial) store_result(params, block, staged, [](int, int) {});
    } else {
      if constexpr (kShape.team_registers > 0) ptx::take_registers<kShape.team_registers>();
      // What lives from before the registers change hands is kept in memory.
      const Stages stages(params, block, shared);
      TeamTile team(column_lead(params, block));
      multiply_stages(stages, ring, team);
      meet();
      store_sums(params, block, team, staged);
    }
  }
  ptx::wait_for_previous_kernel();  // whoever waits for this kernel waits for the one beside it, too
}
"""
FILES["reduce_finish.cuh"] = r"""
// The second kernel of grad_weight on tensor cores: adds up the parts of each weight, always in the same order. The
// config before this file defines Element, kShape and kPieces: threads that share the parts of a weight.
#include "reduce_params.cuh"
#include "tile_element.cuh"

constexpr int kLanes = kFinishThreads / kPieces;
constexpr int kWidth = kShape.kernel[2];
constexpr int kTogether = kWidth <= 8 ? kWidth : 4;  // neighbouring taps of a thread

__global__ void __launch_bounds__(kFinishThreads)
    tconv_reduce_finish(const __grid_constant__ ReduceParams params) {
  __shared__ float pieces[kPieces > 1 ? kPieces : 1][kTogether][kLanes];
  const int lane = threadIdx.x % kLanes;
  const int piece = threadIdx.x / kLanes;

  // Neighbouring lanes take neighbouring columns, as the parts lie; a thread takes taps that are neighbours in the
  // weight.
  constexpr int kWidths = (kWidth + kTogether - 1) / kTogether;
  long long rest = static_cast<long long>(blockIdx.x) * kLanes + lane;
  const int column = static_cast<int>(rest % kShape.columns);
  rest /= kShape.columns;
  const int first = static_cast<int>(rest % kWidths) * kTogether;
  rest /= kWidths;
  const int h = static_cast<int>(rest % kShape.kernel[1]);
  rest /= kShape.kernel[1];
  const int d = static_cast<int>(rest % kShape.kernel[0]);
  rest /= kShape.kernel[0];
  const int row = static_cast<int>(rest % kShape.rows);
  const int group = static_cast<int>(rest / kShape.rows);
  const bool exists = group < params.groups;

  int tile =
      (group * params.row_blocks + row / kShape.block_rows()) * params.column_blocks + column / kShape.block_columns();
  tile = (tile * params.tap_blocks[0] + d / kShape.taps[0]) * params.tap_blocks[1] + h / kShape.taps[1];
  const long long part_sums = static_cast<long long>(reduce_tiles(params)) * kShape.block_rows() * kShape.block_sums();

  ptx::wait_for_previous_kernel();
  float total[kTogether] = {};
  if (exists) {
    int at[kTogether];  // among the sums of a part, from the first tap's tile
#pragma unroll
    for (int i = 0; i < kTogether; ++i) {
      const int w = min(first + i, kWidth - 1);
      at[i] =
          w / kShape.taps[2] * kShape.block_rows() * kShape.block_sums() +
          kShape.sum_of(column % kShape.block_columns(), d % kShape.taps[0], h % kShape.taps[1], w % kShape.taps[2]);
    }
    const float* sums = params.sums + (static_cast<long long>(tile) * params.tap_blocks[2] * kShape.block_rows() +
                                       row % kShape.block_rows()) *
                                          kShape.block_sums();
    const int begin = params.parts * piece / kPieces;
    const int end = params.parts * (piece + 1) / kPieces;
    sums += begin * part_sums;
#pragma unroll 2
    for (int part = begin; part < end; ++part) {
#pragma unroll
      for (int i = 0; i < kTogether; ++i) total[i] += sums[at[i]];
      sums += part_sums;
    }
  }
  if constexpr (kPieces > 1) {
#pragma unroll
    for (int i = 0; i < kTogether; ++i) pieces[piece][i][lane] = total[i];
    __syncthreads();
    if (piece > 0) return;
#pragma unroll
    for (int other = 1; other < kPieces; ++other) {
#pragma unroll
      for (int i = 0; i < kTogether; ++i) total[i] += pieces[other][i][lane];
    }
  }
  if (!exists) return;
  const long long (&stride)[6] = params.weight_strides;
  Element* const weight = static_cast<Element*>(params.weight) + group * stride[0] + row * stride[1] +
                          column * stride[2] + d * stride[3] + h * stride[4];
#pragma unroll
  for (int i = 0; i < kTogether; ++i) {
    if (first + i < kWidth) weight[(first + i) * stride[5]] = to_storage(total[i], Element());
  }
}
"""
FILES["reduce_load.cuh"] = r"""
// From the two tensors into a block's shared memory: pixels become cells of V pixels of one channel.

#include "reduce_params.cuh"
#include "tile_element.cuh"

constexpr int kThreads = kShape.threads();
constexpr int kVector = kShape.vector();

// What a block computes, and which part of the pixels it adds up.
struct ReduceBlock {
  int part;
  int tile;  // among those of a part
  int group;
  int first_row;
  int first_column;
  int first_tap[3];

  __device__ __forceinline__ ReduceBlock(const ReduceParams& params, int index) {
    const int tiles = reduce_tiles(params);
    part = index / tiles;
    tile = index % tiles;
    int rest = tile;
#pragma unroll
    for (int axis = 2; axis >= 0; --axis) {
      first_tap[axis] = rest % params.tap_blocks[axis] * kShape.taps[axis];
      rest /= params.tap_blocks[axis];
    }
    first_column = rest % params.column_blocks * kShape.block_columns();
    rest /= params.column_blocks;
    first_row = rest % params.row_blocks * kShape.block_rows();
    group = rest / params.row_blocks;
  }
};

// Which of the packed images of each tensor a block multiplies.
__device__ __forceinline__ long long row_image(const ReduceParams& params, const ReduceBlock& block) {
  return block.group * params.row_blocks + block.first_row / kShape.block_rows();
}
__device__ __forceinline__ long long column_image(const ReduceParams& params, const ReduceBlock& block) {
  long long image = block.group * params.column_blocks + block.first_column / kShape.block_columns();
#pragma unroll
  for (int axis = 0; axis < 3; ++axis) {
    image = image * params.tap_blocks[axis] + block.first_tap[axis] / kShape.taps[axis];
  }
  return image;
}

// Elements between the start of a vector and the first that a block's taps read along the width.
__device__ __forceinline__ int column_lead(const ReduceParams& params, const ReduceBlock& block) {
  constexpr int kUnit = kShape.column_unit();
  if (kUnit == 1) return 0;
  const int first = block.first_tap[2] * kShape.tap_step[2] - params.pad[2];
  return (first % kUnit + kUnit) % kUnit;
}

template <bool kOfRows>
__device__ __forceinline__ const long long (&side_strides(const ReduceParams& params))[5] {
  if constexpr (kOfRows) {
    return params.row_strides;
  } else {
    return params.column_strides;
  }
}

// The pixels of a stage: the first sample and the first pixel along each axis.
struct StageOrigin {
  int first[4];

  __device__ __forceinline__ StageOrigin(const ReduceParams& params, int index) {
#pragma unroll
    for (int dimension = 3; dimension >= 0; --dimension) {
      first[dimension] = index % params.tiles[dimension] * step(dimension);
      index /= params.tiles[dimension];
    }
  }

  // The dimension along which the next stage lies.
  __device__ __forceinline__ int advance(const ReduceParams& params) {
    int along = 3;
    first[3] += step(3);
#pragma unroll
    for (int dimension = 3; dimension > 0; --dimension) {
      if (first[dimension] >= params.tiles[dimension] * step(dimension)) {
        first[dimension] = 0;
        first[dimension - 1] += step(dimension - 1);
        along = dimension - 1;
      }
    }
    return along;
  }

  static constexpr int step(int dimension) { return kShape.tile[dimension] * kShape.split[dimension]; }
};

// The first element of a stage in one of the tensors, inside of it or not, along samples and axes.
template <bool kOfRows>
struct StageStart {
  int begin[4];

  StageStart() = default;
  __device__ __forceinline__ StageStart(const ReduceParams& params, const ReduceBlock& block, const StageOrigin& origin,
                                        int lead) {
#pragma unroll
    for (int dimension = 0; dimension < 4; ++dimension) {
      const int axis = dimension - 1;
      begin[dimension] = origin.first[dimension];
      if (!kOfRows && dimension > 0) {
        begin[dimension] = begin[dimension] * kShape.step[axis] + block.first_tap[axis] * kShape.tap_step[axis] -
                           params.pad[axis] - (axis == 2 ? lead : 0);
      }
    }
  }

  static __device__ __forceinline__ int limit(const ReduceParams& params, int dimension) {
    if (dimension == 0) return params.batch;
    return kOfRows ? params.row_size[dimension - 1] : params.column_size[dimension - 1];
  }
};

// The pixels of one channel, out of vectors of neighbours, one vector for each part of the cell.
template <int kWords>
__device__ __forceinline__ Cell cell_of(const unsigned* words, int at) {
  Cell cell;
#pragma unroll
  for (int word = 0; word < 4; ++word) {
    if constexpr (kShape.element_bytes == 4) {
      const unsigned bits = words[word * kWords + at];
      cell.word[word] = kRoundsToTf32 ? ptx::round_to_tf32(__uint_as_float(bits)) : bits;
    } else {
      const unsigned low = words[2 * word * kWords + at / 2];
      const unsigned high = words[(2 * word + 1) * kWords + at / 2];
      cell.word[word] = at % 2 == 0 ? (low & 0xffffu) | high << 16 : low >> 16 | (high & 0xffff0000u);
    }
  }
  return cell;
}

// Where the cells of a unit lie: from the stage's first element in bytes, and along samples and axes.
struct alignas(16) UnitPlace {
  unsigned offset;
  unsigned short at[4];
};

// One of the two tensors. A warp loads chunks of 32 vectors: neighbouring channels for neighbouring lanes, then units.
template <bool kOfRows>
struct Side {
  static constexpr bool kChannelsLast = kOfRows ? kShape.rows_channels_last : kShape.columns_channels_last;
  static constexpr int kUnits = kOfRows ? kShape.row_units() : kShape.column_units();
  static constexpr int kChannels = kOfRows ? kShape.loaded_rows() : kShape.loaded_columns();
  static constexpr int kLength = kOfRows ? kShape.row_vector : kShape.column_vector;
  static constexpr int kLanes = kOfRows ? kShape.row_lanes : kShape.column_lanes;
  static constexpr int kOthers = 32 / kLanes;
  static constexpr int kUnitsStep = kChannelsLast ? 1 : kLength;  // units and channels of a vector
  static constexpr int kChannelsStep = kChannelsLast ? kLength : 1;
  static constexpr int kUnitGroups = (kUnits / kUnitsStep + kLanes - 1) / kLanes;
  static constexpr int kChunks = kOfRows ? kShape.row_chunks() : kShape.column_chunks();
  static constexpr int kBatch = kOfRows ? kShape.row_batch() : kShape.column_batch();
  static constexpr int kWords = kShape.vector_words(kLength);
  static constexpr unsigned kNothing = ~0u;

  const Element* base;  // sample 0, the block's first channel
  int channels;         // of the block
  unsigned channel_bytes;
  int lead;  // elements along the width before the block's first, so that vectors start at multiples of their length
  const UnitPlace* places;

  // The stage that is loaded next: its first element, inside the tensor or not, and whether all of it is inside.
  const Element* start;
  StageStart<kOfRows> at_start;
  bool inside;

  unsigned words[kBatch * kVector * kWords];  // on their way

  __device__ __forceinline__ Side(const ReduceParams& params, const ReduceBlock& block, UnitPlace* table) {
    const long long (&stride)[5] = side_strides<kOfRows>(params);
    const int first_channel = kOfRows ? block.first_row : block.first_column;
    const int all = kOfRows ? kShape.rows : kShape.columns;
    base = static_cast<const Element*>(kOfRows ? params.rows : params.columns) +
           (static_cast<long long>(block.group) * all + first_channel) * stride[1];
    channels = min(kChannels, all - first_channel);
    channel_bytes = static_cast<unsigned>(stride[1] * kShape.element_bytes);
    lead = kOfRows ? 0 : column_lead(params, block);
    places = table;
#pragma unroll 1
    for (int unit = threadIdx.x; unit < kUnits; unit += kThreads) {
      UnitPlace place;
      int rest = unit;
#pragma unroll
      for (int axis = 2; axis >= 0; --axis) {
        const int extent = kOfRows ? kShape.tile[1 + axis] : kShape.extent(axis);
        place.at[1 + axis] = kOfRows ? rest % extent : kShape.reach(axis, rest % extent);
        rest /= extent;
      }
      place.at[0] = rest;
      const long long elements =
          place.at[0] * stride[0] + place.at[1] * stride[2] + place.at[2] * stride[3] + place.at[3] * stride[4];
      place.offset = static_cast<unsigned>(elements * kShape.element_bytes);
      table[unit] = place;
    }
  }

  static __device__ __forceinline__ int unit_of(int chunk) {
    return (chunk % kUnitGroups * kLanes + threadIdx.x % 32 / kOthers) * kUnitsStep;
  }
  static __device__ __forceinline__ int channel_of(int chunk) {
    return (chunk / kUnitGroups * kOthers + threadIdx.x % kOthers) * kChannelsStep;
  }
  static __device__ __forceinline__ int chunk_of(int batch, int item) {
    return (batch * kBatch + item) * kShape.team_warps() + threadIdx.x / 32;
  }

  // How far a vector lies from the stage's first element, in bytes.
  __device__ __forceinline__ unsigned offset_of(int chunk) const {
    const int unit = unit_of(chunk);
    const int channel = channel_of(chunk);
    const bool exists = chunk < kChunks && unit < kUnits && channel < channels;
    return exists ? places[min(unit, kUnits - 1)].offset + channel * channel_bytes : kNothing;
  }

  __device__ __forceinline__ void prepare(const ReduceParams& params, const ReduceBlock& block,
                                          const StageOrigin& origin) {
    const long long (&stride)[5] = side_strides<kOfRows>(params);
    at_start = StageStart<kOfRows>(params, block, origin, lead);
    start = base;
    inside = true;
#pragma unroll
    for (int dimension = 0; dimension < 4; ++dimension) {
      const int begin = at_start.begin[dimension];
      start += begin * stride[dimension == 0 ? 0 : 1 + dimension];
      const int last_unit = kOfRows || dimension == 0 ? kShape.tile[dimension] - 1
                                                      : kShape.reach(dimension - 1, kShape.extent(dimension - 1) - 1);
      const int end = begin + (kShape.split[dimension] - 1) * kShape.part_step(kOfRows, dimension) + last_unit;
      inside = inside && begin >= 0 && end < at_start.limit(params, dimension);
    }
  }

  // The pixels of a vector's cells that exist, a bit each.
  __device__ __forceinline__ unsigned mask_of(const ReduceParams& params, int chunk) const {
    const UnitPlace place = places[min(unit_of(chunk), kUnits - 1)];
    unsigned mask = ~0u;
#pragma unroll
    for (int dimension = 0; dimension < 4; ++dimension) {
#pragma unroll
      for (int part = 0; part < kShape.split[dimension]; ++part) {
        const int position =
            at_start.begin[dimension] + place.at[dimension] + part * kShape.part_step(kOfRows, dimension);
        if (static_cast<unsigned>(position) >= static_cast<unsigned>(at_start.limit(params, dimension))) {
          mask &= ~kShape.part_bits(dimension, part);
        }
      }
    }
    return mask;
  }

  // Loads the pixels of one batch of the thread's vectors.
  __device__ __forceinline__ void fetch(const ReduceParams& params, int batch) {
    const long long (&stride)[5] = side_strides<kOfRows>(params);
    unsigned offsets[kBatch];
    unsigned masks[kBatch];
#pragma unroll
    for (int item = 0; item < kBatch; ++item) {
      offsets[item] = offset_of(chunk_of(batch, item));
      masks[item] = offsets[item] != kNothing ? ~0u : 0u;
    }
    if (!inside) {
#pragma unroll
      for (int item = 0; item < kBatch; ++item) masks[item] &= mask_of(params, chunk_of(batch, item));
    }
    const char* parts[kVector];
#pragma unroll
    for (int v = 0; v < kVector; ++v) {
      const Element* part = start;
#pragma unroll
      for (int dimension = 0; dimension < 4; ++dimension) {
        part += kShape.part_of(v, dimension) * kShape.part_step(kOfRows, dimension) *
                stride[dimension == 0 ? 0 : 1 + dimension];
      }
      parts[v] = reinterpret_cast<const char*>(part);
    }
#pragma unroll
    for (int item = 0; item < kBatch; ++item) {
#pragma unroll
      for (int v = 0; v < kVector; ++v) {
        unsigned loaded[kWords];
        ptx::load_if<kLength * kShape.element_bytes>(masks[item] & 1u << v, parts[v] + offsets[item], loaded);
#pragma unroll
        for (int word = 0; word < kWords; ++word) words[(item * kVector + v) * kWords + word] = loaded[word];
      }
    }
  }

  __device__ __forceinline__ void store(unsigned stage, int batch) const {
#pragma unroll
    for (int item = 0; item < kBatch; ++item) {
      const int chunk = chunk_of(batch, item);
      const int unit = unit_of(chunk);
      const int channel = channel_of(chunk);
      if (chunk >= kChunks || unit >= kUnits || channel >= kChannels) continue;
      const int cell = kOfRows ? unit * kShape.row_pitch() + channel
                               : kShape.row_cells() + channel / kShape.team_columns * kShape.team_cells() +
                                     unit * kShape.team_columns + channel % kShape.team_columns;
      constexpr int kNext = kChannelsLast ? 1 : kOfRows ? kShape.row_pitch() : kShape.team_columns;
#pragma unroll
      for (int at = 0; at < kLength; ++at)
        ptx::store_16(stage + (cell + at * kNext) * 16, cell_of<kWords>(words + item * kVector * kWords, at));
    }
  }
};

// Both tensors, in batches of as many cells as a thread can hold on their way.
struct Loader {
  Side<true> rows;
  Side<false> columns;

  __device__ __forceinline__ Loader(const ReduceParams& params, const ReduceBlock& block, UnitPlace* table)
      : rows(params, block, table), columns(params, block, table + kShape.row_units()) {}

  // Which stage is loaded next.
  __device__ __forceinline__ void prepare(const ReduceParams& params, const ReduceBlock& block,
                                          const StageOrigin& origin) {
    rows.prepare(params, block, origin);
    columns.prepare(params, block, origin);
  }

  __device__ __forceinline__ void fetch(const ReduceParams& params, int batch) {
    if (batch < kShape.row_batches()) {
      rows.fetch(params, batch);
    } else {
      columns.fetch(params, batch - kShape.row_batches());
    }
  }

  __device__ __forceinline__ void store(unsigned stage, int batch) const {
    if (batch < kShape.row_batches()) {
      rows.store(stage, batch);
    } else {
      columns.store(stage, batch - kShape.row_batches());
    }
  }
};
"""
FILES["reduce_params.cuh"] = r"""
// What the host and the device agree on about the reduce kernels (grad_weight on tensor cores); compiled by both.
//
// A gradient of the weight is a product summed over pixels. One tensor stays in place and gives the rows, the other is
// shifted by the taps and gives the columns (which is which, the planner decides):
//
//   W[row, column, k] = sum over samples and i of  rows[n, row, i] columns[n, column, i step + k tap_step - pad]
//
// In shared memory sixteen bytes, a cell, hold V pixels of one channel. The pixels of a cell are not neighbours: a tile
// of pixels is split into V parts of equal size (along the width, or the rows, or the samples), and a cell has the same
// place of each part. So the next pixel is the next cell, and a tap is only another start among the cells, whatever the
// shift. A unit is the cells of all channels at one place. With channels side by side in a unit and units along the
// width one after the other, neighbouring taps of neighbouring channels are neighbouring rows of one matrix: a run.

#include "tile_params.cuh"

// The lines of a stage that warps copy as they lie: how many along samples, depth and height, and their elements.
struct RawLines {
  int count[3];
  int length;
  int pitch;
  constexpr int lines() const { return count[0] * count[1] * count[2]; }
};

// Warps of a block that packs.
constexpr int kPackWarps = 4;

struct ReduceShape {
  TileMath math;
  int element_bytes;

  // The problem, per group and axis (depth, height, width). Sizes along the axes and the batch stay run-time values.
  int rows;     // channels of the tensor in place
  int columns;  // channels of the shifted tensor
  int kernel[3];
  int step[3];
  int tap_step[3];
  bool rows_channels_last;
  bool columns_channels_last;

  // A block: its taps (neighbours along each axis), its rows and its columns.
  int taps[3];
  bool apart[3];   // no two taps of the block read the same element: only what they read is kept, tap beside tap
  bool warpgroup;  // teams of four warps (wgmma, 64 rows) or of one (mma.sync, 16 rows)
  int row_tiles;   // of a team
  int row_teams;
  int team_columns;  // channels of the shifted tensor in one team
  int column_teams;  // teams side by side, along the channels
  int run;           // taps along the width in one product
  int run_teams;     // teams that share the runs of the block
  int team_runs;     // runs of a team

  // The pixels of one stage: parts of a cell and units, along samples, depth, height, width.
  int split[4];
  int tile[4];

  // How the tensors are loaded. A lane loads vectors of neighbours in memory: along the width, or the channels where
  // these come last. Lanes of a warp take neighbouring places along the units, the others along the channels.
  int row_vector;
  int column_vector;
  int most_lead;  // elements of a vector in front of the first that a tap reads, at most
  int row_lanes;
  int column_lanes;
  int most_cells;    // cells that a thread loads at once
  int loader_warps;  // warps that load and do nothing else; 0: all warps do both
  int row_warps;     // of these, those that share the channels of each tensor: all, or each tensor has its own
  int column_warps;
  int row_copy;  // elements that such a warp copies at once, along the width
  int column_copy;
  int raw_stages;  // of its copies
  bool packed;     // a kernel before has arranged both tensors as the stages of the blocks: they come whole
  // Channels-last tensors: channels of a box that the copy engine brings, pixels as they lie, those of each tap on
  // their own. Products of two-byte elements read them with channels along the rows, single warps read four-byte ones
  // as fragments, so that nothing is arranged. 0: no boxes.
  int row_box;
  int column_box;
  int team_registers;  // of a thread, where those that load give up some of theirs; else 0
  int loader_registers;

  int stages;  // tiles of pixels in shared memory: one is multiplied, the others are loaded
  int blocks_per_multiprocessor;
  bool partial;        // the sums of a block are parts, added up by the second kernel
  bool columns_first;  // neighbouring columns are neighbours in the weight, rather than neighbouring taps

  constexpr bool boxes() const { return row_box > 0; }
  constexpr bool warps_read_boxes() const { return boxes() && !warpgroup; }
  constexpr int row_box_bytes() const { return pixels() * row_box * element_bytes; }
  constexpr int column_box_bytes() const { return pixels() * column_box * element_bytes; }

  constexpr int vector() const { return 16 / element_bytes; }
  constexpr int all_taps() const { return taps[0] * taps[1] * taps[2]; }
  constexpr int tile_rows() const { return warpgroup ? 64 : 16; }
  constexpr int team_threads() const { return warpgroup ? 128 : 32; }
  constexpr int teams() const { return row_teams * column_teams * run_teams; }
  constexpr int team_warps() const { return team_threads() * teams() / 32; }
  constexpr int threads() const { return 32 * (team_warps() + loader_warps); }
  constexpr int block_rows() const { return tile_rows() * row_tiles * row_teams; }
  constexpr int block_columns() const { return team_columns * column_teams; }
  constexpr int loaded_rows() const { return block_rows() < rows ? block_rows() : rows; }
  constexpr int loaded_columns() const { return block_columns() < columns ? block_columns() : columns; }

  constexpr int width_runs() const { return (taps[2] + run - 1) / run; }
  constexpr int runs() const { return taps[0] * taps[1] * width_runs(); }
  // Columns of one product: a multiple of 8 (wgmma) or 16 (pairs of mma.sync).
  constexpr int run_columns() const {
    const int multiple = warpgroup ? 8 : 16;
    return (run * team_columns + multiple - 1) / multiple * multiple;
  }
  constexpr int column_tiles() const { return run_columns() / 8; }

  // Places along an axis among the units of the shifted tensor.
  constexpr int place_step(int axis) const { return apart[axis] ? taps[axis] : step[axis]; }
  constexpr int place_tap(int axis) const { return apart[axis] ? 1 : tap_step[axis]; }
  constexpr int places(int axis) const {
    return (tile[1 + axis] - 1) * place_step(axis) + (taps[axis] - 1) * place_tap(axis) + 1;
  }
  // Places from one row to the next, and so on: vectors along the width start at multiples of their length, wherever
  // the first element of a block lies.
  constexpr int extent(int axis) const {
    if (axis < 2 || columns_channels_last) return places(axis);
    return (places(axis) + most_lead + column_vector - 1) / column_vector * column_vector;
  }
  // What is loaded along the width starts at multiples of this many elements.
  constexpr int column_unit() const {
    return columns_channels_last ? 1 : loader_warps > 0 ? column_copy : column_vector;
  }
  // How far a place lies from the tile's first element, in elements (of those that any tap can read).
  constexpr int reach(int axis, int place) const {
    return apart[axis] ? place / taps[axis] * step[axis] + place % taps[axis] * tap_step[axis] : place;
  }

  constexpr int row_units() const { return tile[0] * tile[1] * tile[2] * tile[3]; }
  constexpr int column_units() const { return tile[0] * extent(0) * extent(1) * extent(2); }
  constexpr int pixels() const { return boxes() ? row_units() : row_units() * vector(); }
  // Two units at a time, neighbours along the width, or as many pixels of a box.
  constexpr int products() const { return pixels() / (2 * vector()); }

  // In cells. Units of the rows' tensor start on different banks; those of the other must touch, for the runs.
  constexpr int row_pitch() const { return block_rows() + (packed ? 0 : 1); }
  constexpr int team_cells() const { return column_units() * team_columns; }
  constexpr int row_cells() const {
    return boxes() ? block_rows() / row_box * row_box_bytes() / 16 : (row_units() * row_pitch() + 7) / 8 * 8;
  }
  constexpr int column_cells() const {
    return boxes() ? all_taps() * block_columns() / column_box * column_box_bytes() / 16
                   : (column_teams * team_cells() + 7) / 8 * 8;
  }
  // fp32 out of TF32: warpgroups read the big and the small parts of the factors from cells of their own.
  constexpr bool splits() const { return warpgroup && math == TileMath::fp32x3; }
  constexpr int plane_cells() const { return row_cells() + column_cells(); }
  constexpr int stage_cells() const { return plane_cells() * (splits() ? 2 : 1); }
  // The last run of a row may have fewer taps than the others, and the last eight columns of it fewer channels: they
  // are multiplied with whatever follows, and not stored.
  constexpr int spare_cells() const { return boxes() ? 0 : run * team_columns + 16; }
  // Stages; then the places of the units, or two barriers for each stage and the lines of the warps that load.
  constexpr int table_cell() const { return stages * stage_cells() + spare_cells(); }
  constexpr int raw_cell() const { return table_cell() + stages; }
  constexpr int pipeline_bytes() const {
    if (loader_warps == 0) return 16 * (table_cell() + row_units() + column_units());
    return 16 * raw_cell() + (packed || boxes() ? 0 : raw_stages * raw_stage_bytes());
  }
  constexpr int shared_bytes() const {
    const int staged = partial ? 0 : 4 * staged_rows() * staged_pitch();
    return pipeline_bytes() > staged ? pipeline_bytes() : staged;
  }

  // From one part of a cell to the next, along samples or an axis, in elements; and which part of it a pixel is.
  constexpr int part_step(bool of_rows, int dimension) const {
    return tile[dimension] * (of_rows || dimension == 0 ? 1 : step[dimension - 1]);
  }
  // Without loops, which would take the compiler long where it meets them in each of many copies.
  constexpr int inner_parts(int dimension) const {
    return (dimension < 1 ? split[1] : 1) * (dimension < 2 ? split[2] : 1) * (dimension < 3 ? split[3] : 1);
  }
  constexpr int part_of(int v, int dimension) const { return v / inner_parts(dimension) % split[dimension]; }
  // The pixels of a cell, a bit each, that belong to a part: some neighbours, over and over again. Splits are powers of
  // two, at most 8 together.
  constexpr unsigned part_bits(int dimension, int part) const {
    const int inner = inner_parts(dimension);
    return (((1u << inner) - 1) << part * inner) * (255u / ((1u << inner * split[dimension]) - 1));
  }

  // Lines along samples, depth and height, and elements of a line: parts that overlap share theirs; where places lie
  // apart, only theirs are there.
  constexpr bool line_gaps(bool of_rows, int dimension) const {
    return !of_rows && dimension > 0 && apart[dimension - 1];
  }
  constexpr int line_places(bool of_rows, int dimension) const {
    return of_rows || dimension == 0 ? tile[dimension] : extent(dimension - 1);
  }
  constexpr int raw_line(bool of_rows, int dimension, int part, int place) const {
    const int parts = line_gaps(of_rows, dimension) ? line_places(of_rows, dimension) : part_step(of_rows, dimension);
    return part * parts + place;
  }
  // How far a line lies from the first, in elements.
  constexpr int raw_position(bool of_rows, int dimension, int line) const {
    if (!line_gaps(of_rows, dimension)) return line;
    const int places = line_places(of_rows, dimension);
    return line / places * part_step(of_rows, dimension) + reach(dimension - 1, line % places);
  }
  constexpr RawLines raw_lines(bool of_rows) const {
    RawLines lines{};
    for (int dimension = 0; dimension < 3; ++dimension) {
      lines.count[dimension] =
          raw_line(of_rows, dimension, split[dimension] - 1, line_places(of_rows, dimension) - 1) + 1;
    }
    lines.length = raw_line(of_rows, 3, split[3] - 1, line_places(of_rows, 3) - 1) + 1;
    lines.pitch = channels_last(of_rows) ? lines.length : (lines.length + vector() - 1) / vector() * vector();
    return lines;
  }
  constexpr bool channels_last(bool of_rows) const { return of_rows ? rows_channels_last : columns_channels_last; }
  constexpr bool sides_apart() const { return row_warps + column_warps == loader_warps; }
  // Warps that share the channels of a block: of the block itself, or of one that packs its stages.
  constexpr int side_warps(bool of_rows) const { return packed ? kPackWarps : of_rows ? row_warps : column_warps; }
  // A warp that loads has channels of its own.
  constexpr int warp_channels(bool of_rows) const {
    const int channels = of_rows ? loaded_rows() : loaded_columns();
    const int copy = !channels_last(of_rows) ? 1 : of_rows ? row_copy : column_copy;
    const int warps = side_warps(of_rows) == 0 ? 1 : side_warps(of_rows);
    return ((channels + warps - 1) / warps + copy - 1) / copy * copy;
  }
  // Lanes along the channels when a warp arranges its lines, a power of two; the others go along the units.
  constexpr int channel_lanes(bool of_rows) const {
    int lanes = 1;
    while (lanes < warp_channels(of_rows) && lanes < 32) lanes *= 2;
    return lanes;
  }
  // From one channel to the next in a warp's lines, and from one element of a line to the next. Where channels lie
  // apart, eight lanes meet no bank twice: those that read the same channel have neighbouring places.
  constexpr int raw_channel_bytes(bool of_rows) const {
    if (channels_last(of_rows)) return element_bytes;
    const RawLines lines = raw_lines(of_rows);
    const int places = channel_lanes(of_rows) < 8 ? 8 / channel_lanes(of_rows) : 1;
    return ((lines.lines() * lines.pitch * element_bytes + 16 * places - 1) / (16 * places) | 1) * 16 * places;
  }
  constexpr int raw_element_bytes(bool of_rows) const {
    return channels_last(of_rows) ? (warp_channels(of_rows) * element_bytes + 15) / 16 * 16 : element_bytes;
  }
  constexpr int raw_side_bytes(bool of_rows) const {
    if (!channels_last(of_rows)) return warp_channels(of_rows) * raw_channel_bytes(of_rows);
    const RawLines lines = raw_lines(of_rows);
    return lines.lines() * lines.pitch * raw_element_bytes(of_rows);
  }
  constexpr int raw_stage_bytes() const {
    return row_warps * raw_side_bytes(true) + column_warps * raw_side_bytes(false);
  }
  // Shared memory of a block that packs the stage of one tensor.
  constexpr int pack_bytes() const {
    return kPackWarps * (raw_side_bytes(true) > raw_side_bytes(false) ? raw_side_bytes(true) : raw_side_bytes(false));
  }

  // Pieces of 32 vectors, one per lane; what a thread has of them, and how many of those it loads at once.
  constexpr int row_chunks() const {
    return chunks(row_units(), loaded_rows(), row_lanes, row_vector, rows_channels_last);
  }
  constexpr int column_chunks() const {
    return chunks(column_units(), loaded_columns(), column_lanes, column_vector, columns_channels_last);
  }
  constexpr int row_batches() const { return batches_of(row_chunks(), row_vector); }
  constexpr int column_batches() const { return batches_of(column_chunks(), column_vector); }
  constexpr int batches() const { return row_batches() + column_batches(); }
  constexpr int row_batch() const { return batch_of(row_chunks(), row_vector); }
  constexpr int column_batch() const { return batch_of(column_chunks(), column_vector); }
  constexpr int vector_words(int vector) const { return vector * element_bytes < 4 ? 1 : vector * element_bytes / 4; }
  // Words of a batch on their way into a thread.
  constexpr int batch_words() const {
    const int of_rows = vector() * row_batch() * vector_words(row_vector);
    const int of_columns = vector() * column_batch() * vector_words(column_vector);
    return of_rows > of_columns ? of_rows : of_columns;
  }

  // Sums of a block, [row][team of columns][run][column of the run].
  constexpr int all_runs() const { return run_teams * team_runs; }
  constexpr int block_sums() const { return column_teams * all_runs() * run_columns(); }
  // Where a sum stands in its row.
  constexpr int sum_of(int column, int d, int h, int w) const {
    const int block_run = (d * taps[1] + h) * width_runs() + w / run;
    return (column / team_columns * all_runs() + block_run) * run_columns() + w % run * team_columns +
           column % team_columns;
  }

  // The row of a warp, among those of its team, that the lanes of one of its eight fragment rows hold in each half of a
  // tile. Of boxes neighbouring channels are read at once, which are rows of both halves.
  constexpr int row_of(int tile, int half, int lane_row) const {
    return tile * tile_rows() + (warps_read_boxes() ? 2 * lane_row + half : 8 * half + lane_row);
  }

  // Results pass through shared memory, eight rows of every warp at a time, so that they leave in the weight's order.
  // Rows are 8 words apart modulo 32: the fragments' stores meet no bank twice.
  constexpr int staged_rows() const { return 8 * (warpgroup ? 4 : 1) * row_teams; }
  constexpr int staged_pitch() const { return (block_sums() + 31) / 32 * 32 + 8; }

  static constexpr int chunks(int units, int channels, int lanes, int vector, bool channels_last) {
    const int others = 32 / lanes;
    const int along = channels_last ? units : units / vector;
    const int across = channels_last ? channels / vector : channels;
    return ((along + lanes - 1) / lanes) * ((across + others - 1) / others);
  }
  constexpr int batches_of(int chunks, int vector) const {
    const int items = (chunks + team_warps() - 1) / team_warps();
    const int most = most_cells > vector ? most_cells / vector : 1;
    return (items + most - 1) / most;
  }
  constexpr int batch_of(int chunks, int vector) const {
    const int items = (chunks + team_warps() - 1) / team_warps();
    return (items + batches_of(chunks, vector) - 1) / batches_of(chunks, vector);
  }
};

struct ReduceParams {
  const void* rows;
  const void* columns;
  void* packed_rows;         // [group][row block][stage] cells, where stages come whole
  void* packed_columns;      // [group][column block][tap block][stage] cells
  float* sums;               // [part][tile][row][...] where the block's sums are parts
  void* weight;              // else: the result
  long long row_strides[5];  // batch, channel, depth, height, width
  long long column_strides[5];
  long long weight_strides[6];  // group, row, column, depth, height, width
  int batch;
  int groups;
  int row_size[3];
  int column_size[3];
  int pad[3];  // may be negative
  int row_blocks;
  int column_blocks;
  int tap_blocks[3];
  int tiles[4];  // stages along samples, depth, height, width
  // From a stage to the next one, in elements: the one along each dimension, from the last along those further in.
  long long row_advance[4];
  long long column_advance[4];
  int parts;
};

struct BoxReduceParams {
  ReduceParams reduce;
  TensorMap rows;
  TensorMap columns;
};

// Blocks that share a part: one for each tile of the weight.
constexpr int reduce_tiles(const ReduceParams& params) {
  return params.groups * params.row_blocks * params.column_blocks * params.tap_blocks[0] * params.tap_blocks[1] *
         params.tap_blocks[2];
}

constexpr int reduce_row_images(const ReduceParams& params) { return params.groups * params.row_blocks; }
constexpr int reduce_column_images(const ReduceParams& params) {
  return params.groups * params.column_blocks * params.tap_blocks[0] * params.tap_blocks[1] * params.tap_blocks[2];
}
// Stages of all parts together.
constexpr long long reduce_stages(const ReduceParams& params) {
  return static_cast<long long>(params.tiles[0]) * params.tiles[1] * params.tiles[2] * params.tiles[3];
}

// Threads of a block of the second kernel.
constexpr int kFinishThreads = 256;
"""
FILES["reduce_sm90.cuh"] = r"""
// grad_weight on tensor cores by warpgroups (sm_90a). The config before this file defines Element, kShape and
// multiply().
#include "reduce_warpgroup.cuh"

#include "reduce_block.cuh"
"""
FILES["reduce_stage.cuh"] = r"""
// For warps that do nothing but load: the lines of a stage are copied into shared memory as they lie, without passing
// registers, and some time later arranged as cells. A warp has channels of its own, and nobody else reads its copies.

#include "reduce_load.cuh"
#include "split.cuh"

struct LineTable {
  int at[8];
};
// From an element of a channel's lines to the same place of each part.
constexpr LineTable line_parts(bool of_rows) {
  const RawLines lines = kShape.raw_lines(of_rows);
  LineTable parts{};
  for (int v = 0; v < kVector; ++v) {
    int line = 0;
    for (int dimension = 0; dimension < 3; ++dimension) {
      line = line * lines.count[dimension] + kShape.raw_line(of_rows, dimension, kShape.part_of(v, dimension), 0);
    }
    parts.at[v] = line * lines.pitch + kShape.raw_line(of_rows, 3, kShape.part_of(v, 3), 0);
  }
  return parts;
}
// How far the last element of a stage lies from its first, along samples and axes.
constexpr LineTable last_positions(bool of_rows, int length) {
  const RawLines lines = kShape.raw_lines(of_rows);
  LineTable last{};
  for (int dimension = 0; dimension < 3; ++dimension) {
    last.at[dimension] = kShape.raw_position(of_rows, dimension, lines.count[dimension] - 1);
  }
  last.at[3] = kShape.raw_position(of_rows, 3, length - 1);
  return last;
}

// One of the two tensors, as one warp loads it. A line is a run of neighbours along the width. A copy is a piece of a
// line of one channel or, where channels come last, some channels of one element; copies are numbered line after line.
template <bool kOfRows>
struct LineSide {
  static constexpr bool kChannelsLast = kShape.channels_last(kOfRows);
  static constexpr RawLines kLines = kShape.raw_lines(kOfRows);
  static constexpr int kCount1 = kLines.count[1];
  static constexpr int kCount2 = kLines.count[2];
  static constexpr int kBytes = kShape.element_bytes;
  static constexpr int kCopy = kOfRows ? kShape.row_copy : kShape.column_copy;  // elements
  static constexpr int kWarpChannels = kShape.warp_channels(kOfRows);
  static constexpr int kChannelBytes = kShape.raw_channel_bytes(kOfRows);
  static constexpr int kElementBytes = kShape.raw_element_bytes(kOfRows);
  // Copies along a line; lanes that copy different channels, and channels between them.
  static constexpr int kAlong = kChannelsLast ? 1 : kCopy;
  static constexpr int kLineCopies = (kLines.length + kAlong - 1) / kAlong;
  static constexpr int kCopies = kLines.lines() * kLineCopies;
  static constexpr int kWarpCopies = (kWarpChannels + kCopy - 1) / kCopy;
  static constexpr int kChannelLanes = kChannelsLast   ? (kWarpCopies < 32 ? kWarpCopies : 32)
                                       : kCopies <= 16 ? 32 / kCopies
                                                       : 1;
  static constexpr int kChannelStep = kChannelsLast ? kCopy : 1;
  static constexpr int kCopyLanes = kChannelsLast ? 32 / kChannelLanes : kCopies <= 16 ? kCopies : 32;
  static constexpr int kRounds = (kCopies + kCopyLanes - 1) / kCopyLanes;
  static constexpr int kTogether = kChannelLanes * kChannelStep;  // channels that are copied at once

  static constexpr int kChannels = kOfRows ? kShape.loaded_rows() : kShape.loaded_columns();
  static constexpr int kOthers = kShape.channel_lanes(kOfRows);
  static constexpr int kLanes = 32 / kOthers;
  static constexpr int kLength = kOfRows ? kShape.row_vector : kShape.column_vector;  // cells arranged at once
  static constexpr int kWords = kShape.vector_words(kLength);
  static constexpr int kGroups = (kOfRows ? kShape.row_units() : kShape.column_units()) / kLength;
  static constexpr int kGroupRounds = (kGroups + kLanes - 1) / kLanes;

  static constexpr LineTable kParts = line_parts(kOfRows);
  static constexpr LineTable kLast = last_positions(kOfRows, kLineCopies* kAlong);

  // Long loops are unrolled in part, which takes less time to compile.
  static constexpr int kGroupBatch = kGroupRounds == 1 || kVector * kWords > 16 ? 1 : kVector * kWords > 8 ? 2 : 4;
  static constexpr int kGroupUnroll = kGroupRounds <= 8 ? 8 : 1;
  static constexpr int kCopyUnroll = kRounds > 1 ? 4 : 8;
  static constexpr int kKept = kRounds <= 8 ? kRounds : 0;  // rounds of copies whose places stay in registers
  static constexpr int kChecked = 3;                        // rounds written out for stages at a border, too

  const Element* base;                     // sample 0, the warp's first channel
  const Element* next;                     // the first element of the stage that is copied next, inside or not
  int channels;                            // of the warp
  int first_channel;                       // of the warp among the block's
  unsigned offset[kKept > 0 ? kKept : 1];  // of the lane's copies from the stage's first element, in bytes
  unsigned raw;                            // where the lane's first copy goes in the warp's first raw stage

  static __device__ __forceinline__ int lane() { return threadIdx.x % 32; }
  // Which of the copies, and of which channels, the lane makes: neighbouring lanes copy neighbours in memory.
  static __device__ __forceinline__ int copy_of(int round) {
    const int of_lanes = kChannelsLast ? lane() / kChannelLanes : lane() % kCopyLanes;
    return of_lanes < kCopyLanes ? round * kCopyLanes + of_lanes : kCopies;
  }
  static __device__ __forceinline__ int copied_channel() {
    return (kChannelsLast ? lane() % kChannelLanes : lane() / kCopyLanes) * kChannelStep;
  }

  // The element at which a copy starts, along samples and axes.
  struct Position {
    int at[4];
  };
  static __device__ __forceinline__ Position position_of(int copy) {
    Position position;
    position.at[3] = line_position<3>(copy % kLineCopies * kAlong);
    const int line = copy / kLineCopies;
    position.at[2] = line_position<2>(line % kCount2);
    position.at[1] = line_position<1>(line / kCount2 % kCount1);
    position.at[0] = line / kCount2 / kCount1;
    return position;
  }
  template <int kDimension>
  static __device__ __forceinline__ int line_position(int line) {
    if constexpr (kShape.line_gaps(kOfRows, kDimension)) {
      constexpr int kPlaces = kShape.line_places(kOfRows, kDimension);
      constexpr int kTaps = kShape.taps[kDimension - 1];
      constexpr int kStep = kShape.step[kDimension - 1];
      constexpr int kTapStep = kShape.tap_step[kDimension - 1];
      const int place = line % kPlaces;
      return line / kPlaces * kShape.part_step(kOfRows, kDimension) + place / kTaps * kStep + place % kTaps * kTapStep;
    } else {
      return line;
    }
  }

  __device__ __forceinline__ LineSide(const ReduceParams& params, const ReduceBlock& block, const StageOrigin& origin,
                                      int warp, unsigned warp_raw)
      : raw(warp_raw) {
    const long long (&stride)[5] = side_strides<kOfRows>(params);
    const int block_first = kOfRows ? block.first_row : block.first_column;
    const int all = kOfRows ? kShape.rows : kShape.columns;
    first_channel = warp * kWarpChannels;
    channels = min(kWarpChannels, min(kChannels, all - block_first) - first_channel);
    base = static_cast<const Element*>(kOfRows ? params.rows : params.columns) +
           (static_cast<long long>(block.group) * all + block_first + first_channel) * stride[1];
    next = base;
    const StageStart<kOfRows> start(params, block, origin, kOfRows ? 0 : column_lead(params, block));
#pragma unroll
    for (int dimension = 0; dimension < 4; ++dimension) {
      next += start.begin[dimension] * stride[dimension == 0 ? 0 : 1 + dimension];
    }
    if constexpr (kKept > 0) {
#pragma unroll
      for (int round = 0; round < kRounds; ++round) offset[round] = offset_of(params, round);
    }
  }

  static __device__ __forceinline__ unsigned offset_of(const ReduceParams& params, int round) {
    const long long (&stride)[5] = side_strides<kOfRows>(params);
    const Position position = position_of(copy_of(round));
    long long elements = copied_channel() * stride[1];
#pragma unroll
    for (int dimension = 0; dimension < 4; ++dimension) {
      elements += position.at[dimension] * stride[dimension == 0 ? 0 : 1 + dimension];
    }
    return static_cast<unsigned>(elements * kBytes);
  }

  // Copies the stage that starts at `origin`; what lies outside the tensor becomes zeros.
  __device__ __forceinline__ void copy(const ReduceParams& params, const ReduceBlock& block, const StageOrigin& origin,
                                       unsigned stage_offset) const {
    if (channels <= 0) return;
    const StageStart<kOfRows> start(params, block, origin, kOfRows ? 0 : column_lead(params, block));
    bool inside = true;
    constexpr LineTable kEnd = kLast;  // nvcc reads no static member at an index that it does not know at once
#pragma unroll
    for (int dimension = 0; dimension < 4; ++dimension) {
      inside = inside && start.begin[dimension] >= 0 &&
               start.begin[dimension] + kEnd.at[dimension] < start.limit(params, dimension);
    }
    if constexpr (kRounds <= kChecked) {
#pragma unroll
      for (int round = 0; round < kRounds; ++round) {
        copy_round(params, start, inside, round, offset[kKept > 0 ? round : 0], stage_offset);
      }
    } else {
      if (kKept > 0 && inside && channels == kWarpChannels) {
#pragma unroll
        for (int round = 0; round < kKept; ++round) {
          copy_round(params, start, true, round, offset[kKept > 0 ? round : 0], stage_offset);
        }
        return;
      }
#pragma unroll 1
      for (int round = 0; round < kRounds; ++round) {
        copy_round(params, start, inside, round, offset_of(params, round), stage_offset);
      }
    }
  }

  // One round of the lane's copies, the first of them at `place` from the stage's first element, in bytes.
  __device__ __forceinline__ void copy_round(const ReduceParams& params, const StageStart<kOfRows>& start, bool inside,
                                             int round, unsigned place, unsigned stage_offset) const {
    const long long (&stride)[5] = side_strides<kOfRows>(params);
    const int number = copy_of(round);
    if (number >= kCopies || copied_channel() >= kTogether) return;
    bool wanted = true;
    if (!inside) {
      const Position position = position_of(number);
#pragma unroll
      for (int dimension = 0; dimension < 4; ++dimension) {
        const int at = start.begin[dimension] + position.at[dimension];
        if (static_cast<unsigned>(at) >= static_cast<unsigned>(start.limit(params, dimension))) wanted = false;
      }
    }
    const char* source = reinterpret_cast<const char*>(wanted ? next : base) + (wanted ? place : 0);
    const long long step = wanted ? kTogether * stride[1] * kBytes : 0;
    const int gaps = kLines.pitch - kLineCopies * kAlong;  // at the ends of lines
    unsigned target = raw + stage_offset + copied_channel() * kChannelBytes +
                      (number * kAlong + (gaps == 0 ? 0 : number / kLineCopies * gaps)) * kElementBytes;
    if constexpr (kCopy * kBytes < 4) {
      copy_halves(target, source, step, wanted);
    } else if (channels == kWarpChannels) {
#pragma unroll kCopyUnroll
      for (int channel = 0; channel < kWarpChannels; channel += kTogether) {
        if (channel + kTogether <= kWarpChannels || channel + copied_channel() < kWarpChannels) {
          ptx::copy_async<kCopy * kBytes>(target, source, wanted);
        }
        source += step;
        target += kTogether * kChannelBytes;
      }
    } else {
#pragma unroll 1
      for (int channel = copied_channel(); channel < channels; channel += kTogether) {
        ptx::copy_async<kCopy * kBytes>(target, source, wanted);
        source += step;
        target += kTogether * kChannelBytes;
      }
    }
  }

  // Elements of two bytes on their own, too short for a copy, pass registers, some at a time.
  __device__ __forceinline__ void copy_halves(unsigned target, const char* source, long long step, bool wanted) const {
    constexpr int kAtOnce = 8;
#pragma unroll 1
    for (int channel = copied_channel(); channel < channels; channel += kAtOnce * kTogether) {
      unsigned words[kAtOnce][1];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        ptx::load_if<2>(wanted && channel + i * kTogether < channels, source + i * step, words[i]);
      }
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        if (channel + i * kTogether < channels) {
          ptx::store_shared_half(target + i * kTogether * kChannelBytes, words[i][0]);
        }
      }
      source += kAtOnce * step;
      target += kAtOnce * kTogether * kChannelBytes;
    }
  }

  __device__ __forceinline__ void advance(const ReduceParams& params, int along) {
    next += kOfRows ? params.row_advance[along] : params.column_advance[along];
  }

  // Where the first element of a group of cells stands in a channel's lines.
  static __device__ __forceinline__ int group_at(int group) {
    constexpr int kWidth = kShape.line_places(kOfRows, 3);
    constexpr int kHeight = kShape.line_places(kOfRows, 2);
    constexpr int kDepth = kShape.line_places(kOfRows, 1);
    int unit = group * kLength;
    const int w = unit % kWidth;
    unit /= kWidth;
    const int h = unit % kHeight;
    unit /= kHeight;
    const int line = (unit / kDepth * kCount1 + unit % kDepth) * kCount2 + h;
    return line * kLines.pitch + w;
  }

  // Hands the cells of the stage, numbered among those of this tensor, to store(number, cell).
  template <typename Store>
  __device__ __forceinline__ void arrange(unsigned stage_offset, const Store& store) const {
    if (channels <= 0) return;
#pragma unroll 1
    for (int channel_round = 0; channel_round < kWarpChannels; channel_round += kOthers) {
      const int channel = channel_round + lane() % kOthers;
      if (channel >= channels) continue;
      const unsigned lines = raw + stage_offset + channel * kChannelBytes;
      const int of_block = first_channel + channel;
      const int cell =
          kOfRows ? of_block : of_block / kShape.team_columns * kShape.team_cells() + of_block % kShape.team_columns;
      constexpr int kNext = kOfRows ? kShape.row_pitch() : kShape.team_columns;
#pragma unroll kGroupUnroll
      for (int round = 0; round < kGroupRounds; round += kGroupBatch) {
        // Some groups at a time, so that one's reads are under way while another's are waited for.
        unsigned words[kGroupBatch][kVector * kWords];
#pragma unroll
        for (int i = 0; i < kGroupBatch; ++i) {
          const int group = (round + i) * kLanes + lane() / kOthers;
          if (group >= kGroups) continue;
          const unsigned first = lines + group_at(group) * kElementBytes;
          constexpr LineTable kPlaces = kParts;
#pragma unroll
          for (int v = 0; v < kVector; ++v) {
            unsigned loaded[kWords];
            ptx::load_shared<kLength * kBytes>(first + kPlaces.at[v] * kElementBytes, loaded);
#pragma unroll
            for (int word = 0; word < kWords; ++word) words[i][v * kWords + word] = loaded[word];
          }
        }
#pragma unroll
        for (int i = 0; i < kGroupBatch; ++i) {
          const int group = (round + i) * kLanes + lane() / kOthers;
          if (group >= kGroups) continue;
          const int target = cell + group * kLength * kNext;
#pragma unroll
          for (int at = 0; at < kLength; ++at) store(target + at * kNext, cell_of<kWords>(words[i], at));
        }
      }
    }
  }
};

// Both tensors.
struct LineLoader {
  LineSide<true> rows;
  LineSide<false> columns;

  __device__ __forceinline__ LineLoader(const ReduceParams& params, const ReduceBlock& block, const StageOrigin& origin,
                                        int warp, unsigned raw)
      : rows(params, block, origin, warp, raw + warp * kShape.raw_side_bytes(true)),
        columns(
            params, block, origin, column_warp(warp),
            raw + kShape.row_warps * kShape.raw_side_bytes(true) + column_warp(warp) * kShape.raw_side_bytes(false)) {}

  // Warps that have nothing to do with a tensor stand behind those that share its channels.
  static __device__ __forceinline__ int column_warp(int warp) {
    if constexpr (!kShape.sides_apart()) return warp;
    return warp >= kShape.row_warps ? warp - kShape.row_warps : kShape.column_warps;
  }

  __device__ __forceinline__ void copy(const ReduceParams& params, const ReduceBlock& block, const StageOrigin& origin,
                                       int slot) const {
    rows.copy(params, block, origin, slot * kShape.raw_stage_bytes());
    columns.copy(params, block, origin, slot * kShape.raw_stage_bytes());
  }
  __device__ __forceinline__ void advance(const ReduceParams& params, int along) {
    rows.advance(params, along);
    columns.advance(params, along);
  }
  __device__ __forceinline__ void arrange(int slot, unsigned stage) const {
    const auto store_to = [](unsigned first) {
      return [first](int number, const Cell& cell) {
        if constexpr (kShape.splits()) {
          const SplitCell split(cell);
          ptx::store_16(first + number * 16, split.big);
          ptx::store_16(first + (kShape.plane_cells() + number) * 16, split.small);
        } else {
          ptx::store_16(first + number * 16, cell);
        }
      };
    };
    rows.arrange(slot * kShape.raw_stage_bytes(), store_to(stage));
    columns.arrange(slot * kShape.raw_stage_bytes(), store_to(stage + kShape.row_cells() * 16));
  }
};
"""
FILES["reduce_team.cuh"] = r"""
// Where a team works in its block, whatever it multiplies with. The config defines kProductCells: the cells that each
// product's first unit meets at the block's first tap.

#include "reduce_params.cuh"

constexpr int kRowTiles = kShape.row_tiles;
constexpr int kTeamRuns = kShape.team_runs;
constexpr int kColumnTiles = kShape.column_tiles();

// From a unit of the shifted tensor to the one that its right neighbour in the rows' tensor meets, in cells.
constexpr int kPairCells = kShape.place_step(2) * kShape.team_columns;

struct TeamPlace {
  int first_row;
  int column_team;
  int run_team;
  int first_cell;         // of the team's columns in a stage
  int run_at[kTeamRuns];  // from there, in cells

  __device__ __forceinline__ TeamPlace(int team, int lead) {
    first_row = team % kShape.row_teams * kRowTiles * kShape.tile_rows();
    team /= kShape.row_teams;
    column_team = team % kShape.column_teams;
    run_team = team / kShape.column_teams;
    first_cell = kShape.row_cells() + column_team * kShape.team_cells() + lead * kShape.team_columns;
#pragma unroll
    for (int i = 0; i < kTeamRuns; ++i) {
      // Teams are as many as divide the runs evenly, or some of them multiply their last run for nothing.
      int run = min(run_team * kTeamRuns + i, kShape.runs() - 1);
      const int w = run % kShape.width_runs() * kShape.run;
      run /= kShape.width_runs();
      const int h = run % kShape.taps[1];
      const int d = run / kShape.taps[1];
      const int row = d * kShape.place_tap(0) * kShape.extent(1) + h * kShape.place_tap(1);
      run_at[i] = (row * kShape.extent(2) + w * kShape.place_tap(2)) * kShape.team_columns;
    }
  }
};
"""
FILES["reduce_warp.cuh"] = r"""
// A team of one warp: mma.sync on sm_80 and later, fragments by ldmatrix, or of boxes as they lie.

#include "reduce_team.cuh"
#include "tensor_math.cuh"

using Operand = Fragment<kShape.math>;

struct TeamTile : TeamPlace {
  float sum[kRowTiles][kTeamRuns][kColumnTiles][4] = {};
  unsigned rows_at;  // byte offsets that ldmatrix adds to a stage
  unsigned columns_at;

  __device__ __forceinline__ explicit TeamTile(int lead) : TeamPlace(threadIdx.x / 32, lead) {
    const int lane = threadIdx.x % 32;
    rows_at = (lane / 16 * kShape.row_pitch() + first_row + lane % 16) * 16;
    columns_at = (first_cell + lane / 8 % 2 * kPairCells + lane / 16 * 8 + lane % 8) * 16;
  }

  // The row of the block that this thread holds of a half of a tile.
  __device__ __forceinline__ int row(int tile, int half) const {
    return first_row + kShape.row_of(tile, half, threadIdx.x % 32 / 4);
  }

  // Adds the products [begin, end) of a stage.
  __device__ __forceinline__ void multiply_stage(unsigned stage, int begin, int end) {
    if constexpr (kShape.boxes()) return multiply_boxes(stage);
#pragma unroll 1
    for (int product = begin; product < end; ++product) {
      const unsigned a_at = stage + rows_at + 2 * product * kShape.row_pitch() * 16;
      const unsigned b_at = stage + columns_at + kProductCells[product] * 16;
      Operand a[kRowTiles];
#pragma unroll
      for (int tile = 0; tile < kRowTiles; ++tile) a[tile] = load_operand(a_at + tile * 256);
#pragma unroll
      for (int run = 0; run < kTeamRuns; ++run) {
#pragma unroll
        for (int pair = 0; pair < kColumnTiles / 2; ++pair) {
          const Operand b = load_operand(b_at + (run_at[run] + pair * 16) * 16);
#pragma unroll
          for (int tile = 0; tile < kRowTiles; ++tile) {
#pragma unroll
            for (int side = 0; side < 2; ++side) multiply_operands(sum[tile][run][2 * pair + side], a[tile], b, side);
          }
        }
      }
    }
  }

  // Adds the products of a stage of boxes. Along the depth of a product lie eight pixels, in any order that both
  // factors share: a lane has pixels 2 w and 2 w + 1 of them, where words w and w + 4 belong. So no bank is met twice,
  // with columns of 16 bytes swapped as the copy engine does. Lanes read what lies side by side in a fragment's
  // registers: wider vectors would have to be taken apart by as many moves as there are words in all products.
  __device__ __forceinline__ void multiply_boxes(unsigned stage) {
    const unsigned row_box = stage + first_row / kBoxChannels * kShape.row_box_bytes();
    const unsigned column_box =
        stage + kShape.row_cells() * 16 +
        (run_team * kTeamRuns * kBlockBoxes + column_team * kRunBoxes) * kShape.column_box_bytes();
    unsigned rows_from[2][2];  // sixteen channels of a box, either pixel
    unsigned columns_from[4][2];
#pragma unroll
    for (int pixel = 0; pixel < 2; ++pixel) {
      const unsigned g = threadIdx.x % 32 / 4;
      const unsigned row = threadIdx.x % 4 * 2 + pixel;
#pragma unroll
      for (unsigned i = 0; i < 2; ++i)
        rows_from[i][pixel] = row_box + row * kBoxRowBytes + ((4 * i + g / 2) ^ row) * 16 + g % 2 * 8;
#pragma unroll
      for (unsigned i = 0; i < 4; ++i)
        columns_from[i][pixel] = column_box + row * kBoxRowBytes + ((2 * i + g / 4) ^ row) * 16 + g % 4 * 4;
    }
    // While the products of some pixels are computed, the next ones are on their way.
    unsigned a[2][kRowTiles][2][2];
    unsigned b[2][kTeamRuns * kColumnTiles][2];
    const auto load = [&](int product) {
      const unsigned pixels = product * 8 * kBoxRowBytes;
#pragma unroll
      for (int pixel = 0; pixel < 2; ++pixel) {
#pragma unroll
        for (int tile = 0; tile < kRowTiles; ++tile)
          ptx::load_shared_64(rows_from[tile % 2][pixel] + pixels + tile / 2 * kShape.row_box_bytes(),
                              a[product % 2][tile][pixel]);
#pragma unroll
        for (int column = 0; column < kTeamRuns * kColumnTiles; ++column) {
          const int box = column / kColumnTiles * kBlockBoxes + column % kColumnTiles / 4;
          b[product % 2][column][pixel] =
              ptx::load_shared_32(columns_from[column % 4][pixel] + pixels + box * kShape.column_box_bytes());
        }
      }
    };
    load(0);
#pragma unroll
    for (int product = 0; product < kShape.products(); ++product) {
      if (product + 1 < kShape.products()) load(product + 1);
      unsigned words[kRowTiles][4];
#pragma unroll
      for (int tile = 0; tile < kRowTiles; ++tile) {
#pragma unroll
        for (int word = 0; word < 4; ++word) words[tile][word] = rounded(a[product % 2][tile][word / 2][word % 2]);
      }
#pragma unroll
      for (int column = 0; column < kTeamRuns * kColumnTiles; ++column) {
        const unsigned b0 = rounded(b[product % 2][column][0]);
        const unsigned b1 = rounded(b[product % 2][column][1]);
#pragma unroll
        for (int tile = 0; tile < kRowTiles; ++tile)
          ptx::multiply_tf32(sum[tile][column / kColumnTiles][column % kColumnTiles], words[tile], b0, b1);
      }
    }
  }
  static constexpr int kBoxChannels = 32;
  static constexpr int kBoxRowBytes = kBoxChannels * 4;
  static constexpr int kRunBoxes = kColumnTiles / 4;
  static constexpr int kBlockBoxes = kShape.block_columns() / kBoxChannels;  // of each tap
  static __device__ __forceinline__ unsigned rounded(unsigned word) {
    return ptx::round_to_tf32(__uint_as_float(word));
  }

  static __device__ __forceinline__ Operand load_operand(unsigned address) {
    unsigned words[4];
    ptx::load_matrices(words, address);
    return Operand(words);
  }

  __device__ __forceinline__ void end_stage() {}
  __device__ __forceinline__ void end_former_stage() {}
};
"""
FILES["reduce_warpgroup.cuh"] = r"""
// A team of four warps: wgmma on sm_90a. Both operands are read from shared memory by descriptors without swizzle:
// eight cells lie together, the next eight follow at 128 bytes, the second unit of a product one pitch further.
// The config defines multiply(), the instruction for kShape.run_columns(), since its operand list depends on it.

#include "ptx.cuh"
#include "reduce_team.cuh"

// In units of 16 bytes: the start and the step between the two units in the low word, the step between groups of eight
// cells (always 8) in the high one. Moving the start is adding to the low word.
__device__ __forceinline__ unsigned descriptor(unsigned address, unsigned unit_pitch) {
  return (address >> 4 & 0x3fff) | unit_pitch << 16;
}
__device__ __forceinline__ unsigned long long whole(unsigned low) { return 8ULL << 32 | low; }

struct TeamTile : TeamPlace {
  float sum[kRowTiles][kTeamRuns][kColumnTiles][4] = {};

  // The index is taken from one lane, so that the compiler knows it for uniform: wgmma in code that could diverge is
  // serialised.
  __device__ __forceinline__ explicit TeamTile(int lead) : TeamPlace(__shfl_sync(~0u, threadIdx.x / 128, 0), lead) {}

  // The row of the block that this thread holds of a half of a tile.
  __device__ __forceinline__ int row(int tile, int half) const {
    return first_row + threadIdx.x / 32 % 4 * 16 + kShape.row_of(tile, half, threadIdx.x % 32 / 4);
  }

  // Adds the products of a stage in fp32 out of TF32. The tensor cores cut the bits that they shift out; sums of a few
  // products are therefore added in fp32.
  __device__ __forceinline__ void multiply_split_stage(unsigned stage) {
    constexpr int kDepth = 4;
    const unsigned a = descriptor(stage + first_row * 16, kShape.row_pitch());
    const unsigned b = descriptor(stage + first_cell * 16, kPairCells);
#pragma unroll 1
    for (int begin = 0; begin < kShape.products(); begin += kDepth) {
      float part[kRowTiles][kTeamRuns][kColumnTiles][4] = {};
      ptx::fence_warpgroup();
#pragma unroll 1
      for (int product = begin; product < min(begin + kDepth, kShape.products()); ++product) {
#pragma unroll
        for (int run = 0; run < kTeamRuns; ++run) {
#pragma unroll
          for (int tile = 0; tile < kRowTiles; ++tile) {
            const unsigned rows = a + 2 * product * kShape.row_pitch() + tile * 64;
            const unsigned columns = b + run_at[run] + kProductCells[product];
            multiply(part[tile][run], whole(rows + kShape.plane_cells()), whole(columns));
            multiply(part[tile][run], whole(rows), whole(columns + kShape.plane_cells()));
            multiply(part[tile][run], whole(rows), whole(columns));
          }
        }
      }
      ptx::commit_warpgroup();
      ptx::wait_for_warpgroup();
#pragma unroll
      for (int tile = 0; tile < kRowTiles; ++tile) {
#pragma unroll
        for (int run = 0; run < kTeamRuns; ++run) {
#pragma unroll
          for (int column = 0; column < kColumnTiles; ++column) {
#pragma unroll
            for (int i = 0; i < 4; ++i) sum[tile][run][column][i] += part[tile][run][column][i];
          }
        }
      }
    }
  }

  // Starts the products of a stage of boxes: rows of channels, eight pixels after the other, columns of 16 bytes
  // swapped as the copy engine does.
  __device__ __forceinline__ void multiply_boxes(unsigned stage) {
    constexpr unsigned kRowBytes = kShape.row_box * kShape.element_bytes;
    constexpr unsigned kColumnBytes = kShape.column_box * kShape.element_bytes;
    constexpr int kRunBytes = kShape.run * kShape.team_columns * kShape.pixels() * kShape.element_bytes;
    const unsigned rows = stage + first_row / 64 * kShape.row_box_bytes();
    const unsigned columns = stage + kShape.row_cells() * 16;
    ptx::fence_warpgroup();
#pragma unroll 2
    for (int product = 0; product < kShape.products(); ++product) {
#pragma unroll
      for (int run = 0; run < kTeamRuns; ++run) {
#pragma unroll
        for (int tile = 0; tile < kRowTiles; ++tile) {
          multiply(sum[tile][run],
                   swapped(rows + tile * kShape.row_box_bytes() + product * 16 * kRowBytes, kShape.row_box_bytes(),
                           kRowBytes),
                   swapped(columns + run * kRunBytes + product * 16 * kColumnBytes, kShape.column_box_bytes(),
                           kColumnBytes));
        }
      }
    }
    ptx::commit_warpgroup();
  }
  // The start, the way to the next channels, the way to the next eight pixels, and how long rows are.
  static __device__ __forceinline__ unsigned long long swapped(unsigned address, unsigned next_channels,
                                                               unsigned row_bytes) {
    const unsigned long long kind = row_bytes == 128 ? 1 : row_bytes == 64 ? 2 : 3;
    return kind << 62 | static_cast<unsigned long long>(row_bytes / 2) << 32 | next_channels >> 4 << 16 |
           (address >> 4 & 0x3fff);
  }

  // Starts the products [begin, end) of a stage.
  __device__ __forceinline__ void multiply_stage(unsigned stage, int begin, int end) {
    if constexpr (kShape.splits()) return multiply_split_stage(stage);
    if constexpr (kShape.boxes()) return multiply_boxes(stage);
    const unsigned a = descriptor(stage + first_row * 16, kShape.row_pitch());
    const unsigned b = descriptor(stage + first_cell * 16, kPairCells);
    ptx::fence_warpgroup();
#pragma unroll 2
    for (int product = begin; product < end; ++product) {
#pragma unroll
      for (int run = 0; run < kTeamRuns; ++run) {
#pragma unroll
        for (int tile = 0; tile < kRowTiles; ++tile) {
          multiply(sum[tile][run], whole(a + 2 * product * kShape.row_pitch() + tile * 64),
                   whole(b + run_at[run] + kProductCells[product]));
        }
      }
    }
    ptx::commit_warpgroup();
  }

  __device__ __forceinline__ void end_stage() { ptx::wait_for_warpgroup(); }
  // Of the stage before the one that was started last.
  __device__ __forceinline__ void end_former_stage() { ptx::wait_for_warpgroup<1>(); }
};
"""
FILES["split.cuh"] = r"""
// fp32 out of TF32: x = big + small, each with eleven bits. Of a product of two such sums, that of the small parts is
// below fp32's last bit.

#include "ptx.cuh"

// The small part keeps its low bits: the tensor cores cut them, half a bit of fp32, down as often as up.
struct SplitWord {
  unsigned big;
  unsigned small;

  __device__ __forceinline__ explicit SplitWord(unsigned bits) {
    big = ptx::round_to_tf32(__uint_as_float(bits));
    small = __float_as_uint(__uint_as_float(bits) - __uint_as_float(big));
    if ((big & 0x7f800000u) == 0x7f800000u) {  // infinite, NaN, or rounded up to infinity
      big = bits;
      small = 0;
    }
  }
};

struct SplitCell {
  Cell big;
  Cell small;

  __device__ __forceinline__ explicit SplitCell(const Cell& cell) {
    float rests = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float value = __uint_as_float(cell.word[i]);
      big.word[i] = ptx::round_to_tf32(value);
      const float rest = value - __uint_as_float(big.word[i]);
      small.word[i] = ptx::round_to_tf32(rest);
      rests += rest;
    }
    if (rests - rests == 0) return;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if ((big.word[i] & 0x7f800000u) != 0x7f800000u) continue;  // infinite, NaN, or rounded up to infinity
      big.word[i] = cell.word[i];
      small.word[i] = 0;
    }
  }
};
"""
FILES["tensor_math.cuh"] = r"""
// Products of fragments as the shape asks for them: mma.sync with 16 rows, and 8 columns out of a pair of 8.

#include "ptx.cuh"
#include "tile_params.cuh"

// Four 8x8 matrices of 16-bit pairs or of TF32 values.
template <TileMath kMath>
struct Fragment {
  unsigned word[4];

  Fragment() = default;
  __device__ __forceinline__ explicit Fragment(const unsigned (&words)[4]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) word[i] = words[i];
  }
};

// fp32 out of TF32: x = big + small, and the product of the two small parts is below fp32's last bit.
template <>
struct Fragment<TileMath::fp32x3> {
  unsigned big[4];
  unsigned small[4];

  Fragment() = default;
  __device__ __forceinline__ explicit Fragment(const unsigned (&words)[4]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      big[i] = ptx::round_to_tf32(__uint_as_float(words[i]));
      small[i] = ptx::round_to_tf32(__uint_as_float(words[i]) - __uint_as_float(big[i]));
      if ((big[i] & 0x7f800000u) == 0x7f800000u) {  // infinite, NaN, or rounded up to infinity
        big[i] = words[i];
        small[i] = 0;
      }
    }
  }
};

// Adds a times the columns of b whose words are 2 side and 2 side + 1.
template <TileMath kMath>
__device__ __forceinline__ void multiply_operands(float (&d)[4], const Fragment<kMath>& a, const Fragment<kMath>& b,
                                                  int side) {
  const int first = 2 * side;
  if constexpr (kMath == TileMath::f16) {
    ptx::multiply_f16(d, a.word, b.word[first], b.word[first + 1]);
  } else if constexpr (kMath == TileMath::bf16) {
    ptx::multiply_bf16(d, a.word, b.word[first], b.word[first + 1]);
  } else if constexpr (kMath == TileMath::tf32) {
    ptx::multiply_tf32(d, a.word, b.word[first], b.word[first + 1]);
  } else {
    // The tensor cores cut the bits that they shift out; sums of one depth are therefore kept short and added in fp32.
    float part[4] = {};
    ptx::multiply_tf32(part, a.small, b.big[first], b.big[first + 1]);
    ptx::multiply_tf32(part, a.big, b.small[first], b.small[first + 1]);
    ptx::multiply_tf32(part, a.big, b.big[first], b.big[first + 1]);
#pragma unroll
    for (int i = 0; i < 4; ++i) d[i] += part[i];
  }
}
"""
FILES["tile.cuh"] = r"""
// Tensor-core tiles for sm_80 and later: mma.sync on the tile format. See tile_params.cuh for what a block computes.
//
// The config in front of this file defines Element (float, or unsigned short for fp16 and bf16), kShape, and for each
// distance: kBackCells, how far its cells lie from the patch's first, and kBackRows, a bit for each 16-row tile that
// has a tap there.
#include "tile_warp.cuh"

#include "tile_block.cuh"
"""
FILES["tile_block.cuh"] = r"""
// The life of a block, whatever its teams multiply with: fill a stage, multiply it while the next one is on its way,
// store.

#include "tile_bulk.cuh"
#include "tile_load.cuh"
#include "tile_load_gradient.cuh"
#include "tile_place.cuh"

template <bool kPacked, bool kBulk, bool kGradient>
struct WeightLoader {
  using Type = WeightsInPlace;
};
template <>
struct WeightLoader<true, false, kShape.gradient> {
  using Type = PackedWeights;
};
template <>
struct WeightLoader<true, true, kShape.gradient> {
  using Type = BulkWeights;
};
template <>
struct WeightLoader<false, false, true> {
  using Type = GradientWeights;
};
using Weights = WeightLoader<kShape.packed, kShape.bulk_weights(), kShape.gradient>::Type;

// Makes this thread's stores to a stage, of input and weights, visible to whoever multiplies it.
__device__ __forceinline__ void publish_stage() {
  if constexpr (kShape.warpgroup) ptx::fence_for_async_proxy();
}

// Whether some steps store weights and no input.
constexpr bool kStoresWeightsAlone = kShape.gradient && !kShape.packed && kShape.stages_per_chunk() > 1;

#include "tile_store.cuh"

__global__ void __launch_bounds__(kThreads, kShape.blocks_per_multiprocessor) kClusterAttribute
    tconv_tile(const __grid_constant__ TileParams params) {
  extern __shared__ __align__(128) unsigned char shared_memory[];
  const unsigned input_stages = ptx::shared_address(shared_memory);
  const unsigned weight_stages = input_stages + kShape.input_stages() * kShape.input_stage_bytes();

  const BlockPlace place = block_place(params, blockIdx.x);
  const BlockRows rows = block_rows(place.block_row);
  const BlockCells cells = block_cells(params, rows, place.cells);

  Weights weights(params, rows, place.block_row, place.rank, shared_memory);
  InputLoader input(params, rows, cells, place.rank);
  TeamTile tile(rows);

  // Step by step through the stages of weights; a new patch of input comes with each new chunk of channels. What a step
  // multiplies was stored one step earlier and, where it passes through registers, loaded one step before that.
  constexpr int kChunks = kShape.block_chunks();
  const auto weight_stage = [&](int step) {
    return weight_stages + step % kShape.weight_stages() * kShape.weight_stage_bytes();
  };
  const auto input_stage = [&](int chunk) { return input_stages + chunk % 2 * kShape.input_stage_bytes(); };

  // Loads set out only after publish_stage(): its fence waits for every load under way.
  weights.begin(weight_stage);
  weights.fetch(params, 0);
  input.fetch(params, 0);
  weights.store(0, weight_stage);
  input.store(input_stage(0));
  publish_stage();
  weights.fetch(params, 1);
  if (kChunks > 1) input.fetch(params, 1);
  weights.wait(0);
  __syncthreads();

#pragma unroll 1
  for (StageWalk walk(rows); !walk.ended(); walk.advance()) {
    tile.begin_stage(input_stage(walk.chunk), weight_stage(walk.step), walk.stage);
    weights.start(walk.step, weight_stage);
    weights.store(walk.step + 1, weight_stage);
    const bool brings_input = walk.begins_chunk() && walk.chunk + 1 < kChunks;
    if (brings_input) input.store(input_stage(walk.chunk + 1));
    if (brings_input || kStoresWeightsAlone) publish_stage();
    if (brings_input && walk.chunk + 2 < kChunks) input.fetch(params, walk.chunk + 2);
    weights.fetch(params, walk.step + 2);
    weights.wait(walk.step + 1);
    tile.end_stage();
    __syncthreads();
  }
  store_block(params, rows, cells, tile, place.rank, shared_memory);
}
"""
FILES["tile_bulk.cuh"] = r"""
// Packed weights brought by the copy engine of sm_90: one thread asks for a stage, a barrier in shared memory tells
// when it has arrived.

#include "tile_element.cuh"
#include "tile_weights.cuh"

struct BulkWeights {
  static constexpr int kRing = kShape.weight_stages();
  static constexpr int kAhead = kRing > 1 ? kRing - 1 : 1;
  static constexpr int kBytesPerBack = kShape.slabs * kShape.rows() * 16;

  const char* base;
  unsigned barriers;  // one per slot of the ring, 8 bytes each
  unsigned long long block_backs;
  StageWalk copied;  // the next stage to ask for

  __device__ __forceinline__ BulkWeights(const TileParams& params, const BlockRows& rows, int block_row, int rank,
                                         unsigned char* shared_memory)
      : base(static_cast<const char*>(params.weight) + block_row * kShape.packed_bytes() +
             rank * static_cast<long long>(kShape.block_chunks()) * kShape.all_backs() * kBytesPerBack),
        barriers(ptx::shared_address(shared_memory) + kShape.barrier_offset()),
        block_backs(backs_of(rows)),
        copied(rows) {
    if (threadIdx.x == 0) {
#pragma unroll
      for (int slot = 0; slot < kRing; ++slot) {
        ptx::init_barrier(full(slot), 1);
      }
      ptx::publish_barriers();
    }
    __syncthreads();
  }

  template <typename Stage>
  __device__ __forceinline__ void begin(Stage&& stage) {
    if (threadIdx.x != 0) return;
    ptx::wait_for_previous_kernel();
#pragma unroll
    for (int step = 0; step < kAhead; ++step) copy(stage(step));
  }

  // While `step` is multiplied: the copy for a later one sets out.
  template <typename Stage>
  __device__ __forceinline__ void start(int step, Stage&& stage) {
    if (kRing > 1 && threadIdx.x == 0) copy(stage(step + kAhead));
  }

  __device__ __forceinline__ void fetch(const TileParams&, int) const {}
  template <typename Stage>
  __device__ __forceinline__ void store(int, Stage&&) const {}

  // Until the weights of `step` have arrived.
  __device__ __forceinline__ void wait(int step) const {
    if (step < copied.total) ptx::wait_barrier(full(step % kRing), step / kRing & 1);
  }

 private:
  __device__ __forceinline__ unsigned full(int slot) const { return barriers + slot * 8; }

  __device__ __forceinline__ void copy(unsigned shared) {
    if (copied.ended()) return;
    const int slot = copied.step % kRing;
    const int first_back = copied.stage * kShape.stage_backs;
    const int backs = min(kShape.stage_backs, kShape.all_backs() - first_back);
    const char* source =
        base + (static_cast<long long>(copied.chunk) * kShape.all_backs() + first_back) * kBytesPerBack;
    copied.advance();
    if constexpr (kShape.skips_backs()) {
      const unsigned long long present = block_backs >> first_back & (backs < 64 ? (1ULL << backs) - 1 : ~0ULL);
      ptx::expect_bytes(full(slot), __popcll(present) * kBytesPerBack);
      for (int back = 0; back < backs; ++back) {
        if (present >> back & 1)
          ptx::copy_bulk(shared + back * kBytesPerBack, source + back * kBytesPerBack, kBytesPerBack, full(slot));
      }
    } else {
      ptx::expect_bytes(full(slot), backs * kBytesPerBack);
      ptx::copy_bulk(shared, source, backs * kBytesPerBack, full(slot));
    }
  }
};
"""
FILES["tile_element.cuh"] = r"""
// Elements on their way into a tile and out of it.

#include "ptx.cuh"
#include "tile_params.cuh"

constexpr bool kRoundsToTf32 = kShape.math == TileMath::tf32;

// fp16 and bf16 pass through the loader as bits; fp32 is rounded here, once, when the tensor cores will see TF32.
__device__ __forceinline__ Cell make_cell(const float (&values)[4]) {
  Cell cell;
#pragma unroll
  for (int v = 0; v < 4; ++v) {
    cell.word[v] = kRoundsToTf32 ? ptx::round_to_tf32(values[v]) : __float_as_uint(values[v]);
  }
  return cell;
}

__device__ __forceinline__ Cell make_cell(const unsigned short (&values)[8]) {
  Cell cell;
#pragma unroll
  for (int v = 0; v < 4; ++v) {
    cell.word[v] = values[2 * v] | static_cast<unsigned>(values[2 * v + 1]) << 16;
  }
  return cell;
}

__device__ __forceinline__ Cell rounded(Cell cell) {
#pragma unroll
  for (int v = 0; v < 4; ++v) {
    if (kRoundsToTf32) cell.word[v] = ptx::round_to_tf32(__uint_as_float(cell.word[v]));
  }
  return cell;
}

__device__ __forceinline__ float to_storage(float value, float) { return value; }

__device__ __forceinline__ unsigned short to_storage(float value, unsigned short) {
  return kShape.math == TileMath::f16 ? ptx::round_to_f16(value) : ptx::round_to_bf16(value);
}

__device__ __forceinline__ float from_storage(float value) { return value; }

__device__ __forceinline__ float from_storage(unsigned short bits) {
  return kShape.math == TileMath::f16 ? ptx::widen_f16(bits) : __uint_as_float(static_cast<unsigned>(bits) << 16);
}
"""
FILES["tile_load.cuh"] = r"""
// From the tensors into a block's shared memory. Loads go to registers before a stage is multiplied and to shared
// memory after it, so that their latency hides behind the multiplication.

#include "tile_element.cuh"
#include "tile_place.cuh"
#include "tile_weights.cuh"

constexpr int kThreads = kShape.threads();
constexpr int kVector = kShape.vector();

constexpr unsigned kOutside = ~0u;  // an offset of nothing

// One pointer for all threads and a 32-bit offset of their own are an addressing mode of the load.
__device__ __forceinline__ const Element* at(const Element* pointer, unsigned bytes) {
  return reinterpret_cast<const Element*>(reinterpret_cast<const char*>(pointer) + bytes);
}

// Along an axis of a patch, an index over what is read: its plane and its cell. Planes vary faster, as in memory.
__device__ __forceinline__ int plane_of(int axis, int index) { return index % kShape.planes[axis]; }
__device__ __forceinline__ int cell_of(int axis, int index) { return index / kShape.planes[axis]; }

__device__ __forceinline__ constexpr int patch_length(int axis) { return kShape.patch(1 + axis) * kShape.planes[axis]; }

// The input patch of a block: cells with their halo, [slab][plane][sample][depth][row][column][vector].
struct InputLoader {
  static constexpr int kPixels = kShape.pixels() * kShape.all_planes();
  static constexpr int kItems = kShape.slabs * kPixels;
  static constexpr int kGroups = kShape.all_plane_groups();
  static constexpr int kPerThread = (kItems + kThreads - 1) / kThreads;

  int first_chunk;                                // of this block
  const Element* base;                            // first channel of the group
  unsigned offset[kPerThread];                    // from there, in bytes
  unsigned inside[kGroups > 1 ? kPerThread : 1];  // for which groups of planes the place exists, a bit each
  Element values[kShape.wide_input ? 1 : kPerThread][kVector];
  Cell wide[kShape.wide_input ? kPerThread : 1];

  // Neighbouring threads take neighbours in memory: pixels of a row, or channels of a pixel.
  static __device__ __forceinline__ int slab_of(int item) {
    return kShape.input_channels_last ? item % kShape.slabs : item / kPixels;
  }
  static __device__ __forceinline__ int pixel_of(int item) {
    return kShape.input_channels_last ? item / kShape.slabs : item % kPixels;
  }

  __device__ __forceinline__ InputLoader(const TileParams& params, const BlockRows& rows, const BlockCells& cells,
                                         int rank)
      : first_chunk(rank * kShape.block_chunks()) {
    base = static_cast<const Element*>(params.input) + cells.first[0] * params.input_strides[0] +
           static_cast<long long>(rows.group) * kShape.channels * params.input_strides[1];
    // Of the first cell's first residue. It may lie outside the tensor, as may the patch.
    int first[3];
#pragma unroll
    for (int axis = 0; axis < 3; ++axis) {
      first[axis] = kShape.gradient ? cells.first[1 + axis] * kShape.stride[axis] - params.pad[axis]
                                    : cells.first[1 + axis] - kShape.halo(axis);
      if (kShape.gradient) base += first[axis] * params.input_strides[2 + axis];
    }
#pragma unroll
    for (int i = 0; i < kPerThread; ++i) {
      const int item = threadIdx.x + i * kThreads;
      int pixel = pixel_of(item);
      int local[3];
#pragma unroll
      for (int axis = 2; axis >= 0; --axis) {
        const int index = pixel % patch_length(axis);
        pixel /= patch_length(axis);
        local[axis] = kShape.gradient ? cell_of(axis, index) * kShape.stride[axis] +
                                            kShape.plane_residue(axis, plane_of(axis, index))
                                      : index;
      }
      const int sample = pixel;
      bool exists = item < kItems && cells.first[0] + sample < params.batch;
      long long position = sample * params.input_strides[0] + slab_of(item) * kVector * params.input_strides[1];
#pragma unroll
      for (int axis = 0; axis < 3; ++axis) {
        if (kShape.plane_groups(axis) == 1) {
          exists = exists &&
                   static_cast<unsigned>(first[axis] + local[axis]) < static_cast<unsigned>(params.input_size[axis]);
        }
        position += (kShape.gradient ? local[axis] : first[axis] + local[axis]) * params.input_strides[2 + axis];
      }
      offset[i] = exists ? static_cast<unsigned>(position * kShape.element_bytes) : kOutside;
      if constexpr (kGroups > 1) {
        inside[i] = 0;
#pragma unroll(kGroups <= 4 ? kGroups : 1)
        for (int index = 0; index < kGroups; ++index) {
          const PlaneGroup group = plane_group(index);
          bool here = exists;
#pragma unroll
          for (int axis = 0; axis < 3; ++axis) {
            if (kShape.plane_groups(axis) == 1) continue;
            const int place = first[axis] + local[axis] + kShape.group_residue(axis, group.at[axis]);
            here = here && static_cast<unsigned>(place) < static_cast<unsigned>(params.input_size[axis]);
          }
          if (here) inside[i] |= 1u << index;
        }
      }
    }
  }

  __device__ __forceinline__ void fetch(const TileParams& params, int block_chunk) {
    const int chunk = (first_chunk + block_chunk) / kGroups;
    const int group_index = (first_chunk + block_chunk) % kGroups;
    const Element* origin = base + static_cast<long long>(chunk) * kShape.chunk_channels() * params.input_strides[1];
    if (kGroups > 1) {
      const PlaneGroup group = plane_group(group_index);
#pragma unroll
      for (int axis = 0; axis < 3; ++axis)
        origin += static_cast<long long>(kShape.group_residue(axis, group.at[axis])) * params.input_strides[2 + axis];
    }
    const int channels_left = kShape.channels - chunk * kShape.chunk_channels();
    constexpr bool kWholeChunks = kShape.channels % kShape.chunk_channels() == 0;
#pragma unroll
    for (int i = 0; i < kPerThread; ++i) {
      const int first = slab_of(threadIdx.x + i * kThreads) * kVector;
      const bool here = kGroups > 1 ? (inside[kGroups > 1 ? i : 0] >> group_index & 1) != 0 : offset[i] != kOutside;
      if constexpr (kShape.wide_input) {
        const bool exists = here && (kWholeChunks || first < channels_left);
        wide[i] = exists ? ptx::load_16(at(origin, offset[i])) : Cell{};
      } else {
#pragma unroll
        for (int v = 0; v < kVector; ++v) {
          const Element* channel = origin + v * params.input_strides[1];
          const bool exists = here && (kWholeChunks || first + v < channels_left);
          values[i][v] = exists ? __ldg(at(channel, offset[i])) : Element(0);
        }
      }
    }
  }

  __device__ __forceinline__ void store(unsigned stage) const {
#pragma unroll
    for (int i = 0; i < kPerThread; ++i) {
      const int item = threadIdx.x + i * kThreads;
      if (kItems % kThreads != 0 && item >= kItems) break;
      const Cell cell =
          kShape.wide_input ? rounded(wide[kShape.wide_input ? i : 0]) : make_cell(values[kShape.wide_input ? 0 : i]);
      ptx::store_16(stage + (slab_of(item) * kShape.slab_pitch() + place_of(pixel_of(item))) * 16, cell);
    }
  }

  // Where a pixel lies in its slab.
  static __device__ __forceinline__ int place_of(int pixel) {
    if (kShape.all_planes() == 1) return pixel;
    int plane = 0;
    int cell = 0;
    int plane_scale = 1;
    int cell_scale = 1;
#pragma unroll
    for (int axis = 2; axis >= 0; --axis) {
      const int index = pixel % patch_length(axis);
      pixel /= patch_length(axis);
      plane += plane_of(axis, index) * plane_scale;
      cell += cell_of(axis, index) * cell_scale;
      plane_scale *= kShape.planes[axis];
      cell_scale *= kShape.patch(1 + axis);
    }
    return plane * kShape.plane_pitch() + cell + pixel * cell_scale;
  }
};

// Weights that the pack kernel has put into order: all stages of a block are one run of memory, copied some steps
// ahead.
struct PackedWeights {
  static constexpr int kAhead = kShape.weight_stages() - 1;
  static constexpr int kCellsPerBack = kShape.slabs * kShape.rows();

  const Cell* base;
  StageWalk copied;  // the next stage to copy

  __device__ __forceinline__ PackedWeights(const TileParams& params, const BlockRows& rows, int block_row, int rank,
                                           unsigned char*)
      : base(static_cast<const Cell*>(params.weight) + block_row * (kShape.packed_bytes() / 16) +
             rank * static_cast<long long>(kShape.block_chunks()) * kShape.all_backs() * kCellsPerBack),
        copied(rows) {}

  template <typename Stage>
  __device__ __forceinline__ void begin(Stage&& stage) {
    ptx::wait_for_previous_kernel();
#pragma unroll
    for (int step = 0; step < (kAhead > 0 ? kAhead : 1); ++step) copy(stage(step));
  }

  // While `step` is multiplied: the copy for a later one sets out.
  template <typename Stage>
  __device__ __forceinline__ void start(int step, Stage&& stage) {
    if (kAhead > 0) copy(stage(step + kAhead));
  }

  __device__ __forceinline__ void fetch(const TileParams&, int) const {}
  template <typename Stage>
  __device__ __forceinline__ void store(int, Stage&&) const {}

  // Until the weights of `step` have arrived.
  __device__ __forceinline__ void wait(int) const { ptx::wait_for_copies<(kAhead > 0 ? kAhead - 1 : 0)>(); }

 private:
  // Always a whole stage, so that the loop has no variables: past the last distance of a chunk it brings what follows.
  __device__ __forceinline__ void copy(unsigned shared) {
    constexpr int kCells = kShape.stage_backs * kCellsPerBack;
    if (!copied.ended()) {
      const long long first_back =
          static_cast<long long>(copied.chunk) * kShape.all_backs() + copied.stage * kShape.stage_backs;
      const Cell* source = base + first_back * kCellsPerBack + threadIdx.x;
      copied.advance();
      shared += threadIdx.x * 16;
#pragma unroll 16
      for (int i = 0; i < kCells / kThreads; ++i) ptx::copy_16_async(shared + i * kThreads * 16, source + i * kThreads);
      if (kCells % kThreads != 0 && threadIdx.x < kCells % kThreads) {
        ptx::copy_16_async(shared + kCells / kThreads * kThreads * 16, source + kCells / kThreads * kThreads);
      }
    }
    ptx::commit_copies();
  }
};

// Weights read from the tensor by each block itself: one launch, for problems whose blocks each have weights of their
// own or that are too small to pay for two. All products of a chunk are one stage here, so that a thread's cells keep
// their places from chunk to chunk.
struct WeightsInPlace {
  static constexpr int kSlabCells = kShape.block_channels * kShape.all_slots() * kShape.all_backs();
  static constexpr int kItems = kShape.slabs * kSlabCells;
  static constexpr int kPerThread = (kItems + kThreads - 1) / kThreads;
  // Neighbouring threads take neighbouring output channels first, whose cells lie side by side in shared memory, and
  // then taps, which lie side by side in a contiguous weight.
  static constexpr int kAcross = kShape.block_channels % 8 == 0 ? 8 : kShape.block_channels;

  int first_chunk;
  const Element* base;
  unsigned offset[kPerThread];  // from the chunk's first channel, in bytes
  unsigned place[kPerThread];   // bytes from the start of the stage
  Element values[kPerThread][kVector];

  __device__ __forceinline__ WeightsInPlace(const TileParams& params, const BlockRows& rows, int, int rank,
                                            unsigned char*)
      : first_chunk(rank * kShape.block_chunks()) {
    base = static_cast<const Element*>(params.weight) + rows.group * params.weight_group_stride;
    // All weights of a chunk lie within 32 bits of each other: the planner sees to that.
    const auto stride = [&](int dimension) { return static_cast<unsigned>(params.weight_strides[dimension]); };
#pragma unroll
    for (int i = 0; i < kPerThread; ++i) {
      int item = threadIdx.x + i * kThreads;
      const int slab = item / kSlabCells;
      int out_channel = item % kAcross;
      item /= kAcross;
      int slot[3];
      slot[2] = item % kShape.slots[2];
      item /= kShape.slots[2];
      const int back = item % kShape.all_backs();
      item /= kShape.all_backs();
      slot[1] = item % kShape.slots[1];
      item /= kShape.slots[1];
      slot[0] = item % kShape.slots[0];
      item /= kShape.slots[0];
      out_channel += item % (kShape.block_channels / kAcross) * kAcross;
      const int tap = tap_of(rows, slot, back);
      const unsigned position = slab * kVector * stride(0) + (rows.first_channel + out_channel) * stride(1) +
                                tap / (kShape.kernel[2] * kShape.kernel[1]) * stride(2) +
                                tap / kShape.kernel[2] % kShape.kernel[1] * stride(3) +
                                tap % kShape.kernel[2] * stride(4);
      offset[i] = tap < 0 || slab >= kShape.slabs || rows.first_channel + out_channel >= kShape.out_channels
                      ? kOutside
                      : position * kShape.element_bytes;
      const int row =
          ((slot[0] * kShape.slots[1] + slot[1]) * kShape.slots[2] + slot[2]) * kShape.block_channels + out_channel;
      place[i] = ((back * kShape.slabs + slab) * kShape.rows() + row) * 16;
    }
  }

  template <typename Stage>
  __device__ __forceinline__ void begin(Stage&&) const {}
  template <typename Stage>
  __device__ __forceinline__ void start(int, Stage&&) const {}
  __device__ __forceinline__ void wait(int) const {}

  // A step is a chunk here.
  __device__ __forceinline__ void fetch(const TileParams& params, int step) {
    if (step >= kShape.block_chunks()) return;
    const int first = (first_chunk + step) * kShape.chunk_channels();
    const Element* origin = base + static_cast<long long>(first) * params.weight_strides[0];
    constexpr bool kWhole = kShape.channels % kShape.chunk_channels() == 0;
#pragma unroll
    for (int i = 0; i < kPerThread; ++i) {
      const int channel = first + (threadIdx.x + i * kThreads) / kSlabCells * kVector;
#pragma unroll
      for (int v = 0; v < kVector; ++v) {
        const Element* row = origin + v * params.weight_strides[0];
        const bool exists = offset[i] != kOutside && (kWhole || channel + v < kShape.channels);
        values[i][v] = exists ? __ldg(at(row, offset[i])) : Element(0);
      }
    }
  }

  template <typename Stage>
  __device__ __forceinline__ void store(int step, Stage&& stage) const {
    if (step >= kShape.block_chunks()) return;
    const unsigned shared = stage(step);
#pragma unroll
    for (int i = 0; i < kPerThread; ++i) {
      if (kItems % kThreads != 0 && static_cast<int>(threadIdx.x) + i * kThreads >= kItems) break;
      ptx::store_16(shared + place[i], make_cell(values[i]));
    }
  }
};
"""
FILES["tile_load_gradient.cuh"] = r"""
// A gradient's weights, read from the tensor by each block itself and put together as cells.

#include "tile_load.cuh"

// A row's weights of a chunk lie together in a dense tensor, channel after channel with all its taps. Neighbouring
// threads take neighbouring taps, then channels, and each the few loads of one cell; where channels are neighbours in
// memory, they take these first, a cell with one load. Loads go to registers a step before they are stored.
struct GradientWeights {
  static constexpr int kItems = kShape.stage_backs * kShape.slabs * kShape.rows();
  static constexpr int kPerThread = (kItems + kThreads - 1) / kThreads;
  static constexpr int kSteps = kShape.block_chunks() * kShape.stages_per_chunk();

  int first_chunk;
  const Element* base;
  unsigned offset[kPerThread];  // from the first channel and tap of a stage, in bytes
  Element values[kPerThread][kVector];
  Cell wide[kPerThread];

  static __device__ __forceinline__ int back_of(int item) {
    return (kShape.wide_weights ? item / kShape.slabs : item) % kShape.stage_backs;
  }
  static __device__ __forceinline__ int slab_of(int item) {
    return (kShape.wide_weights ? item : item / kShape.stage_backs) % kShape.slabs;
  }
  static __device__ __forceinline__ int row_of(int item) { return item / (kShape.stage_backs * kShape.slabs); }

  __device__ __forceinline__ GradientWeights(const TileParams& params, const BlockRows& rows, int, int rank,
                                             unsigned char*)
      : first_chunk(rank * kShape.block_chunks()) {
    base = static_cast<const Element*>(params.weight) + rows.group * params.weight_group_stride +
           rows.first_channel * params.weight_strides[1];
#pragma unroll
    for (int i = 0; i < kPerThread; ++i) {
      const int item = threadIdx.x + i * kThreads;
      const int row = row_of(item);
      const bool exists =
          item < kItems && row < kShape.block_channels && rows.first_channel + row < kShape.out_channels;
      const long long position = row * params.weight_strides[1] + slab_of(item) * kVector * params.weight_strides[0] +
                                 tap_position(params, gradient_tap_of(PlaneGroup{}, back_of(item)));
      offset[i] = exists ? static_cast<unsigned>(position * kShape.element_bytes) : kOutside;
    }
  }

  template <typename Stage>
  __device__ __forceinline__ void begin(Stage&&) const {}
  template <typename Stage>
  __device__ __forceinline__ void start(int, Stage&&) const {}
  __device__ __forceinline__ void wait(int) const {}

  // The taps of another group of planes lie a constant distance further, and so do those of another stage: the planner
  // reads in place only what is so.
  __device__ __forceinline__ void fetch(const TileParams& params, int step) {
    if (step >= kSteps) return;
    constexpr int kStages = kShape.stages_per_chunk();
    constexpr int kGroups = kShape.all_plane_groups();
    const int chunk = first_chunk + step / kStages;
    const int first = chunk / kGroups * kShape.chunk_channels();
    const int first_back = step % kStages * kShape.stage_backs;
    const Element* origin = base + static_cast<long long>(first) * params.weight_strides[0] +
                            static_cast<long long>(first_back) * params.weight_strides[4];
    if (kGroups > 1) {
      const PlaneGroup group = plane_group(chunk % kGroups);
#pragma unroll
      for (int axis = 0; axis < 3; ++axis)
        origin += kShape.group_residue(axis, group.at[axis]) * params.weight_strides[2 + axis];
    }
    constexpr bool kWhole =
        kShape.channels % kShape.chunk_channels() == 0 && kShape.all_backs() % kShape.stage_backs == 0;
#pragma unroll
    for (int i = 0; i < kPerThread; ++i) {
      const int item = threadIdx.x + i * kThreads;
      const bool tap = kWhole || first_back + back_of(item) < kShape.all_backs();
      if constexpr (kShape.wide_weights) {
        const bool exists =
            offset[i] != kOutside && tap && (kWhole || first + slab_of(item) * kVector < kShape.channels);
        wide[i] = exists ? ptx::load_16(at(origin, offset[i])) : Cell{};
        continue;
      }
#pragma unroll
      for (int v = 0; v < kVector; ++v) {
        const bool exists =
            offset[i] != kOutside && tap && (kWhole || first + slab_of(item) * kVector + v < kShape.channels);
        const Element* const channel = origin + v * params.weight_strides[0];
        values[i][v] = exists ? __ldg(at(channel, offset[i])) : Element(0);
      }
    }
  }

  template <typename Stage>
  __device__ __forceinline__ void store(int step, Stage&& stage) const {
    if (step >= kSteps) return;
    const unsigned shared = stage(step);
#pragma unroll
    for (int i = 0; i < kPerThread; ++i) {
      const int item = threadIdx.x + i * kThreads;
      if (kItems % kThreads != 0 && item >= kItems) break;
      const int place =
          back_of(item) * kShape.weight_back_pitch() + slab_of(item) * kShape.weight_slab_pitch() + row_of(item);
      ptx::store_16(shared + place * 16, kShape.wide_weights ? rounded(wide[i]) : make_cell(values[i]));
    }
  }

 private:
  static __device__ __forceinline__ long long tap_position(const TileParams& params, int tap) {
    return tap / (kShape.kernel[2] * kShape.kernel[1]) * params.weight_strides[2] +
           tap / kShape.kernel[2] % kShape.kernel[1] * params.weight_strides[3] +
           tap % kShape.kernel[2] * params.weight_strides[4];
  }
};
"""
FILES["tile_pack.cuh"] = r"""
// Weights into the order in which the blocks of tile_block.cuh read them: [block row][chunk][back][slab][row][vector].
// Where factors are split, slabs of small parts follow those of big ones.
//
// A block (pack_cut) reads weights as they lie in memory and writes them as cells. Where they don't fit shared memory
// they are read in place. The config says how they lie. kDenseTaps: the taps one after the other. kRuns: so do the
// summed channels, for each row, from a multiple of 16 bytes on if the tensor begins at one; kRowRuns: so do the rows,
// for each summed channel. kOrder: what neighbouring threads read otherwise.
#include "split.cuh"
#include "tile_element.cuh"
#include "tile_pack_params.cuh"
#include "tile_weights.cuh"

__device__ constexpr PackCut kCut = pack_cut(kShape);
constexpr bool kStaged = kCut.slabs > 0;
constexpr int kSlabs = kStaged ? kCut.slabs : 1;  // of a block
constexpr int kRows = pack_part_rows(kShape, kCut);
constexpr int kVector = kShape.vector();
constexpr int kIns = kSlabs * kVector;
constexpr int kTaps = kShape.kernel[0] * kShape.kernel[1] * kShape.kernel[2];
constexpr int kRow = pack_row(kShape);
constexpr int kPlane = pack_plane(kShape);

// Loads that a thread has under way; from sm_100 on the assembler would spill so many.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 1000
constexpr int kLoadsAtOnce = 8;
#else
constexpr int kLoadsAtOnce = 16;
#endif

// 16 bytes of a run, in words: elements of two bytes would have a register each.
constexpr int kRunVector = 16 / static_cast<int>(sizeof(Element));
__device__ __forceinline__ Element element_of(const Cell& vector, int index) {
  if constexpr (sizeof(Element) == 2) {
    return static_cast<Element>(vector.word[index / 2] >> index % 2 * 16);
  } else {
    return __uint_as_float(vector.word[index]);
  }
}

// Runs of the weights of a block's input channels, which wait as they lie.
constexpr int kReadTaps = kShape.kernel[0] * kShape.kernel[1] * kShape.window_taps;
constexpr int kRun = kIns / kShape.window * kReadTaps;
constexpr bool kTakesRuns = kRuns && kStaged && kRun % kRunVector == 0 && kShape.channels % kIns == 0 &&
                            (kShape.window == 1 || kIns % (2 * kVector) == 0);
constexpr int kRunPitch = kRun | 1;
constexpr bool kTakesRowRuns = kRowRuns && kStaged && kShape.window == 1 && kRows * kTaps % kRunVector == 0 &&
                               kShape.block_channels * kTaps % kRunVector == 0;

// Where a tap of an input channel of the block is in its run; -1: beyond the last tap.
__device__ __forceinline__ int place_in_run(int in_channel, int tap) {
  const int channel = kShape.windowed(in_channel);
  const int column = tap % kShape.kernel[2] * kShape.window + channel % kShape.window;
  if (column >= kShape.window_taps) return -1;
  return channel / kShape.window * kReadTaps + tap / kShape.kernel[2] * kShape.window_taps + column;
}

__device__ __forceinline__ void put(Cell* out, const Cell& cell) {
  if constexpr (kShape.splits()) {
    const SplitCell split(cell);
    out[0] = split.big;
    out[kShape.slabs * kShape.rows()] = split.small;
  } else {
    out[0] = cell;
  }
}

// All of a block's loads numbered: some of each thread's are under way at once, then stored.
template <int kAtOnce, int kCount, typename Value, typename Load, typename Store>
__device__ __forceinline__ void stage_all(const Load& load, const Store& store) {
  constexpr int kTurn = kAtOnce * kPackThreads;
#pragma unroll 1
  for (int first = threadIdx.x; first < kCount; first += kTurn) {
    Value values[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int index = first + i * kPackThreads;
      values[i] = index < kCount ? load(index) : Value{};
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int index = first + i * kPackThreads;
      if (index < kCount) store(index, values[i]);
    }
  }
}

// The weights of a block: some summed channels, some rows, all taps.
struct PackBlock {
  const TileParams& params;
  Element* staged;  // [summed channel][row][tap], or runs
  int first_channel;
  const Element* weight;  // of the group's summed channel 0 and the block's first row
  int rows;               // that exist; the rest of a block is zeros

  __device__ __forceinline__ Element load(int v, int row, int tap) const {
    const int channel = kShape.windowed(first_channel + v);
    const int column = tap % kShape.kernel[2] * kShape.window + channel % kShape.window;
    if (channel >= kShape.channels || row >= rows || column >= kShape.window_taps) return Element(0);
    const long long position = kDenseTaps && kShape.window == 1
                                   ? tap * params.weight_strides[4]
                                   : tap / (kShape.kernel[2] * kShape.kernel[1]) * params.weight_strides[2] +
                                         tap / kShape.kernel[2] % kShape.kernel[1] * params.weight_strides[3] +
                                         column * params.weight_strides[4];
    return weight[channel / kShape.window * params.weight_strides[0] + row * params.weight_strides[1] + position];
  }
  __device__ __forceinline__ bool is_aligned() const {
    return reinterpret_cast<unsigned long long>(params.weight) % 16 == 0;
  }

  __device__ __forceinline__ void stage_runs() const {
    const Element* const runs = weight + first_channel / kShape.window * params.weight_strides[0];
    const int existing = first_channel < kShape.channels ? rows : 0;
    if (is_aligned()) {
      constexpr int kPieces = kRun / kRunVector;
      stage_all<kLoadsAtOnce / 2, kRows * kPieces, Cell>(
          [&](int i) {
            const int row = i / kPieces;
            if (row >= existing) return Cell{};
            return *reinterpret_cast<const Cell*>(runs + row * params.weight_strides[1] + i % kPieces * kRunVector);
          },
          [&](int i, const Cell& vector) {
            Element* const to = staged + i / kPieces * kRunPitch + i % kPieces * kRunVector;
#pragma unroll
            for (int v = 0; v < kRunVector; ++v) to[v] = element_of(vector, v);
          });
    } else {
      stage_all<kLoadsAtOnce, kRows * kRun, Element>(
          [&](int i) {
            return i / kRun < existing ? runs[i / kRun * params.weight_strides[1] + i % kRun] : Element(0);
          },
          [&](int i, Element value) { staged[i / kRun * kRunPitch + i % kRun] = value; });
    }
  }

  // A run is all rows of a summed channel.
  __device__ __forceinline__ void stage_row_runs() const {
    const int existing = rows * kTaps;
    const auto run_of = [&](int v) { return weight + (first_channel + v) * params.weight_strides[0]; };
    const auto place = [](int v, int i) { return v * kPlane + (kRow == kTaps ? i : i / kTaps * kRow + i % kTaps); };
    if (is_aligned()) {
      constexpr int kPieces = kRows * kTaps / kRunVector;
      stage_all<kLoadsAtOnce / 2, kIns * kPieces, Cell>(
          [&](int i) {
            const int v = i / kPieces;
            const int first = i % kPieces * kRunVector;
            if (first_channel + v >= kShape.channels || first >= existing) return Cell{};
            if constexpr (kShape.out_channels % kRunVector * kTaps % kRunVector != 0) {
              if (first + kRunVector > existing) {
                Element values[kRunVector];
#pragma unroll
                for (int e = 0; e < kRunVector; ++e) {
                  values[e] = first + e < existing ? run_of(v)[first + e] : Element(0);
                }
                return make_cell(values);
              }
            }
            return *reinterpret_cast<const Cell*>(run_of(v) + first);
          },
          [&](int i, const Cell& vector) {
            const int first = i % kPieces * kRunVector;
#pragma unroll
            for (int e = 0; e < kRunVector; ++e) staged[place(i / kPieces, first + e)] = element_of(vector, e);
          });
    } else {
      constexpr int kLength = kRows * kTaps;
      stage_all<kLoadsAtOnce, kIns * kLength, Element>(
          [&](int i) {
            const bool exists = first_channel + i / kLength < kShape.channels && i % kLength < existing;
            return exists ? run_of(i / kLength)[i % kLength] : Element(0);
          },
          [&](int i, Element value) { staged[place(i / kLength, i % kLength)] = value; });
    }
  }

  __device__ __forceinline__ void stage_elements() const {
    struct Place {
      int v, row, tap;
    };
    const auto place_of = [](int i) {
      switch (kOrder) {
        case PackOrder::rows: return Place{i / (kTaps * kRows), i % kRows, i / kRows % kTaps};
        case PackOrder::summed: return Place{i % kIns, i / (kIns * kTaps), i / kIns % kTaps};
        case PackOrder::taps_of_summed: return Place{i / kTaps % kIns, i / (kIns * kTaps), i % kTaps};
        default: return Place{i / (kTaps * kRows), i / kTaps % kRows, i % kTaps};
      }
    };
    stage_all<kLoadsAtOnce, kIns * kRows * kTaps, Element>(
        [&](int i) {
          const Place at = place_of(i);
          return load(at.v, at.row, at.tap);
        },
        [&](int i, Element value) {
          const Place at = place_of(i);
          staged[at.v * kPlane + at.row * kRow + at.tap] = value;
        });
  }

  __device__ __forceinline__ void stage() const {
    if constexpr (kTakesRuns) {
      stage_runs();
    } else if constexpr (kTakesRowRuns) {
      stage_row_runs();
    } else {
      stage_elements();
    }
    __syncthreads();
  }

  // A cell's elements: a vector of summed channels. A negative tap stands for none.
  __device__ __forceinline__ void read(Element (&values)[kVector], int slab, int row, int tap) const {
#pragma unroll
    for (int v = 0; v < kVector; ++v) {
      const int in_channel = slab * kVector + v;
      if constexpr (kTakesRuns) {
        const int place = tap < 0 ? -1 : place_in_run(in_channel, tap);
        values[v] = place < 0 ? Element(0) : staged[row * kRunPitch + place];
      } else {
        values[v] = tap < 0   ? Element(0)
                    : kStaged ? staged[in_channel * kPlane + row * kRow + tap]
                              : load(in_channel, row, tap);
      }
    }
  }
};

// Four blocks per multiprocessor: without a number the assembler prefers occupancy and spills.
__global__ void __launch_bounds__(kPackThreads, 4)
    tconv_tile_pack(const __grid_constant__ TileParams params, Cell* packed) {
  extern __shared__ __align__(16) unsigned char shared_memory[];
  ptx::let_next_kernel_start();
  constexpr int kParts = kCut.row_parts * kCut.line_parts;
  const int first_slab = blockIdx.x / kParts * kSlabs;  // of the group's channels, chunks included
  const int first_row = blockIdx.x % kCut.row_parts * kRows;
  const int line_part = blockIdx.x / kCut.row_parts % kCut.line_parts;
  const int channel_block = blockIdx.y;
  const int group = blockIdx.z;
  const int first_out = channel_block * kShape.block_channels + first_row;
  const int part_rows = min(kRows, kShape.block_channels - first_row);
  const PackBlock block = {params, reinterpret_cast<Element*>(shared_memory), first_slab * kVector,
                           static_cast<const Element*>(params.weight) + group * params.weight_group_stride +
                               first_out * params.weight_strides[1],
                           min(part_rows, kShape.out_channels - first_out)};
  if constexpr (kStaged) block.stage();

  // The last stage of the last block is copied whole: what follows it must be something, so that nothing uninitialised
  // is read.
  if (kShape.packed_tail_bytes() > 0 && blockIdx.x == 0 && blockIdx.y == 0 && blockIdx.z == 0) {
    const int block_rows_count = params.groups * kShape.channel_blocks() * kShape.all_residue_blocks();
    Cell* tail = packed + block_rows_count * (kShape.packed_bytes() / 16);
    for (int i = threadIdx.x; i < kShape.packed_tail_bytes() / 16; i += kPackThreads) tail[i] = Cell{};
  }

  // A line is the output channels of one phase at one distance; a team of threads takes a line. (A gradient has one
  // phase, and lines for each group of planes.)
  constexpr int kAcross = pack_line_threads(kShape, kCut);
  constexpr int kRowsAtOnce = kStaged ? 1 : kLoadsAtOnce / kVector;
  constexpr int kLines = kShape.all_backs() * kShape.all_slots();
  constexpr int kResidueBlocks = kShape.all_residue_blocks();
  constexpr int kGroups = kShape.all_plane_groups();
  const int lane = threadIdx.x % kAcross;
  const int first_line = (line_part * kPackThreads + threadIdx.x) / kAcross;
  for (int line = first_line; line < kResidueBlocks * kGroups * kLines;
       line += kCut.line_parts * kPackThreads / kAcross) {
    const int slot = line % kShape.all_slots();
    const int back = line / kShape.all_slots() % kShape.all_backs();
    const int block_row =
        (group * kResidueBlocks + line / (kLines * kGroups)) * kShape.channel_blocks() + channel_block;
    const int planes = line / kLines % kGroups;
    const int chunk = first_slab / kShape.slabs * kGroups + planes;
    const int slots[3] = {slot / (kShape.slots[2] * kShape.slots[1]), slot / kShape.slots[2] % kShape.slots[1],
                          slot % kShape.slots[2]};
    const int tap =
        kShape.gradient ? gradient_tap_of(plane_group(planes), back) : tap_of(block_rows(block_row), slots, back);
    // Residues that differ in taps: nobody reads what would follow a residue's own.
    if (!kShape.even_planes() && tap < 0) continue;
    const long long stage = (static_cast<long long>(block_row) * kShape.chunks() + chunk) * kShape.all_backs() + back;
    Cell* out = packed + (stage * kShape.weight_parts() * kShape.slabs + first_slab % kShape.slabs) * kShape.rows();
#pragma unroll
    for (int slab = 0; slab < kSlabs; ++slab) {
      for (int first = lane; first < part_rows; first += kAcross * kRowsAtOnce) {
        Element values[kRowsAtOnce][kVector];
#pragma unroll
        for (int i = 0; i < kRowsAtOnce; ++i) block.read(values[i], slab, first + i * kAcross, tap);
#pragma unroll
        for (int i = 0; i < kRowsAtOnce; ++i) {
          const int row = first + i * kAcross;
          if (row < part_rows) {
            put(out + slab * kShape.rows() + slot * kShape.block_channels + kShape.row_of_channel(first_row + row),
                make_cell(values[i]));
          }
        }
      }
      // Rows that only fill up the last tile.
      for (int row = kShape.all_slots() * kShape.block_channels + lane;
           slot == 0 && first_row == 0 && row < kShape.rows(); row += kAcross) {
        put(out + slab * kShape.rows() + row, Cell{});
      }
    }
  }
}
"""
FILES["tile_pack_params.cuh"] = r"""
// How the pack kernel (tile_pack.cuh) cuts the weights of a tile kernel; known to the host, which launches it.

#include "tile_params.cuh"

// A block of the pack kernel takes some slabs of input channels and some of a block's output channels through shared
// memory, for some of the lines (output channels of one phase at one distance, or of one tap of a gradient). Weights
// that don't fit (no slabs) are read in place, a thread for each line, so that neighbours read taps that mostly are
// neighbours, too.
struct PackCut {
  int slabs;
  int row_parts;
  int line_parts;
};
// What neighbouring threads read: rows, summed channels, or taps and then one of these.
enum class PackOrder : int { rows, summed, taps_of_rows, taps_of_summed };
constexpr int kPackThreads = 256;
constexpr int kMostPackBytes = 48 * 1024;
constexpr int kPackBlocks = 528;  // enough for a chip: what a block does one after the other takes time, however little
constexpr int kPackSector = 2;    // rows of a line that are written at once at least
constexpr int pack_lines(const TileShape& shape) {
  return shape.all_residue_blocks() * shape.all_plane_groups() * shape.all_backs() * shape.all_slots();
}
constexpr int pack_part_rows(const TileShape& shape, const PackCut& cut) {
  return (shape.block_channels + cut.row_parts - 1) / cut.row_parts;
}
// Threads that take the rows of a line together.
constexpr int pack_line_threads(const TileShape& shape, const PackCut& cut) {
  if (cut.slabs == 0) return 1;
  int threads = 32;
  while (threads > kPackSector && threads > pack_part_rows(shape, cut)) threads /= 2;
  return threads;
}
constexpr PackCut pack_cut(const TileShape& shape) {
  PackCut cut = {shape.slabs, 1, 1};
  const auto rows = [&] { return pack_part_rows(shape, cut); };
  const double taps = static_cast<double>(shape.kernel[0]) * shape.kernel[1] * shape.kernel[2] + 1;
  const auto fits = [&] { return 16 * cut.slabs * (taps * rows() + 1) <= kMostPackBytes; };
  while (cut.slabs > 1 && !fits()) cut.slabs /= 2;
  while (!fits() && rows() >= 2 * kPackSector) cut.row_parts *= 2;
  if (!fits()) return {0, 4, (pack_lines(shape) + kPackThreads - 1) / kPackThreads};
  // More per block only as long as there are blocks enough for a chip.
  const int runs = shape.channel_chunks() * shape.slabs * (1 + (shape.out_channels - 1) / shape.block_channels);
  // Both halves of a window's taps are neighbours in memory.
  const int least = shape.window > 1 && shape.channels % (2 * shape.vector()) == 0 ? 2 : 1;
  while (cut.slabs > least && runs / cut.slabs < 800) cut.slabs /= 2;
  const auto blocks = [&] { return runs / cut.slabs * cut.row_parts * cut.line_parts; };
  while (blocks() < kPackBlocks && rows() >= 16) cut.row_parts *= 2;
  const int teams = kPackThreads / pack_line_threads(shape, cut);
  const int most = (pack_lines(shape) + teams - 1) / teams;
  while (blocks() < kPackBlocks && cut.line_parts < most) cut.line_parts *= 2;
  if (cut.line_parts > most) cut.line_parts = most;
  return cut;
}
// Words from one output channel to the next, and from one input channel: odd, so that lanes spread over the banks.
constexpr int pack_row(const TileShape& shape) { return shape.kernel[0] * shape.kernel[1] * shape.kernel[2] | 1; }
constexpr int pack_plane(const TileShape& shape) {
  return pack_part_rows(shape, pack_cut(shape)) * pack_row(shape) | 1;
}
constexpr int pack_shared_bytes(const TileShape& shape) {
  const PackCut cut = pack_cut(shape);
  // Runs of weights as they lie have one element more for each output channel.
  return cut.slabs == 0 ? 0 : 16 * cut.slabs * pack_plane(shape) + 4 * pack_part_rows(shape, cut);
}
// Along x, of each group and block of output channels.
constexpr int pack_blocks(const TileShape& shape) {
  const PackCut cut = pack_cut(shape);
  return shape.channel_chunks() * shape.slabs / (cut.slabs > 0 ? cut.slabs : 1) * cut.row_parts * cut.line_parts;
}
"""
FILES["tile_params.cuh"] = r"""
// What the host and the device agree on about the tile kernels; compiled by both.
//
// A block computes a matrix of rows (phase, output channel) by columns (cells). With o + pad = q stride + r per axis, q
// is the cell and r the residue of output o; tap k, k dilation = r + stride back, reads input cell q - back. So for one
// `back` every phase has at most one tap, all phases read the same input cells, and the block is a sum over (back,
// input channel) of small matrix products.
//
// The gradient of the input is the same map read the other way: what is read ("input" below) is the layer's output,
// what is written ("output") its input. Rows are channels of what is written, columns its cells i; tap k reads cell
// i + back of residue r. The residues of what is read lie in planes of their own in a block's patch, so that a tap is
// one shift there too, and the block is a sum over (tap, input channel).

// How operands are multiplied. fp32x3 is fp32-grade: each factor is split in two TF32 halves.
enum class TileMath : int { tf32, f16, bf16, fp32x3 };

// Threads of a streaming block that only load: three warps the input, one packed weights; weights that are read in
// place have as many threads of their own.
constexpr int kStreamThreads = 128;

struct TileShape {
  TileMath math;
  int element_bytes;

  // The problem: what a kernel is specialised for. Sizes along the axes and the batch stay run-time values.
  int channels;      // input channels of a group
  int out_channels;  // output channels of a group
  int kernel[3];
  int stride[3];
  int dilation[3];
  bool bias;
  bool gradient;

  // Distances `back` along each axis: 0, step, 2 step, ...
  int backs[3];
  int back_step[3];

  // Streams of few output channels: neighbouring outputs along an axis of stride 1 that are phases of one cell, so that
  // products have as many times the rows. Such cells lie `fold` inputs apart, and phases read the same inputs with taps
  // that are one apart: backs count from the input that the cell's last output reads with tap 0. Otherwise 1.
  int fold[3];

  // The residues of a block: the whole stride of an axis (then only those with taps own rows, and the others are
  // written as bias), or `span` neighbouring ones.
  int span[3];
  int slots[3];  // residues of the span that own rows
  // Nibble per residue of the span: its slot, 15 for none; and back. Unused when every residue of the span has a slot.
  unsigned long long slot_nibbles[3];
  unsigned long long residue_nibbles[3];

  // Gradient: the residues of an axis that are read (those with taps, by residue_nibbles, or every one), and how many
  // of them a patch holds, a plane each. Chunk after chunk brings the next ones; fewer than all of them are neighbours.
  int phases[3];
  int planes[3];

  int tile[4];         // cells of a block: samples, depth, height, width
  int block_channels;  // output channels of a block

  // Who multiplies: teams of one warp (mma.sync, tiles of 16 rows) or of four (wgmma, tiles of 64 rows).
  bool warpgroup;
  // Warpgroups that take cells as the 64 rows of wgmma, from the input as it lies in memory, which warps of their own
  // copy to shared memory some chunks ahead (tile_stream.cuh). Row tiles have `row_unit` rows then.
  bool streams;
  int row_unit;
  int granule;      // elements of one copy of the input
  int lead;         // elements by which the copies of a row begin before the box; -1: that differs
  int input_ring;   // chunks of input in shared memory
  int weight_ring;  // stages of weights
  // A gradient that streams rows as they lie may take `window` neighbouring taps of the width as depth, as if each were
  // a channel: neighbours in memory, in the input as in the weights. Then `channels` counts (channel, tap of a window),
  // `kernel` windows, and `dilation` is the way from one to the next. Otherwise 1.
  int window;
  int window_taps;  // that the windows of a row have together; the last one may have fewer than the others
  // The axis along which all distances are taken together, as a line; -1: none. Cells that are neighbours along it read
  // the same input at different distances, so that a team with several tiles of cells, one step of the axis apart,
  // multiplies a fragment of input once for each.
  int line_axis;
  // Blocks stay for tile after tile, `most_blocks` of them, and load the next one's input while they store.
  bool stays;
  int most_blocks;
  // Neighbouring channels of a channels-last output that a thread stores at once, from its sums or from those of all
  // blocks that share the tile. 0: outputs pass through shared memory by turns.
  int store_vector;
  int row_vector;  // outputs of a row that leave shared memory by one store
  // Streams: outputs pass through shared memory as they will lie in the tensor (tile_stream_store_image.cuh), with
  // `image_row` of them from one row to the next. 0: they pass as sums, a matrix for each phase.
  int image_row;
  int image_lead;    // positions before a row's first output, which are left out
  bool joins_rows;   // a tile has whole rows, which follow each other in the tensor
  bool sends_lines;  // the copy engine takes them to the tensor, line by line
  bool sends_boxes;  // or the columns of a team as one box of neighbours by channels

  int row_tiles;     // row tiles of a team
  int column_tiles;  // 8-column tiles of a team; even for warps
  int row_teams;
  int column_teams;
  int depth_teams;   // teams of a block that share one tile of outputs and split the sum
  int depth_blocks;  // blocks (of one cluster) that do so, each with its share of the chunks

  int slabs;        // 16-byte slabs of channels per chunk, even
  int item_steps;   // streams: steps of depth (two slabs each) whose fragments a team loads together
  int stage_backs;  // distances of one weight stage
  int unroll;       // of the loop over a stage's products
  bool all_taps;    // every phase of a block has a tap at every distance
  int blocks_per_multiprocessor;
  bool packed;  // weights come from the workspace, in the order of the stages; otherwise from the tensor itself
  // Streams: all tiles of a block have the same weights, which are brought once (in place by threads that multiply).
  bool keeps_weights;
  // Streams that read them there: elements of a load, and from one summed channel, row's channel or tap to the next.
  int weight_vector;
  int weight_steps[3];
  // The copy engine brings weights out of a channels-last tensor itself, as boxes of one tap, which products read as
  // they are: rows of a gradient's hold channels of the sum, those of a forward layer's (of two bytes) channels of its
  // rows.
  bool weight_boxes;
  bool input_channels_last;
  bool wide_input;  // channels-last input whose 16-byte vectors are aligned and whole
  // Streams: the copy engine brings boxes of channels-last input, zeros outside the tensor, 16-byte columns swapped so
  // that those of neighbouring cells lie on different banks.
  bool tensor_copies;
  bool output_channels_last;
  // A gradient's weights whose summed channels are neighbours in the tensor: a cell is one load.
  bool wide_weights;

  // Blocks of one residue of an axis begin with the cell of its first output: other residues' cells may lie one
  // further.
  constexpr bool follows_residue(int axis) const { return !gradient && span[axis] == 1 && stride[axis] > 1; }

  constexpr int slot_of(int axis, int residue) const {
    return slots[axis] == span[axis] ? residue : static_cast<int>(slot_nibbles[axis] >> (4 * residue) & 15);
  }
  constexpr int residue_of(int axis, int slot) const {
    return slots[axis] == span[axis] ? slot : static_cast<int>(residue_nibbles[axis] >> (4 * slot) & 15);
  }

  constexpr int residue_of_phase(int axis, int phase) const {
    return phases[axis] == stride[axis] ? phase : static_cast<int>(residue_nibbles[axis] >> (4 * phase) & 15);
  }
  constexpr int all_planes() const { return planes[0] * planes[1] * planes[2]; }
  constexpr int plane_groups(int axis) const { return gradient ? (phases[axis] + planes[axis] - 1) / planes[axis] : 1; }
  // The residue of a plane: of its group's first plane, and from there.
  constexpr int group_residue(int axis, int group) const {
    return plane_groups(axis) == 1 ? 0 : residue_of_phase(axis, group * planes[axis]);
  }
  constexpr int plane_residue(int axis, int plane) const {
    return plane_groups(axis) == 1 ? residue_of_phase(axis, plane) : plane;
  }
  constexpr int all_plane_groups() const { return plane_groups(0) * plane_groups(1) * plane_groups(2); }
  // Of all groups, each after the one before it along the width, which stands where along an axis.
  constexpr int group_along(int axis, int group) const {
    for (int inner = 2; inner > axis; --inner) group /= plane_groups(inner);
    return group % plane_groups(axis);
  }

  // Tensor copies that bring a gradient's residues in boxes of their own, one chunk after the other: cells are
  // neighbours in them, as those of a forward problem are. Taps of a residue are `phases` apart then, and some residues
  // may have one less than others.
  constexpr bool plane_boxes() const {
    return tensor_copies && gradient && (stride[0] > 1 || stride[1] > 1 || stride[2] > 1);
  }
  constexpr int first_tap(int axis, int group) const {
    const int residue = group_residue(axis, group);
    if (dilation[axis] == 1 || stride[axis] == 1) return residue;
    int tap = 0;
    while (tap * dilation[axis] % stride[axis] != residue) ++tap;
    return tap;
  }
  constexpr int plane_taps(int axis, int group) const {
    return (kernel[axis] - first_tap(axis, group) + phases[axis] - 1) / phases[axis];
  }
  // Whether all residues have their taps at the same distances.
  constexpr bool even_planes() const {
    if (!plane_boxes()) return true;
    for (int axis = 0; axis < 3; ++axis) {
      if (kernel[axis] % phases[axis] != 0 || (phases[axis] - 1) * dilation[axis] >= stride[axis]) return false;
    }
    return true;
  }
  constexpr int group_taps(int group) const {
    int taps = 1;
    for (int axis = 0; axis < 3; ++axis) taps *= plane_taps(axis, group_along(axis, group));
    return taps;
  }
  constexpr int all_group_taps() const {
    int taps = 0;
    for (int group = 0; group < all_plane_groups(); ++group) taps += group_taps(group);
    return taps;
  }
  // The tap of an axis that is the `index`-th of a group's.
  constexpr int plane_tap(int axis, int group, int index) const {
    for (int inner = 2; inner > axis; --inner) index /= plane_taps(inner, group_along(inner, group));
    const int own = group_along(axis, group);
    return first_tap(axis, own) + index % plane_taps(axis, own) * phases[axis];
  }

  // What one step between cells is in the tensor that is read and in the one that is written.
  constexpr int input_step(int axis) const { return gradient ? stride[axis] : fold[axis]; }
  constexpr int output_step(int axis) const { return gradient ? 1 : stride[axis] * fold[axis]; }
  constexpr bool folds() const { return fold[0] * fold[1] * fold[2] > 1; }

  // Blocks along the output channels of a group, and along the residues of an axis.
  constexpr int channel_blocks() const { return (out_channels + block_channels - 1) / block_channels; }
  constexpr int residue_blocks(int axis) const { return (output_step(axis) + span[axis] - 1) / span[axis]; }
  constexpr int all_residue_blocks() const { return residue_blocks(0) * residue_blocks(1) * residue_blocks(2); }

  // The tap with which residue `residue` of an axis reads the inputs at a distance; -1: none.
  constexpr int axis_tap(int axis, int residue, int back) const {
    const int reach = residue + stride[axis] * back * back_step[axis] - (fold[axis] - 1);
    const bool exists = reach >= 0 && residue < stride[axis] * fold[axis] && reach % dilation[axis] == 0 &&
                        reach / dilation[axis] < kernel[axis];
    return exists ? reach / dilation[axis] : -1;
  }
  constexpr bool has_tap(int axis, int residue, int back) const { return axis_tap(axis, residue, back) >= 0; }
  // Blocks that compute a part of an axis' phases may have no tap at all at some distances, and skip those.
  constexpr bool skips_backs() const {
    if (gradient || all_backs() > 64) return false;
    for (int axis = 0; axis < 3; ++axis) {
      for (int residue = 0; span[axis] < stride[axis] && residue < stride[axis]; ++residue) {
        for (int back = 0; back < backs[axis]; ++back) {
          if (!has_tap(axis, residue, back)) return true;
        }
      }
    }
    return false;
  }

  constexpr int vector() const { return 16 / element_bytes; }
  constexpr int chunk_channels() const { return slabs * vector(); }
  // Channels of the tensor that is read, and of a chunk of it.
  constexpr int read_channels() const { return channels / window; }
  constexpr int chunk_read_channels() const { return chunk_channels() / window; }
  // Which (channel, tap of a window) is where products expect the `index`-th one: the lanes of a fragment load two
  // words that are neighbours in memory, half a step of depth apart for the tensor cores.
  constexpr int windowed(int index) const {
    const int step = 2 * vector();
    const int word = vector() / 4;  // elements of four bytes
    const int at = index % step;
    const int lane = at % vector() / word;
    return window == 1 ? index : index / step * step + (lane * 2 + at / vector()) * word + at % word;
  }
  constexpr int channel_chunks() const { return (channels + chunk_channels() - 1) / chunk_channels(); }
  constexpr int chunks() const { return channel_chunks() * all_plane_groups(); }
  constexpr int block_chunks() const { return chunks() / depth_blocks; }
  // Distances along an axis at which a chunk is multiplied; for a gradient its taps: those of the kernel, or of a group
  // of planes as many as any plane could have.
  constexpr int axis_backs(int axis) const {
    if (!gradient) return backs[axis];
    if (plane_boxes()) return plane_taps(axis, 0);
    return plane_groups(axis) == 1 ? kernel[axis] : planes[axis] * backs[axis];
  }
  constexpr int all_backs() const { return axis_backs(0) * axis_backs(1) * axis_backs(2); }
  // Which distance along an axis the `index`-th one is: lines one after the other, or the width's fastest.
  constexpr int back_along(int axis, int index) const {
    if (axis == line_axis) return index % axis_backs(axis);
    if (line_axis >= 0) index /= axis_backs(line_axis);
    for (int inner = 2; inner > axis; --inner) {
      if (inner != line_axis) index /= axis_backs(inner);
    }
    return index % axis_backs(axis);
  }
  constexpr int line_backs() const { return line_axis < 0 ? 1 : axis_backs(line_axis); }
  constexpr int all_slots() const { return slots[0] * slots[1] * slots[2]; }
  constexpr int stages_per_chunk() const { return (all_backs() + stage_backs - 1) / stage_backs; }
  constexpr int tile_rows() const { return streams ? row_unit : warpgroup ? 64 : 16; }
  constexpr int rows() const { return tile_rows() * row_tiles * row_teams; }
  // Rows that are reordered together, where sums are stored straight from registers; 1: none.
  constexpr int reordered_rows() const {
    const bool reorders = output_channels_last && store_vector > 2 && depth_blocks == 1 && !exchanges_channels();
    return reorders ? 4 * store_vector : 1;
  }
  // The row of a phase's channel among the phase's rows. Of every eight rows a thread has two sums: channels that it
  // stores together are spread over as many eights as it takes.
  constexpr int row_of_channel(int channel) const {
    if (reordered_rows() == 1) return channel;
    const int group = 4 * store_vector;
    const int within = channel % store_vector;
    return channel / group * group + within / 2 * 8 + channel % group / store_vector * 2 + within % 2;
  }
  constexpr bool stores_vectors() const { return store_vector > 1 || row_vector > 1; }
  constexpr bool sends() const { return sends_lines || sends_boxes; }
  constexpr bool has_maps() const { return tensor_copies || sends_boxes; }
  constexpr int columns() const { return 8 * column_tiles * column_teams; }
  constexpr int cells() const { return tile[0] * tile[1] * tile[2] * tile[3]; }
  constexpr int teams() const { return row_teams * column_teams * depth_teams; }
  constexpr int team_threads() const { return warpgroup ? 128 : 32; }
  constexpr int multiplying_threads() const { return team_threads() * teams(); }
  // Weights that one thread asks the copy engine for; of a gradient's boxes, warps that are idle otherwise round the
  // words to TF32.
  constexpr bool copies_weights() const { return packed || weight_boxes; }
  constexpr bool rounds_boxes() const { return weight_boxes && gradient && math == TileMath::tf32; }
  // Streams: whether warps of their own bring the weights.
  constexpr bool loads_weights() const { return !copies_weights() && !keeps_weights; }
  constexpr int stream_threads() const { return !streams ? 0 : loads_weights() ? 2 * kStreamThreads : kStreamThreads; }
  constexpr int threads() const { return multiplying_threads() + stream_threads(); }

  // Streams: registers of a thread at the start, and after those that load have given up what goes to the others.
  constexpr int registers_at_start() const { return 65536 / (threads() * blocks_per_multiprocessor) / 8 * 8; }
  constexpr int loading_registers() const {
    if (tensor_copies) return !rounds_boxes() ? 40 : registers_at_start() > 64 ? 64 : 56;
    const bool many_copies = stays && copy_places() > 4 * (kStreamThreads - 32);
    return (registers_at_start() < 128 ? 48 : 56) + (many_copies ? 16 : 0);
  }
  // Of a thread that brings weights: warps of their own, or (kept ones) those that multiply later, in passing.
  constexpr int weight_registers() const {
    if (copies_weights()) return 0;
    return registers_at_start() - 8 < 104 ? registers_at_start() - 8 : 104;
  }
  constexpr int multiplying_registers() const {
    const int given = (loading_registers() + (keeps_weights ? 0 : weight_registers())) * kStreamThreads;
    const int left = (registers_at_start() * threads() - given) / multiplying_threads() / 8 * 8;
    return left < 240 ? left : 240;
  }
  constexpr int halo(int axis) const { return (backs[axis] - 1) * back_step[axis]; }
  constexpr int patch(int dimension) const {
    return dimension == 0 ? tile[0] : (tile[dimension] - 1) * fold[dimension - 1] + 1 + halo(dimension - 1);
  }
  constexpr int pixels() const { return patch(0) * patch(1) * patch(2) * patch(3); }

  // Streams: whether a team's tiles of 64 cells lie one step of the line's axis apart, and how many fragments of input
  // a line takes then.
  constexpr bool stacks_tiles() const { return line_axis >= 0 && column_tiles > 8; }
  constexpr int line_fragments() const { return (column_tiles / 8 - 1) * tile_fragments() + line_backs(); }
  // From one tile's fragment to the next one's.
  constexpr int tile_fragments() const { return line_axis < 0 ? 1 : input_step(line_axis); }
  // From one fragment of a line to the next, in bytes.
  constexpr int line_step() const {
    return line_axis < 0 ? 0 : (gradient ? dilation[line_axis] : back_step[line_axis]) * box_step(line_axis);
  }

  // Products of an item (a step of depth, or a few, at the distances of a line), and what one takes to compile: one of
  // many sums longer than in proportion.
  constexpr int item_products() const { return line_backs() * item_steps * row_tiles * (column_tiles / 8); }
  constexpr int product_cost() const { return 4 + row_unit * (128 + row_unit) / 352; }
  // They come in two halves where lines are long, and the next item's fragments are loaded between them. Those are a
  // second set of registers, so that two items are code of their own; where that would be too much, the fragments too
  // come in halves that take turns: each is loaded while the products of the other run, which is up to 2% slower (8% of
  // two-byte elements, whose items are not as long) and compiles in two thirds of the time.
  constexpr bool halves_items() const { return line_backs() > 2 && item_steps == 1 && !splits(); }
  constexpr bool takes_turns() const { return halves_items() && item_products() * product_cost() > 600; }

  // The column of a cell. Warps take any sixteen cells; a warpgroup takes a run of the patch as it lies in memory, in
  // which every distance back is one shift of the whole run, and the columns that fall on the halo are not stored.
  constexpr int column_of(int n, int d, int h, int w) const {
    if (warpgroup && !streams) return ((n * patch(1) + d) * patch(2) + h) * patch(3) + w;
    if (!stacks_tiles()) return ((n * tile[1] + d) * tile[2] + h) * tile[3] + w;
    return line_axis == 1 ? h * 64 + (n * tile[1] + d) * tile[3] + w : d * 64 + (n * tile[2] + h) * tile[3] + w;
  }
  constexpr int needed_columns() const { return column_of(tile[0] - 1, tile[1] - 1, tile[2] - 1, tile[3] - 1) + 1; }

  // Planes and slabs start on different banks, so that lanes spread which write neighbours: pixels of a row, which go
  // to the planes in turn, or (channels-last) slabs of a pixel.
  constexpr int plane_pitch() const {
    if (all_planes() == 1) return pixels();
    const int along = input_channels_last && slabs < 8 ? 8 / slabs : input_channels_last ? 1 : 8;
    return (pixels() + 7) / 8 * 8 + (along + planes[2] - 1) / planes[2];
  }
  constexpr int slab_pitch() const {
    const int cells_of_slab = all_planes() * plane_pitch();
    return input_channels_last ? (cells_of_slab + 7) / 8 * 8 + 8 / slabs : cells_of_slab;
  }
  constexpr int input_stage_bytes() const {
    if (!streams) return slabs * slab_pitch() * 16;
    if (tensor_copies) return (box_bytes() + 1023) / 1024 * 1024;  // as the swapping of columns repeats
    return input_channels_last ? box_bytes() : chunk_read_channels() * channel_pitch();
  }
  constexpr int box_bytes() const { return box_rows() * box(2) * cell_pitch(); }  // channels-last

  // Streams: a chunk of input as it lies in memory, a box of elements for each channel, or of cells with their
  // channels. Rows begin where a copy may begin. The four channels (or eight cells) that lanes read together lie on
  // different banks.
  constexpr int box(int axis) const {
    if (!gradient || plane_boxes()) return patch(1 + axis);
    return (tile[1 + axis] - 1) * stride[axis] + (kernel[axis] - 1) * dilation[axis] + (axis == 2 ? window : 1);
  }
  // What one step along an axis of the box is in the tensor that is read.
  constexpr unsigned char box_stride(int axis) const {
    return static_cast<unsigned char>(plane_boxes() ? stride[axis] : 1);
  }
  constexpr int box_rows() const { return tile[0] * box(0) * box(1); }
  // A gradient's cells lie `stride` elements apart, for large strides on a few banks only: there the residues of a row
  // lie in planes of their own, at the price of copies of one element.
  constexpr bool splits_rows() const {
    return streams && gradient && window == 1 && !input_channels_last && element_bytes == 4 && stride[2] % 4 == 0;
  }
  constexpr int plane_length() const { return (box(2) + stride[2] - 1) / stride[2]; }
  // Elements from the start of a row to its element `index`, and from one cell to the next.
  constexpr int row_place(int index) const {
    return splits_rows() ? index % stride[2] * plane_length() + index / stride[2] : index;
  }
  constexpr int cell_step(int axis) const {
    return plane_boxes() || (splits_rows() && axis == 2) ? 1 : input_step(axis);
  }
  constexpr int row_pitch() const {
    if (splits_rows()) return stride[2] * plane_length();
    return (box(2) + (lead >= 0 ? lead : granule - 1) + granule - 1) / granule * granule;
  }
  constexpr int copy_places() const {
    if (tensor_copies) return 0;
    return box_rows() * (input_channels_last ? slabs * box(2) : splits_rows() ? box(2) : row_pitch() / granule);
  }
  constexpr int channel_pitch() const {
    const int words = (box_rows() * row_pitch() * element_bytes + 3) / 4;
    if (window > 1) {
      const int apart = 16 * window / vector() % 32;  // banks for each of the channels of a step
      return 4 * ((words - apart + 31) / 32 * 32 + apart);
    }
    return 4 * (element_bytes == 4 ? (words + 23) / 32 * 32 + 8 : (words + 11) / 16 * 16 + 4);
  }
  // Whether eight neighbouring columns are eight neighbours in memory at an address of a multiple of 16 bytes, whatever
  // the distance: then the lanes of a warp name such vectors, and each other's channels come as pairs.
  constexpr bool names_vectors() const {
    return streams && !gradient && !input_channels_last && element_bytes == 2 && granule == 8 && lead == 0 &&
           backs[2] == 1 && tile[3] % 8 == 0;
  }
  constexpr int cell_pitch() const { return slabs * 16 + (tensor_copies ? 0 : 16); }
  // Bytes from one cell to the next along an axis of the box.
  constexpr int box_step(int axis) const {
    const int along = input_channels_last ? cell_pitch() : element_bytes;
    const int row = input_channels_last ? box(2) : row_pitch();
    return along * (axis == 2 ? 1 : axis == 1 ? row : row * box(1));
  }
  // Streams whose threads load two cells of a tile, eight apart: bytes from one to the other where both are always in
  // one row, else 0.
  constexpr int other_cell() const {
    if (tensor_copies || names_vectors()) return 0;
    const int inner = stacks_tiles() && line_axis == 2 ? 1 : 2;
    return tile[1 + inner] % 16 == 0 ? 8 * cell_step(inner) * box_step(inner) : 0;
  }
  // Streams with fp32 out of TF32 (split.cuh): weights come as slabs of the big parts and slabs of the small ones, and
  // sums of a few products, `part_items` items of a chunk, are added up in fp32. That sets the order of the sums: it is
  // the same for all cuts of a problem.
  constexpr bool splits() const { return streams && math == TileMath::fp32x3; }
  constexpr int weight_parts() const { return splits() ? 2 : 1; }
  constexpr int part_items() const {
    return line_backs() > 1 || channel_chunks() * (slabs / 2) * all_backs() <= 8 ? 1 : 2;
  }
  // With a part in every item, products are waited for anyway before the next fragments are split.
  constexpr bool splits_late() const { return splits() && part_items() == 1; }

  // Weights that a gradient's loader puts together itself: neighbours in memory are taps, then channels, or (wide) the
  // other way around, and their cells begin on different banks.
  constexpr bool pads_weights() const { return gradient && !packed && !streams; }
  constexpr int weight_slab_pitch() const {
    const int taps = all_backs() < 8 ? all_backs() : 8;
    return rows() + (!pads_weights() ? 0 : wide_weights ? 8 / slabs : taps % 8);
  }
  constexpr int weight_back_pitch() const {
    return weight_parts() * slabs * weight_slab_pitch() + (pads_weights() ? 1 : 0);
  }
  // Boxes of weights: a gradient's have a row for each channel of the block, with a chunk's channels; a forward layer's
  // one for each of a chunk's channels, with a run of the block's.
  constexpr int weight_run() const {
    int run = 128 / element_bytes;
    while (run > 1 && block_channels % run != 0) run /= 2;
    return run;
  }
  constexpr int weight_runs() const { return gradient ? 1 : block_channels / weight_run(); }
  constexpr int weight_row_bytes() const { return gradient ? slabs * 16 : weight_run() * element_bytes; }
  constexpr int weight_box_bytes() const { return block_channels / weight_runs() * slabs * 16; }
  // From what one product reads of a stage to the next step of depth, row tile, and slab or run, in 16 bytes.
  constexpr int weight_depth_pitch() const {
    if (!weight_boxes) return 2 * weight_slab_pitch();
    return gradient ? 2 : weight_row_bytes();
  }
  constexpr int weight_tile_pitch() const { return weight_boxes ? row_unit * slabs : row_unit; }
  constexpr int weight_leading_pitch() const { return weight_boxes ? weight_box_bytes() / 16 : weight_slab_pitch(); }
  // The high word of their descriptors: the step between eights of rows, and how columns are swapped.
  constexpr unsigned weight_descriptor() const {
    if (!weight_boxes) return 8;
    const unsigned kind = weight_row_bytes() == 128 ? 1 : weight_row_bytes() == 64 ? 2 : 3;
    return kind << 30 | static_cast<unsigned>(weight_row_bytes() / 2);
  }
  constexpr int weight_stage_bytes() const { return stage_backs * weight_back_pitch() * 16; }
  constexpr int input_stages() const { return streams ? input_ring : block_chunks() > 1 ? 2 : 1; }
  constexpr int weight_stages() const {
    if (streams) return weight_ring;
    const int most = packed ? 3 : 2;
    const int steps = block_chunks() * stages_per_chunk();
    return steps < most ? steps : most;
  }
  constexpr int pipeline_bytes() const {
    return input_stages() * input_stage_bytes() + weight_stages() * weight_stage_bytes();
  }

  // The epilogue passes the outputs through shared memory, `turn_channels` of each phase at a time. For rows that leave
  // along the width, rows of the staged matrix are 8 words apart modulo 32, so that the fragments' stores meet no bank
  // twice, and phases that interleave start on different banks; pixels that leave along the channels need an odd pitch.
  constexpr int staged_pitch() const {
    return (columns() + 31) / 32 * 32 + (output_channels_last ? 1 : streams ? 4 : 8);
  }
  constexpr int staged_slot_pitch(int channels) const {
    const int apart = 32 / slots[2] / 2 * 2;
    return channels * staged_pitch() + (output_channels_last || slots[2] == 1 ? 0 : apart > 2 ? apart : 2);
  }
  constexpr int staged_bytes(int channels) const {
    if (sends_boxes) return channels * columns() * element_bytes;
    if (image_row > 0) return (channels + 7) / 8 * 8 * image_pitch();
    return (all_slots() * staged_slot_pitch(channels) * 4 + 15) / 16 * 16;
  }
  // Blocks that share a tile lay down their sums cell after cell, eight banks apart, and read each other's by vectors.
  constexpr bool gathers_vectors() const { return store_vector > 0 && depth_blocks > 1; }
  constexpr int gathered_pitch() const { return (rows() + 23) / 32 * 32 + 8; }  // in words
  constexpr int gathered_bytes() const { return columns() * gathered_pitch() * 4; }
  constexpr int positions() const { return cells() * span[0] * span[1] * span[2]; }

  // An image has the order of the columns where each cell is one output, otherwise that of the outputs. Its channels
  // begin on different banks, for stores by columns as for those by vectors of phases.
  constexpr bool image_of_columns() const { return span[0] * span[1] * span[2] == 1; }
  // Neighbours in the image that are neighbours in the tensor: a row, or joined rows, or as much of them as a team has
  // that stores its own columns.
  constexpr int image_line() const { return joins_rows ? tile[2] * span[1] * image_row : image_row; }
  constexpr int image_piece() const {
    const int line = image_line();
    return image_of_columns() && line > 8 * column_tiles ? 8 * column_tiles : line;
  }
  constexpr int image_outputs() const { return tile[0] * tile[1] * span[0] * tile[2] * span[1] * image_row; }
  // From one channel to the next, in bytes; of boxes, which the copy engine wants without gaps, in a team's own one.
  constexpr int image_pitch() const {
    if (sends_boxes) return 8 * column_tiles * element_bytes;
    const int bytes = (image_of_columns() ? columns() : image_outputs()) * element_bytes;
    return (bytes + 47) / 64 * 64 + 16;
  }
  constexpr int table_bytes() const { return output_channels_last ? positions() * 8 : 0; }
  constexpr int turn_channels() const {
    int channels = block_channels;
    if (store_vector > 0) return channels;
    int room = pipeline_bytes() > 32 * 1024 ? pipeline_bytes() : 32 * 1024;
    if (stays) room = (blocks_per_multiprocessor == 1 ? 40 : 20) * 1024;
    if (stays && image_row > 0 && element_bytes == 2) room = (blocks_per_multiprocessor == 1 ? 72 : 36) * 1024;
    // Whole turns of eight channels, whose sums each thread knows when it is compiled.
    const int least = image_row > 0 ? 8 : 4;
    while (channels > least && channels % (image_row > 0 ? 16 : 2) == 0 &&
           staged_bytes(channels) + table_bytes() > room)
      channels /= 2;
    return channels;
  }
  // Where outputs are staged: in place of the operands, or beside those of the next tile. Boxes begin where the order
  // of their columns does.
  constexpr int staged_offset() const {
    if (!stays) return 0;
    return sends_boxes ? (pipeline_bytes() + 1023) / 1024 * 1024 : pipeline_bytes();
  }
  // Packed weights of warpgroups come by the copy engine, which tells barriers, behind everything else in shared
  // memory.
  constexpr bool bulk_weights() const { return warpgroup && packed; }
  // Sums in the order of the tensor's channels: warps exchange some of them at a time to have whole vectors.
  static constexpr int kExchanges = 4;
  constexpr bool exchanges_channels() const { return weight_boxes && !gradient && store_vector > 2; }
  constexpr int exchange_bytes() const { return exchanges_channels() ? kExchanges * 16 * multiplying_threads() : 0; }
  constexpr int barrier_offset() const {
    const int staged = gathers_vectors()  ? gathered_bytes()
                       : store_vector > 0 ? exchange_bytes()
                                          : (staged_bytes(turn_channels()) + table_bytes() + 15) / 16 * 16;
    if (stays) return staged_offset() + staged;
    return pipeline_bytes() > staged ? pipeline_bytes() : staged;
  }
  constexpr int barriers() const {
    if (!streams) return bulk_weights() ? weight_stages() : 0;
    return 2 * (input_ring + weight_ring) + (rounds_boxes() ? weight_ring : 0);
  }
  constexpr int shared_bytes() const { return barrier_offset() + 8 * barriers(); }
  // Warps copy stages whole; where they don't divide the distances evenly, the last copy reads this far past the end.
  constexpr int packed_tail_bytes() const {
    return bulk_weights() || all_backs() % stage_backs == 0 ? 0 : weight_stage_bytes();
  }
  // Packed weights of one block row: all its stages, one after the other.
  constexpr long long packed_bytes() const { return 16LL * weight_parts() * chunks() * all_backs() * slabs * rows(); }
};

struct TileParams {
  const void* input;
  const void* weight;  // the tensor, or the packed copy
  const void* bias;
  void* output;
  long long input_strides[5];
  long long weight_strides[5];  // input channel, output channel, depth, height, width
  long long weight_group_stride;
  long long weight_bytes;  // of all weights, where they lie without gaps; otherwise 0
  long long output_strides[5];
  int batch;
  int groups;
  int input_size[3];
  int output_size[3];
  int pad[3];
  int first_cell[3];  // of output 0
  int tiles[4];       // blocks along samples, depth, height, width
  // As in TileShape, for those who work out a grid from here.
  int residue_blocks[3];
  int channel_blocks;
};

// How the copy engine finds boxes of a tensor; the driver writes it.
struct alignas(64) TensorMap {
  unsigned long long words[16];
};

struct TensorTileParams {
  TileParams tile;
  TensorMap input;
  TensorMap weight;  // of weight boxes
  TensorMap output;  // of boxes that leave
};
"""
FILES["tile_place.cuh"] = r"""
// Which part of the problem a block computes.

#include "tile_weights.cuh"

// Which cells of the problem a block computes.
struct BlockCells {
  int first[4];  // sample, then the first cell (q) along depth, height, width
};

// What a block computes: a block row (rows and weights), a box of cells, and its rank among those that share the sum.
struct BlockPlace {
  int block_row;
  int cells;
  int rank;
};

__device__ __forceinline__ int block_rows_count(const TileParams& params) {
  return params.groups * kShape.all_residue_blocks() * kShape.channel_blocks();
}
__device__ __forceinline__ int boxes_count(const TileParams& params) {
  return params.tiles[0] * params.tiles[1] * params.tiles[2] * params.tiles[3];
}

__device__ __forceinline__ BlockPlace block_place(const TileParams& params, int block) {
  const int rank = block % kShape.depth_blocks;
  const int index = block / kShape.depth_blocks;
  if constexpr (kShape.skips_backs()) {
    // Phases differ in work, and the first ones have the most: all their blocks come first, to leave the short ones for
    // the end.
    const int boxes = boxes_count(params);
    constexpr int kChannelBlocks = kShape.channel_blocks();
    const int outer = index / kChannelBlocks;
    return {outer / boxes * kChannelBlocks + index % kChannelBlocks, outer % boxes, rank};
  } else {
    return {index % block_rows_count(params), index / block_rows_count(params), rank};
  }
}

__device__ __forceinline__ BlockCells block_cells(const TileParams& params, const BlockRows& rows, int index) {
  BlockCells cells;
#pragma unroll
  for (int dimension = 3; dimension >= 0; --dimension) {
    const int tile = dimension > 0 ? index % params.tiles[dimension] : index;
    index /= params.tiles[dimension];
    cells.first[dimension] = tile * kShape.tile[dimension] + (dimension > 0 ? params.first_cell[dimension - 1] : 0);
  }
#pragma unroll
  for (int axis = 0; axis < 3; ++axis) {
    if (kShape.follows_residue(axis) && rows.first_residue[axis] < params.pad[axis] % kShape.stride[axis])
      ++cells.first[1 + axis];
  }
  return cells;
}

// All of that about one tile.
struct TilePlace {
  BlockRows rows;
  BlockCells cells;
  int rank;

  __device__ __forceinline__ TilePlace(const TileParams& params, int tile) {
    const BlockPlace place = block_place(params, tile);
    rows = block_rows(place.block_row);
    cells = block_cells(params, rows, place.cells);
    rank = place.rank;
  }
};
"""
FILES["tile_store.cuh"] = r"""
// From the accumulators to the output: through shared memory, so that the phases of a row interleave there and rows
// leave the block whole.

constexpr int kTurnChannels = kShape.turn_channels();  // output channels of each phase that are staged in a turn
constexpr int kPitch = kShape.staged_pitch();
constexpr int kSlotPitch = kShape.staged_slot_pitch(kTurnChannels);
constexpr int kDepths = kShape.tile[1] * kShape.span[0];
constexpr int kHeights = kShape.tile[2] * kShape.span[1];
constexpr int kWidths = kShape.tile[3] * kShape.span[2];
constexpr int kPositions = kShape.positions();
constexpr bool kHasGaps =
    kShape.all_slots() != kShape.span[0] * kShape.span[1] * kShape.span[2];  // outputs of no phase

__device__ __forceinline__ float bias_of(const TileParams& params, const BlockRows& rows, int channel) {
  channel += rows.first_channel;
  if (!kShape.bias || channel >= kShape.out_channels) return 0.0f;
  return from_storage(
      static_cast<const Element*>(params.bias)[rows.group * static_cast<long long>(kShape.out_channels) + channel]);
}

__device__ __forceinline__ int output_pad(const TileParams& params, int axis) {
  return kShape.gradient ? 0 : params.pad[axis];
}

template <int kCount>
__device__ __forceinline__ void store_vector(float* out, const float (&values)[kCount]) {
  unsigned words[kCount];
#pragma unroll
  for (int i = 0; i < kCount; ++i) words[i] = __float_as_uint(values[i]);
  ptx::store_words(out, words);
}
template <int kCount, int kWords>
__device__ __forceinline__ void pack_vector(const float (&values)[kCount], unsigned (&words)[kWords]) {
#pragma unroll
  for (int i = 0; i < kCount / 2; ++i)
    words[i] = kShape.math == TileMath::f16 ? ptx::pack_f16(values[2 * i], values[2 * i + 1])
                                            : ptx::pack_bf16(values[2 * i], values[2 * i + 1]);
}
template <int kCount>
__device__ __forceinline__ void store_vector(unsigned short* out, const float (&values)[kCount]) {
  unsigned words[kCount / 2];
  pack_vector(values, words);
  ptx::store_words(out, words);
}

// Offsets in the table of store_channels are small: they count from the first output that the block could have.
__device__ __forceinline__ long long table_origin(const TileParams& params, const BlockCells& cells) {
  long long origin = 0;
#pragma unroll
  for (int axis = 0; axis < 3; ++axis) {
    const int first = cells.first[1 + axis] * kShape.output_step(axis) - output_pad(params, axis);
    origin += max(first, 0) * params.output_strides[2 + axis];
  }
  return origin;
}

// Where a local output index along one axis stands: its cell in the tile, its slot among the block's phases (or none)
// and its place in the tensor.
struct OutputSite {
  int cell;
  int slot;
  long long place;
  bool inside;
};

__device__ __forceinline__ OutputSite output_site(const TileParams& params, const BlockRows& rows,
                                                  const BlockCells& cells, int axis, int local) {
  OutputSite site;
  const int residue = local % kShape.span[axis];
  site.cell = local / kShape.span[axis];
  site.slot = kShape.slot_of(axis, residue);
  if (kShape.slots[axis] != kShape.span[axis] && site.slot == 15) site.slot = -1;
  const int absolute = rows.first_residue[axis] + residue;
  const int output =
      (cells.first[1 + axis] + site.cell) * kShape.output_step(axis) + absolute - output_pad(params, axis);
  site.inside = absolute < kShape.output_step(axis) &&
                static_cast<unsigned>(output) < static_cast<unsigned>(params.output_size[axis]);
  site.place = output * params.output_strides[2 + axis];
  return site;
}

// A pair of sums in the staged matrix, neighbours along the columns.
__device__ __forceinline__ void stage_pair(float left, float right, bool first, float* pair) {
  if (!first) {
    left += pair[0];
    right += pair[1];
  }
  if constexpr (kPitch % 2 == 0) {
    *reinterpret_cast<float2*>(pair) = {left, right};
  } else {
    pair[0] = left;
    pair[1] = right;
  }
}

// Accumulators of one turn into the staged matrix, the bias with them. A thread holds pairs of cells of a row, or where
// cells are the rows of the products, cells of two rows.
template <typename Team>
__device__ __forceinline__ void stage_tile(const TileParams& params, const BlockRows& rows, const Team& tile, int turn,
                                           bool first, bool with_bias, float* staged) {
  const int lane = ptx::opaque(threadIdx.x % 32);  // or places would be kept in registers from turn to turn
  const auto bias = [&](int channel) {
    return first && with_bias ? bias_of(params, rows, turn * kTurnChannels + channel) : 0.0f;
  };
  if constexpr (kShape.streams) {
#pragma unroll
    for (int j = 0; j < Team::kOctets; ++j) {
#pragma unroll
      for (int side = 0; side < 2; ++side) {
        const int row = j * 8 + lane % 4 * 2 + side;
        const int slot = row / kShape.block_channels;
        const int channel = row % kShape.block_channels - turn * kTurnChannels;
        if (slot >= kShape.all_slots() || channel < 0 || channel >= kTurnChannels) continue;
        const float add = bias(channel);
        float* line = staged + slot * kSlotPitch + channel * kPitch + tile.column(0);
#pragma unroll
        for (int i = 0; i < Team::kCellTiles; ++i) {
          line[i * 64] = tile.octet(i, j)[side] + add;
          line[i * 64 + 8] = tile.octet(i, j)[2 + side] + add;
        }
      }
    }
  } else {
#pragma unroll
    for (int i = 0; i < kRowTiles; ++i) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = tile.row(i) + half * 8 + lane / 4;
        const int slot = row / kShape.block_channels;
        const int channel = row % kShape.block_channels - turn * kTurnChannels;
        if (slot >= kShape.all_slots() || channel < 0 || channel >= kTurnChannels) continue;
        const float add = bias(channel);
        float* line = staged + slot * kSlotPitch + channel * kPitch + tile.first_column + lane % 4 * 2;
#pragma unroll
        for (int j = 0; j < kColumnTiles; ++j) {
          stage_pair(tile.sum[i][j][half * 2] + add, tile.sum[i][j][half * 2 + 1] + add, first, line + j * 8);
        }
      }
    }
  }
}

// Where one output of the tile, counted over [sample][depth][height][width], comes from and goes to.
struct Position {
  int column;
  int slot;         // -1: no phase, bias alone
  long long place;  // from the block's first sample and channel
  bool inside;
};

__device__ __forceinline__ Position position_of(const TileParams& params, const BlockRows& rows,
                                                const BlockCells& cells, int index) {
  const OutputSite w = output_site(params, rows, cells, 2, index % kWidths);
  index /= kWidths;
  const OutputSite h = output_site(params, rows, cells, 1, index % kHeights);
  index /= kHeights;
  const OutputSite d = output_site(params, rows, cells, 0, index % kDepths);
  const int sample = index / kDepths;
  const bool has_phase = d.slot >= 0 && h.slot >= 0 && w.slot >= 0;
  Position position;
  position.column = kShape.column_of(sample, d.cell, h.cell, w.cell);
  position.slot = has_phase ? (d.slot * kShape.slots[1] + h.slot) * kShape.slots[2] + w.slot : -1;
  position.place = sample * params.output_strides[0] + d.place + h.place + w.place;
  position.inside = w.inside && h.inside && d.inside && cells.first[0] + sample < params.batch;
  return position;
}

// Where the turn's first channel of an output is staged; -1: no phase.
__device__ __forceinline__ int staged_index(const Position& position) {
  return position.slot < 0 ? -1 : position.slot * kSlotPitch + position.column;
}

// A staged value; with several blocks for one tile, the sum of theirs, in the order of their ranks.
__device__ __forceinline__ float staged_value(const float* staged, int index) {
  if constexpr (kShape.depth_blocks == 1) return staged[index];
  const unsigned address = ptx::shared_address(staged + index);
  float sum = ptx::load_from_block(address, 0);
#pragma unroll
  for (int rank = 1; rank < kShape.depth_blocks; ++rank) sum += ptx::load_from_block(address, rank);
  return sum;
}

// Neighbours along the columns.
template <int kCount>
__device__ __forceinline__ void staged_values(const float* staged, int index, float (&values)[kCount]) {
  if constexpr (kCount == 1 || kShape.depth_blocks > 1) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) values[i] = staged_value(staged, index + i);
  } else {
    constexpr int kBytes = kCount == 2 ? 8 : 16;
#pragma unroll
    for (int i = 0; i < kCount; i += kBytes / 4) {
      unsigned words[kBytes / 4];
      ptx::load_shared<kBytes>(ptx::shared_address(staged + index + i), words);
#pragma unroll
      for (int j = 0; j < kBytes / 4; ++j) values[i + j] = __uint_as_float(words[j]);
    }
  }
}

// Of the threads that store: all, or those that have multiplied.
__device__ __forceinline__ void sync_storing() {
  if constexpr (kShape.streams) {
    ptx::sync_first_threads<kThreads>();
  } else {
    __syncthreads();
  }
}

__device__ __forceinline__ void wait_for_blocks() {
  if constexpr (kShape.depth_blocks == 1) {
    sync_storing();
  } else {
    ptx::cluster_barrier();
  }
}

// Neighbouring threads take neighbouring outputs of a row, and each walks over the channels; blocks of a cluster share
// them.
__device__ __forceinline__ void store_rows(const TileParams& params, const BlockRows& rows, const BlockCells& cells,
                                           int turn, int rank, const float* staged, Element* output) {
  constexpr int kVector = kShape.row_vector;
  constexpr int kPlaces = kPositions / kVector;
  constexpr int kAcross = kPlaces >= kThreads ? kThreads : (kPlaces + 31) / 32 * 32;
  constexpr int kBlockTeams = kThreads / kAcross;
  constexpr int kTeams = kBlockTeams * kShape.depth_blocks;
  constexpr bool kWhole = kShape.out_channels % kShape.block_channels == 0 && kTurnChannels % kTeams == 0;
  if (kThreads % kAcross != 0 && static_cast<int>(threadIdx.x) / kAcross >= kBlockTeams) return;
  const int team = threadIdx.x / kAcross + rank * kBlockTeams;
  const int channels = min(kTurnChannels, kShape.out_channels - rows.first_channel - turn * kTurnChannels);
  const long long stride = params.output_strides[1];
  for (int index = threadIdx.x % kAcross; index < kPlaces; index += kAcross) {
    const Position position = position_of(params, rows, cells, index * kVector);
    if (!position.inside) continue;
    Element* out = output + position.place + team * stride;
    const bool has_phase = position.slot >= 0;
    const int first = (has_phase ? staged_index(position) : 0) + team * kPitch;
#pragma unroll
    for (int i = 0; i < (kTurnChannels + kTeams - 1) / kTeams; ++i) {
      const int channel = team + i * kTeams;
      if (!kWhole && channel >= channels) break;
      float results[kVector];
      staged_values(staged, first + i * kTeams * kPitch, results);
      if (kHasGaps && !has_phase) {  // nor has any other of its vector
        const float bias = bias_of(params, rows, turn * kTurnChannels + channel);
#pragma unroll
        for (float& result : results) result = bias;
      }
      if constexpr (kVector > 1) {
        store_vector(out, results);
      } else {
        *out = to_storage(results[0], Element());
      }
      out += kTeams * stride;
    }
  }
}

// Channels-last: neighbouring threads take neighbouring channels of a pixel; where the pixels are was worked out once.
struct TableEntry {
  int staged;  // as staged_index says
  int place;   // -1: outside
};

__device__ __forceinline__ void fill_table(const TileParams& params, const BlockRows& rows, const BlockCells& cells,
                                           TableEntry* table) {
  for (int index = threadIdx.x; index < kPositions; index += kThreads) {
    const Position position = position_of(params, rows, cells, index);
    table[index] = {staged_index(position),
                    position.inside ? static_cast<int>(position.place - table_origin(params, cells)) : -1};
  }
}

__device__ __forceinline__ void store_channels(const TileParams& params, const BlockRows& rows, const BlockCells& cells,
                                               int turn, int rank, const float* staged, const TableEntry* table,
                                               Element* output) {
  constexpr int kAcross = kTurnChannels >= 32 ? 32
                          : kTurnChannels > 8 ? 16
                          : kTurnChannels > 4 ? 8
                          : kTurnChannels > 2 ? 4
                                              : kTurnChannels;
  const int channels = min(kTurnChannels, kShape.out_channels - rows.first_channel - turn * kTurnChannels);
  output += table_origin(params, cells);
  constexpr int kAtOnce = kThreads / kAcross;
  for (int index = rank * kAtOnce + threadIdx.x / kAcross; index < kPositions; index += kAtOnce * kShape.depth_blocks) {
    const TableEntry entry = table[index];
    if (entry.place < 0) continue;
    for (int channel = threadIdx.x % kAcross; channel < channels; channel += kAcross) {
      const float value = entry.staged < 0 ? bias_of(params, rows, turn * kTurnChannels + channel)
                                           : staged_value(staged, entry.staged + channel * kPitch);
      output[entry.place + channel] = to_storage(value, Element());
    }
  }
}

template <typename Team>
__device__ __forceinline__ void store_block(const TileParams& params, const BlockRows& rows, const BlockCells& cells,
                                            const Team& tile, int rank, unsigned char* shared_memory) {
  shared_memory += kShape.staged_offset();
  float* staged = reinterpret_cast<float*>(shared_memory);
  TableEntry* table = reinterpret_cast<TableEntry*>(shared_memory + kShape.staged_bytes(kTurnChannels));
  Element* output =
      static_cast<Element*>(params.output) + cells.first[0] * params.output_strides[0] +
      (static_cast<long long>(rows.group) * kShape.out_channels + rows.first_channel) * params.output_strides[1];
  if (kShape.output_channels_last) fill_table(params, rows, cells, table);
#pragma unroll 1
  for (int turn = 0; turn < kShape.block_channels / kTurnChannels; ++turn) {
    // Teams that split the depth add up in a fixed order; the bias comes with the first.
#pragma unroll 1
    for (int team = 0; team < kShape.depth_teams; ++team) {
      if (tile.depth_team == team) stage_tile(params, rows, tile, turn, team == 0, rank == 0, staged);
      sync_storing();
    }
    if (kShape.depth_blocks > 1) wait_for_blocks();
    if (kShape.output_channels_last) {
      store_channels(params, rows, cells, turn, rank, staged, table, output);
    } else {
      store_rows(params, rows, cells, turn, rank, staged, output);
    }
    output += kTurnChannels * params.output_strides[1];
    wait_for_blocks();
  }
}
"""
FILES["tile_stream.cuh"] = r"""
// Tensor-core tiles for sm_90a whose warps have roles: some only load (tile_stream_load.cuh), the others only multiply.
// Cells are the rows of wgmma and come from registers: fragments out of the input as it lies in shared memory, rounded
// on the way, so that nothing is put into the tile format, no thread waits for global memory, and a tap that a phase
// does not have is a product left out. The weights are the other operand, by descriptor.
//
// The config is tile.cuh's with kBackCells in bytes, multiply(), and whether the copy engine must know any tensor
// (kMaps), whether tensor copies bring the input (kTensorCopies), where weights come from (kWeights: 0 packed, 1 in
// place by threads, 2 in boxes by the copy engine for a gradient, 3 for a forward layer) and how outputs leave
// (kStores: 0 through shared memory as sums, 1 as they will lie in the tensor, 2 straight from the sums in vectors of
// channels, 3 from the sums of several blocks in such vectors).
#include "tile_stream_load.cuh"
#if kTensorCopies
#include "tile_stream_tensor.cuh"
#else
#include "tile_stream_copies.cuh"
#endif
#include "tile_stream_team.cuh"
#if kWeights == 1
#include "tile_stream_weights.cuh"
#elif kWeights == 3
#include "tile_stream_tap_boxes.cuh"
#elif kWeights == 2
#include "tile_stream_weight_boxes.cuh"
#endif

#include "tile_store.cuh"
#if kStores == 1
#include "tile_stream_store_image.cuh"
#elif kStores == 2
#include "tile_stream_store_channels.cuh"
#elif kStores == 3
#include "tile_stream_store_gather.cuh"
#endif

// The way of a warpgroup that multiplies through chunks and stages.
struct StreamReader {
  const StreamBarriers& barriers;
  unsigned input_ring;
  unsigned weight_ring;
  RingPlace<kShape.input_ring> input;
  RingPlace<kShape.weight_ring> weight;
  int chunk = 0;  // of the tile

  __device__ __forceinline__ unsigned input_stage() const {
    return input_ring + input.slot * kShape.input_stage_bytes();
  }
  // Shared-memory descriptors count in 16 bytes: start, and the step between slabs of depth.
  __device__ __forceinline__ unsigned weight_stage() const {
    return ((weight_ring + weight.slot * kShape.weight_stage_bytes()) >> 4 & 0x3fff) | kShape.weight_leading_pitch()
                                                                                           << 16;
  }

  // What an item needs to know: worked out while the products before it run, or by the compiler.
  struct Item {
    unsigned weights;  // descriptor of its first row
    int cells;         // where its cells lie in the box
    int next_cells;    // and the next item's
    bool begins_stage, ends_stage, ends_chunk;
  };
  __device__ __forceinline__ Item item_at(int item, int plane) const {
    const bool ends_chunk = item + 1 == chunk_items(plane);
    const int in_stage = item % kStageItems;
    return {weight_stage() + in_stage / kLineItems * kLine * kShape.weight_back_pitch() +
                in_stage % kLineItems * kItemSteps * kShape.weight_depth_pitch(),
            cells_of(item, plane),
            cells_of(ends_chunk ? 0 : item + 1, ends_chunk ? next_plane(plane) : plane),
            in_stage == 0,
            in_stage + 1 == kStageItems || ends_chunk,
            ends_chunk};
  }

  // Multiplies the fragments of one item while those of the next one are loaded. A warp stands still while the tensor
  // cores are busy with products of its own that it has handed over: what it loads before the last of them arrives in
  // the meantime.
  __device__ __forceinline__ void step(CellTeam& team, const CellTeam::Fragments& now, CellTeam::Fragments& next,
                                       const Item& at, int item) {
    begin_products(team, now, at, item);
    if (go_on(at)) team.load(next, input_stage(), at.next_cells, next_step(at, item));
    if constexpr (kShape.halves_items()) team.add<false>(now, at.weights, item / kLineItems);
    if (at.ends_stage) weight.advance();
  }
  // The same with one set of fragments: one half of them is loaded while the products of the other run.
  __device__ __forceinline__ void step_by_halves(CellTeam& team, CellTeam::Fragments& cells, const Item& at, int item) {
    begin_products(team, cells, at, item);
    team.load<CellTeam::kFirstFragments, CellTeam::kFragments>(cells, input_stage(), at.cells, item % kLineItems);
    team.add<false>(cells, at.weights, item / kLineItems);
    const bool goes_on = go_on(at);
    ptx::wait_for_warpgroup<1>();
    if (goes_on) team.load<0, CellTeam::kFirstFragments>(cells, input_stage(), at.next_cells, next_step(at, item));
    if (at.ends_stage) weight.advance();
  }
  // After the first half the products before this item are done, and with the first one of a stage the whole stage
  // before it.
  __device__ __forceinline__ void begin_products(CellTeam& team, const CellTeam::Fragments& cells, const Item& at,
                                                 int item) {
    if (at.begins_stage) ptx::wait_barrier(barriers.weight_full(weight.slot), kShape.keeps_weights ? 0 : weight.parity);
    team.add<true>(cells, at.weights, item / kLineItems);
    ptx::wait_for_warpgroup<1>();
    if (at.begins_stage && (item > 0 || chunk > 0)) give_back_weights();
  }
  // After a chunk's last item the next chunk must be there. Whether anything is left to load: in a loop, products
  // behind a branch would wait for what is loaded, so that after many items it is, once for nothing.
  __device__ __forceinline__ bool go_on(const Item& at) {
    if (at.ends_chunk) ++chunk;
    const bool ends_tile = at.ends_chunk && is_done();
    if (at.ends_chunk && !ends_tile) {
      give_back_input();
      wait_for_input();
    }
    return !ends_tile || (!kUnrolled && kItems * kShape.block_chunks() > kFewItems);
  }
  // The step of depth in its line that the next item is.
  static __device__ __forceinline__ int next_step(const Item& at, int item) {
    return at.ends_chunk ? 0 : (item + 1) % kLineItems;
  }
  __device__ __forceinline__ bool is_done() const { return chunk == kShape.block_chunks(); }
  static constexpr int next_plane(int plane) { return plane + 1 == kPlanes ? 0 : plane + 1; }

  // Items of a chunk, and where the cells of a distance lie in its box, in bytes: where residues differ in taps, those
  // of the one that it holds.
  static __device__ __forceinline__ int chunk_items([[maybe_unused]] int plane) {
#if kUnevenPlanes
    return (kUnrolled ? kFixedPlaneTaps[plane] : kPlaneTaps[plane]) * kLineItems;
#else
    return kItems;
#endif
  }
  static __device__ __forceinline__ int back_cells(int back, [[maybe_unused]] int plane) {
#if kUnevenPlanes
    const int index = plane * kShape.all_backs() + back;
    return kUnrolled ? kFixedPlaneCells[index] : kPlaneCells[index];
#else
    return kUnrolled ? kFixedBackCells[back] : kBackCells[back];
#endif
  }

  __device__ __forceinline__ void give_back_input() {
    ptx::arrive(barriers.input_empty(input.slot));
    input.advance();
  }
  // Those of the stage before, once another has begun or the last one is done.
  __device__ __forceinline__ void give_back_weights() {
    if (kShape.keeps_weights) return;
    ptx::arrive(barriers.weight_empty((weight.slot == 0 ? kShape.weight_ring : weight.slot) - 1));
  }

  __device__ __forceinline__ void wait_for_input() { ptx::wait_barrier(barriers.input_full(input.slot), input.parity); }
  static __device__ __forceinline__ int cells_of(int item, int plane) {
    return back_cells(first_back(item / kLineItems), plane);
  }

  // The distance whose cells come first in a line's fragments.
  static constexpr int first_back(int line) { return line * kLine + (CellTeam::line_place(0) == 0 ? 0 : kLine - 1); }

  // Items take turns with two sets of registers. Many of them that all have the same products are a loop over all
  // chunks with two in its body, which compiles soon.
  __device__ __forceinline__ void walk_items(CellTeam& team, CellTeam::Fragments& first, CellTeam::Fragments& second) {
    int item = 0;
    Item at = item_at(item, 0);
    const auto ends = [&](CellTeam::Fragments& now, CellTeam::Fragments& next) {
      step_with(team, now, next, at, item);
      item = at.ends_chunk ? 0 : item + 1;
      at = item_at(item, 0);
      return is_done();
    };
#pragma unroll 1
    while (!ends(first, second) && (kShape.takes_turns() || !ends(second, first))) {
    }
  }
  // Otherwise each item of a chunk is code of its own, and so are chunks of residues that differ in taps; where those
  // would be too many, a chunk is a loop.
  __device__ __forceinline__ void walk_chunk(CellTeam& team, CellTeam::Fragments& first, CellTeam::Fragments& second) {
    if constexpr (kShape.splits()) {
      walk_parts(team, first, second);
    } else if constexpr (kUnrolled) {
#pragma unroll
      for (int plane = 0; plane < kPlanes; ++plane) {
#pragma unroll
        for (int item = 0; item < chunk_items(plane); ++item) {
          step_in_turn(team, first, second, item, item, plane);
        }
      }
    } else {
      const int plane = chunk % kPlanes;
      const int items = chunk_items(plane);
#pragma unroll 1
      for (int item = 0; item < items; item += 2) {
        step_in_turn(team, first, second, 0, item, plane);
        step_in_turn(team, first, second, 1, item + 1, plane);
      }
    }
  }
  __device__ __forceinline__ void step_in_turn(CellTeam& team, CellTeam::Fragments& first, CellTeam::Fragments& second,
                                               int turn, int item, int plane) {
    if (turn % 2 == 0) {
      step_with(team, first, second, item_at(item, plane), item);
    } else {
      step_with(team, second, first, item_at(item, plane), item);
    }
  }
  __device__ __forceinline__ void step_with(CellTeam& team, CellTeam::Fragments& now, CellTeam::Fragments& next,
                                            const Item& at, int item) {
    if constexpr (kShape.takes_turns()) {
      step_by_halves(team, now, at, item);
    } else {
      step(team, now, next, at, item);
    }
  }

  // Where sums of a few products are kept apart, a part is the body of the loop: unrolled, several parts would have
  // registers of their own.
  __device__ __forceinline__ void walk_parts(CellTeam& team, CellTeam::Fragments& first, CellTeam::Fragments& second) {
    constexpr int kPart = kShape.part_items();
    static_assert(kPart == 1 || kPart % 2 == 0);  // each whole part begins with the same set
    constexpr int kWhole = kItems / kPart;
#pragma unroll(kUnrolled ? kWhole + 1 : 1)
    for (int part = 0; part < kWhole; ++part) walk_part<kPart>(team, first, second, part * kPart);
    if constexpr (kItems % kPart > 0) walk_part<kItems % kPart>(team, first, second, kWhole * kPart);
  }
  template <int kCount>
  __device__ __forceinline__ void walk_part(CellTeam& team, CellTeam::Fragments& first, CellTeam::Fragments& second,
                                            int begin) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) step_in_turn(team, first, second, i, begin + i, 0);
    ptx::wait_for_warpgroup<0>();
    team.keep_part();
    if constexpr (kShape.splits_late()) CellTeam::split(first, second);
  }
};

__device__ __forceinline__ void multiply_stream(CellTeam& team, StreamReader& reader) {
  CellTeam::Fragments even;
  CellTeam::Fragments other;
  CellTeam::Fragments& odd = kShape.takes_turns() ? even : other;
  reader.wait_for_input();
  team.load<0, CellTeam::kFirstFragments>(even, reader.input_stage(), StreamReader::cells_of(0, 0), 0);
  if constexpr (kShape.splits_late()) CellTeam::split(even, even);
  if constexpr (!kUnrolled && !kShape.splits() && kPlanes == 1) {
    reader.walk_items(team, even, odd);
  } else {
    // After an odd number of items the next chunk begins with the other set.
    constexpr bool kSwaps = kItems % 2 == 1 && !kShape.splits_late() && !kShape.takes_turns();
    constexpr int kTurn = kSwaps ? 2 : kUnrolled ? kPlanes : 1;
#pragma unroll 1
    for (int chunk = 0; chunk < kShape.block_chunks(); chunk += kTurn) {
      reader.walk_chunk(team, even, odd);
      if constexpr (kSwaps) {
        if (kShape.block_chunks() % 2 == 1 && chunk + 1 == kShape.block_chunks()) break;
        reader.walk_chunk(team, odd, even);
      }
    }
  }
  ptx::wait_for_warpgroup<0>();
  reader.give_back_input();
  reader.give_back_weights();
  reader.chunk = 0;
}

__global__ void __launch_bounds__(kShape.threads(), kShape.blocks_per_multiprocessor) kClusterAttribute
    tconv_tile(const __grid_constant__ StreamParams stream) {
  const TileParams& params = tile_params(stream);
  extern __shared__ __align__(1024) unsigned char shared_memory[];
  const unsigned input_ring = ptx::shared_address(shared_memory);
  const unsigned weight_ring = input_ring + kShape.input_ring * kShape.input_stage_bytes();
  const StreamBarriers barriers{input_ring + kShape.barrier_offset()};
  if (threadIdx.x == 0) barriers.init();
  __syncthreads();

  // Every role goes through the block's tiles on its own.
  const auto for_each_tile = [&](auto&& visit) {
    // Counted after each tile rather than kept in a register that the products need.
    const auto tiles = [&] {
      return ptx::opaque(block_rows_count(params)) * boxes_count(params) * kShape.depth_blocks;
    };
#pragma unroll 1
    for (int tile = blockIdx.x; tile < tiles(); tile += gridDim.x) {
      visit(tile);
      if (!kShape.stays) break;
    }
  };
  const int loader = static_cast<int>(threadIdx.x) - kThreads;
#if kWeights == 1
  if constexpr (kShape.loads_weights()) {
    if (loader >= kStreamThreads) {
      ptx::give_registers<kShape.weight_registers()>();
      const int thread = loader - kStreamThreads;
      RingPlace<kShape.weight_ring> slot;
      if (thread == 0) prefetch_weights(params);
      for_each_tile([&](int tile) {
        const BlockPlace place = block_place(params, tile);
        load_stream_weights(params, block_rows(place.block_row), place.rank, barriers, weight_ring, thread, slot);
      });
      return;
    }
  }
#endif
  if (loader >= 0) {
    ptx::give_registers<kShape.loading_registers()>();
#if kWeights == 2
    if (kShape.rounds_boxes() && loader >= 32 && loader < kInputThreads) {
      RingPlace<kShape.weight_ring> slot;
      for_each_tile([&](int) { round_weight_boxes(barriers, weight_ring, loader - 32, slot); });
      return;
    }
#endif
    if (loader < kInputThreads) {
      RingPlace<kShape.input_ring> slot;
      for_each_tile(
          [&](int tile) { stream_input(stream, TilePlace(params, tile), barriers, input_ring, loader, slot); });
    } else if (kShape.copies_weights() && loader == kInputThreads) {
      RingPlace<kShape.weight_ring> slot;
#if kWeights >= 2
      prefetch_weights(params);
      const auto bring = [&](int tile) {
        const BlockPlace place = block_place(params, tile);
        stream_weight_boxes(stream, block_rows(place.block_row), place.rank, barriers, weight_ring, slot);
      };
#else
      ptx::wait_for_previous_kernel();
      const auto bring = [&](int tile) {
        const BlockPlace place = block_place(params, tile);
        stream_weights(params, place.block_row, place.rank, barriers, weight_ring, slot);
      };
#endif
      if (kShape.keeps_weights) {
        bring(static_cast<int>(blockIdx.x));
      } else {
        for_each_tile(bring);
      }
    }
    return;
  }
#if kWeights == 1
  if (kShape.keeps_weights && threadIdx.x < kStreamThreads) {
    RingPlace<kShape.weight_ring> slot;
    load_stream_weights(params, block_rows(0), 0, barriers, weight_ring, threadIdx.x, slot);
  }
#endif
  ptx::take_registers<kShape.multiplying_registers()>();
  StreamReader reader{barriers, input_ring, weight_ring};
  for_each_tile([&](int tile) {
    CellTeam team(params, TilePlace(params, tile).cells);
    multiply_stream(team, reader);
    // Worked out again rather than kept in registers that the products need.
    const TilePlace place(params, ptx::opaque(tile));
#if kStores == 1
    OutputImage(params, place.rows, place.cells, input_ring + kShape.staged_offset()).store(team, output_map(stream));
#elif kStores == 2
    store_directly(VectorStore(params, place.rows, place.cells, input_ring + kShape.pipeline_bytes()), team);
#elif kStores == 3
    sync_storing();
    store_gathered(params, place, team, input_ring);
#else
    if (!kShape.stays) sync_storing();
    store_block(params, place.rows, place.cells, team, place.rank, shared_memory);
#endif
  });
  if (kShape.sends()) ptx::wait_for_bulk_reads();  // before the block's shared memory is another's
}
"""
FILES["tile_stream_copies.cuh"] = r"""
// Boxes of input as they lie in memory, by asynchronous copies of single threads.

#include "tile_stream_load.cuh"

// Where copies begin along an axis.
__device__ __forceinline__ int copy_begin(const TileParams& params, const BlockCells& cells, int axis) {
  return box_begin(params, cells, axis) - (axis == 2 ? box_lead(params, cells) : 0);
}

// The copies of a thread: some places of the box, the same in every chunk, each for every channel (channels-last: for
// all channels at once, a place for each 16 bytes of them). Threads that are left over when few places are shared out
// take other channels.
struct InputCopies {
  static constexpr int kPieceBytes = kShape.granule * kShape.element_bytes;
  static constexpr int kPlaces = kShape.copy_places();
  static constexpr int kPieces = kPlaces / kShape.box_rows();  // of a row
  static constexpr int kChannels = kShape.input_channels_last ? 1 : kShape.chunk_read_channels();
  static constexpr int kAtOnce = kPlaces >= kInputThreads              ? 1
                                 : kInputThreads / kPlaces < kChannels ? kInputThreads / kPlaces
                                                                       : kChannels;
  static constexpr int kPerThread = (kPlaces + kInputThreads - 1) / kInputThreads;
  static constexpr int kTurns = (kChannels + kAtOnce - 1) / kAtOnce;
  static constexpr unsigned kOutside = ~0u;

  unsigned source[kPerThread];  // in bytes from the box's first element
  unsigned target[kPerThread];
  int first_channel;

  __device__ __forceinline__ InputCopies(const TileParams& params, const BlockCells& cells, int thread) {
    first_channel = thread / kPlaces;
    if (kAtOnce == 1) first_channel = 0;
#pragma unroll
    for (int i = 0; i < kPerThread; ++i) {
      const int place = kAtOnce > 1 ? thread % kPlaces : thread + i * kInputThreads;
      const int piece = place % kPieces;
      int row = place / kPieces;
      const int slab = kShape.input_channels_last ? piece % kShape.slabs : 0;
      const int w = kShape.input_channels_last ? piece / kShape.slabs : piece * kShape.granule;
      target[i] = kShape.input_channels_last ? (row * kShape.box(2) + w) * kShape.cell_pitch() + slab * 16
                                             : (row * kShape.row_pitch() + kShape.row_place(w)) * kShape.element_bytes;
      const int h = row % kShape.box(1);
      row /= kShape.box(1);
      const int d = row % kShape.box(0);
      const int n = row / kShape.box(0);
      const auto inside = [&](int axis, int index) {
        return static_cast<unsigned>(copy_begin(params, cells, axis) + index) <
               static_cast<unsigned>(params.input_size[axis]);
      };
      const bool exists = place < kPlaces && first_channel < kAtOnce && cells.first[0] + n < params.batch &&
                          inside(0, d) && inside(1, h) && inside(2, w);
      // Inside a chunk's box, distances are 32-bit: the planner sees to that.
      const auto stride = [&](int dimension) { return static_cast<unsigned>(params.input_strides[dimension]); };
      const unsigned position = n * stride(0) + d * stride(2) + h * stride(3) + w * stride(4) +
                                (slab * kShape.vector() + first_channel) * stride(1);
      source[i] = exists ? position * kShape.element_bytes : kOutside;
      target[i] += first_channel * kShape.channel_pitch();
    }
  }

  // `base`: the box's first element in the chunk's first channel.
  __device__ __forceinline__ void copy(const Element* base, long long channel_bytes, int channels_left, unsigned stage,
                                       int thread) const {
    if (kAtOnce > 1 && first_channel >= kAtOnce) return;
    constexpr bool kWholeChunks = kShape.channels % kShape.chunk_channels() == 0;
    // One pointer for all threads and a 32-bit offset of their own are an addressing mode of the copy.
    const char* from = reinterpret_cast<const char*>(base);
#pragma unroll(kPerThread <= (kWholeChunks ? 2 : 1) ? 4 : 1)
    for (int turn = 0; turn < kTurns; ++turn) {
      const int channel =
          kShape.input_channels_last ? thread % kShape.slabs * kShape.vector() : first_channel + turn * kAtOnce;
      if (kChannels % kAtOnce != 0 && channel >= kChannels) break;
#pragma unroll
      for (int i = 0; i < kPerThread; ++i) {
        if (kPlaces % kInputThreads != 0 && kAtOnce == 1 && thread + i * kInputThreads >= kPlaces) break;
        const bool wanted = source[i] != kOutside && (kWholeChunks || channel < channels_left);
        ptx::copy_async<kPieceBytes>(stage + target[i], from + source[i], wanted);
      }
      stage += kAtOnce * kShape.channel_pitch();
      from += kAtOnce * channel_bytes;
    }
  }
};

__device__ __forceinline__ void stream_input(const StreamParams& stream, const TilePlace& tile,
                                             const StreamBarriers& barriers, unsigned ring, int thread,
                                             RingPlace<kShape.input_ring>& place) {
  const TileParams& params = tile_params(stream);
  const BlockCells& cells = tile.cells;
  const InputCopies copies(params, cells, thread);
  int channel = tile.rank * kShape.block_chunks() * kShape.chunk_read_channels();
  const long long channel_bytes = params.input_strides[1] * kShape.element_bytes;
  const Element* base =
      static_cast<const Element*>(params.input) + cells.first[0] * params.input_strides[0] +
      (static_cast<long long>(tile.rows.group) * kShape.read_channels() + channel) * params.input_strides[1];
#pragma unroll
  for (int axis = 0; axis < 3; ++axis) base += copy_begin(params, cells, axis) * params.input_strides[2 + axis];
#pragma unroll 1
  for (int chunk = 0; chunk < kShape.block_chunks(); ++chunk) {
    ptx::wait_barrier(barriers.input_empty(place.slot), place.parity ^ 1);
    copies.copy(base, channel_bytes, kShape.read_channels() - channel, ring + place.slot * kShape.input_stage_bytes(),
                thread);
    ptx::arrive_after_copies(barriers.input_full(place.slot));
    place.advance();
    channel += kShape.chunk_read_channels();
    base += kShape.chunk_read_channels() * params.input_strides[1];
  }
}
"""
FILES["tile_stream_load.cuh"] = r"""
// The warps of a streaming block that only load, some chunks ahead: what they have in common, and stages of packed
// weights by the copy engine. The input comes by tile_stream_copies.cuh or tile_stream_tensor.cuh.

#include "tile_element.cuh"
#include "tile_place.cuh"

constexpr int kInputThreads = kStreamThreads - 32;  // the others bring weights
constexpr int kInputArrivals = kShape.tensor_copies ? 1 : kInputThreads;
// Of tensor copies: all but the first warp, one thread of which asks for them.
constexpr int kRoundingThreads = kInputThreads - 32;

#if kMaps
using StreamParams = TensorTileParams;
#else
using StreamParams = TileParams;
#endif
__device__ __forceinline__ const TileParams& tile_params(const TileParams& params) { return params; }
__device__ __forceinline__ const TileParams& tile_params(const TensorTileParams& params) { return params.tile; }
__device__ __forceinline__ const TensorMap* output_map(const TileParams&) { return nullptr; }
__device__ __forceinline__ const TensorMap* output_map(const TensorTileParams& params) { return &params.output; }

// Barriers of the rings, in shared memory: a slot is full, and a slot is empty.
struct StreamBarriers {
  unsigned base;

  __device__ __forceinline__ unsigned input_full(int slot) const { return base + slot * 8; }
  __device__ __forceinline__ unsigned input_empty(int slot) const { return input_full(kShape.input_ring + slot); }
  __device__ __forceinline__ unsigned weight_full(int slot) const { return input_full(2 * kShape.input_ring + slot); }
  __device__ __forceinline__ unsigned weight_empty(int slot) const { return weight_full(kShape.weight_ring + slot); }
  // Weights that are there and not rounded yet.
  __device__ __forceinline__ unsigned weight_raw(int slot) const { return weight_full(2 * kShape.weight_ring + slot); }

  // By one thread. Every thread that multiplies arrives when it is done with a slot: one for a whole warp would do, but
  // then compute-sanitizer's racecheck takes the reads of the others for unordered.
  __device__ __forceinline__ void init() const {
    constexpr int kReaders = kShape.multiplying_threads();
#pragma unroll
    for (int slot = 0; slot < kShape.input_ring; ++slot) {
      ptx::init_barrier(input_full(slot), kInputArrivals);
      ptx::init_barrier(input_empty(slot), kReaders);
    }
#pragma unroll
    for (int slot = 0; slot < kShape.weight_ring; ++slot) {
      ptx::init_barrier(weight_full(slot), kShape.rounds_boxes()     ? kRoundingThreads
                                           : kShape.copies_weights() ? 1
                                                                     : kStreamThreads);
      if (kShape.rounds_boxes()) ptx::init_barrier(weight_raw(slot), 1);
      ptx::init_barrier(weight_empty(slot), kReaders);
    }
    ptx::publish_barriers();
  }
};

// A place in a ring, and which time around. Waiting for an empty slot costs nothing the first time around: before a
// barrier's first phase ends, the phase before it counts as over.
template <int kSlots>
struct RingPlace {
  int slot = 0;
  int parity = 0;

  __device__ __forceinline__ void advance() {
    if (++slot < kSlots) return;
    slot = 0;
    parity ^= 1;
  }
};

// The first element of the box along an axis. It may lie outside the tensor.
__device__ __forceinline__ int box_begin(const TileParams& params, const BlockCells& cells, int axis) {
  return kShape.gradient ? cells.first[1 + axis] * kShape.stride[axis] - params.pad[axis]
                         : (cells.first[1 + axis] + 1) * kShape.fold[axis] - 1 - kShape.halo(axis);
}
// How many elements the first copy of a row begins before the box.
__device__ __forceinline__ int box_lead(const TileParams& params, const BlockCells& cells) {
  if (kShape.lead >= 0) return kShape.lead;
  return box_begin(params, cells, 2) & (kShape.granule - 1);
}
// How many distances a block's chunk is multiplied at. Where that differs, each block begins with the first residue.
__device__ __forceinline__ int chunk_backs([[maybe_unused]] int chunk) {
#if kUnevenPlanes
  return kPlaneTaps[chunk % kShape.all_plane_groups()];
#else
  return kShape.all_backs();
#endif
}

// Blocks that begin together wait for the same weights at every stage: each asks for a part of all of them at once, so
// that they come from the L2 cache from then on. By one thread.
__device__ __forceinline__ void prefetch_weights(const TileParams& params) {
  constexpr long long kPiece = 4096;
  if (reinterpret_cast<unsigned long long>(params.weight) % 16 != 0) return;
  for (long long begin = blockIdx.x * kPiece; begin < params.weight_bytes; begin += gridDim.x * kPiece) {
    const long long left = (params.weight_bytes - begin) / 16 * 16;
    if (left > 0)
      ptx::prefetch_bulk(static_cast<const char*>(params.weight) + begin,
                         static_cast<unsigned>(left < kPiece ? left : kPiece));
  }
}

// One thread asks for all weights.
__device__ __forceinline__ void stream_weights(const TileParams& params, int block_row, int rank,
                                               const StreamBarriers& barriers, unsigned ring,
                                               RingPlace<kShape.weight_ring>& place) {
  constexpr int kBytesPerBack = kShape.weight_back_pitch() * 16;
  const char* source = static_cast<const char*>(params.weight) + block_row * kShape.packed_bytes() +
                       rank * static_cast<long long>(kShape.block_chunks()) * kShape.all_backs() * kBytesPerBack;
#pragma unroll 1
  for (int chunk = 0; chunk < kShape.block_chunks(); ++chunk) {
    const int backs = chunk_backs(chunk);
#pragma unroll 1
    for (int back = 0; back < backs; back += kShape.stage_backs) {
      const int bytes = min(kShape.stage_backs, backs - back) * kBytesPerBack;
      ptx::wait_barrier(barriers.weight_empty(place.slot), place.parity ^ 1);
      ptx::expect_bytes(barriers.weight_full(place.slot), bytes);
      ptx::copy_bulk(ring + place.slot * kShape.weight_stage_bytes(), source, bytes, barriers.weight_full(place.slot));
      source += bytes;
      place.advance();
    }
    if (!kShape.even_planes()) source += (kShape.all_backs() - backs) * kBytesPerBack;
  }
}
"""
FILES["tile_stream_store_channels.cuh"] = r"""
// From the accumulators of a streaming block straight to the output, no thread waiting for another: vectors of
// neighbouring channels of a channels-last pixel, of which four threads fill whole sectors.

// Outputs of one cell, a vector at a time.
struct VectorStore {
  static constexpr int kVector = kShape.store_vector;
  static constexpr int kGroups = kShape.block_channels / (4 * kVector);  // of four threads' vectors

  const TileParams& params;
  const BlockRows& rows;
  const BlockCells& cells;
  Element* origin;    // the output of the tile's first cell and residue, which may lie outside, and its first channel
  int channels;       // of the block that exist
  bool whole;         // all outputs of the tile are inside
  unsigned exchange;  // shared memory of the warp

  __device__ __forceinline__ VectorStore(const TileParams& tile_params, const BlockRows& block_rows,
                                         const BlockCells& block_cells, unsigned exchanges)
      : params(tile_params), rows(block_rows), cells(block_cells) {
    exchange = exchanges + threadIdx.x / 32 * (kShape.exchange_bytes() / (kThreads / 32));
    channels = min(kShape.block_channels, kShape.out_channels - rows.first_channel);
    origin = static_cast<Element*>(params.output) + cells.first[0] * params.output_strides[0] +
             static_cast<long long>(rows.group) * kShape.out_channels + rows.first_channel;
    whole = cells.first[0] + kShape.tile[0] <= params.batch;
#pragma unroll
    for (int axis = 0; axis < 3; ++axis) {
      const int first = first_output(axis);
      origin += first * params.output_strides[2 + axis];
      const int last = first + (kShape.tile[1 + axis] - 1) * kShape.output_step(axis) + kShape.span[axis] - 1;
      whole = whole && first >= 0 && last < params.output_size[axis] &&
              rows.first_residue[axis] + kShape.span[axis] <= kShape.output_step(axis);
    }
  }
  __device__ __forceinline__ int first_output(int axis) const {
    return cells.first[1 + axis] * kShape.output_step(axis) + rows.first_residue[axis] - output_pad(params, axis);
  }

  // A bit for each slot of an axis whose output exists.
  __device__ __forceinline__ unsigned inside(int axis, int cell) const {
    unsigned bits = 0;
#pragma unroll
    for (int slot = 0; slot < kShape.slots[axis]; ++slot)
      bits |= output_site(params, rows, cells, axis, cell * kShape.span[axis] + kShape.residue_of(axis, slot)).inside
              << slot;
    return bits;
  }
  // Inside a tile distances are 32-bit: the planner sees to that.
  __device__ __forceinline__ int distance(int axis, int outputs) const {
    return outputs * static_cast<int>(params.output_strides[2 + axis]);
  }

  // All outputs of one cell of a tile; `half` says which of the thread's two. Warps come together.
  __device__ __forceinline__ void store(const CellTeam& team, int tile, int half, const CellPlace& place) const {
    unsigned exists[3] = {~0u, ~0u, ~0u};
    bool wanted = place.exists;
    if (!whole) {
      wanted = wanted && cells.first[0] + place.at[0] < params.batch;
#pragma unroll
      for (int axis = 0; axis < 3; ++axis) exists[axis] = wanted ? inside(axis, place.at[1 + axis]) : 0;
    }
    int from = place.at[0] * static_cast<int>(params.output_strides[0]);
#pragma unroll
    for (int axis = 0; axis < 3; ++axis) from += distance(axis, place.at[1 + axis] * kShape.output_step(axis));
    Element* const first = origin + from;
    if constexpr (kShape.exchanges_channels()) {
      exchange_cell(team, tile, half, first, exists, wanted);
    } else if (wanted) {
#pragma unroll
      for (int slot = 0; slot < kShape.all_slots(); ++slot) {
        if (!has_output(exists, slot)) continue;
#pragma unroll
        for (int group = 0; group < kGroups; ++group) {
          float values[kVector];
          take_sums(team, tile, half, slot * kGroups + group, values);
          store_group(first + slot_distance(slot), group, values);
        }
      }
    }
    if constexpr (kHasGaps) {
      if (wanted) store_gaps(first, place);
    }
  }

 private:
  static __device__ __forceinline__ int slot_along(int axis, int slot) {
    return axis == 2   ? slot % kShape.slots[2]
           : axis == 1 ? slot / kShape.slots[2] % kShape.slots[1]
                       : slot / (kShape.slots[2] * kShape.slots[1]);
  }
  static __device__ __forceinline__ bool has_output(const unsigned (&exists)[3], int slot) {
    return (exists[0] >> slot_along(0, slot) & exists[1] >> slot_along(1, slot) & exists[2] >> slot_along(2, slot) &
            1) != 0;
  }
  // From a cell's first output to that of a slot.
  __device__ __forceinline__ int slot_distance(int slot) const {
    int to = 0;
#pragma unroll
    for (int axis = 0; axis < 3; ++axis) to += distance(axis, kShape.residue_of(axis, slot_along(axis, slot)));
    return to;
  }
  // A vector's sums, of slot after slot; which channels they are is row_of_channel's.
  static __device__ __forceinline__ void take_sums(const CellTeam& team, int tile, int half, int vector,
                                                   float (&values)[kVector]) {
    const int octet = vector / kGroups * kShape.block_channels / 8 + vector % kGroups * kVector / 2;
#pragma unroll
    for (int i = 0; i < kVector; ++i) values[i] = team.octet(tile, octet + i / 2)[half * 2 + i % 2];
  }

  // Adds the bias.
  __device__ __forceinline__ void store_group(Element* pixel, int group, float (&values)[kVector]) const {
    const int channel = (group * 4 + threadIdx.x % 4) * kVector;
    if (channel >= channels) return;
#pragma unroll
    for (int i = 0; i < kVector; ++i) values[i] += bias_of(params, rows, channel + i);
    store_vector(pixel + channel, values);
  }

  // The same for sums of which a thread has two channels in each eight: the warp exchanges them, eight cells by 32
  // channels for one vector each, a few at a time. A cell of an eight moves by two places from one eight to the next,
  // so that reads meet no bank twice.
  __device__ __forceinline__ void exchange_cell(const CellTeam& team, int tile, int half, Element* first,
                                                const unsigned (&exists)[3], bool wanted) const {
    constexpr int kVectors = kShape.all_slots() * kGroups;
    constexpr int kAtOnce = TileShape::kExchanges;
    const int lane = threadIdx.x % 32;
    const auto place = [&](int index, int octet, int cell) {
      return exchange + index * 512 + octet * 128 + (cell + 2 * octet) % 8 * 16;
    };
#pragma unroll
    for (int begin = 0; begin < kVectors; begin += kAtOnce) {
      const int count = min(kAtOnce, kVectors - begin);
      __syncwarp();  // what was there has been read
#pragma unroll
      for (int i = 0; i < count; ++i) {
        float values[kVector];
        take_sums(team, tile, half, begin + i, values);
        const int channel = (begin + i) % kGroups * 32 + lane % 4 * 2;
#pragma unroll
        for (int j = 0; j < kVector; ++j) values[j] += bias_of(params, rows, channel + j / 2 * 8 + j % 2);
        unsigned words[4] = {};
        pack_vector(values, words);
        ptx::store_matrices(place(i, lane / 8, lane % 8), words);
      }
      __syncwarp();
      unsigned words[kAtOnce][4];
#pragma unroll
      for (int i = 0; i < count; ++i) ptx::load_shared<16>(place(i, lane % 4, lane / 4), words[i]);
#pragma unroll
      for (int i = 0; i < count; ++i) {
        const int slot = (begin + i) / kGroups;
        const int channel = ((begin + i) % kGroups * 4 + lane % 4) * kVector;
        if (wanted && has_output(exists, slot) && channel < channels)
          ptx::store_words(first + slot_distance(slot) + channel, words[i]);
      }
    }
  }

  // Outputs of no phase.
  __device__ __forceinline__ void store_gaps(Element* first, const CellPlace& place) const {
#pragma unroll 1
    for (int residue = 0; residue < kShape.span[0] * kShape.span[1] * kShape.span[2]; ++residue) {
      const int at[3] = {residue / (kShape.span[2] * kShape.span[1]), residue / kShape.span[2] % kShape.span[1],
                         residue % kShape.span[2]};
      bool wanted = true;
      bool has_phase = true;
      Element* pixel = first;
#pragma unroll
      for (int axis = 0; axis < 3; ++axis) {
        const OutputSite site =
            output_site(params, rows, cells, axis, place.at[1 + axis] * kShape.span[axis] + at[axis]);
        wanted = wanted && site.inside;
        has_phase = has_phase && site.slot >= 0;
        pixel += distance(axis, at[axis]);
      }
      if (!wanted || has_phase) continue;
#pragma unroll 1
      for (int group = 0; group < kGroups; ++group) {
        float values[kVector] = {};
        store_group(pixel, group, values);
      }
    }
  }
};

__device__ __forceinline__ void store_directly(const VectorStore& store, const CellTeam& team) {
#pragma unroll
  for (int tile = 0; tile < CellTeam::kCellTiles; ++tile) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const CellPlace place = cell_place(team.column(tile) + half * 8);
      store.store(team, tile, half, place);
    }
  }
}
"""
FILES["tile_stream_store_gather.cuh"] = r"""
// From the sums of blocks that share a tile to a channels-last output: each block lays its sums down in shared memory,
// cell after cell, and adds up those of all blocks for its share of the outputs, vectors of channels at a time. Single
// words of another block's memory cost as much as vectors of them.

struct GatheredSums {
  static constexpr int kPitch = kShape.gathered_pitch();
  static constexpr int kVector = kShape.store_vector;
  static constexpr int kVectors = kShape.block_channels / kVector;  // of an output
  static_assert(kVector % 4 == 0);                                  // as the sums of other blocks come

  const TileParams& params;
  const BlockRows& rows;
  const BlockCells& cells;
  unsigned staged;

  __device__ __forceinline__ void stage(const CellTeam& team) const {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int tile = 0; tile < CellTeam::kCellTiles; ++tile) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const unsigned cell = staged + ((team.column(tile) + half * 8) * kPitch + lane % 4 * 2) * 4;
#pragma unroll
        for (int octet = 0; octet < CellTeam::kOctets; ++octet) {
          const float (&sums)[4] = team.octet(tile, octet);
          const unsigned pair[2] = {__float_as_uint(sums[2 * half]), __float_as_uint(sums[2 * half + 1])};
          ptx::store_shared(cell + octet * 32, pair);
        }
      }
    }
  }

  // In the order of the blocks' ranks, the bias last.
  __device__ __forceinline__ void add_up(const Position& position, int channel, float (&values)[kVector]) const {
    if (position.slot >= 0) {
      const unsigned address =
          staged + (position.column * kPitch + position.slot * kShape.block_channels + channel) * 4;
#pragma unroll
      for (int first = 0; first < kVector; first += 4) {
        float parts[kShape.depth_blocks][4];
#pragma unroll
        for (int rank = 0; rank < kShape.depth_blocks; ++rank)
          ptx::load_vector_from_block(address + first * 4, rank, parts[rank]);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          values[first + i] = parts[0][i];
#pragma unroll
          for (int rank = 1; rank < kShape.depth_blocks; ++rank) values[first + i] += parts[rank][i];
        }
      }
    }
    if (!kShape.bias) return;
#pragma unroll
    for (int i = 0; i < kVector; ++i) values[i] += bias_of(params, rows, channel + i);
  }

  __device__ __forceinline__ void store(int rank) const {
    Element* const output = static_cast<Element*>(params.output) + cells.first[0] * params.output_strides[0] +
                            static_cast<long long>(rows.group) * kShape.out_channels + rows.first_channel;
    const int channels = kShape.out_channels - rows.first_channel;
#pragma unroll 1
    for (int index = rank * kThreads + threadIdx.x; index < kPositions * kVectors;
         index += kThreads * kShape.depth_blocks) {
      const Position position = position_of(params, rows, cells, index / kVectors);
      const int channel = index % kVectors * kVector;
      if (!position.inside || channel >= channels) continue;
      float values[kVector] = {};
      add_up(position, channel, values);
      store_vector(output + position.place + channel, values);
    }
  }
};

__device__ __forceinline__ void store_gathered(const TileParams& params, const TilePlace& place, const CellTeam& team,
                                               unsigned staged) {
  const GatheredSums sums{params, place.rows, place.cells, staged};
  sums.stage(team);
  ptx::cluster_barrier();
  sums.store(place.rank);
  ptx::cluster_barrier();  // before the block's shared memory is another's
}
"""
FILES["tile_stream_store_image.cuh"] = r"""
// Outputs of a streaming block through shared memory, as they will lie in the tensor: rounded, the phases of a row side
// by side. They leave it in vectors, and rows that follow each other in the tensor as one.

// Of the threads that store together, how many take neighbouring places; the others take other channels.
constexpr int threads_across(int threads, int places) {
  int across = places < threads ? places : threads;
  while (threads % across != 0) ++across;
  return across;
}

struct OutputImage {
  static constexpr int kBytes = kShape.element_bytes;
  static constexpr int kChannelPitch = kShape.image_pitch();
  static constexpr int kOctets = (kTurnChannels + 7) / 8;  // of a phase's channels, in a turn
  static constexpr int kRow = kShape.image_row;
  static constexpr int kVector = kShape.row_vector;
  static constexpr int kLine = kShape.image_line();
  // Where columns are outputs, a team stores its own, and waits for no other.
  static constexpr bool kAlone = kShape.image_of_columns();
  static constexpr int kStoring = kAlone ? 128 : kThreads;
  // Neighbouring threads take neighbouring vectors, of the same channels.
  static constexpr int kPlaces = (kAlone ? kShape.column_tiles * 8 : kShape.image_outputs()) / kVector;
  static constexpr int kAcross = threads_across(kStoring, kPlaces);

  const TileParams& params;
  const BlockRows& rows;
  const BlockCells& cells;
  unsigned image;

  __device__ __forceinline__ OutputImage(const TileParams& tile_params, const BlockRows& block_rows,
                                         const BlockCells& block_cells, unsigned shared)
      : params(tile_params), rows(block_rows), cells(block_cells), image(shared) {}

  __device__ __forceinline__ void store(const CellTeam& team, const TensorMap* map) const {
    Element* output =
        static_cast<Element*>(params.output) + cells.first[0] * params.output_strides[0] +
        (static_cast<long long>(rows.group) * kShape.out_channels + rows.first_channel) * params.output_strides[1];
    const int thread = ptx::opaque(threadIdx.x % kStoring);  // or places would be kept from tile to tile
    if (!kShape.stays) sync_storing();                       // what is there has been multiplied
    constexpr int kTurns = kShape.block_channels / kTurnChannels;
    // A loop, so that the code that copies is there once and compiles soon.
#pragma unroll 1
    for (int turn = 0; turn < kTurns; ++turn) {
      if (kShape.sends()) ptx::wait_for_bulk_reads();
      // What is there must have left.
      if (kShape.stays || turn > 0) sync();
      // Which sums a turn takes must be known to the compiler.
#pragma unroll
      for (int known = 0; known < kTurns; ++known) {
        if (known == turn) stage_turn(team, known);
      }
      if (kShape.sends()) ptx::fence_for_async_proxy();
      sync();
      const int channels = min(kTurnChannels, kShape.out_channels - rows.first_channel - turn * kTurnChannels);
      if constexpr (kShape.sends_boxes) {
        if (thread == 0) send_box(team, map);
      } else if constexpr (kShape.sends_lines) {
        send_pieces(team, channels, output);
      } else {
#pragma unroll 1
        for (int place = thread % kAcross; place < kPlaces; place += kAcross)
          copy_out(site_of(team, place * kVector), channels, output);
      }
      output += kTurnChannels * params.output_strides[1];
    }
  }

 private:
  static __device__ __forceinline__ void sync() {
    if constexpr (kAlone) {
      ptx::sync_warpgroup(threadIdx.x / 128);
    } else {
      sync_storing();
    }
  }

  // Of two neighbouring channels of each eight, those of a thread.
  struct Bias {
    float add[kShape.bias ? kOctets : 1][2];

    __device__ __forceinline__ Bias(const OutputImage& owner, int turn) {
      const int lane_channel = threadIdx.x % 4 * 2;
#pragma unroll
      for (int i = 0; kShape.bias && i < kOctets * 2; ++i)
        add[i / 2][i % 2] = bias_of(owner.params, owner.rows, turn * kTurnChannels + i / 2 * 8 + lane_channel + i % 2);
    }
    __device__ __forceinline__ float operator()(float sum, int octet, int side) const {
      if constexpr (kShape.bias) {
        return sum + add[octet][side];
      } else {
        return sum;
      }
    }
  };

  static __device__ __forceinline__ unsigned pair(float low, float high) {
    return kShape.math == TileMath::f16 ? ptx::pack_f16(low, high) : ptx::pack_bf16(low, high);
  }

  __device__ __forceinline__ void stage_turn(const CellTeam& team, int turn) const {
    if constexpr (kAlone) {
      stage_columns(team, turn);
    } else {
      stage_phases(team, turn);
    }
  }
  // One output for each cell. Of two-byte elements eight cells of a channel are stored at once; columns without a cell
  // have a place, too.
  __device__ __forceinline__ void stage_columns(const CellTeam& team, int turn) const {
    const Bias bias(*this, turn);
    const int lane = ptx::opaque(threadIdx.x % 32);  // or places would be kept in registers from turn to turn
    const int column = team.first_column + threadIdx.x / 32 % 4 * 16;
    if constexpr (kBytes == 2) {
      const int channel = lane % 8 + lane / 16 * 8;
      // Of a box, eight cells of a channel lie where the copy engine looks for them: that spreads channels over the
      // banks.
      const unsigned at = kShape.sends_boxes ? box_of(team) + channel * kChannelPitch +
                                                   ((threadIdx.x / 32 % 4 * 2 + lane / 8 % 2) ^ lane % 8) * 16
                                             : image + channel * kChannelPitch + (column + lane / 8 % 2 * 8) * kBytes;
      const auto word = [&](int tile, int octet, int half) {
        const float (&sums)[4] = team.octet(tile, turn * kOctets + octet);
        return pair(bias(sums[half * 2], octet, 0), bias(sums[half * 2 + 1], octet, 1));
      };
#pragma unroll
      for (int octet = 0; octet < kOctets; octet += 2) {
#pragma unroll
        for (int tile = 0; tile < CellTeam::kCellTiles; ++tile) {
          const unsigned place = at + octet * 8 * kChannelPitch + tile * 64 * kBytes;
          if (octet + 1 < kOctets) {
            const unsigned words[4] = {word(tile, octet, 0), word(tile, octet, 1), word(tile, octet + 1, 0),
                                       word(tile, octet + 1, 1)};
            ptx::store_matrices_transposed(place, words);
          } else {
            const unsigned words[2] = {word(tile, octet, 0), word(tile, octet, 1)};
            ptx::store_matrices_transposed(place, words);
          }
        }
      }
    } else {
      const unsigned at = image + lane % 4 * 2 * kChannelPitch + (column + lane / 4) * kBytes;
#pragma unroll
      for (int octet = 0; octet < kOctets; ++octet) {
#pragma unroll
        for (int i = 0; i < CellTeam::kCellTiles * 4; ++i) {
          const float sum[1] = {bias(team.octet(i / 4, turn * kOctets + octet)[i % 4], octet, i % 2)};
          stage(at + (octet * 8 + i % 2) * kChannelPitch + (i / 4 * 64 + i / 2 % 2 * 8) * kBytes, sum);
        }
      }
    }
  }

  // Several outputs for each cell: neighbouring phases of the width at once, where a row begins with a whole cell.
  __device__ __forceinline__ void stage_phases(const CellTeam& team, int turn) const {
    constexpr bool kLeavesOut = kWidths != kRow;
    constexpr int kMost = kLeavesOut ? 1 : kShape.vector();
    constexpr int kAtOnce = kShape.span[2] % kMost == 0             ? kMost
                            : kMost >= 4 && kShape.span[2] % 4 == 0 ? 4
                            : kMost >= 2 && kShape.span[2] % 2 == 0 ? 2
                                                                    : 1;
    const Bias bias(*this, turn);
    const int lane = ptx::opaque(threadIdx.x % 32);
#pragma unroll
    for (int i = 0; i < CellTeam::kCellTiles * 2; ++i) {
      const CellPlace place = cell_place(ptx::opaque(team.column(i / 2)) + i % 2 * 8);
      if (!place.exists) continue;
      const auto& [n, d, h, w] = place.at;
      const int row = (n * kDepths + d * kShape.span[0]) * kHeights + h * kShape.span[1];
      const int first = w * kShape.span[2] - kShape.image_lead;
      const unsigned at = image + (row * kRow + first) * kBytes + lane % 4 * 2 * kChannelPitch;
#pragma unroll
      for (int slot = 0; slot < kShape.all_slots(); slot += kAtOnce) {
        const int phase = slot % kShape.slots[2];
        const int height = slot / kShape.slots[2] % kShape.slots[1];
        const int depth = slot / kShape.slots[2] / kShape.slots[1];
        if (kLeavesOut && static_cast<unsigned>(first + phase) >= static_cast<unsigned>(kRow)) continue;
#pragma unroll
        for (int j = 0; j < kOctets * 2; ++j) {
          float values[kAtOnce];
#pragma unroll
          for (int k = 0; k < kAtOnce; ++k) {
            const int octet = (slot + k) * kShape.block_channels / 8 + turn * kOctets + j / 2;
            values[k] = bias(team.octet(i / 2, octet)[i % 2 * 2 + j % 2], j / 2, j % 2);
          }
          stage(at + ((depth * kHeights + height) * kRow + phase) * kBytes + (j / 2 * 8 + j % 2) * kChannelPitch,
                values);
        }
      }
    }
  }
  template <int kCount>
  static __device__ __forceinline__ void stage(unsigned place, const float (&values)[kCount]) {
    if constexpr (kBytes == 2 && kCount == 1) {
      ptx::store_shared_half(place, to_storage(values[0], Element()));
    } else {
      unsigned words[kCount * kBytes / 4];
#pragma unroll
      for (int i = 0; i < kCount * kBytes / 4; ++i) {
        if constexpr (kBytes == 2) {
          words[i] = pair(values[2 * i], values[2 * i + 1]);
        } else {
          words[i] = __float_as_uint(values[i]);
        }
      }
      ptx::store_shared(place, words);
    }
  }

  // Where an output of the image goes, counted from the team's first column, or over [sample][depth][height][width].
  struct Site {
    int from;         // elements, from the channel's first
    long long place;  // from the block's first sample and channel
    bool inside;
  };
  __device__ __forceinline__ Site site_of(const CellTeam& team, int index) const {
    Site site;
    int at[4];  // sample, depth, height, and place along a line
    if constexpr (kAlone) {
      site.from = team.first_column + index;
      const CellPlace cell = cell_place(site.from);
#pragma unroll
      for (int i = 0; i < 4; ++i) at[i] = cell.at[i];
      if (kShape.joins_rows) at[3] += at[2] * kRow;
      site.inside = cell.exists && index < kPlaces * kVector;  // those that follow are another team's
    } else {
      site.from = index;
      at[3] = index % kLine;
      at[2] = kShape.joins_rows ? 0 : index / kLine % kHeights;
      const int plane = index / (kHeights * kRow);
      at[1] = plane % kDepths;
      at[0] = plane / kDepths;
      site.inside = index < kPlaces * kVector;
    }
    const OutputSite d = output_site(params, rows, cells, 0, at[1]);
    site.place = at[0] * params.output_strides[0] + d.place;
    site.inside = site.inside && d.inside && cells.first[0] + at[0] < params.batch;
    if constexpr (kShape.joins_rows) {
      const int first = cells.first[2] * kShape.output_step(1) - output_pad(params, 1);
      const int output = first * kRow + at[3];
      site.place += output;
      site.inside = site.inside && static_cast<unsigned>(output) < static_cast<unsigned>(params.output_size[1] * kRow);
    } else {
      const OutputSite h = output_site(params, rows, cells, 1, at[2]);
      const OutputSite w = output_site(params, rows, cells, 2, at[3] + kShape.image_lead);
      site.place += h.place + w.place;
      site.inside = site.inside && h.inside && w.inside;
    }
    return site;
  }

  __device__ __forceinline__ unsigned box_of(const CellTeam& team) const {
    return image + team.first_column * kTurnChannels * kBytes;
  }
  // A team's columns by the copy engine, which leaves out what is not inside.
  __device__ __forceinline__ void send_box(const CellTeam& team, const TensorMap* map) const {
    const CellPlace cell = cell_place(team.first_column);
    if (!cell.exists) return;
    int at[5] = {0, 0, 0, rows.group * kShape.out_channels + rows.first_channel, cells.first[0] + cell.at[0]};
#pragma unroll
    for (int axis = 0; axis < 3; ++axis)
      at[2 - axis] = cells.first[1 + axis] + cell.at[1 + axis] - output_pad(params, axis);
    ptx::copy_tensor_out(map, at, box_of(team));
    ptx::commit_bulk();
  }

  // Lines by the copy engine, as far as they are inside.
  __device__ __forceinline__ void send_pieces(const CellTeam& team, int channels, Element* output) const {
    constexpr int kPiece = kShape.image_piece();
    constexpr int kPieces = kPlaces * kVector / kPiece;
    constexpr int kAxis = kShape.joins_rows ? 1 : 2;
    const int unit = kShape.joins_rows ? kRow : 1;
    const int first = (cells.first[1 + kAxis] * kShape.output_step(kAxis) - output_pad(params, kAxis)) * unit +
                      (kShape.joins_rows ? 0 : kShape.image_lead);
#pragma unroll 1
    for (int item = threadIdx.x % kStoring; item < kPieces * kTurnChannels; item += kStoring) {
      const int channel = item % kTurnChannels;
      const int piece = item / kTurnChannels * kPiece;
      const int along = first + (kAlone ? team.first_column + piece : piece) % kLine;
      const int begin = max(-along, 0);
      const int end = min(kPiece, params.output_size[kAxis] * unit - along);
      const Site site = site_of(team, piece + begin);
      if (!site.inside || channel >= channels) continue;
      ptx::copy_bulk_out(output + site.place + channel * params.output_strides[1],
                         image + channel * kChannelPitch + site.from * kBytes, (end - begin) * kBytes);
    }
    ptx::commit_bulk();
  }

  // A vector of each channel, or of some of them.
  __device__ __forceinline__ void copy_out(const Site& site, int channels, Element* output) const {
    if (!site.inside) return;
    constexpr int kTeams = kStoring / kAcross;
    constexpr int kRounds = (kTurnChannels + kTeams - 1) / kTeams;
    constexpr int kAtOnce = kRounds % 4 == 0 ? 4 : kRounds % 3 == 0 ? 3 : kRounds % 2 == 0 ? 2 : 1;
    constexpr bool kWhole = kShape.out_channels % kShape.block_channels == 0 && kTurnChannels % kTeams == 0;
    constexpr int kCopyBytes = kVector * kBytes;
    const int team = threadIdx.x % kStoring / kAcross;
    const long long stride = params.output_strides[1];
    Element* out = output + site.place + team * stride;
    unsigned from = image + site.from * kBytes + team * kChannelPitch;
#pragma unroll(kRounds <= 32 ? kRounds / kAtOnce : 4)
    for (int round = 0; round < kRounds; round += kAtOnce) {
      const auto exists = [&](int i) { return kWhole || team + (round + i) * kTeams < channels; };
      unsigned words[kAtOnce][kCopyBytes < 4 ? 1 : kCopyBytes / 4];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        if (exists(i)) ptx::load_shared<kCopyBytes>(from + i * kTeams * kChannelPitch, words[i]);
      }
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        if (exists(i)) leave(out + i * kTeams * stride, words[i]);
      }
      out += kAtOnce * kTeams * stride;
      from += kAtOnce * kTeams * kChannelPitch;
    }
  }
  template <int kWords>
  static __device__ __forceinline__ void leave(Element* out, const unsigned (&words)[kWords]) {
    if constexpr (kVector * kBytes == 2) {
      *out = static_cast<Element>(words[0]);
    } else {
      ptx::store_words(out, words);
    }
  }
};
"""
FILES["tile_stream_tap_boxes.cuh"] = r"""
// Stages of a forward layer's weights straight out of a channels-last tensor by the copy engine, a box for each tap:
// rows of up to 128 bytes with channels of the block's rows, one for each summed channel.
//
// The config defines kWeightTaps: for each distance and slot, where the tap stands in the kernel (ten bits each, the
// width's lowest) or -1, and kStageBoxes: for each stage, how many of them there are. Each of these twice: where a
// chunk's boxes are unrolled, places are known when it is compiled, and one copy does not wait for the next one's
// place.

#include "tile_stream_load.cuh"

// By one thread.
__device__ __forceinline__ void stream_weight_boxes(const StreamParams& stream, const BlockRows& rows, int rank,
                                                    const StreamBarriers& barriers, unsigned ring,
                                                    RingPlace<kShape.weight_ring>& place) {
  constexpr int kSlots = kShape.all_slots();
  constexpr int kStages = kShape.stages_per_chunk();
  constexpr bool kKnown = kShape.all_backs() * kSlots * kShape.weight_runs() <= 16;
#pragma unroll 1
  for (int index = 0; index < kShape.block_chunks(); ++index) {
    const int chunk = rank * kShape.block_chunks() + index;
    const int summed = rows.group * kShape.channels + chunk * kShape.chunk_channels();
#pragma unroll(kKnown ? kStages : 1)
    for (int stage = 0; stage < kStages; ++stage) {
      const unsigned full = barriers.weight_full(place.slot);
      unsigned target = ring + place.slot * kShape.weight_stage_bytes();
      const int first = stage * kShape.stage_backs;
      ptx::wait_barrier(barriers.weight_empty(place.slot), place.parity ^ 1);
      const int boxes = (kKnown ? kFixedStageBoxes[stage] : kStageBoxes[stage]) * kShape.weight_runs();
      ptx::expect_bytes(full, boxes * kShape.weight_box_bytes());
#pragma unroll(kKnown ? kShape.stage_backs * kSlots : 1)
      for (int i = 0; i < kShape.stage_backs * kSlots; ++i) {
        // Not the loop's own bound: unrolled by a number, NVRTC 13.0 went on to it where the last stage ends before.
        if (first * kSlots + i >= kShape.all_backs() * kSlots) break;
        const int tap = kKnown ? kFixedWeightTaps[first * kSlots + i] : kWeightTaps[first * kSlots + i];
#pragma unroll(kKnown ? kShape.weight_runs() : 1)
        for (int run = 0; run < kShape.weight_runs(); ++run) {
          const int at[5] = {rows.first_channel + run * kShape.weight_run(), (tap & 1023) + rows.first_residue[2],
                             (tap >> 10 & 1023) + rows.first_residue[1], (tap >> 20) + rows.first_residue[0], summed};
          if (tap >= 0) ptx::copy_tensor(target, &stream.weight, at, full);
          target += kShape.weight_box_bytes();
        }
      }
      place.advance();
    }
  }
}
"""
FILES["tile_stream_team.cuh"] = r"""
// What the warps of a streaming block that multiply have: sums in registers, and where their cells lie in a box.

#include "split.cuh"
#include "tile_stream_load.cuh"

constexpr int kThreads = kShape.multiplying_threads();
constexpr int kRowTiles = kShape.row_tiles;
constexpr int kColumnTiles = kShape.column_tiles;
constexpr int kSteps = kShape.slabs / 2;
constexpr int kLine = kShape.line_backs();
// Items of a chunk: one step of depth, or a few, at one distance, or at all distances of a line.
constexpr int kItemSteps = kShape.item_steps;
constexpr int kLineItems = kSteps / kItemSteps;
constexpr int kItems = kShape.all_backs() / kLine * kLineItems;
constexpr int kStageItems = kShape.stage_backs / kLine * kLineItems;
// A chunk with fewer of them ends with the same set of registers as the others.
static_assert(kShape.even_planes() || kLineItems % 2 == 0);
static_assert(kSteps % kItemSteps == 0);
constexpr int kPlanes = kShape.even_planes() ? 1 : kShape.all_plane_groups();
// Whether no product can be left out: at every distance each row tile has a tap.
constexpr bool has_all_products() {
  for (int back = 0; !kShape.all_taps && back < kShape.all_backs(); ++back) {
    if ((~kFixedBackRows[back] & ((1u << kRowTiles) - 1)) != 0) return false;
  }
  return true;
}
// Unrolled, an item's place and missing products are known to the compiler, which pays where items have few products.
// Many of them take long to compile; after an odd number of items the next chunk is code of its own. Where items have
// very many, what a loop does between them costs nothing, and little where they have some: up to 2% of a forward
// kernel's time, 5% of a gradient's.
constexpr int kChunkCost = kShape.all_backs() * kSteps * kRowTiles * (kColumnTiles / 8) * kShape.product_cost();
constexpr int kGroupsCost = kShape.all_group_taps() * kSteps * ((kShape.rows() + 63) / 64) * (kColumnTiles / 8);
constexpr int kItemProducts = kShape.item_products();
constexpr int kMostCost = kItemProducts > 16 ? 1000 : kItemProducts > 4 && !kShape.gradient ? 1250 : 1450;
constexpr bool kSoonCompiled = kPlanes == 1 ? kChunkCost * (1 + kItems % 2) <= kMostCost : kGroupsCost <= 80;
constexpr bool kUnrolled = !has_all_products() || (!kShape.splits() && kSoonCompiled);
constexpr int kFewItems = 12;

// Which cell of the block's box a column is. Columns without a cell stand for some cell of the box.
struct CellPlace {
  int at[4];  // sample, depth, height, width
  bool exists;
};
__device__ __forceinline__ CellPlace cell_place(int column) {
  constexpr int kLineDimension = kShape.stacks_tiles() ? 1 + kShape.line_axis : -1;
  constexpr int kCells = kShape.stacks_tiles() ? kShape.cells() / kShape.tile[kLineDimension] : kShape.cells();
  CellPlace place;
  int cell = kShape.stacks_tiles() ? column % 64 : column;
  place.exists = cell < kCells;
  if (!place.exists) cell = 0;
#pragma unroll
  for (int dimension = 3; dimension >= 0; --dimension) {
    if (dimension == kLineDimension) {
      place.at[dimension] = column / 64;
      place.exists = place.exists && place.at[dimension] < kShape.tile[dimension];
    } else {
      place.at[dimension] = cell % kShape.tile[dimension];
      cell /= kShape.tile[dimension];
    }
  }
  return place;
}

struct CellTeam {
  static constexpr int kCellTiles = kShape.column_tiles / 8;  // of 64 cells
  static constexpr int kOctets = kShape.rows() / 8;
  static constexpr int kUnitOctets = kShape.row_unit / 8;
  static constexpr int kFragments = kShape.line_fragments();
  // Tiles whose place in the box is kept; the others lie steps along the line from the first.
  static constexpr int kPlaces = kShape.line_axis >= 0 ? 1 : kCellTiles;

  // What the first half of an item multiplies.
  static constexpr int kFirstFragments = kShape.takes_turns() ? (kFragments + 1) / 2 : kFragments;
  static constexpr int kFirstProducts = kShape.halves_items() ? (kItemProducts + 1) / 2 : kItemProducts;

  float sum[kCellTiles][kRowTiles][kUnitOctets][4] = {};
  // Where factors are split: the sum of a few products, on its way to `sum`.
  static constexpr int kPartTiles = kShape.splits() ? kCellTiles : 1;
  float part[kPartTiles][kRowTiles][kUnitOctets][4] = {};
  // Bytes from the box's first element to this thread's cells and first channel, or to the 16 bytes that it names to
  // the others of its warp: channels of a cell (tensor copies), or cells of a channel.
  static constexpr int kOtherCell = kShape.other_cell();  // from the first to the other, where that is known
  static constexpr int kNamed = kShape.tensor_copies || kShape.names_vectors() || kOtherCell > 0 ? 1 : 2;
  unsigned at[kPlaces][kNamed];
  int first_column;
  static constexpr int depth_team = 0;

  __device__ __forceinline__ CellTeam(const TileParams& params, const BlockCells& cells) {
    const int lane = threadIdx.x % 32;
    first_column = static_cast<int>(threadIdx.x) / 128 * kShape.column_tiles * 8;
    constexpr int kPair = 8 / kShape.element_bytes;  // elements that a lane loads of a window, or of two
    const int channel = kShape.tensor_copies         ? 0
                        : kShape.names_vectors()     ? (lane % 8 + lane / 16 * 8) * kShape.channel_pitch()
                        : kShape.input_channels_last ? lane % 4 * 4
                        : kShape.window > 1          ? lane % 4 * kPair / kShape.window * kShape.channel_pitch() +
                                                           lane % 4 * kPair % kShape.window * kShape.element_bytes
                                                     : lane % 4 * (4 / kShape.element_bytes) * kShape.channel_pitch();
#pragma unroll
    for (int i = 0; i < kPlaces; ++i) {
#pragma unroll
      for (int half = 0; half < kNamed; ++half) {
        const int first = column(i) - lane / 4;
        const int named = kShape.tensor_copies     ? first + lane % 16
                          : kShape.names_vectors() ? first + lane / 8 % 2 * 8
                                                   : column(i) + half * 8;
        const CellPlace place = cell_place(named);
        const auto& [n, d, h, w] = place.at;
        at[i][half] = channel + box_lead(params, cells) * kShape.element_bytes +
                      w * kShape.cell_step(2) * kShape.box_step(2) + h * kShape.cell_step(1) * kShape.box_step(1) +
                      (d * kShape.cell_step(0) + n * kShape.box(0)) * kShape.box_step(0);
      }
    }
  }

  // The first of this thread's two cells of a tile; the other is eight cells further.
  __device__ __forceinline__ int column(int tile) const {
    return first_column + tile * 64 + threadIdx.x / 32 % 4 * 16 + threadIdx.x % 32 / 4;
  }
  __device__ __forceinline__ const float (&octet(int tile, int index) const)[4] {
    return sum[tile][index / kUnitOctets][index % kUnitOctets];
  }

  // One for each tile of cells, or for each cell of a line that any of its distances reaches; where factors are split,
  // the small parts after the big ones.
  using Fragments = unsigned[kItemSteps * kShape.weight_parts() * kFragments][4];

  // Rows of a fragment are cells, its columns channels: two words each, four channels (or eight, in pairs) apart.
  // `item` counts those of a line.
  template <int kBegin = 0, int kEnd = kFragments>
  __device__ __forceinline__ void load(Fragments& out, unsigned stage, int offset, int item) const {
#pragma unroll
    for (int i = 0; i < kItemSteps; ++i) {
      if constexpr (kShape.window > 1) {
        load_windows<kBegin, kEnd>(out + i * kFragments, stage, offset, item * kItemSteps + i);
      } else {
        load_channels<kBegin, kEnd>(out + i * kFragments, stage, offset, item * kItemSteps + i);
      }
    }
    if constexpr (kShape.splits() && !kShape.splits_late()) split(out, out);
  }
  template <int kBegin, int kEnd>
  __device__ __forceinline__ void load_channels(unsigned (*out)[4], unsigned stage, int offset, int step) const {
#pragma unroll
    for (int i = kBegin; i < kEnd; ++i) {
      if constexpr (kShape.tensor_copies) {
        load_named(out[i], stage + at[kPlaces > 1 ? i : 0][0] + offset + i * kShape.line_step(), step);
        continue;
      }
      if constexpr (kShape.names_vectors()) {
        ptx::load_matrices_transposed(out[i], stage + at[kPlaces > 1 ? i : 0][0] + offset + i * kShape.line_step() +
                                                  step * 16 * kShape.channel_pitch());
        continue;
      }
#pragma unroll
      for (int word = 0; word < 4; ++word) {
        const unsigned cell = stage + at[kPlaces > 1 ? i : 0][kNamed > 1 ? word % 2 : 0] + offset +
                              i * kShape.line_step() + word % 2 * kOtherCell;
        if constexpr (kShape.input_channels_last) {
          out[i][word] = rounded(ptx::load_shared_32(cell + step * 32 + word / 2 * 16));
        } else if constexpr (kShape.element_bytes == 4) {
          out[i][word] = rounded(ptx::load_shared_32(cell + (step * 8 + word / 2 * 4) * kShape.channel_pitch()));
        } else {
          const unsigned pair = cell + (step * 16 + word / 2 * 8) * kShape.channel_pitch();
          out[i][word] = ptx::load_shared_16(pair) | ptx::load_shared_16(pair + kShape.channel_pitch()) << 16;
        }
      }
    }
  }
  static __device__ __forceinline__ void split(Fragments& out, const Fragments& words) {
#pragma unroll
    for (int i = 0; i < kFragments; ++i) {
#pragma unroll
      for (int word = 0; word < 4; ++word) {
        const SplitWord parts(words[i][word]);
        out[i][word] = parts.big;
        out[(kShape.weight_parts() - 1) * kFragments + i][word] = parts.small;
      }
    }
  }
  // The same by the lanes of a warp together, each of which names 16 bytes: sixteen cells, and the next vector of
  // channels for all of them. Where they lie is the copy engine's rule: three bits of the address from bits further up.
  static __device__ __forceinline__ void load_named(unsigned (&out)[4], unsigned cell, int step) {
    const unsigned vector = (cell >> 3 & (kShape.slabs - 1) * 16) ^ (step * 2 + threadIdx.x % 32 / 16) * 16;
    ptx::load_matrices(out, cell ^ vector);
#pragma unroll
    for (unsigned& word : out) word = rounded(word);
  }
  // Columns are taps of a window, or of several channels' windows: both words of a cell lie side by side.
  template <int kBegin, int kEnd>
  __device__ __forceinline__ void load_windows(unsigned (*out)[4], unsigned stage, int offset, int step) const {
    constexpr int kChannels = kShape.chunk_read_channels() / kSteps;  // of a step
    // Places may be as little as a word apart; of two-byte elements, a window of two is one word.
    constexpr int kPair = 8 / kShape.element_bytes;
    constexpr bool kTwoWords = kShape.window % kPair == 0 && kShape.granule % kPair == 0 && kShape.lead % kPair == 0 &&
                               kShape.stride[2] % kPair == 0;
    constexpr int kNext = kShape.window * kShape.element_bytes >= 8 ? 4 : kShape.channel_pitch();
#pragma unroll
    for (int i = kBegin; i < kEnd; ++i) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const unsigned cell = stage + at[kPlaces > 1 ? i : 0][kNamed > 1 ? half : 0] + offset + i * kShape.line_step() +
                              half * kOtherCell + step * kChannels * kShape.channel_pitch();
        unsigned words[2];
        if constexpr (kTwoWords) {
          ptx::load_shared_64(cell, words);
        } else {
          words[0] = ptx::load_shared_32(cell);
          words[1] = ptx::load_shared_32(cell + kNext);
        }
        out[i][half] = rounded(words[0]);
        out[i][2 + half] = rounded(words[1]);
      }
    }
  }
  static __device__ __forceinline__ unsigned rounded(unsigned word) {
    return kRoundsToTf32 ? ptx::round_to_tf32(__uint_as_float(word)) : word;
  }

  // The products of one half of an item, or of all of it; `weights` is the descriptor of its first row. Of split
  // factors the small ones come first, so that they are not cut off.
  template <bool kFirst>
  __device__ __forceinline__ void add(const Fragments& cells, unsigned weights, int line) {
    ptx::fence_warpgroup();
    if constexpr (kShape.splits()) {
      add_products<kFirst>(part, cells, kFragments, weights, line);
      add_products<kFirst>(part, cells, 0, weights + kShape.slabs * kShape.weight_slab_pitch(), line);
      add_products<kFirst>(part, cells, 0, weights, line);
    } else {
#pragma unroll
      for (int i = 0; i < kItemSteps; ++i)
        add_products<kFirst>(sum, cells, i * kFragments, weights + i * kShape.weight_depth_pitch(), line);
    }
    ptx::commit_warpgroup();
  }

  // Adds the products to the sums that were kept, once they are done: the tensor cores cut the bits that they shift
  // out, so that long sums of theirs would be too small. What this addition rounds away goes to the next part.
  __device__ __forceinline__ void keep_part() {
#pragma unroll
    for (int i = 0; i < kPartTiles; ++i) {
#pragma unroll
      for (int octet = 0; octet < kOctets; ++octet) {
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          float& rest = part[i][octet / kUnitOctets][octet % kUnitOctets][j];
          float& kept = sum[i][octet / kUnitOctets][octet % kUnitOctets][j];
          const float added = ptx::waited_for(rest);
          const float before = kept;
          kept = before + added;
          rest = added - (kept - before);
        }
      }
    }
  }

  static constexpr unsigned long long kDescriptor = kShape.weight_descriptor();
  // With the fragments from `first` on.
  template <bool kFirst, typename Sums>
  static __device__ __forceinline__ void add_products(Sums& sums, const Fragments& cells, int first, unsigned weights,
                                                      int line) {
#pragma unroll
    for (int back = 0; back < kLine; ++back) {
      const unsigned tiles = kUnrolled ? kFixedBackRows[line * kLine + back] : ~0u;
      const unsigned b = weights + back * kShape.weight_back_pitch();
#pragma unroll
      for (int tile = 0; tile < kRowTiles; ++tile) {
        if ((tiles >> tile & 1) == 0) continue;
#pragma unroll
        for (int i = 0; i < kCellTiles; ++i) {
          const int fragment = i * kShape.tile_fragments() + line_place(back);
          const int product = (back * kRowTiles + tile) * kCellTiles + i;
          if ((kShape.takes_turns() ? fragment < kFirstFragments : product < kFirstProducts) != kFirst) continue;
          multiply(sums[i][tile], cells[first + fragment], kDescriptor << 32 | (b + tile * kShape.weight_tile_pitch()));
        }
      }
    }
  }

  // Which fragment of a line the first tile's cells read at a distance: the furthest back come first, those of a
  // gradient, which reads forward, last.
  static constexpr int line_place(int back) { return kShape.gradient ? back : kLine - 1 - back; }
};
"""
FILES["tile_stream_tensor.cuh"] = r"""
// Boxes of channels-last input by the copy engine: one thread asks for them. Of a gradient, chunk after chunk brings
// the pixels of one residue of the stride, and then the next channels.

#include "tile_stream_load.cuh"

__device__ __forceinline__ void stream_input(const StreamParams& stream, const TilePlace& tile,
                                             const StreamBarriers& barriers, unsigned ring, int thread,
                                             RingPlace<kShape.input_ring>& place) {
  if (thread != 0) return;
  const TileParams& params = stream.tile;
  const BlockCells& cells = tile.cells;
  constexpr int kGroups = kShape.all_plane_groups();
#pragma unroll 1
  for (int index = 0; index < kShape.block_chunks(); ++index) {
    const int chunk = tile.rank * kShape.block_chunks() + index;
    const PlaneGroup plane = plane_group(chunk % kGroups);
    int at[5] = {tile.rows.group * kShape.channels + chunk / kGroups * kShape.chunk_channels(),
                 box_begin(params, cells, 2), box_begin(params, cells, 1), box_begin(params, cells, 0), cells.first[0]};
#pragma unroll
    for (int axis = 0; axis < 3; ++axis) at[3 - axis] += kShape.group_residue(axis, plane.at[axis]);
    const unsigned full = barriers.input_full(place.slot);
    ptx::wait_barrier(barriers.input_empty(place.slot), place.parity ^ 1);
    ptx::expect_bytes(full, kShape.box_bytes());
    ptx::copy_tensor(ring + place.slot * kShape.input_stage_bytes(), &stream.input, at, full);
    place.advance();
  }
}
"""
FILES["tile_stream_weight_boxes.cuh"] = r"""
// Stages of a gradient's weights straight out of a channels-last tensor by the copy engine, a box for each tap: rows of
// summed channels, 16-byte columns swapped, which products read as they are. One thread asks for them. The tensor cores
// would cut fp32 words: two warps round them where they lie.
//
// The config defines kWeightTaps: for each group of planes the taps with which its chunks are multiplied, one after the
// other.

#include "tile_stream_tensor.cuh"

constexpr int kWeightBoxBytes = kShape.weight_back_pitch() * 16;

// A visit for each stage of a tile: its chunk, first distance, and how many distances it has.
template <typename Visit>
__device__ __forceinline__ void for_each_stage(const Visit& visit) {
#pragma unroll 1
  for (int chunk = 0; chunk < kShape.block_chunks(); ++chunk) {
    const int backs = chunk_backs(chunk);
#pragma unroll 1
    for (int back = 0; back < backs; back += kShape.stage_backs)
      visit(chunk, back, min(kShape.stage_backs, backs - back));
  }
}

__device__ __forceinline__ void stream_weight_boxes(const StreamParams& stream, const BlockRows& rows, int rank,
                                                    const StreamBarriers& barriers, unsigned ring,
                                                    RingPlace<kShape.weight_ring>& place) {
  constexpr int kGroups = kShape.all_plane_groups();
  const int first_row = rows.group * kShape.out_channels + rows.first_channel;
  for_each_stage([&](int chunk, int back, int count) {
    const int index = rank * kShape.block_chunks() + chunk;
    const int first_channel = index / kGroups * kShape.chunk_channels();
    const unsigned full = kShape.rounds_boxes() ? barriers.weight_raw(place.slot) : barriers.weight_full(place.slot);
    ptx::wait_barrier(barriers.weight_empty(place.slot), place.parity ^ 1);
    ptx::expect_bytes(full, count * kWeightBoxBytes);
    unsigned target = ring + place.slot * kShape.weight_stage_bytes();
#pragma unroll 1
    for (int i = 0; i < count; ++i) {
      const int tap = kWeightTaps[index % kGroups * kShape.all_backs() + back + i];
      constexpr int kRows = kShape.reordered_rows();
      const int at[5] = {tap * kShape.channels + first_channel, kRows == 1 ? first_row : 0, 0, 0,
                         kRows == 1 ? 0 : first_row / kRows};
      ptx::copy_tensor(target, &stream.weight, at, full);
      target += kWeightBoxBytes;
    }
    place.advance();
  });
}

// Some vectors of one thread, from one turn of all rounding threads to the next.
struct RoundedVectors {
  static constexpr int kTurn = kRoundingThreads * 16;
  static constexpr int kTurns = kWeightBoxBytes / kTurn;  // of a tap's box
  static constexpr int kCount = kTurns % 4 == 0   ? 4
                                : kTurns % 5 == 0 ? 5
                                : kTurns % 3 == 0 ? 3
                                : kTurns % 2 == 0 ? 2
                                                  : 1;
  static_assert(!kShape.rounds_boxes() || kWeightBoxBytes % kTurn == 0);

  unsigned words[kCount][4];

  __device__ __forceinline__ void load(unsigned address) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) ptx::load_shared<16>(address + i * kTurn, words[i]);
  }
  __device__ __forceinline__ void store(unsigned address) const {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      Cell cell;
#pragma unroll
      for (int word = 0; word < 4; ++word) cell.word[word] = words[i][word];
      ptx::store_16(address + i * kTurn, rounded(cell));
    }
  }
};

__device__ __forceinline__ void round_weight_boxes(const StreamBarriers& barriers, unsigned ring, int thread,
                                                   RingPlace<kShape.weight_ring>& place) {
  constexpr int kStep = RoundedVectors::kCount * RoundedVectors::kTurn;
  for_each_stage([&](int, int, int count) {
    ptx::wait_barrier(barriers.weight_raw(place.slot), place.parity);
    unsigned address = ring + place.slot * kShape.weight_stage_bytes() + thread * 16;
    const unsigned end = address + count * kWeightBoxBytes;
    RoundedVectors even;
    RoundedVectors odd;
    even.load(address);
    // The next ones are on their way while these are rounded.
#pragma unroll 1
    while (true) {
      const bool has_odd = address + kStep != end;
      if (has_odd) odd.load(address + kStep);
      even.store(address);
      address += kStep;
      if (!has_odd) break;
      const bool has_even = address + kStep != end;
      if (has_even) even.load(address + kStep);
      odd.store(address);
      address += kStep;
      if (!has_even) break;
    }
    ptx::fence_for_async_proxy();
    ptx::arrive(barriers.weight_full(place.slot));
    place.advance();
  });
}
"""
FILES["tile_stream_weights.cuh"] = r"""
// Stages of weights out of the tensor itself, by a warpgroup that does nothing else: a layer of few blocks is done
// before a copy in the order of the stages would have been made.
//
// The config defines kWeightPlaces: for each distance and slots that are loaded together, bytes from the block's first
// tap to that tap, or -1.

#include "split.cuh"
#include "tile_stream_load.cuh"

// Into how many shares `count` slabs or turns are cut, so that few places occupy all of `across` threads.
constexpr int shares_of(int count, int places, int across) {
  int shares = 1;
  while (2 * shares * places <= across && count % (2 * shares) == 0) shares *= 2;
  return shares;
}

// One thread's part of a stage: some rows at one of its places (a distance and slots that are loaded together) after
// the other. What lies in between is constant, in the tensor and in the stage.
struct WeightLoads {
  static constexpr int kVector = kShape.vector();
  static constexpr int kLoad = kShape.weight_vector;
  // What is neighbours in a load: channels of the sum (a whole cell), of the rows, or slots along the width.
  static constexpr bool kWide = kLoad > 1 && kShape.weight_steps[0] == 1;
  static constexpr bool kAlongRows = kLoad > 1 && !kWide && kShape.weight_steps[1] == 1;
  static constexpr bool kAlongSlots = kLoad > 1 && !kWide && !kAlongRows;
  static constexpr int kLoads = kWide ? 1 : kVector;  // of a unit
  static constexpr int kCells = kWide ? 1 : kLoad;    // that they make together
  static constexpr int kLoadBytes = kLoad * kShape.element_bytes;
  static constexpr int kWords = kLoadBytes < 4 ? 1 : kLoadBytes / 4;

  // Eight neighbouring lanes take eight rows (or runs of them), so that they store to all banks; the next ones what
  // lies next to that in the tensor: another place, or other slabs.
  static constexpr int kSlotRuns = kAlongSlots ? kShape.all_slots() / kLoad : kShape.all_slots();
  static constexpr int kPlaces = kShape.stage_backs * kSlotRuns;
  static constexpr int kRun = kAlongRows ? kLoad : 1;
  static constexpr int kRowRuns = kShape.block_channels / kRun;
  static constexpr int kLanes = kRowRuns >= 8 ? 8 : kRowRuns >= 4 ? 4 : kRowRuns >= 2 ? 2 : 1;
  static constexpr int kRowTurns = (kRowRuns + kLanes - 1) / kLanes;
  static constexpr int kAcross = kStreamThreads / kLanes;
  static constexpr int kSlabShares = shares_of(kShape.slabs, kPlaces, kAcross);
  static constexpr int kRowShares = shares_of(kRowTurns, kPlaces* kSlabShares, kAcross);
  static constexpr int kShares = kSlabShares * kRowShares;
  static constexpr int kPlacesAtOnce = kAcross / kShares;  // that all threads take together
  static constexpr int kSlabTurns = kShape.slabs / kSlabShares;
  static constexpr int kUnits = kSlabTurns * kRowTurns / kRowShares;
  static constexpr int kMostWords = kShape.weight_registers() >= 88 ? 32 : 16;  // of a thread, on their way
  static constexpr int kAtOnce = kMostWords / (kLoads * kWords) > 0 ? kMostWords / (kLoads * kWords) : 1;  // units
  // Where all threads together have the words of a whole stage and registers for as many more, the next stage's are on
  // their way while this one's are stored.
  static constexpr int kOtherRegisters = kAlongRows ? 44 : 40;
  static constexpr bool kAhead = kPlaces <= kPlacesAtOnce && kUnits <= kAtOnce &&
                                 2 * kUnits * kLoads * kWords + kOtherRegisters <= kShape.weight_registers();

  int row;  // the first one, a channel of the block
  int first_slab;
  int first_place;
  unsigned words[kAhead ? 2 * kUnits : kAtOnce][kLoads][kWords];

  __device__ __forceinline__ explicit WeightLoads(int thread) {
    const int group = thread / kLanes;
    const int share = kWide ? group % kShares : group / kPlacesAtOnce;
    first_place = kWide ? group / kShares : group % kPlacesAtOnce;
    first_slab = share % kSlabShares;
    row = (share / kSlabShares * kLanes + thread % kLanes) * kRun;
  }

  // What a unit has in common with the others of its number in all threads.
  static constexpr int slab_of(int unit) { return unit % kSlabTurns * kSlabShares; }
  static constexpr int row_of(int unit) { return unit / kSlabTurns * kRowShares * kLanes * kRun; }
  static constexpr bool exists(int unit) { return unit < kUnits; }

  // Bytes from a chunk's first weight at a place to this thread's.
  __device__ __forceinline__ int offset() const {
    return (first_slab * kVector * kShape.weight_steps[0] + row * kShape.weight_steps[1]) * kShape.element_bytes;
  }
  // What the tensor has of a unit; everything else is zeros.
  __device__ __forceinline__ void load(int at, int unit, const char* from, bool has_tap, int rows_left,
                                       int channels_left) {
    constexpr bool kWholeChunks = kShape.channels % kShape.chunk_channels() == 0;
    const bool has_rows = has_tap && row + row_of(unit) < rows_left;
    const int steps = slab_of(unit) * kVector * kShape.weight_steps[0] + row_of(unit) * kShape.weight_steps[1];
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      const bool wanted = has_rows && (kWholeChunks || (first_slab + slab_of(unit)) * kVector + i < channels_left);
      ptx::load_if<kLoadBytes>(wanted, from + (steps + i * kShape.weight_steps[0]) * kShape.element_bytes,
                               words[at][i]);
    }
  }

  __device__ __forceinline__ Cell cell(int at, int index) const {
    Cell cell;
    if constexpr (kWide) {
#pragma unroll
      for (int i = 0; i < 4; ++i) cell.word[i] = words[at][0][i];
    } else if constexpr (kShape.element_bytes == 4) {
#pragma unroll
      for (int i = 0; i < 4; ++i) cell.word[i] = words[at][i][index];
    } else {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const unsigned low = words[at][2 * i][index / 2];
        const unsigned high = words[at][2 * i + 1][index / 2];
        cell.word[i] = index % 2 == 0 ? (low & 0xffffu) | high << 16 : low >> 16 | (high & 0xffff0000u);
      }
    }
    return rounded(cell);
  }

  // Cells from the stage's first to this thread's at a place.
  __device__ __forceinline__ int target(int place) const {
    return place / kSlotRuns * kShape.weight_back_pitch() + first_slab * kShape.weight_slab_pitch() +
           place % kSlotRuns * (kAlongSlots ? kLoad : 1) * kShape.block_channels;
  }
  __device__ __forceinline__ void store(int at, int unit, unsigned to) const {
    const int slab = slab_of(unit) * kShape.weight_slab_pitch();
    if (kShape.block_channels % (kLanes * kRun) != 0 && row + row_of(unit) >= kShape.block_channels) return;
#pragma unroll
    for (int i = 0; i < kCells; ++i) {
      const int place = kShape.row_of_channel(row + row_of(unit) + (kAlongRows ? i : 0)) +
                        (kAlongSlots ? i * kShape.block_channels : 0);
      const unsigned address = to + (slab + place) * 16;
      if constexpr (kShape.splits()) {
        const SplitCell split(cell(at, i));
        ptx::store_16(address, split.big);
        ptx::store_16(address + kShape.slabs * kShape.weight_slab_pitch() * 16, split.small);
      } else {
        ptx::store_16(address, cell(at, i));
      }
    }
  }
};

// Where the weights of a block's rows begin: of its group, first channel and first residues.
__device__ __forceinline__ const char* first_weight(const TileParams& params, const BlockRows& rows) {
  const int first_tap =
      (rows.first_residue[0] * kShape.kernel[1] + rows.first_residue[1]) * kShape.kernel[2] + rows.first_residue[2];
  return static_cast<const char*>(params.weight) +
         (rows.group * params.weight_group_stride +
          static_cast<long long>(rows.first_channel) * kShape.weight_steps[1] +
          static_cast<long long>(first_tap) * kShape.weight_steps[2]) *
             kShape.element_bytes;
}

// Brings the weights of one tile of outputs, each stage loaded before the one in front of it is stored.
__device__ __forceinline__ void load_weights_ahead(const TileParams& params, const BlockRows& rows, int rank,
                                                   const StreamBarriers& barriers, unsigned ring, int thread,
                                                   RingPlace<kShape.weight_ring>& slot) {
  using Loads = WeightLoads;
  constexpr int kChunkStages = kShape.stages_per_chunk();
  constexpr int kStages = kShape.block_chunks() * kChunkStages;
  Loads loads(thread);
  const char* const first = first_weight(params, rows) + loads.offset();
  const int rows_left = kShape.out_channels - rows.first_channel;
  const auto tap_of = [&](int stage) {
    const int back = stage % kChunkStages * kShape.stage_backs;
    const int places = min(kShape.stage_backs, kShape.all_backs() - back) * Loads::kSlotRuns;
    return loads.first_place < places ? kWeightPlaces[back * Loads::kSlotRuns + loads.first_place] : -1;
  };
  const auto load = [&](int stage, int set) {
    const int first_channel = (rank * kShape.block_chunks() + stage / kChunkStages) * kShape.chunk_channels();
    const int tap = tap_of(stage);
    const char* const source =
        first + static_cast<long long>(first_channel) * kShape.weight_steps[0] * kShape.element_bytes + tap;
#pragma unroll
    for (int i = 0; i < Loads::kUnits; ++i)
      loads.load(set * Loads::kUnits + i, i, source, tap >= 0, rows_left, kShape.channels - first_channel);
  };
  const auto store = [&](int stage, int set) {
    ptx::wait_barrier(barriers.weight_empty(slot.slot), slot.parity ^ 1);
    // Taps that a phase lacks are zeros, or no product is made with them.
    if (loads.first_place < Loads::kPlaces && (kShape.all_taps || tap_of(stage) >= 0)) {
      const unsigned to = ring + slot.slot * kShape.weight_stage_bytes() + loads.target(loads.first_place) * 16;
#pragma unroll
      for (int i = 0; i < Loads::kUnits; ++i) loads.store(set * Loads::kUnits + i, i, to);
    }
    ptx::fence_for_async_proxy();
    ptx::arrive(barriers.weight_full(slot.slot));
    slot.advance();
  };
  load(0, 0);
#pragma unroll 1
  for (int stage = 0; stage < kStages; stage += 2) {
    if (stage + 1 < kStages) load(stage + 1, 1);
    store(stage, 0);
    if (stage + 1 == kStages) break;
    if (stage + 2 < kStages) load(stage + 2, 0);
    store(stage + 1, 1);
  }
}

// Brings the weights of one tile of outputs, stage after stage.
__device__ __forceinline__ void load_stream_weights(const TileParams& params, const BlockRows& rows, int rank,
                                                    const StreamBarriers& barriers, unsigned ring, int thread,
                                                    RingPlace<kShape.weight_ring>& slot) {
  using Loads = WeightLoads;
  if constexpr (Loads::kAhead) {
    load_weights_ahead(params, rows, rank, barriers, ring, thread, slot);
    return;
  }
  constexpr int kUnrolledTurns = Loads::kUnits <= 4 * Loads::kAtOnce ? 4 : 1;
  Loads loads(thread);
  const char* const first = first_weight(params, rows) + loads.offset();
  const int rows_left = kShape.out_channels - rows.first_channel;
#pragma unroll 1
  for (int chunk = 0; chunk < kShape.block_chunks(); ++chunk) {
    const int first_channel = (rank * kShape.block_chunks() + chunk) * kShape.chunk_channels();
    const char* const source =
        first + static_cast<long long>(first_channel) * kShape.weight_steps[0] * kShape.element_bytes;
#pragma unroll 1
    for (int back = 0; back < kShape.all_backs(); back += kShape.stage_backs) {
      const int places = min(kShape.stage_backs, kShape.all_backs() - back) * Loads::kSlotRuns;
      const unsigned stage = ring + slot.slot * kShape.weight_stage_bytes();
      bool waited = false;
      const auto wait_until_empty = [&] {
        if (!waited) ptx::wait_barrier(barriers.weight_empty(slot.slot), slot.parity ^ 1);
        waited = true;
      };
#pragma unroll 1
      for (int place = loads.first_place; place < places; place += Loads::kPlacesAtOnce) {
        const int tap = kWeightPlaces[back * Loads::kSlotRuns + place];
        // Taps that a phase lacks are zeros, or no product is made with them.
        if (tap < 0 && !kShape.all_taps) continue;
        const unsigned to = stage + loads.target(place) * 16;
#pragma unroll(kUnrolledTurns)
        for (int turn = 0; turn < Loads::kUnits; turn += Loads::kAtOnce) {
#pragma unroll
          for (int i = 0; i < Loads::kAtOnce; ++i) {
            if (Loads::exists(turn + i))
              loads.load(i, turn + i, source + tap, tap >= 0, rows_left, kShape.channels - first_channel);
          }
          wait_until_empty();
#pragma unroll
          for (int i = 0; i < Loads::kAtOnce; ++i) {
            if (Loads::exists(turn + i)) loads.store(i, turn + i, to);
          }
        }
      }
      wait_until_empty();  // a thread without a place of this stage may not run ahead, either
      ptx::fence_for_async_proxy();
      ptx::arrive(barriers.weight_full(slot.slot));
      slot.advance();
    }
  }
}
"""
FILES["tile_taps.cuh"] = r"""
// Which tap stands where among a block's weights; compiled by host and device. Taps count over [depth][height][width].

#include "tile_params.cuh"

// The tap with which a phase reads the inputs at a distance; -1: none.
constexpr int phase_tap(const TileShape& shape, const int (&first_residue)[3], const int (&slot)[3], int back_index) {
  const int backs[3] = {shape.back_along(0, back_index), shape.back_along(1, back_index),
                        shape.back_along(2, back_index)};
  bool exists = true;
  int index = 0;
  for (int axis = 0; axis < 3; ++axis) {
    const int residue = first_residue[axis] + shape.residue_of(axis, slot[axis]);
    const int tap = shape.axis_tap(axis, residue, backs[axis]);
    exists = exists && tap >= 0;
    index = index * shape.kernel[axis] + tap;
  }
  return exists ? index : -1;
}

// Which of a gradient's groups of planes a chunk holds.
struct PlaneGroup {
  int at[3];
};
constexpr PlaneGroup plane_group(const TileShape& shape, int index) {
  return {{index / (shape.plane_groups(2) * shape.plane_groups(1)),
           index / shape.plane_groups(2) % shape.plane_groups(1), index % shape.plane_groups(2)}};
}

// The tap of a gradient with which a box of one residue is multiplied for the `index`-th time; -1: none.
constexpr int plane_tap_of(const TileShape& shape, const PlaneGroup& group, int index) {
  int taps[3] = {};
  for (int axis = 2; axis >= 0; --axis) {
    const int count = shape.plane_taps(axis, group.at[axis]);
    taps[axis] = shape.first_tap(axis, group.at[axis]) + index % count * shape.phases[axis];
    index /= count;
  }
  if (index > 0) return -1;
  return (taps[0] * shape.kernel[1] + taps[1]) * shape.kernel[2] + taps[2];
}

// The tap of a gradient with which a chunk is multiplied for the `index`-th time; -1: none.
constexpr int gradient_tap(const TileShape& shape, const PlaneGroup& group, int index) {
  if (shape.plane_boxes()) return plane_tap_of(shape, group, index);
  const int at[3] = {shape.back_along(0, index), shape.back_along(1, index), shape.back_along(2, index)};
  bool exists = true;
  int found = 0;
  for (int axis = 0; axis < 3; ++axis) {
    int tap = at[axis];
    if (shape.plane_groups(axis) > 1) {
      const int residue = shape.group_residue(axis, group.at[axis]) + at[axis] / shape.backs[axis];
      const int back = at[axis] % shape.backs[axis];
      tap = shape.axis_tap(axis, residue, back);
      exists = exists && tap >= 0;
    }
    found = found * shape.kernel[axis] + tap;
  }
  return exists ? found : -1;
}
"""
FILES["tile_warp.cuh"] = r"""
// A team of one warp: mma.sync on sm_80 and later, fragments by ldmatrix.

#include "tile_load.cuh"

constexpr int kRowTiles = kShape.row_tiles;
constexpr int kColumnTiles = kShape.column_tiles;
constexpr int kSteps = kShape.slabs / 2;  // products of one mma's depth per chunk and distance

// The position of a column's cell in the input patch, at the greatest distance back.
__device__ __forceinline__ int patch_position(int column) {
  if (column >= kShape.cells()) return 0;
  const int w = column % kShape.tile[3];
  column /= kShape.tile[3];
  const int h = column % kShape.tile[2];
  column /= kShape.tile[2];
  const int d = column % kShape.tile[1];
  const int n = column / kShape.tile[1];
  return ((n * kShape.patch(1) + d) * kShape.patch(2) + h) * kShape.patch(3) + w;
}

// One warp's share of the block: its rows, columns and part of the depth.
struct TeamTile {
  float sum[kRowTiles][kColumnTiles][4] = {};
  unsigned rows_at;  // byte offsets that ldmatrix adds to a stage
  unsigned columns_at[kColumnTiles / 2];
  int first_row_tile;
  int first_column;
  int depth_team;

  unsigned long long block_backs;

  __device__ __forceinline__ explicit TeamTile(const BlockRows& block) : block_backs(backs_of(block)) {
    const int lane = threadIdx.x % 32;
    int warp = threadIdx.x / 32;
    const int row_warp = warp % kShape.row_teams;
    warp /= kShape.row_teams;
    const int column_warp = warp % kShape.column_teams;
    depth_team = warp / kShape.column_teams;
    first_row_tile = row_warp * kRowTiles;
    first_column = column_warp * kColumnTiles * 8;
    rows_at = ((lane / 16) * kShape.weight_slab_pitch() + first_row_tile * 16 + lane % 16) * 16;
#pragma unroll
    for (int pair = 0; pair < kColumnTiles / 2; ++pair) {
      const int column = first_column + pair * 16 + lane / 16 * 8 + lane % 8;
      columns_at[pair] = (lane / 8 % 2 * kShape.slab_pitch() + patch_position(column)) * 16;
    }
  }

  __device__ __forceinline__ void multiply(float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
    if constexpr (kShape.math == TileMath::f16) {
      ptx::multiply_f16(d, a, b0, b1);
    } else if constexpr (kShape.math == TileMath::bf16) {
      ptx::multiply_bf16(d, a, b0, b1);
    } else {
      ptx::multiply_tf32(d, a, b0, b1);
    }
  }

  __device__ __forceinline__ int row(int tile) const { return (first_row_tile + tile) * 16; }

  // Teams take the products of a chunk in turn, however the chunk is cut into stages.
  __device__ __forceinline__ int first_item(int first_back) const {
    return (depth_team + kShape.depth_teams - first_back * kSteps % kShape.depth_teams) % kShape.depth_teams;
  }

  // Adds the products of one stage: its distances times the channels of the chunk.
  __device__ __forceinline__ void begin_stage(unsigned input, unsigned weight, int stage) {
    constexpr int kDepthTeams = kShape.depth_teams;
    const int first_back = stage * kShape.stage_backs;
    const int backs =
        kShape.stages_per_chunk() == 1 ? kShape.all_backs() : min(kShape.stage_backs, kShape.all_backs() - first_back);
    const int items = backs * kSteps;
#pragma unroll kShape.unroll
    for (int item = first_item(first_back); item < items; item += kDepthTeams) {
      const int back = item / kSteps;
      const int step = item % kSteps;
      if (kShape.skips_backs() && (block_backs >> (first_back + back) & 1) == 0) continue;
      const unsigned a_at =
          weight + rows_at + (back * kShape.weight_back_pitch() + step * 2 * kShape.weight_slab_pitch()) * 16;
      const unsigned b_at = input + (kBackCells[first_back + back] + step * 2 * kShape.slab_pitch()) * 16;
      const unsigned rows = kShape.all_taps ? ~0u : kBackRows[first_back + back] >> first_row_tile;
      if (!kShape.all_taps && (rows & ((1u << kRowTiles) - 1)) == 0) continue;
      unsigned b[kColumnTiles / 2][4];
#pragma unroll
      for (int pair = 0; pair < kColumnTiles / 2; ++pair) ptx::load_matrices(b[pair], b_at + columns_at[pair]);
#pragma unroll
      for (int tile = 0; tile < kRowTiles; ++tile) {
        if (!kShape.all_taps && (rows >> tile & 1) == 0) continue;
        unsigned a[4];
        ptx::load_matrices(a, a_at + tile * 256);
        if constexpr (kShape.math == TileMath::fp32x3) {
          multiply_split(tile, a, b);
        } else {
#pragma unroll
          for (int column = 0; column < kColumnTiles; ++column) {
            multiply(sum[tile][column], a, b[column / 2][column % 2 * 2], b[column / 2][column % 2 * 2 + 1]);
          }
        }
      }
    }
  }

  __device__ __forceinline__ void end_stage() {}

  // fp32 out of TF32: x = big + small, and the product of the two small parts is below fp32's last bit.
  __device__ __forceinline__ void multiply_split(int tile, const unsigned (&a)[4],
                                                 const unsigned (&b)[kColumnTiles / 2][4]) {
    unsigned a_big[4];
    unsigned a_small[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) split(a[i], a_big[i], a_small[i]);
#pragma unroll
    for (int column = 0; column < kColumnTiles; ++column) {
      unsigned b_big[2];
      unsigned b_small[2];
      split(b[column / 2][column % 2 * 2], b_big[0], b_small[0]);
      split(b[column / 2][column % 2 * 2 + 1], b_big[1], b_small[1]);
      // The tensor cores cut the bits that they shift out; sums of one depth are therefore kept short and added in
      // fp32.
      float part[4] = {};
      ptx::multiply_tf32(part, a_small, b_big[0], b_big[1]);
      ptx::multiply_tf32(part, a_big, b_small[0], b_small[1]);
      ptx::multiply_tf32(part, a_big, b_big[0], b_big[1]);
#pragma unroll
      for (int i = 0; i < 4; ++i) sum[tile][column][i] += part[i];
    }
  }

  static __device__ __forceinline__ void split(unsigned bits, unsigned& big, unsigned& small) {
    big = ptx::round_to_tf32(__uint_as_float(bits));
    small = ptx::round_to_tf32(__uint_as_float(bits) - __uint_as_float(big));
    if ((big & 0x7f800000u) == 0x7f800000u) {  // infinite, NaN, or rounded up to infinity
      big = bits;
      small = 0;
    }
  }
};
"""
FILES["tile_weights.cuh"] = r"""
// Where the weights of a block lie: which tap stands at (row, distance) of a stage.

#include "tile_params.cuh"
#include "tile_taps.cuh"

// Which rows of the problem a block computes.
struct BlockRows {
  int group;
  int first_channel;     // within the group
  int first_residue[3];  // per axis
};

__device__ __forceinline__ BlockRows block_rows(int index) {
  BlockRows rows;
  rows.first_channel = index % kShape.channel_blocks() * kShape.block_channels;
  index /= kShape.channel_blocks();
#pragma unroll
  for (int axis = 2; axis >= 0; --axis) {
    rows.first_residue[axis] = index % kShape.residue_blocks(axis) * kShape.span[axis];
    index /= kShape.residue_blocks(axis);
  }
  rows.group = index;
  return rows;
}

// The distances at which a block has a tap, a bit each.
__device__ __forceinline__ unsigned long long backs_of(const BlockRows& rows) {
  if (!kShape.skips_backs()) return ~0ULL;
  unsigned long long found = 0;
#pragma unroll 1
  for (int index = 0; index < kShape.all_backs(); ++index) {
    const int backs[3] = {kShape.back_along(0, index), kShape.back_along(1, index), kShape.back_along(2, index)};
    bool everywhere = true;
#pragma unroll
    for (int axis = 0; axis < 3; ++axis) {
      bool here = kShape.span[axis] == kShape.stride[axis];
      for (int i = 0; i < kShape.span[axis] && !here; ++i)
        here = kShape.has_tap(axis, rows.first_residue[axis] + i, backs[axis]);
      everywhere = everywhere && here;
    }
    if (everywhere) found |= 1ULL << index;
  }
  return found;
}

__device__ __forceinline__ PlaneGroup plane_group(int index) { return plane_group(kShape, index); }
__device__ __forceinline__ int gradient_tap_of(const PlaneGroup& group, int index) {
  return gradient_tap(kShape, group, index);
}

// The way through the stages of weights, chunk after chunk. A block whose phases have no tap in some stage leaves that
// stage out.
struct StageWalk {
  static constexpr int kStages = kShape.stages_per_chunk();
  static constexpr bool kLeavesOut = kShape.skips_backs() && kStages > 1;

  unsigned long long stages;  // that the block visits, a bit each
  int total;                  // steps of the whole walk
  int step = 0;
  int chunk = 0;
  int stage = 0;

  __device__ __forceinline__ explicit StageWalk(const BlockRows& rows) : stages(kLeavesOut ? visited(rows) : 1) {
    total = kShape.block_chunks() * (kLeavesOut ? __popcll(stages) : kStages);
    if (kLeavesOut) stage = __ffsll(stages) - 1;
  }

  __device__ __forceinline__ bool ended() const { return step >= total; }
  __device__ __forceinline__ bool begins_chunk() const {
    return kStages == 1 || (kLeavesOut ? stage == __ffsll(stages) - 1 : stage == 0);
  }

  __device__ __forceinline__ void advance() {
    ++step;
    const unsigned long long later = kLeavesOut ? stages >> stage >> 1 : stage + 1 < kStages;
    if (later != 0) {
      stage += kLeavesOut ? __ffsll(later) : 1;
    } else {
      stage = kLeavesOut ? __ffsll(stages) - 1 : 0;
      ++chunk;
    }
  }

 private:
  // A block without any tap visits one stage, of zeros.
  static __device__ __forceinline__ unsigned long long visited(const BlockRows& rows) {
    const unsigned long long backs = backs_of(rows);
    unsigned long long found = 0;
#pragma unroll 1
    for (int stage = 0; stage < kStages; ++stage) {
      const unsigned long long own = backs >> (stage * kShape.stage_backs);
      if ((own & ((1ULL << kShape.stage_backs) - 1)) != 0) found |= 1ULL << stage;
    }
    return found == 0 ? 1 : found;
  }
};

__device__ __forceinline__ int tap_of(const BlockRows& rows, const int (&slot)[3], int back_index) {
  return phase_tap(kShape, rows.first_residue, slot, back_index);
}
"""
FILES["types.cuh"] = r"""
// Element types: how they lie in memory and what sums are kept in. The device code includes no header, so conversions
// are instructions and bit operations.

struct F64 {
  using Storage = double;
  using Sum = double;
  static __device__ __forceinline__ double load(double value) { return value; }
  static __device__ __forceinline__ double store(double value) { return value; }
};

struct F32 {
  using Storage = float;
  using Sum = float;
  static __device__ __forceinline__ float load(float value) { return value; }
  static __device__ __forceinline__ float store(float value) { return value; }
};

struct F16 {
  using Storage = unsigned short;
  using Sum = float;
  static __device__ __forceinline__ float load(unsigned short bits) {
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
    return value;
  }
  static __device__ __forceinline__ unsigned short store(float value) {
    unsigned short bits;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
    return bits;
  }
};

struct BF16 {
  using Storage = unsigned short;
  using Sum = float;
  static __device__ __forceinline__ float load(unsigned short bits) {
    return __uint_as_float(static_cast<unsigned>(bits) << 16);
  }
  // To nearest, ties to even, in integers: the same on every architecture (cvt.rn.bf16 exists from sm_80 on).
  static __device__ __forceinline__ unsigned short store(float value) {
    const unsigned bits = __float_as_uint(value);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<unsigned short>((bits >> 16) | 0x40u);
    return static_cast<unsigned short>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
  }
};
"""
FILES["general_host.cuh"] = r"""
// Launches general.cuh for any layer: forward, or (kGradient) the gradient of the input, which reads the tap map the
// other way: what it reads is the layer's output, what it writes its input.
inline GeneralAxis general_axis(const Axis& axis, long long read_stride, long long weight_stride) {
  GeneralAxis out = {};
  out.input = kGradient ? axis.output : axis.input;
  out.output = kGradient ? axis.input : axis.output;
  out.kernel = axis.kernel;
  out.stride = axis.stride;
  out.dilation = axis.dilation;
  out.pad = axis.padding;
  long long common = axis.stride;
  for (long long rest = axis.dilation; rest != 0;) {
    const long long next = common % rest;
    common = rest;
    rest = next;
  }
  out.common = common;
  out.tap_step = kGradient ? 1 : axis.stride / common;
  out.input_step = kGradient ? -axis.dilation : axis.dilation / common;
  out.inverse = -1;  // the first tap of a residue is searched
  out.input_jump = out.input_step * read_stride;
  out.weight_jump = out.tap_step * weight_stride;
  return out;
}

// Strides of a dense tensor: batch, channel, depth, height, width.
inline void dense_strides(GeneralIndex (&strides)[5], long long channels, const GeneralIndex (&sizes)[3]) {
  strides[4] = 1;
  for (int i = 2; i >= 1; --i) strides[i + 1] = strides[i + 2] * sizes[i];
  strides[1] = strides[2] * sizes[0];
  strides[0] = strides[1] * channels;
}

inline int run(const void* read, const void* weight, const void* bias, void* written, const Layer& layer,
               void* stream) {
  GeneralParams p = {};
  p.input = read;
  p.weight = weight;
  p.bias = bias;
  p.output = written;
  GeneralIndex inputs[3], outputs[3], taps[3];
  for (int i = 0; i < 3; ++i) {
    inputs[i] = layer.axes[i].input;
    outputs[i] = layer.axes[i].output;
    taps[i] = layer.axes[i].kernel;
  }
  const long long in_channels = layer.in_channels / layer.groups;
  const long long out_channels = layer.out_channels / layer.groups;
  dense_strides(p.weight_strides, out_channels, taps);
  p.weight_group_stride = in_channels * p.weight_strides[0];
  dense_strides(kGradient ? p.output_strides : p.input_strides, layer.in_channels, inputs);
  dense_strides(kGradient ? p.input_strides : p.output_strides, layer.out_channels, outputs);
  if (kGradient) {
    const GeneralIndex swapped = p.weight_strides[0];
    p.weight_strides[0] = p.weight_strides[1];
    p.weight_strides[1] = swapped;
  }
  p.batch = layer.batch;
  p.groups = layer.groups;
  p.in_channels = kGradient ? out_channels : in_channels;
  p.out_channels = kGradient ? in_channels : out_channels;
  p.bundles = ceil_div(p.out_channels, kBundle);
  p.work = p.batch * p.groups * p.bundles;
  for (int i = 0; i < 3; ++i) {
    p.axes[i] = general_axis(layer.axes[i], p.input_strides[2 + i], p.weight_strides[2 + i]);
    p.work *= p.axes[i].output;
  }
  constexpr long long kThreads = 256;
  if (ceil_div(p.work, kThreads) > 0x7fffffff) return 1;  // cudaErrorInvalidValue: more blocks than a grid has
  return launch(tconv_general, dim3(static_cast<unsigned>(ceil_div(p.work, kThreads))), kThreads, 0, false, stream, p);
}
"""
FILES["general_weight_host.cuh"] = r"""
// Launches general_weight.cuh for any layer. The pixels are summed in parts, which a second kernel adds up in order.
inline GeneralWeightParams weight_params(const Layer& layer) {
  GeneralWeightParams p = {};
  p.groups = layer.groups;
  p.in_channels = layer.in_channels / layer.groups;
  p.out_channels = layer.out_channels / layer.groups;
  p.in_bundles = ceil_div(p.in_channels, kWeightBundle);
  p.out_bundles = ceil_div(p.out_channels, kWeightBundle);
  p.taps = 1;
  p.pixels = layer.batch;
  p.input_strides[4] = p.weight_strides[4] = p.output_strides[4] = 1;
  for (int i = 2; i >= 0; --i) {
    const Axis& axis = layer.axes[i];
    p.axes[i] = {axis.input, axis.output, axis.kernel, axis.stride, axis.dilation, axis.padding};
    p.taps *= axis.kernel;
    p.pixels *= axis.input;
    p.input_strides[1 + i] = p.input_strides[2 + i] * axis.input;
    p.output_strides[1 + i] = p.output_strides[2 + i] * axis.output;
    p.weight_strides[1 + i] = p.weight_strides[2 + i] * axis.kernel;
  }
  p.input_strides[0] = p.input_strides[1] * layer.in_channels;
  p.output_strides[0] = p.output_strides[1] * layer.out_channels;
  p.weight_strides[0] = p.weight_strides[1] * p.out_channels;
  p.weights = layer.in_channels * p.out_channels * p.taps;
  // Parts enough to fill a large GPU, none shorter than 256 pixels, and at most 64 MiB of sums.
  const long long warps = p.groups * p.in_bundles * p.out_bundles * p.taps;
  const long long limits[] = {ceil_div(64 * 132, warps), p.pixels / 256,
                              (64LL << 20) / static_cast<long long>(sizeof(Sum)) / p.weights};
  p.parts = limits[0];
  for (const long long limit : limits) p.parts = limit < p.parts ? limit : p.parts;
  if (p.parts < 1) p.parts = 1;
  p.work = warps * p.parts;
  return p;
}

inline long long sums_bytes(const Layer& layer) {
  const GeneralWeightParams p = weight_params(layer);
  return p.parts == 1 ? 0 : p.parts * p.weights * static_cast<long long>(sizeof(Sum));
}

inline int run(const Tensors& tensors, const Layer& layer, void* stream) {
  GeneralWeightParams p = weight_params(layer);
  p.input = tensors.input;
  p.output = tensors.output;
  p.weight = tensors.weight;
  p.sums = tensors.workspace;
  const dim3 blocks(static_cast<unsigned>(ceil_div(p.work, kWeightWarps)));
  const int error = launch(tconv_general_weight, blocks, 32 * kWeightWarps, 0, false, stream, p);
  if (error != 0 || p.parts == 1) return error;
  return launch(tconv_general_weight_finish, dim3(static_cast<unsigned>(ceil_div(p.weights, 256))), 256, 0, false,
                stream, p);
}
"""
FILES["grad_bias_host.cuh"] = r"""
// Launches grad_bias.cuh: sums the `rows` rows of `columns` neighbours that each channel has, in parts.
inline int run(const void* input, void* output, long long channels, long long channel_stride, long long rows,
               long long row_stride, long long columns, long long parts, void* stream) {
  GradBiasParams p = {};
  p.input = input;
  p.output = output;
  p.channels = channels;
  p.channel_stride = channel_stride;
  p.sizes[0] = rows;
  p.strides[0] = row_stride;
  p.sizes[3] = columns;
  p.strides[3] = 1;
  p.elements = rows * columns;
  p.parts = parts;
  return launch(tconv_grad_bias, dim3(static_cast<unsigned>(channels * parts)), kBiasThreads, 0, false, stream, p);
}
"""
FILES["interface.h"] = r"""
// What the two compiled parts of this file agree on. All tensors are dense; ranks 1 and 2 have axes of size one in
// front.
struct Axis {
  long long input;
  long long kernel;
  long long stride;
  long long dilation;
  long long padding;
  long long output;
};

struct Layer {
  long long batch;
  long long in_channels;
  long long out_channels;
  long long groups;
  Axis axes[3];  // depth, height, width
};

// Which of the tensors a call writes; it reads the others.
enum Direction { kForward, kGradInput, kGradWeight, kGradBias };

struct Tensors {
  void* input;
  void* weight;
  void* bias;  // null: none
  void* output;
  void* workspace;
};

// Zero, or the error of the CUDA runtime.
int launch_direction(int direction, const Tensors& tensors, const Layer& layer, void* stream);
int launch_on(int device, int direction, const Tensors& tensors, const Layer& layer, void* stream);
long long workspace_bytes(int direction, const Layer& layer);
const char* error_text(int error);
"""
FILES["launch.cuh"] = r"""
#include <cuda_runtime.h>

#include <map>
#include <mutex>
#include <utility>

namespace {

constexpr long long ceil_div(long long a, long long b) { return (a + b - 1) / b; }
constexpr long long at_most(long long a, long long b) { return a < b ? a : b; }

void* at(void* tensor, long long bytes) { return static_cast<char*>(tensor) + bytes; }

// Lets a kernel use more shared memory than every GPU has: asked for once for each device.
int allow_shared_bytes(const void* kernel, int bytes) {
  static std::mutex mutex;
  static std::map<std::pair<int, const void*>, int> allowed;
  int device = 0;
  if (const cudaError_t error = cudaGetDevice(&device)) return static_cast<int>(error);
  const std::lock_guard<std::mutex> lock(mutex);
  int& known = allowed[std::make_pair(device, kernel)];
  if (known >= bytes) return 0;
  const cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  if (error == cudaSuccess) known = bytes;
  return static_cast<int>(error);
}

// Launches a kernel. With `overlaps` it may start while the one before it still runs, and waits itself for what that
// one writes; older toolkits don't have that, and it starts afterwards.
template <typename... Params, typename... Given>
int launch(void (*kernel)(Params...), dim3 grid, unsigned block, size_t shared_bytes, bool overlaps, void* stream,
           const Given&... given) {
  if (grid.x == 0) return 0;
  if (shared_bytes > 48 * 1024) {
    const int error = allow_shared_bytes(reinterpret_cast<const void*>(kernel), static_cast<int>(shared_bytes));
    if (error != 0) return error;
  }
  const cudaStream_t on = static_cast<cudaStream_t>(stream);
#if CUDART_VERSION >= 12000
  if (overlaps) {
    cudaLaunchAttribute attribute = {};
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = grid;
    config.blockDim = dim3(block);
    config.dynamicSmemBytes = shared_bytes;
    config.stream = on;
    config.attrs = &attribute;
    config.numAttrs = 1;
    return static_cast<int>(cudaLaunchKernelEx(&config, kernel, static_cast<Params>(given)...));
  }
#endif
  kernel<<<grid, block, shared_bytes, on>>>(static_cast<Params>(given)...);
  return static_cast<int>(cudaGetLastError());
}

}  // namespace

// With the GPU that has the tensors, which need not be the thread's current one.
int launch_on(int device, int direction, const Tensors& tensors, const Layer& layer, void* stream) {
  int current = 0;
  if (const cudaError_t error = cudaGetDevice(&current)) return static_cast<int>(error);
  if (current == device) return launch_direction(direction, tensors, layer, stream);
  if (const cudaError_t error = cudaSetDevice(device)) return static_cast<int>(error);
  const int failed = launch_direction(direction, tensors, layer, stream);
  const cudaError_t restored = cudaSetDevice(current);
  return failed != 0 ? failed : static_cast<int>(restored);
}

const char* error_text(int error) { return cudaGetErrorString(static_cast<cudaError_t>(error)); }
"""
