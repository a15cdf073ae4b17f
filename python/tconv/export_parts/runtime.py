"""The Python part of exported files: everything below the line is copied into them as it is.

It may import nothing but PyTorch and the standard library, and runs on Python 3.7.
"""

# What an exported file brings itself.
FILES = {}  # device code, by the name that `#include` gives it
PIECES = {}  # kernels and the functions that launch them, by name
LAYERS = []  # the layers that kernels were made for
HOST = ""  # the C++ part

# Copied from here on.
import contextlib  # noqa: E402
import functools  # noqa: E402
import hashlib  # noqa: E402
import inspect  # noqa: E402
import math  # noqa: E402
import re  # noqa: E402
import struct  # noqa: E402
import subprocess  # noqa: E402
import tempfile  # noqa: E402
from unittest import mock  # noqa: E402

import torch  # noqa: E402
from torch import nn  # noqa: E402
from torch.utils import cpp_extension  # noqa: E402

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
