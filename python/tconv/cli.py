"""The command line: `python -m tconv bench | explain | export | kernelbench | prepare | info`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from tconv import problems as problem_sets
from tconv.problems import Problem

BAD_REQUEST = 2

_DTYPES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16", "fp64": "float64"}


class BadRequestError(Exception):
    """The user asked for something that can't be; the message says what."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code: 0 done, 1 failed, 2 a bad request."""
    parser = _parser()
    options = parser.parse_args(arguments)
    try:
        return options.command(options)
    except (BadRequestError, LookupError, ValueError) as error:
        print(f"tconv {options.name}: {_message(error)}", file=sys.stderr)
        return BAD_REQUEST
    except KeyboardInterrupt:
        print(f"tconv {options.name}: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # The reader (head, less) has seen enough; nothing more can be written, not even at exit.
        sys.stderr.close()
        return 0


def _message(error: Exception) -> str:
    return str(error.args[0]) if error.args else str(error)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tconv",
        description="Transposed convolutions: measure, explain, prepare and export them.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog=(
            "examples:\n"
            "  python -m tconv bench                    the main layers, beside PyTorch\n"
            "  python -m tconv explain kb75             which taps reach which output, and the plan\n"
            "  python -m tconv export --problem kb75 -o model_new.py\n"
            "  python -m tconv info                     version, devices, instruction set\n"
            "\n`python -m tconv COMMAND --help` tells more."
        ),
    )
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    _add_bench(commands)
    _add_explain(commands)
    _add_prepare(commands)
    _add_export(commands)
    _add_kernelbench(commands)
    _add_info(commands)
    return parser


def _add_command(
    commands: argparse._SubParsersAction, name: str, help_text: str, examples: str
) -> argparse.ArgumentParser:
    parser = commands.add_parser(
        name,
        help=help_text,
        description=help_text[0].upper() + help_text[1:] + ".",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="examples:\n" + examples,
    )
    parser.set_defaults(name=name)
    return parser


def _add_bench(commands: argparse._SubParsersAction) -> None:
    parser = _add_command(
        commands,
        "bench",
        "verify problems against fp64, then time them beside PyTorch",
        "  python -m tconv bench\n"
        "  python -m tconv bench --suite kernelbench --json results.json\n"
        "  python -m tconv bench 'UNet*' DCGAN.g3 --dtype bf16 --channels-last --backward\n"
        "  python -m tconv bench kb65 --precision strict --pytorch benchmark\n"
        "  python -m tconv bench --pytorch both --training --html bench.html\n"
        "  python -m tconv bench --suite all --exhaustive --json candidates.json\n"
        "\nExit code: 0 all right, 1 a result is wrong or a problem failed, 2 a bad request.",
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="problems by name or glob (default: the main layers)")
    parser.add_argument("--suite", choices=problem_sets.SUITES, help="all problems of a suite")
    parser.add_argument("--device", default="auto", help="auto (a GPU if there is one), cpu, cuda or cuda:N")
    parser.add_argument(
        "--dtype",
        type=_short_dtype,
        choices=sorted(_DTYPES),
        default="fp32",
        help="element type, or PyTorch's name of it (default: fp32)",
    )
    parser.add_argument(
        "--precision", choices=("tf32", "strict"), default="tf32", help="of fp32 on a GPU, both sides (default: tf32)"
    )
    parser.add_argument("--strict", action="store_true", help="the same as --precision strict")
    parser.add_argument("--channels-last", action="store_true", help="input and weight with channels varying fastest")
    parser.add_argument("--bias", action="store_true", help="with a bias (default: none)")
    parser.add_argument("--backward", action="store_true", help="time grad_input and grad_weight together")
    parser.add_argument(
        "--pytorch",
        choices=("default", "benchmark", "both"),
        default="default",
        help="PyTorch as it comes, with cudnn.benchmark on, or each in a process of its own (both: GPU only)",
    )
    parser.add_argument("--training", action="store_true", help="also time a training step of three networks")
    parser.add_argument(
        "--exhaustive", action="store_true", help="instead, time every candidate and judge the planner's choice"
    )
    parser.add_argument("--cuts", type=_positive, default=16, help="--exhaustive: cuts of a family (default: 16)")
    parser.add_argument("--threads", type=_positive, help="CPU threads (default: PyTorch's choice)")
    parser.add_argument("--full-size", action="store_true", help="do not cut problems to CPU scale on a CPU")
    parser.add_argument("--batch", type=int, metavar="N", help="give every problem this batch (1: inference)")
    parser.add_argument("--seconds", type=float, default=1.0, help="time to spend measuring each problem (default: 1)")
    parser.add_argument("--host-overhead", action="store_true", help="also time the host side of a warm tiny call")
    parser.add_argument("--json", metavar="FILE", help="write every number to FILE (- for standard output)")
    parser.add_argument(
        "--html",
        metavar="FILE",
        help="write a page of plots and tables (on a GPU, if no problem is named: KernelBench's)",
    )
    parser.add_argument("--verified-elsewhere", action="store_true", help=argparse.SUPPRESS)
    parser.set_defaults(command=_bench)


def _bench(options: argparse.Namespace) -> int:
    from tconv.bench import Bench, Options
    from tconv.bench_exhaustive import run_exhaustive
    from tconv.bench_report import run_and_report

    bench = Bench(
        Options(
            names=options.names,
            suite=options.suite,
            device=options.device,
            dtype=options.dtype,
            strict=options.strict or options.precision == "strict",
            channels_last=options.channels_last,
            bias=options.bias,
            backward=options.backward,
            pytorch=options.pytorch,
            verify=not options.verified_elsewhere,
            cuts=options.cuts,
            suite_on_gpu=problem_sets.KERNELBENCH if options.html and not options.exhaustive else None,
            threads=options.threads,
            full_size=options.full_size,
            batch=options.batch,
            seconds=options.seconds,
        )
    )
    if options.exhaustive:
        return run_exhaustive(bench, json_target=options.json)
    return run_and_report(
        bench,
        json_target=options.json,
        host_overhead=options.host_overhead,
        training=options.training,
        page_target=options.html,
    )


def _add_explain(commands: argparse._SubParsersAction) -> None:
    parser = _add_command(
        commands,
        "explain",
        "show a problem's output size, phases and plan",
        "  python -m tconv explain kb75\n"
        "  python -m tconv explain --in-channels 8 --out-channels 4 --input 4 4 --kernel 3 3 --stride 2 --padding 1\n"
        "  python -m tconv explain kb65 --dtype bf16 --device cuda --channels-last\n"
        "  python -m tconv explain --list",
    )
    parser.add_argument("problem", nargs="?", metavar="NAME", help="a problem of the problem file")
    parser.add_argument("--list", action="store_true", help="list the problems of the problem file")
    _add_sizes(parser)
    how = parser.add_argument_group("how it is computed")
    how.add_argument("--dtype", choices=sorted(_DTYPES), default="fp32")
    how.add_argument("--device", help="cpu, cuda or cuda:N (default: a GPU if there is one)")
    how.add_argument("--direction", choices=("forward", "grad_input", "grad_weight", "grad_bias"), default="forward")
    how.add_argument("--channels-last", action="store_true")
    how.add_argument("--bias", action="store_true")
    how.add_argument("--strict", action="store_true", help="fp32 without TF32")
    parser.set_defaults(command=_explain)


def _add_sizes(parser: argparse.ArgumentParser) -> None:
    sizes = parser.add_argument_group("a problem spelt out (one value is used for every axis)")
    sizes.add_argument("--batch", type=int, default=1)
    sizes.add_argument("--in-channels", type=int, default=1)
    sizes.add_argument("--out-channels", type=int, default=1)
    sizes.add_argument("--groups", type=int, default=1)
    sizes.add_argument("--input", type=int, nargs="+", metavar="SIZE", help="1 to 3 sizes; their number is the rank")
    sizes.add_argument("--kernel", type=int, nargs="+", metavar="SIZE")
    sizes.add_argument("--stride", type=int, nargs="+", default=[1], metavar="STEP")
    sizes.add_argument("--padding", type=int, nargs="+", default=[0], metavar="SIZE")
    sizes.add_argument("--output-padding", type=int, nargs="+", default=[0], metavar="SIZE")
    sizes.add_argument("--dilation", type=int, nargs="+", default=[1], metavar="STEP")


def _explain(options: argparse.Namespace) -> int:
    if options.list:
        for problem in problem_sets.load_problems():
            print(f"{problem.name:32}{problem.describe()}")
        return 0
    problem = _spelt_out(options) if options.problem is None else _one_problem(options.problem)
    import torch

    from tconv.explain import Setting, explain

    device = options.device or ("cuda" if torch.cuda.is_available() else "cpu")
    setting = Setting(
        dtype=_DTYPES[options.dtype],
        device=device,
        direction=options.direction,
        bias=options.bias,
        channels_last=options.channels_last,
        precision="strict" if options.strict or device == "cpu" else "tf32",
    )
    try:
        text = explain(problem, setting)
    except RuntimeError as error:
        raise BadRequestError(str(error).splitlines()[0]) from None
    if options.problem is not None:
        print(f"{problem.name}: {problem.source}" + (f" ({problem.note})" if problem.note else ""))
    print(text.rstrip("\n"))
    return 0


def _one_problem(name: str) -> Problem:
    found = problem_sets.select_problems([name])
    if len(found) > 1:
        raise BadRequestError(f"{name!r} means {len(found)} problems ({found[0].name}, ...); name one")
    return found[0]


def _spelt_out(options: argparse.Namespace) -> Problem:
    if not options.input or not options.kernel:
        raise BadRequestError("name a problem (`explain --list` has them), or give at least --input and --kernel")
    rank = len(options.input)

    def per_axis(name: str) -> tuple[int, ...]:
        values = getattr(options, name)
        if len(values) not in (1, rank):
            raise BadRequestError(
                f"--{name.replace('_', '-')} takes 1 or {rank} values (as --input has), got {len(values)}"
            )
        return tuple(values * rank if len(values) == 1 else values)

    return Problem(
        name="problem",
        batch=options.batch,
        in_channels=options.in_channels,
        out_channels=options.out_channels,
        input=tuple(options.input),
        kernel=per_axis("kernel"),
        stride=per_axis("stride"),
        padding=per_axis("padding"),
        output_padding=per_axis("output_padding"),
        dilation=per_axis("dilation"),
        groups=options.groups,
    )


def _add_prepare(commands: argparse._SubParsersAction) -> None:
    parser = _add_command(
        commands,
        "prepare",
        "compile GPU kernels ahead, into the disk cache",
        "  python -m tconv prepare                  every problem of the problem file\n"
        "  python -m tconv prepare 'UNet*' kb65 --dtype bf16\n"
        "\nFor your own model call tconv.prepare(model, example).",
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="problems by name or glob (default: all)")
    parser.add_argument("--device", default="cuda", help="cuda or cuda:N")
    parser.add_argument("--dtype", choices=sorted(_DTYPES), default="fp32")
    parser.add_argument("--strict", action="store_true", help="fp32 without TF32")
    parser.add_argument("--channels-last", action="store_true")
    parser.add_argument("--bias", action="store_true")
    parser.add_argument("--backward", action="store_true", help="the kernels of the gradients too")
    parser.set_defaults(command=_prepare)


def _prepare(options: argparse.Namespace) -> int:
    from tconv.explain import Setting
    from tconv.prepare import prepare_problems

    setting = Setting(
        dtype=_DTYPES[options.dtype],
        device=options.device,
        bias=options.bias,
        channels_last=options.channels_last,
        precision="strict" if options.strict else "tf32",
    )
    return prepare_problems(problem_sets.select_problems(options.names), setting, backward=options.backward)


def _add_export(commands: argparse._SubParsersAction) -> None:
    parser = _add_command(
        commands,
        "export",
        "write one Python file with a model's transposed convolutions as CUDA kernels, for load_inline",
        "  python -m tconv export --problem kb75 -o model_new.py\n"
        "  python -m tconv export --model model.py -o model_new.py\n"
        "  python -m tconv export --in-channels 8 --out-channels 4 --input 64 64 --kernel 4 --stride 2 --padding 1 "
        "-o up.py\n"
        "\nA model file defines Model, get_inputs and get_init_inputs. For a module in memory call\n"
        "tconv.export(module, example, path).",
    )
    what = parser.add_argument_group("what is exported").add_mutually_exclusive_group()
    what.add_argument("--problem", metavar="NAME", help="a problem of the problem file")
    what.add_argument("--model", metavar="FILE", help="a file with Model, get_inputs and get_init_inputs")
    _add_sizes(parser)
    parser.add_argument("--dtype", choices=sorted(_DTYPES), help="of a problem (default: fp32; a model has its own)")
    parser.add_argument("--bias", action="store_true", help="a problem's layer has a bias")
    parser.add_argument(
        "-o", "--output", required=True, metavar="FILE", help="the file to write (- for standard output)"
    )
    parser.set_defaults(command=_export)


def _export(options: argparse.Namespace) -> int:
    from pathlib import Path

    from tconv import exporter

    numbers = (options.batch, options.in_channels, options.out_channels)
    spelt_out = options.input or options.kernel or numbers != (1, 1, 1)
    if options.model is not None:
        if options.dtype is not None or options.bias or spelt_out:
            raise BadRequestError("--model brings its own sizes, type and bias: give no others")
        text = exporter.text_of_file(Path(options.model))
    else:
        if options.problem is not None and spelt_out:
            raise BadRequestError("--problem brings its own sizes: give no others")
        problem = _spelt_out(options) if options.problem is None else _one_problem(options.problem)
        text = exporter.text_of_problem(problem, dtype=_DTYPES[options.dtype or "fp32"], bias=options.bias)
    if options.output == "-":
        print(text, end="")
        return 0
    try:
        Path(options.output).write_text(text)
    except OSError as error:
        raise BadRequestError(f"{options.output} could not be written: {error.strerror}") from None
    return 0


def _add_kernelbench(commands: argparse._SubParsersAction) -> None:
    parser = _add_command(
        commands,
        "kernelbench",
        "run KernelBench's own evaluation on exported files",
        "  python -m tconv kernelbench ~/KernelBench\n"
        "  python -m tconv kernelbench ~/KernelBench --level 2 --json verdicts.json\n"
        "  python -m tconv kernelbench ~/KernelBench 65 75",
    )
    parser.add_argument("path", metavar="PATH", help="a checkout of KernelBench")
    parser.add_argument("problems", nargs="*", type=int, metavar="NUMBER", help="problems, right behind PATH (all)")
    parser.add_argument("--level", type=int, choices=(1, 2), default=1)
    parser.add_argument("--correct-trials", type=_positive, default=5, help="random inputs to compare (default: 5)")
    parser.add_argument("--perf-trials", type=_positive, default=100, help="timed runs (default: 100)")
    parser.add_argument("--no-timing", action="store_true", help="correctness alone")
    parser.add_argument("--library", action="store_true", help="time tconv's own layers (tconv.convert) beside")
    parser.add_argument(
        "--json",
        metavar="FILE",
        help="where every verdict is written (default: kernelbench-level1.json or -level2.json; - for standard output)",
    )
    parser.set_defaults(command=_kernelbench)


def _kernelbench(options: argparse.Namespace) -> int:
    from tconv.kernelbench import evaluate

    return evaluate(
        options.path,
        level=options.level,
        numbers=options.problems,
        correct_trials=options.correct_trials,
        perf_trials=None if options.no_timing else options.perf_trials,
        library=options.library,
        json_path=options.json or f"kernelbench-level{options.level}.json",
    )


def _add_info(commands: argparse._SubParsersAction) -> None:
    parser = _add_command(
        commands, "info", "show version, devices, instruction set and cache", "  python -m tconv info"
    )
    parser.set_defaults(command=_info)


def _info(_options: argparse.Namespace) -> int:
    from tconv.information import information_rows

    rows = information_rows()
    width = max(len(name) for name, _ in rows)
    for name, value in rows:
        print(f"{name:{width}}  {value}")
    return 0


def _short_dtype(text: str) -> str:
    return {name: short for short, name in _DTYPES.items()}.get(text, text)


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {value}")
    return value
