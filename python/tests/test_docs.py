"""Every block of Python in the pages about the package runs, and every service in it denies; so do examples of docstrings."""

import doctest
import os
import pathlib
import re
import shutil

import mypy.api
import pytest
from conftest import asgi, wsgi
from django.test import override_settings as django_settings

import earrrl.asgi
import earrrl.limits
import earrrl.wsgi

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGES = [ROOT / "docs" / "python.md", ROOT / "docs" / "moving.md", ROOT / "python" / "README.md"]
ALL = [(page.name, place, block) for page in PAGES
       for place, block in enumerate(re.findall(r"^```python\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE))]
# The tests of applications keep their limits in memory.
TESTS = [block for _, _, block in ALL if "clock=" in block]
BLOCKS = [found for found in ALL if found[2] not in TESTS]


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


@pytest.mark.parametrize("block", TESTS)
def test_test_of_an_application(block):
    exec(compile(block, "block", "exec"), {"__name__": "service"})


@pytest.mark.parametrize(("module", "least"), [(earrrl, 25), (earrrl.asgi, 5), (earrrl.wsgi, 6), (earrrl.limits, 6)])
def test_examples_of_docstrings(module, least):
    failed, attempted = doctest.testmod(module)
    assert failed == 0 and attempted >= least


def test_blocks_agree_with_the_stubs(tmp_path):
    for place, (_, _, block) in enumerate(ALL):
        # slowapi's own types do not allow what its page says.
        head = "# mypy: disable-error-code=arg-type\n" if "slowapi" in block else ""
        (tmp_path / f"block{place}.py").write_text(head + block)
    # Functions without types are usual in examples, and some of the frameworks have none.
    allowed = ["--allow-untyped-defs", "--allow-incomplete-defs", "--allow-untyped-calls", "--allow-untyped-decorators"]
    allowed += ["--disable-error-code=import-untyped", "--disable-error-code=method-assign"]
    report, errors, status = mypy.api.run(["--strict", *allowed, f"--cache-dir={tmp_path}/cache", *map(str, tmp_path.glob("*.py"))])
    assert status == 0, report + errors


OLD_VIEWS = """
from django.core.wsgi import get_wsgi_application
from django.http import HttpResponse
from django.urls import path
from django_ratelimit.decorators import ratelimit

@ratelimit(key="get:user", rate="3/d")
def export(request):
    return HttpResponse("a file")

@ratelimit(key="ip", rate="5/d", method="POST")
def login(request):
    return HttpResponse("welcome")

urlpatterns = [path("export", export), path("login", login)]
app = get_wsgi_application()
"""


def test_django_ratelimit_denies_what_the_block_in_its_place_denies(prefix):
    [block] = [block for _, _, block in BLOCKS if "@ratelimit" in block]
    # No window ends within the test.
    block = block.replace("/dev/shm/", prefix).replace("5/1m", "5/1d").replace("3/1h", "3/1d")
    exports, logins = [("GET", f"/export?user={user}") for user in "ababaaa"], [("POST", "/login")] * 6
    allowed = []
    for code in (OLD_VIEWS, block):
        names = {"__name__": "service"}
        exec(compile(code, "block", "exec"), names)
        with django_settings(ROOT_URLCONF=tuple(names["urlpatterns"])):
            statuses = [wsgi(names["app"], path, method=method)[0] for method, path in [*exports, *logins, ("GET", "/login")]]
        assert set(statuses) <= {200, 403, 429}
        allowed.append([status == 200 for status in statuses])
    assert allowed[0] == allowed[1] == [True] * 5 + [False] * 2 + [True] * 5 + [False, True]


def test_there_are_blocks():
    assert len(BLOCKS) >= 9
