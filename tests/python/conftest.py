import unittest.mock
import warnings

import pytest
import torch

import tconv.testing

# PyTorch's test helpers (samples, opcheck) forbid assignments to its backend flags for the rest of the process, as soon
# as they are imported. A user's process has no such ban, and the benchmark sets flags: import them here without it.
with warnings.catch_warnings(), unittest.mock.patch.object(torch.backends, "disable_global_flags"):
    warnings.simplefilter("ignore")
    import torch.testing._internal.common_utils

# The problems are small, and threads that wait for one another on a busy machine take most of the time;
# test_threads.py is about threads.
torch.set_num_threads(1)

# Memory that PyTorch allocates holds NaN until it is written: an element that a kernel forgets can't pass by luck.
torch.use_deterministic_algorithms(True, warn_only=True)
torch.utils.deterministic.fill_uninitialized_memory = True


@pytest.fixture(autouse=True)
def seed(request):
    """Data that differs from test to test and is the same from run to run."""
    torch.manual_seed(sum(request.node.nodeid.encode()))


# Take some layers alone, which have their own tests in tests/cpp.
SPECIAL_FAMILIES = {"columns", "depthwise", "winograd"}


@pytest.fixture(
    params=[None, *(name for name in tconv.testing.families("cpu") if name not in SPECIAL_FAMILIES)],
    ids=lambda family: family or "planned",
)
def family(request):
    """Runs the test as planned and then with each kernel family of the CPU forced that takes small problems."""
    if request.param is None:
        yield None
        return
    with tconv.testing.force_family(request.param):
        yield request.param
