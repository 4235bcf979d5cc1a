"""Which module may import which: from left to right, and the core nothing but torch and numpy."""

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src" / "lamplighter"

# The path of the data. A module may import those of its own stage and of the stages before it. (The package's own
# __init__ names what is public, from every stage, and stands outside.)
STAGES = {
    "foundation": ["version", "errors", "naming", "plugins", "bits"],
    "weights": ["modules", "candidates", "targets", "memory", "parts"],
    "scores": ["scores", "evidence"],
    "spectra": [
        *("formats", "spectrum", "kernels", "kernels.cpu", "kernels.anywhere", "kernels.cuda_build", "kernels.cuda"),
        *("reading", "spectra"),
    ],
    "budgets": ["search", "ties", "allocation", "constraints"],
    "selection": ["selection"],
    "masks": ["holding", "mask_files", "mask_table", "masks"],
    "pruning": ["ranks", "problem", "patterns", "pruning"],
    "schedules": ["schedules"],
    "rounds": ["training", "training.rewinding", "training.rounds"],
}
CORE = [module for stage, modules in STAGES.items() if stage != "rounds" for module in modules]
# Built on top of the core, and free to import what they need.
OUTSIDE = {"__init__", "__main__", "benchmarking", "checkpoint", "cli", "data", "distributed", "experiments", "models"}
OUTSIDE |= {"integrations", "migration", "optional", "report", "runtime"}
ALLOWED = {"torch", "numpy", *sys.stdlib_module_names}
MODELS_AND_DATA = {"PIL", "datasets", "pandas", "pyarrow", "sklearn", "torchvision", "transformers"}
TRAINERS_AND_PEERS = {"accelerate", "compressed_tensors", "lightning", "pytorch_lightning"}
COMMANDS_AND_REPORTS = {"matplotlib", "plotly", "ray", "rich", "scipy", "typer"}


def path_of(module: str) -> Path:
    path = SOURCE.joinpath(*module.split("."))
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def imports(module: str) -> set[str]:
    """Everything that a module imports, wherever in its text, as full names: `from a import b` counts as a.b and a."""
    found = set()
    for node in ast.walk(ast.parse(path_of(module).read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module} imports relatively"
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found


def own_imports(module: str) -> set[str]:
    """The modules of this package that a module imports, without the package's name."""
    names = {name.removeprefix("lamplighter.") for name in imports(module) if name.startswith("lamplighter.")}
    known = {name for name in names if path_of(name).exists()}
    # A package that is only passed through on the way to one of its modules is not a choice of its own.
    return {name for name in known if not any(other.startswith(f"{name}.") for other in known)}


@pytest.mark.parametrize("stage", STAGES)
def test_modules_import_only_from_their_own_stage_and_those_before(stage):
    stages = list(STAGES)
    before = {module for each in stages[: stages.index(stage) + 1] for module in STAGES[each]}
    for module in STAGES[stage]:
        assert own_imports(module) - before == set(), module


@pytest.mark.parametrize("module", CORE)
def test_the_core_imports_torch_and_numpy_and_no_more(module):
    third_party = {name.partition(".")[0] for name in imports(module)} - ALLOWED - {"lamplighter"}
    # What compiles CUDA kernels comes with PyTorch where there is CUDA, and is imported where it is used.
    assert third_party == {"mask_files": {"safetensors"}, "kernels.cuda_build": {"cuda"}}.get(module, set())


@pytest.mark.parametrize("module", CORE)
def test_the_core_knows_nothing_of_other_processes(module):
    assert not any(name.startswith("torch.distributed") for name in imports(module))
    text = ast.unparse(ast.parse(path_of(module).read_text(encoding="utf-8")))
    assert "torch.distributed." not in text
    assert "torch.multiprocessing" not in text


def test_every_file_has_its_place():
    top = {path.stem for path in SOURCE.glob("*.py")} | {path.parent.name for path in SOURCE.glob("*/__init__.py")}
    unplaced = top - OUTSIDE - {module.partition(".")[0] for modules in STAGES.values() for module in modules}
    assert unplaced == set(), "say in STAGES where on the path of the data it stands, or that it is outside"
    kernels = {f"kernels.{path.stem}" for path in (SOURCE / "kernels").glob("*.py") if path.stem != "__init__"}
    assert kernels <= set(CORE)


def in_a_new_process(code: str) -> list:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_what_stands_left_is_imported_without_what_stands_right():
    """The stages in order, in one new process: after each, what else of the package has come along?"""
    code = f"""
import importlib, json, sys, types
bare = types.ModuleType("lamplighter")  # the package without its __init__, which imports all that is public
bare.__path__ = [{str(SOURCE)!r}]
sys.modules["lamplighter"] = bare
loaded = []
for modules in {list(STAGES.values())!r}:
    for module in modules:
        importlib.import_module("lamplighter." + module)
    loaded.append(sorted(name for name in sys.modules if name.startswith(("lamplighter.", "safetensors"))))
print(json.dumps(loaded))
"""
    allowed: set[str] = set()
    for (stage, modules), loaded in zip(STAGES.items(), in_a_new_process(code), strict=True):
        allowed |= {f"lamplighter.{module}" for module in modules}
        found = {name for name in loaded if not name.startswith("safetensors")}
        assert found == allowed, stage
        if "mask_files" not in {name.removeprefix("lamplighter.") for name in found}:
            assert found == set(loaded), f"{stage} reads or writes files"


def test_importing_the_library_imports_nothing_that_only_some_commands_need():
    code = "import json, sys, lamplighter; print(json.dumps(sorted({name.partition('.')[0] for name in sys.modules})))"
    assert set(in_a_new_process(code)) & (MODELS_AND_DATA | COMMANDS_AND_REPORTS | TRAINERS_AND_PEERS) == set()
