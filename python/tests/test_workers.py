"""Real servers with 8 workers: together they admit what the limit says, whatever happens to the workers."""

import os
import signal
import time

import pytest

WORKERS = 8
UVICORN = ["uvicorn", "--workers", "8", "--port", "{port}", "--log-level", "error"]
GUNICORN = ["gunicorn", "--workers", "8", "--bind", "127.0.0.1:{port}"]
PRELOADED = [*GUNICORN, "--preload"]


def wait_for_minute(seconds):
    """Waits for the next minute unless this one lasts for some more seconds: windows end with it."""
    left = 60 - time.time() % 60
    if left < seconds:
        time.sleep(left + 0.1)


@pytest.mark.parametrize("command", [UVICORN, [*GUNICORN, "--worker-class", "asgi"]], ids=["uvicorn", "gunicorn"])
def test_middleware_for_asgi(start, tmp_path, command):
    server = start([*command, "service_asgi:app"], STATE=str(tmp_path / "states"))
    server.wait(WORKERS)
    assert server.flood("/", 1000) == {200: 5, 429: 995}


@pytest.mark.parametrize("command", [GUNICORN, PRELOADED], ids=["gunicorn", "preloaded"])
def test_middleware_for_wsgi(start, tmp_path, command):
    server = start([*command, "service_wsgi:app"], STATE=str(tmp_path / "states"))
    server.wait(WORKERS)
    assert server.flood("/", 1000) == {200: 5, 429: 995}


@pytest.mark.parametrize("strategy", ["fixed-window", "sliding-window-counter"])
@pytest.mark.parametrize(
    "command",
    [[*UVICORN, "service_slowapi:app"], [*GUNICORN, "service_flask_limiter:app"], [*PRELOADED, "service_flask_limiter:app"]],
    ids=["slowapi", "flask-limiter", "flask-limiter-preloaded"],
)
def test_packages_that_use_limits(start, tmp_path, command, strategy):
    server = start(command, STORAGE_URI=f"earrrl://{tmp_path}/states", STRATEGY=strategy)
    server.wait(WORKERS)
    wait_for_minute(20)
    assert server.flood("/", 1000) == {200: 5, 429: 995}


def test_killed_workers_change_nothing(start, tmp_path):
    server = start([*GUNICORN, "service_wsgi:app"], STATE=str(tmp_path / "states"))
    workers = server.wait(WORKERS)
    assert [server.get("/")[0] for _ in range(3)] == [200] * 3
    for worker in workers:
        os.kill(worker, signal.SIGKILL)
    # The master starts new workers, which know what the killed ones admitted.
    while server.wait(WORKERS) & workers:
        time.sleep(0.1)
    statuses = server.flood("/", 200)
    assert statuses[200] == 2 and statuses[429] == 198
