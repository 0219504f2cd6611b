"""Every block of Python in the page docs/python.md and in the package's README runs, and every service in it denies."""

import os
import pathlib
import re
import shutil

import pytest
from conftest import asgi, wsgi

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGES = [ROOT / "docs" / "python.md", ROOT / "python" / "README.md"]
BLOCKS = [(page.name, place, block) for page in PAGES
          for place, block in enumerate(re.findall(r"^```python\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE))]


@pytest.fixture(autouse=True)
def django():
    import django.conf

    if not django.conf.settings.configured:
        django.conf.settings.configure(ROOT_URLCONF=(), ALLOWED_HOSTS=["*"], DEBUG=True)


@pytest.fixture
def prefix():
    """The beginning of the paths that a block gets instead of its own, directly in the same directory."""
    prefix = f"/dev/shm/earrrl-docs-{os.getpid()}-"
    yield prefix
    for folder in folders(prefix):
        shutil.rmtree(folder)


def folders(prefix):
    path = pathlib.Path(prefix)
    return list(path.parent.glob(f"{path.name}*"))


@pytest.mark.parametrize("block", [block for _, _, block in BLOCKS], ids=[f"{page}-{place}" for page, place, _ in BLOCKS])
def test_block(block, prefix):
    assert "/dev/shm/" in block
    names = {"__name__": "service"}
    exec(compile(block.replace("/dev/shm/", prefix), "block", "exec"), names)
    if app := names.get("app"):
        get = asgi if "add_middleware" in dir(app) else wsgi
        statuses = [get(app, headers=[("host", "example.org"), ("x-api-key", "a")])[0] for _ in range(200)]
        assert statuses[0] in (200, 404) and statuses[-1] == 429, statuses
    assert folders(prefix), "the block keeps its limits in files"


def test_there_are_blocks():
    assert len(BLOCKS) >= 8
