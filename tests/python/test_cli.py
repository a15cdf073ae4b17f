"""The command line: what it prints and how it fails."""

import json
import subprocess
import sys

import pytest
import torch

import tconv
from tconv import cli


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = cli.main(arguments)
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_help_has_examples(capsys: pytest.CaptureFixture[str]) -> None:
    for command in ((), ("bench",), ("explain",), ("prepare",), ("export",), ("kernelbench",), ("info",)):
        with pytest.raises(SystemExit) as ended:
            cli.main([*command, "--help"])
        assert ended.value.code == 0
        assert "examples:" in capsys.readouterr().out


def test_the_module_runs() -> None:
    done = subprocess.run([sys.executable, "-m", "tconv", "info"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert torch.__version__ in done.stdout


def test_importing_the_package_needs_no_rich() -> None:
    program = "import sys; sys.modules['rich'] = None; import tconv; assert 'tconv.cli' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_info(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "info")
    assert code == 0
    assert "PyTorch" in out
    assert "reference" in out


def test_explain_a_named_problem(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "explain", "kb81", "--device", "cpu")
    assert code == 0
    assert "= 318" in out
    assert "= 638" in out
    assert "9 of 25 phases have taps" in out
    assert "Plan" in out
    assert max(map(len, out.splitlines())) <= 125


def test_explain_a_problem_spelt_out(capsys: pytest.CaptureFixture[str]) -> None:
    sizes = ["--in-channels", "2", "--out-channels", "3", "--input", "4", "--kernel", "3"]
    sizes += ["--stride", "2", "--padding", "1"]
    code, out, _ = run(capsys, "explain", *sizes, "--device", "cpu", "--direction", "grad_input")
    assert code == 0
    assert "(4-1)·2 - 1 - 1 + 1·(3-1) + 0 + 1 = 7" in out
    assert "grad_input" in out


@pytest.mark.parametrize("direction", ["forward", "grad_input", "grad_weight", "grad_bias"])
@pytest.mark.parametrize("dtype", ["fp32", "bf16", "fp16", "fp64"])
def test_explain_every_direction_and_dtype(capsys: pytest.CaptureFixture[str], direction: str, dtype: str) -> None:
    code, out, _ = run(
        capsys,
        "explain",
        "nnUNet3d.up0",
        "--direction",
        direction,
        "--dtype",
        dtype,
        "--device",
        "cpu",
        "--channels-last",
    )
    assert code == 0
    assert direction in out


def test_explain_lists_the_problems(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "explain", "--list")
    assert code == 0
    assert len(out.splitlines()) == 92


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["explain"], "name a problem"),
        (["explain", "kb999"], "no problem is called 'kb999'"),
        (["explain", "kb6*"], "means 5 problems"),
        (["explain", "--input", "4", "4", "--kernel", "3", "3", "3"], "--kernel takes 1 or 2 values"),
        (["explain", "--input", "4", "--kernel", "3", "--stride", "0", "--device", "cpu"], "stride"),
        (["explain", "--input", "4", "--kernel", "3", "--in-channels", "3", "--groups", "2"], "groups"),
        (["explain", "--input", "1", "1", "1", "1", "--kernel", "1"], "1 to 3 sizes"),
        (["bench", "nothing"], "no problem is called 'nothing'"),
        (["bench", "--device", "tpu"], "device"),
        (["bench", "kb64", "--channels-last"], "2-D or 3-D"),
        (["export", "--problem", "nothing", "-o", "-"], "no problem is called 'nothing'"),
        (["kernelbench", "/nowhere"], "/nowhere must be a checkout of KernelBench, but has no"),
        (["prepare", "nothing"], "no problem is called 'nothing'"),
    ],
)
def test_bad_requests(capsys: pytest.CaptureFixture[str], arguments: list[str], message: str) -> None:
    code, out, err = run(capsys, *arguments)
    assert code == 2
    assert message in err
    assert "Traceback" not in err
    assert out == ""


@pytest.mark.skipif(torch.cuda.is_available(), reason="what a machine without a GPU says")
def test_prepare_without_a_gpu(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capsys, "prepare", "kb65")
    assert code == 1
    assert "no GPU" in err


def test_bench_writes_json_to_standard_output(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(
        capsys, "bench", "FSRCNN.x4_train", "--device", "cpu", "--seconds", "0.01", "--json", "-", "--host-overhead"
    )
    assert code == 0, err
    record = json.loads(out)
    assert record["results"][0]["passed"] is True
    assert record["results"][0]["speedup"] > 0
    assert record["host_seconds_per_call"]["tconv"]["median"] > 0
    assert "FSRCNN.x4_train" in err


def test_preparing_a_model_leaves_it_as_it_was() -> None:
    from tconv.prepare import prepare

    model = torch.nn.Sequential(
        tconv.ConvTranspose2d(3, 4, 2, stride=2), torch.nn.BatchNorm2d(4), torch.nn.Dropout(0.5).eval()
    )
    calls = []
    model[0].register_forward_hook(lambda *_: calls.append(torch.is_grad_enabled()))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    prepare(model, torch.randn(2, 3, 5, 5))
    assert calls == [False]
    assert [module.training for module in model] == [True, True, False]
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


def test_unknown_arguments_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(["info", "--problem"])
    assert ended.value.code == 2
    assert "unrecognized arguments: --problem" in capsys.readouterr().err
