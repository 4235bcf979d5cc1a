"""The command as a whole: help, version, errors, exit codes, what goes to which stream."""

import errno
import importlib.util
import subprocess
import sys
import warnings

import pytest
import typer
from typer.testing import CliRunner

from lamplighter.cli import demo
from lamplighter.cli.app import app
from lamplighter.cli.console import prose
from lamplighter.errors import LamplighterError, LamplighterWarning
from lamplighter.version import __version__

COMMAND = [sys.executable, "-m", "lamplighter"]


def lamp(*arguments):
    return CliRunner().invoke(app, list(arguments))


def run(*arguments, **options):
    return subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, check=False, timeout=120, **options)


def test_version_is_data_on_stdout():
    done = run("--version")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"lamp {__version__}\n", "")


def test_help_says_what_to_type_first():
    shown = lamp("--help")
    assert shown.exit_code == 0
    assert "New here? Type lamp demo" in shown.stdout
    assert "ll.prune(model, sparsity=0.9)" in shown.stdout
    for command in ("demo", "bench"):
        assert command in shown.stdout


def test_a_group_without_a_command_answers_with_its_help():
    assert lamp().stdout.strip() == lamp("--help").stdout.strip()
    assert lamp().exit_code == 0
    assert "prune" in lamp("bench").stdout


@pytest.mark.parametrize("arguments", [("demo", "--help"), ("bench", "prune", "--help")])
def test_every_command_shows_examples(arguments):
    shown = lamp(*arguments)
    assert shown.exit_code == 0
    assert f"$ lamp {arguments[0]}" in shown.stdout


def test_help_imports_nothing_heavy():
    heavy = "torch", "numpy", "matplotlib", "sklearn", "safetensors"
    code = f"""
import sys
from lamplighter.cli.app import app
app(["--help"], standalone_mode=False)
sys.exit(",".join(name for name in {heavy!r} if name in sys.modules) or 0)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=120)
    assert done.stderr.strip() == ""
    assert done.returncode == 0


@pytest.mark.parametrize("arguments", [("bnch",), ("demo", "--trials", "many"), ("demo", "--methods", ","), ("--wat",)])
def test_a_wrong_command_line_exits_with_2_and_says_so_on_stderr(arguments):
    done = lamp(*arguments)
    assert done.exit_code == 2
    assert done.stdout == ""
    assert "Usage:" in done.stderr


def test_a_misspelt_command_is_answered_with_the_nearest():
    assert "bench" in lamp("bnch").stderr


def test_an_error_is_one_line_and_a_hint_without_traceback():
    done = run("bench", "prune", "--model", "vgg")
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.splitlines() == ["error: unknown model 'vgg'", "hint: known: resnet50, resnet50-small"]


def test_output_has_no_escape_codes_where_nobody_watches():
    assert "\x1b" not in run("--help").stdout
    assert "\x1b" not in run("bench", "prune", "--model", "vgg").stderr


def failing(error):
    """The application with one more command, which fails."""

    def fail() -> None:
        raise error

    extended = typer.Typer(cls=app.info.cls)
    extended.callback()(lambda: None)
    extended.command("fail")(fail)
    return CliRunner().invoke(extended, ["fail"])


def test_ctrl_c_exits_quietly_with_130():
    done = failing(KeyboardInterrupt())
    assert done.exit_code == 130
    assert done.output == ""


def test_an_error_without_a_hint_is_one_line():
    done = failing(LamplighterError("no [red]markup[/red] is read into this"))
    assert done.exit_code == 1
    assert done.stderr == "error: no [red]markup[/red] is read into this\n"


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (PermissionError(errno.EACCES, "Permission denied", "runs/a"), "runs/a: Permission denied"),
        (IsADirectoryError(errno.EISDIR, "Is a directory", "out"), "out: Is a directory"),
        (OSError(errno.ENOSPC, "No space left on device"), "No space left on device"),
        (OSError("the server hung up"), "the server hung up"),
        (TimeoutError(), "TimeoutError"),
    ],
    ids=lambda each: type(each).__name__,
)
def test_what_the_system_refuses_is_an_error_with_a_hint(error, said):
    done = failing(error)
    assert done.exit_code == 1
    told, hint = done.stderr.splitlines()
    assert told == f"error: {said}"
    assert hint.startswith("hint: ")


def test_a_reader_that_has_gone_is_no_error_to_tell():
    done = failing(BrokenPipeError(errno.EPIPE, "Broken pipe"))
    assert (done.exit_code, done.output) == (1, "")


def test_a_defect_is_not_hidden():
    assert isinstance(failing(ZeroDivisionError()).exception, ZeroDivisionError)


def test_warnings_of_the_library_are_one_line():
    def warn() -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            warnings.warn("a layer is empty", LamplighterWarning, stacklevel=1)

    extended = typer.Typer(cls=app.info.cls)
    extended.callback()(lambda: None)
    extended.command("warn")(warn)
    done = CliRunner().invoke(extended, ["warn"])
    assert (done.exit_code, done.stderr) == (0, "warning: a layer is empty\n")


def test_a_missing_package_is_told_before_any_work(monkeypatch):
    there = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "matplotlib" else there(name))
    monkeypatch.setattr(demo, "_watch", lambda setting: pytest.fail("work was begun"))
    done = lamp("demo")
    assert done.exit_code == 1
    assert done.stderr.splitlines() == [
        "error: lamp demo needs matplotlib, which cannot be imported here",
        'hint: pip install "lamplighter[demo]"',
    ]


def test_prose_joins_the_lines_of_paragraphs():
    assert prose("\n one\n  two\n\nthree\n") == "one two\n\nthree"
