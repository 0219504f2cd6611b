"""A plugin of pytest that runs the test suite of `limits` with our storages in place of those of `limits`."""

import inspect
import shutil
import time

import pytest
from pytest_lazy_fixtures import lf

import earrrl.limits

FILES = "/dev/shm/earrrl-limits-suite"


def storages(scheme, instance=None):
    """The parameters of a test: a URI, its options, perhaps the class of the storage, and a fixture."""
    of_class = [instance] if instance else []
    return [
        pytest.param(f"{scheme}://", {}, *of_class, None, id="process"),
        pytest.param(f"{scheme}://{FILES}", {}, *of_class, lf("new_files"), id="files"),
    ]


@pytest.fixture
def new_files():
    shutil.rmtree(FILES, ignore_errors=True)
    yield
    shutil.rmtree(FILES, ignore_errors=True)


@pytest.fixture(autouse=True)
def window_of_two_seconds(request):
    """Starts the test of a window of two seconds, which waits for the next second, when such a window begins."""
    while request.node.originalname == "test_fixed_window" and int(time.time()) % 2 == 0:
        time.sleep(0.01)


@pytest.hookimpl(tryfirst=True)
def pytest_pycollect_makeitem(collector, name, obj):
    """Replaces the storages of a class of tests. Our storages have no moving windows, so those tests get none."""
    if not inspect.isclass(obj):
        return
    scheme = "async+earrrl" if ".aio." in obj.__module__ else "earrrl"
    for mark in getattr(obj, "pytestmark", ()):
        if mark.name != "parametrize" or "uri" not in mark.args[0]:
            continue
        if "expected_instance" in mark.args[0]:
            storage = earrrl.limits.AsyncEarrrlStorage if "async" in scheme else earrrl.limits.EarrrlStorage
            replacement = storages(scheme, storage)
        elif "fixture" not in mark.args[0]:
            continue
        else:
            replacement = [] if "MovingWindow" in name else storages(scheme)
        object.__setattr__(mark, "args", (mark.args[0], replacement, *mark.args[2:]))
