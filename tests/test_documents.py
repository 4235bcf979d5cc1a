"""What the documents show is so: code runs and prints what is printed there, commands and files exist."""

import contextlib
import io
import re
import shlex
import subprocess
import sys
import tomllib

import pytest
import torch
import typer
from safetensors.torch import save_file
from typer.testing import CliRunner

import lamplighter as ll
from documents import DOCUMENTS, LANGUAGES, ROOT, Block, blocks, commands, links, prose, quoted
from lamplighter.cli.app import app
from lamplighter.runtime import build

LAMP = [sys.executable, "-m", "lamplighter"]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
LONG = {
    "lamp demo",
    "lamp bench prune",
    "lamp bench checkpoint --size 0.1",
}  # run by tests of their own that are marked slow
# These want data, or runs; they are run below on data of a few images, with the trainings cut to a step.
EXPERIMENT = re.compile(r"lamp (run [a-z]|report|data (prepare|verify))")
CHECKPOINT = re.compile(r"lamp (inspect|plan|prune) ")  # these a checkpoint, which is made for them
PACKING = re.compile(r"lamp (pack|unpack|verify) ")  # and these a pruned checkpoint, and each other's results
MIGRATING = re.compile(r"lamp migrate ")  # and these what other tools have written

every_document = pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
COMMANDS = list(dict.fromkeys(command for document in DOCUMENTS for command in commands(document)))
MENTIONED = list(dict.fromkeys([*COMMANDS, *(text for document in DOCUMENTS for text in quoted(document))]))


def run_block(block: Block, names: dict[str, object]) -> str:
    """What a python block prints; functions that it names test_... are tests, and called."""
    before, printed = set(names), io.StringIO()
    # As many empty lines in front as there are in the document, so that a traceback tells the document's line.
    code = compile("\n" * block.line + block.text, str(block.document), "exec")
    with contextlib.redirect_stdout(printed):
        exec(code, names)
        for name in set(names) - before:
            if name.startswith("test_"):
                names[name]()
    return "\n".join(line.rstrip() for line in printed.getvalue().splitlines())


@every_document
def test_code_runs_and_prints_what_is_printed_below_it(document, tmp_path, monkeypatch):
    if document.name == "runtime.md" and (missing := build.available()) is not None:
        pytest.skip(missing)
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": document.stem}
    with torch.random.fork_rng(devices=[]):
        for block in blocks(document):
            if block.language == "python":
                assert run_block(block, names) == (block.output or "").rstrip("\n"), block.place


@every_document
def test_every_block_says_what_it_is(document):
    for block in blocks(document):
        assert block.language in LANGUAGES, block.place
        assert block.text.strip(), block.place


@every_document
def test_links_lead_to_files_that_exist(document):
    for target in links(document):
        assert (document.parent / target).exists(), target


@every_document
def test_files_named_in_the_text_exist(document):
    made = {"demo/", "site/"}
    for path in set(quoted(document)) - made:
        if re.fullmatch(r"(src|tests|docs|\.ci)/[\w./-]+|[a-z_]+(\.py|/)", path):
            assert any((folder / path).exists() for folder in (ROOT, ROOT / "src" / "lamplighter")), path


def test_the_layout_in_the_readme_names_files_that_exist():
    layout = next(block for block in blocks(ROOT / "README.md") if "targets.py" in block.text)
    named = re.findall(r"\b\w+(?:\.py|/)", layout.text)
    assert len(named) > 15
    assert [path for path in named if not (ROOT / "src" / "lamplighter" / path).exists()] == []


def test_the_readme_has_its_two_commands_its_example_and_its_picture():
    readme = ROOT / "README.md"
    assert commands(readme)[:2] == ["make demo", "make test"]
    example = next(block for block in blocks(readme) if block.language == "python")
    assert len([line for line in example.text.splitlines() if line]) <= 10
    assert example.output is not None
    picture = next(ROOT / target for target in links(readme) if target.endswith(".png"))
    assert picture.stat().st_size < 150_000
    assert f"]({picture.relative_to(ROOT)})" in prose(readme)


def test_the_readme_says_what_pruning_costs():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\|[^|]*\| torch `global_unstructured` \| [\d,.]+ \| [\d.]+ \| [\d.]+ \|$", text, re.MULTILINE)
    assert len(rows) == 2


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_of_a_console_block_is_one_that_is_checked(command):
    words = shlex.split(command)
    assert words[0] in ("make", "lamp", "pip") or words[:3] == [".venv/bin/python", "-m", "pytest"]


@pytest.mark.parametrize("command", [text for text in MENTIONED if re.match(r"make [a-z-]", text)])
def test_make_knows_its_targets(command):
    targets = shlex.split(command)[1:]
    for target in targets:
        assert re.search(rf"^{target}:", MAKEFILE, re.MULTILINE), f"the Makefile has no rule for {target}"
    # As if the environment were ready, and only printed.
    dry = ["make", "--dry-run", "--old-file=.venv/.ready", *targets]
    done = subprocess.run(dry, cwd=ROOT, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("command", [text for text in MENTIONED if re.match(r"lamp [a-z-]", text)])
def test_lamp_understands_its_arguments(command):
    context, words = None, shlex.split(command)
    part = typer.main.get_command(app)
    while True:
        if {"-h", "--help", "--version"} & set(words):
            words = [word for word in words if word not in ("-h", "--help", "--version")]
        context = part.make_context(words[0], words[1:], parent=context)
        rest = [*context._protected_args, *context.args] if hasattr(context, "_protected_args") else context.args
        if not rest or not hasattr(part, "commands"):
            assert not rest, rest
            return
        assert rest[0] in part.commands, f"lamp has no command {rest[0]}"
        part, words = part.commands[rest[0]], rest


ALONE = [
    c
    for c in COMMANDS
    if c.startswith("lamp ")
    and c not in LONG
    and not any(each.match(c) for each in (EXPERIMENT, CHECKPOINT, PACKING, MIGRATING))
]


@pytest.mark.parametrize("command", ALONE)
def test_lamp_commands_run(command, tmp_path):
    lamp(command, tmp_path)


def test_the_experiments_commands_run(tmp_path, write_images):
    for split, count in (("train", 100), ("test", 10)):
        path = tmp_path / "downloads" / f"{split}-00000-of-00001.parquet"
        write_images(path, [place % 10 for place in range(count)])
    wanted = [command for command in COMMANDS if EXPERIMENT.match(command)]
    # What makes data comes before what reads them, and runs before their report.
    order = ["--source", "data prepare", "data verify", "lamp run", "lamp report"]
    for command in sorted(wanted, key=lambda text: next(i for i, part in enumerate(order) if part in text)):
        short = " --scale 0.00001 --rounds 1 --seeds 1 --methods lamp --device cpu" if "lamp run" in command else ""
        lamp(command + short, tmp_path)
    assert list((tmp_path / "report").glob("vgg16-cifar10*.md"))


def test_the_checkpoint_commands_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = ["lm_head.weight", *(f"layers.{place}.{part}.weight" for place in range(3) for part in ("attn", "mlp"))]
    layers = {name: torch.randn(64, 64, dtype=torch.bfloat16) for name in names}
    (tmp_path / "model").mkdir()
    for path in (tmp_path / "model.safetensors", tmp_path / "model" / "model.safetensors"):
        save_file(layers, path, metadata={"format": "pt"})
    for command in dict.fromkeys(command for command in COMMANDS if CHECKPOINT.match(command)):
        # Several of them write to the same place.
        words = [*shlex.split(command)[1:], *(["--force"] if command.startswith("lamp prune") else [])]
        done = CliRunner().invoke(app, words)
        assert done.exit_code == 0, done.stderr
    assert (tmp_path / "layers.png").exists()
    assert ll.Checkpoint(tmp_path / "pruned").keys() == layers.keys()


def test_the_packing_commands_run(tmp_path):
    layers = {f"layer{place}.weight": torch.randn(64, 64, dtype=torch.bfloat16) for place in range(3)}
    save_file(layers, tmp_path / "model.safetensors")
    ll.prune_checkpoint(tmp_path / "model.safetensors", tmp_path / "pruned.safetensors", sparsity=0.9)
    for command in COMMANDS:
        if PACKING.match(command):
            lamp(command, tmp_path)
    assert (tmp_path / "unpacked.safetensors").read_bytes() == (tmp_path / "pruned.safetensors").read_bytes()


def test_the_migrating_commands_run(tmp_path):
    weight, mask = torch.randn(8, 8), (torch.rand(8, 8) < 0.5).float()
    torch.save({"state_dict": {"fc.weight_orig": weight, "fc.weight_mask": mask}}, tmp_path / "pruned.ckpt")
    (tmp_path / "sparse-model").mkdir()
    stored = {"fc.shape": torch.tensor([1, 8]), "fc.bitmask": torch.tensor([[5]], dtype=torch.uint8)}
    save_file({**stored, "fc.compressed": torch.ones(2)}, tmp_path / "sparse-model" / "model.safetensors")
    for command in COMMANDS:
        if MIGRATING.match(command):
            lamp(command, tmp_path)
    assert torch.equal(ll.Masks.load(tmp_path / "pruned.masks.safetensors")["fc.weight"], mask.bool())
    assert ll.Checkpoint(tmp_path / "dense-model")["fc.weight"].tolist() == [[1, 0, 1, 0, 0, 0, 0, 0]]


@pytest.mark.slow
def test_the_demo_runs_as_written(tmp_path):
    done = lamp("lamp demo", tmp_path)
    assert "lamp" in done.stdout
    assert sorted(path.name for path in (tmp_path / "demo").iterdir()) == ["curves.png", "layers.png"]


@pytest.mark.slow
def test_the_benchmark_of_checkpoints_runs_as_written(tmp_path):
    assert "copy, flushed to the disk" in lamp("lamp bench checkpoint --size 0.1", tmp_path).stdout


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_benchmark_runs_as_written(tmp_path):
    assert "global_unstructured" in lamp("lamp bench prune", tmp_path).stdout


def lamp(command, folder):
    words = shlex.split(command)[1:]
    done = subprocess.run([*LAMP, *words], cwd=folder, capture_output=True, text=True, check=False, timeout=900)
    assert done.returncode == 0, done.stderr
    return done


@pytest.mark.parametrize("command", [text for text in MENTIONED if text.startswith("pip install ")])
def test_pip_installs_a_checkout_with_extras_that_exist(command):
    for wanted in shlex.split(command)[2:]:
        found = re.fullmatch(r"\.(?:\[([\w,-]+)\])?", wanted)
        assert found, f"{wanted} is not this checkout"
        for extra in (found[1] or "").split(","):
            assert not extra or extra in PROJECT["project"]["optional-dependencies"]


@pytest.mark.parametrize("command", [text for text in COMMANDS if "-m pytest" in text])
def test_pytest_is_given_paths_and_markers_that_exist(command):
    words = shlex.split(command)[3:]
    known = {marker.partition(":")[0] for marker in PROJECT["tool"]["pytest"]["ini_options"]["markers"]}
    while words:
        word = words.pop(0)
        if word == "-m":
            assert words.pop(0) in known
        else:
            assert (ROOT / word).exists(), word


def test_what_continuous_integration_runs_is_as_described():
    script = ROOT / ".ci" / "run"
    assert script.stat().st_mode & 0o100
    assert [line for line in script.read_text(encoding="utf-8").splitlines() if line.startswith("make")] == [
        "make lint types",
        "make test",
    ]
