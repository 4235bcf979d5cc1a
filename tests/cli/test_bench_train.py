"""`lamp bench train`: tiny networks for real, its record, and variants that fail or take too long."""

import json
import sys
import time

import pytest
import torch
from typer.testing import CliRunner

from lamplighter.benchmarking import training
from lamplighter.benchmarking.training import PLAIN, VARIANTS, Kernel, Request, Row, measure, speedup, suited
from lamplighter.cli import bench_train
from lamplighter.cli.app import app
from lamplighter.errors import LamplighterError

TINY = ("--device", "cpu", "--width", "1", "--steps", "2", "--batch", "4")

# What else this machine does while tests run is not what they are about; failures are, and are looked for in the text.
pytestmark = pytest.mark.filterwarnings("default:this machine is busy", "default:.* failed:", "default:.* profiled:")


def lamp(*arguments):
    return CliRunner().invoke(app, ["bench", "train", *map(str, arguments)])


@pytest.fixture
def measured(monkeypatch):
    """Replaces the measurement; the list of what was asked for."""
    asked = []

    def quick(name, request):
        asked.append((name, request))
        return Row(name, training.trials_of(name, request), each=10.0 * len(asked), preparation=1.0, memory=2 * 10**9)

    monkeypatch.setattr(training, "measure", quick)
    return asked


def test_json_holds_every_variant_with_its_ratio(tmp_path):
    out = tmp_path / "new" / "speed.json"
    done = lamp(*TINY, "--variants", "loop-fp32, stacked-loop", "--trials", 3, "--out", out, "--json")
    assert done.exit_code == 0, done.output
    record = json.loads(done.stdout)
    assert record == json.loads(out.read_text())
    assert record.keys() == {"machine", "request", "rows"}
    assert record["machine"]["torch"] == torch.__version__
    assert (record["request"]["width"], record["request"]["steps"], record["request"]["batch"]) == (1, 2, 4)
    loop, stacked = record["rows"]
    assert [(row["variant"], row["trials"], row["error"]) for row in (loop, stacked)] == [
        ("loop-fp32", 1, None),
        ("stacked-loop", 3, None),
    ]
    assert (loop["total"], loop["times_plain"]) == (loop["each"], 1)
    assert stacked["total"] == 3 * stacked["each"] > 0
    assert stacked["times_plain"] == pytest.approx(stacked["total"] / loop["total"])
    assert all(row["preparation"] > 0 and row["memory"] > 10**6 for row in (loop, stacked))
    assert stacked["how"]["method"] == "stacked"
    assert [path.name for path in out.parent.iterdir()] == ["speed.json"]


def test_a_variant_that_fails_is_reported_without_a_traceback(monkeypatch):
    def ask_too_much(name, request):
        # More memory than any machine can address.
        return usual(name, request if name == "loop-fp32" else Request((name,), batch=10**12, device="cpu"))

    usual = training.command
    monkeypatch.setattr(training, "command", ask_too_much)
    done = lamp(*TINY, "--variants", "loop-bf16,loop-fp32")
    assert done.exit_code == 0, done.output
    assert "warning: loop-bf16 failed: RuntimeError: " in done.stderr
    assert "Traceback" not in done.output
    rows = {line.split()[1]: line for line in done.stdout.splitlines() if line.startswith("│")}
    assert "failed" in rows["loop-bf16"]
    assert "failed" not in rows["loop-fp32"]
    assert "1.00" in rows["loop-fp32"]
    assert torch.__version__ in done.stderr


def test_the_record_says_where_a_variant_failed():
    done = lamp(*TINY[:-1], 10**12, "--variants", "loop-fp32", "--json")
    assert done.exit_code == 1
    (row,) = json.loads(done.stdout)["rows"]
    assert row["error"].startswith("RuntimeError: ")
    assert "Traceback" in row["log"]
    assert "Traceback" not in done.stderr
    assert done.stderr.splitlines()[-2] == "error: no variant could be measured"


def test_a_variant_that_takes_too_long_is_ended_and_reported(monkeypatch):
    sleep = [sys.executable, "-c", "import time; time.sleep(60)"]
    monkeypatch.setattr(training, "command", lambda name, request: sleep)
    began = time.monotonic()
    done = lamp(*TINY, "--variants", "loop-fp32", "--limit", "0.5")
    assert time.monotonic() - began < 30
    assert done.exit_code == 1
    assert "warning: loop-fp32 failed: not finished in 0.5 s, its limit" in done.stderr
    assert "failed" in done.stdout


def test_the_processes_of_a_variant_end_with_it(monkeypatch, tmp_path):
    """As those of the compiler do: the grandchild writes its file only if it outlives the limit."""
    late = f"import time, pathlib; time.sleep(3); pathlib.Path({str(tmp_path / 'late')!r}).touch()"
    child = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {late!r}])"
    monkeypatch.setattr(training, "command", lambda name, request: [sys.executable, "-c", child])
    row = measure(PLAIN, Request((PLAIN,), device="cpu", limit=1))
    assert row.error == "not finished in 1 s, its limit"
    time.sleep(3)
    assert not (tmp_path / "late").exists()


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "ended by SIGKILL"),
        ("import sys; sys.exit('the last line')", "the last line"),
        ("import os; os._exit(3)", "exit 3"),
    ],
)
def test_a_process_that_ends_without_an_answer_is_reported(monkeypatch, code, said):
    monkeypatch.setattr(training, "command", lambda name, request: [sys.executable, "-c", code])
    row = measure(PLAIN, Request((PLAIN,), device="cpu"))
    assert (row.error, row.each, row.total) == (said, None, None)


def test_an_error_is_told_without_its_hint_and_traceback(monkeypatch, capsys):
    def diverge(name, request):
        raise LamplighterError("training diverged", "lower the learning rate")

    monkeypatch.setattr(training, "measure_here", diverge)
    monkeypatch.setattr(sys, "argv", training.command(PLAIN, Request((PLAIN,), device="cpu"))[2:])
    training.main()
    row = json.loads(capsys.readouterr().out)
    assert row["error"] == "training diverged"
    assert row["log"].startswith("Traceback")


def test_ctrl_c_ends_the_process_of_a_variant(monkeypatch):
    started = []

    class Interrupted(training.subprocess.Popen):
        def communicate(self, *arguments, **options):
            started.append(self)
            raise KeyboardInterrupt

    monkeypatch.setattr(training.subprocess, "Popen", Interrupted)
    began = time.monotonic()
    monkeypatch.setattr(
        training, "command", lambda name, request: [sys.executable, "-c", "import time; time.sleep(60)"]
    )
    assert lamp(*TINY, "--variants", "loop-fp32").exit_code == 130
    assert time.monotonic() - began < 30
    assert started[0].poll() is not None


@pytest.mark.parametrize(
    ("arguments", "said", "hint"),
    [
        (("--variants", "graph-bf16", "--device", "cpu"), "graph-bf16 needs CUDA", "loop-fp32, loop-bf16"),
        (("--variants", "loop-tf32", "--device", "cpu"), "loop-tf32 needs CUDA", "loop-fp32, loop-bf16"),
        (("--variants", "loop-fp23"), "there is no variant 'loop-fp23'", "did you mean loop-fp32"),
        (("--profile", "loop-fp32", "--device", "cpu"), "loop-fp32 records no steps", "graph-bf16"),
        (("--device", "abacus"), "unknown device 'abacus'", "cpu"),
    ],
)
def test_what_cannot_be_measured_is_refused(measured, arguments, said, hint):
    done = lamp(*arguments)
    assert done.exit_code == 1
    assert done.stderr.splitlines()[-2].startswith(f"error: {said}")
    assert hint in done.stderr.splitlines()[-1]
    assert measured == []


def test_a_place_that_cannot_be_written_is_told_before_measuring(measured, tmp_path):
    (tmp_path / "file").touch()
    done = lamp(*TINY, "--out", tmp_path / "file" / "speed.json")
    assert done.exit_code == 1
    assert "speed.json cannot be written" in done.stderr
    assert measured == []


def test_an_earlier_file_stays_until_there_is_something_new(monkeypatch, tmp_path):
    def interrupted(name, request):
        raise KeyboardInterrupt

    (tmp_path / "a.json").write_text("earlier")
    monkeypatch.setattr(training, "measure", interrupted)
    assert lamp(*TINY, "--out", tmp_path / "a.json").exit_code == 130
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("a.json", "earlier")]


def test_what_was_measured_is_kept_when_the_rest_is_interrupted(monkeypatch, tmp_path):
    def interrupted(name, request):
        if name != PLAIN:
            raise KeyboardInterrupt
        return Row(name, 1, each=5.0, preparation=1.0)

    monkeypatch.setattr(training, "measure", interrupted)
    assert lamp(*TINY, "--out", tmp_path / "a.json").exit_code == 130
    (row,) = json.loads((tmp_path / "a.json").read_text())["rows"]
    assert (row["variant"], row["total"]) == (PLAIN, 5)


def test_without_cuda_the_cpu_is_used_with_small_sizes_and_said_so(measured, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    done = lamp()
    assert done.exit_code == 0, done.output
    assert "No CUDA device here: measuring on the CPU (width 8, 20 steps of 100 images)." in done.stderr
    assert [name for name, _ in measured] == suited("cpu")
    request = measured[0][1]
    assert (request.device, request.width, request.steps, request.batch) == ("cpu", 8, 20, 100)
    assert "No CUDA device" not in lamp("--device", "cpu").stderr


def test_on_cuda_sizes_are_those_of_the_paper(measured, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(bench_train, "_about", lambda device: {"processor": "p", "threads": 1, "torch": "t"})
    done = lamp("--profile", "graph-bf16", "--variants", "loop-fp32")
    assert done.exit_code == 0, done.output
    assert [name for name, _ in measured] == ["loop-fp32", "graph-bf16"]
    request = measured[0][1]
    assert (request.device, request.width, request.steps, request.trials) == ("cuda", 64, 1000, 5)
    assert request.profile == ("graph-bf16",)


def test_the_table_has_rates_ratios_and_memory(measured):
    done = lamp("--device", "cpu", "--variants", "loop-fp32,stacked-loop")
    cells = {line.split()[1]: line.replace("│", " ").split() for line in done.stdout.splitlines() if line[0] == "│"}
    assert cells["loop-fp32"] == ["loop-fp32", "1", "10.0", "10.0", "1.00", "1", "2.00", "GB"]
    assert cells["stacked-loop"] == ["stacked-loop", "5", "100", "20.0", "10.00", "1", "2.00", "GB"]
    assert "Ratios need" not in done.stdout
    assert "Ratios need loop-fp32" in lamp("--device", "cpu", "--variants", "loop-bf16").stdout


def test_kernels_are_listed_and_a_profiler_that_fails_costs_nothing_else(monkeypatch):
    def profiled(name, request):
        if name == "loop-bf16":
            return Row(name, 1, 5.0, 1.0, profile_error="RuntimeError: no profiler")
        return Row(name, 1, 5.0, 1.0, kernels=(Kernel("gemm", 12, 3456.78),), recorded_steps=4)

    monkeypatch.setattr(training, "measure", profiled)
    done = lamp("--device", "cpu", "--variants", "loop-fp32,loop-bf16")
    assert done.exit_code == 0, done.output
    assert "loop-fp32: the kernels of one recording, 4 steps of each trial" in " ".join(done.stdout.split())
    assert next(line for line in done.stdout.splitlines() if "gemm" in line).split()[1::2] == ["3,456.8", "12", "gemm"]
    assert "warning: loop-bf16 could not be profiled: RuntimeError: no profiler" in done.stderr


def test_kernels_survive_the_way_between_processes(monkeypatch):
    row = Row(PLAIN, 1, 5.0, 1.0, None, kernels=(Kernel("gemm", 12, 34.5),), recorded_steps=4)
    code = f"print('noise'); print({json.dumps(training.asdict(row))!r})"
    monkeypatch.setattr(training, "command", lambda name, request: [sys.executable, "-c", code])
    assert measure(PLAIN, Request((PLAIN,), device="cpu")) == row


def test_ratios_count_the_steps_of_all_trials():
    rows = [Row(PLAIN, 1, each=4.0), Row("stacked", 5, each=2.0), Row("streams", 5, error="no")]
    assert [speedup(rows, row) for row in rows] == [1, 2.5, None]
    assert speedup(rows[1:], rows[1]) is None


def test_masks_of_the_sparse_variant_have_its_density():
    request = Request(("branches-sparse",), width=8, device="cpu", trials=2)
    models, masks = training.networks("branches-sparse", request)
    assert len(models) == len(masks) == 2
    kept = sum(int(mask.sum()) for mask in masks[0].values())
    entries = sum(mask.numel() for mask in masks[0].values())
    assert kept / entries == pytest.approx(VARIANTS["branches-sparse"].density, rel=0.05)
    assert training.networks(PLAIN, request)[1] == [None]


def test_recorded_variants_are_for_cuda_alone():
    assert suited("cuda") == list(VARIANTS)
    assert suited("cpu") == ["loop-fp32", "loop-bf16", "compiled-bf16", "stacked-loop"]
    with pytest.raises(LamplighterError, match="needs CUDA"):
        Request(("streams",), device="cpu").check()


def test_help_names_every_variant_and_shows_examples():
    shown = lamp("--help").stdout
    words = shown.replace(";", " ").replace(",", " ").replace(".", " ").split()
    assert [name for name in VARIANTS if name not in words] == []
    assert "$ lamp bench train --variants" in shown
