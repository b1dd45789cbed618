"""For every test: annotated shapes are enforced, unless CASCADICE_SHAPES is 0 (a test takes half the time without);
properties are tried without a stopwatch, torch's noise is hushed."""

import os
import shutil
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import jaxtyping
import pytest
from hypothesis import settings

# Before anything imports torch: the workers of `make test` share the cores, and threads that wait for one another
# are slow on a busy machine. tests/test_golden.py has two threads.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")

# Before anything imports cascadice: the checks are woven in while its modules are loaded. Only where tensors have
# shapes: configurations are given wrong types on purpose, to see their own errors.
CHECKED = (
    "applications",
    "data",
    "engine",
    "influence",
    "learning_rates",
    "losses",
    "models",
    "optimizers",
    "topology",
)
if find_spec("beartype") and os.environ.get("CASCADICE_SHAPES") != "0":
    jaxtyping.install_import_hook(
        [*(f"cascadice.{part}" for part in CHECKED), "cascadice_experiments.figures"], "beartype.beartype"
    )

settings.register_profile("cascadice", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "cascadice")

TORCH_NOISE = (
    # torch scripts its own forward-mode formulas on their first use
    "ignore:.*torch.jit.*:DeprecationWarning",
    # what inductor imports is older than the interpreter
    "ignore::DeprecationWarning:torch._inductor.*",
    "ignore:Please use the new API settings to control TF32:UserWarning",
)


def pytest_configure(config):
    for warning in TORCH_NOISE:
        config.addinivalue_line("filterwarnings", warning)


@pytest.hookimpl(tryfirst=True)  # before pytest leaves out what is slow
def pytest_collection_modifyitems(config, items):
    slow = set((Path(__file__).parent / "slow.txt").read_text().splitlines())
    for item in items:
        if item.nodeid in slow:
            item.add_marker(pytest.mark.slow)
    # two minutes of attacks: beside all other tests, not after them
    items.sort(key=lambda item: item.path.name != "test_torture.py")


@pytest.hookimpl(tryfirst=True)  # before the fixtures of a module, which may make models too
def pytest_runtest_setup(item):
    """Every test starts from the same seed and precision: what runs before it in the same process may change both."""
    import torch

    torch.manual_seed(0)
    torch.set_float32_matmul_precision("highest")


@pytest.fixture
def unchecked(monkeypatch):
    """Without shape checks: dynamo cannot trace them."""
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)


@pytest.fixture
def compiler(unchecked):
    """torch.compile from scratch, with a C++ compiler and without the shape checks that dynamo cannot trace."""
    import torch._dynamo

    if not any(shutil.which(name) for name in ("g++", "clang++", "c++")):
        pytest.skip("torch.compile needs a C++ compiler on CPU; found no g++, clang++ or c++")
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    return torch._dynamo.utils.counters


@pytest.fixture
def one_thread():
    """One intra-op thread: threads that wait for one another are slow on a busy machine."""
    with intra_op_threads(1):
        yield


@pytest.fixture
def two_threads():
    """Two intra-op threads: loops over rows are then dealt over two."""
    with intra_op_threads(2):
        yield


@contextmanager
def intra_op_threads(count):
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(count)
    yield
    torch.set_num_threads(before)
