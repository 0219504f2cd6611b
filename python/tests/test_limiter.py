"""Limiters: decisions, arguments, processes and threads."""

import asyncio
import os
import signal
import subprocess
import sys
import threading
import uuid
from decimal import Decimal

import pytest

from earrrl import Engine, Limiter

RULES = [
    "recent-average 0.05/h half-life=1h strict",
    "exponential 5/1d",
    "token-bucket 5 refill=1/d",
    "gcra 5/d burst=5",
    "fixed-window 5/100d",
    "sliding-log 5/1d",
    "sliding-window 5/1d",
    "sliding-counter 5/100d",
]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "states" / "login"


@pytest.mark.parametrize("rule", RULES)
def test_decisions_of_every_algorithm(rule):
    limiter = Limiter(rule)
    first = limiter.check("alice")
    assert first.allowed and first and first.outcome == "allow" and first.retry_after == 0
    while limiter.check("alice"):
        assert limiter.peek("bob").allowed
    denied = limiter.peek("alice")
    assert not denied and denied.outcome == "deny" and denied.remaining == 0
    assert denied.retry_after > 0 and denied.reset_after > 0 and denied.limit > 0
    limiter.reset("alice")
    assert limiter.check("alice")


def test_denied_requests_are_told_times_of_their_own():
    limiter = Limiter("recent-average 1/h half-life=10h strict")
    denied = [decision for decision in (limiter.check("alice") for _ in range(40)) if not decision]
    assert len({round(decision.retry_after) for decision in denied}) == len(denied) > 20
    assert denied[0].retry_after == denied[0].earliest
    assert denied[-1].retry_after > denied[-1].earliest > denied[0].earliest


def test_a_text_and_its_utf8_are_one_key():
    limiter = Limiter("gcra 1/d burst=1")
    assert limiter.check("ämne")
    assert not limiter.check("ämne".encode())


def test_all_that_decide_or_change_take_an_instant():
    limiter, day = Limiter("fixed-window 5/1d"), 86_400 * 10**9
    assert all(limiter.check_at("a", day) for _ in range(4))
    assert limiter.peek_at("a", day).remaining == 1
    charged = limiter.charge_at("a", day, 3)
    assert not limiter.peek_at("a", day) and not limiter.check_at("a", day)
    limiter.refund_at("a", day, 3, charged.at)
    assert [bool(limiter.check_at("a", at)) for at in (day, day, 2 * day)] == [True, False, True]


def test_a_plain_id_is_its_text():
    for key, text in [(7, "7"), (uuid.UUID(int=5), "00000000-0000-0000-0000-000000000005"), (Decimal("7.50"), "7.50"), (10**40, "1" + "0" * 40)]:
        limiter = Limiter("gcra 1/d burst=1")
        assert limiter.check(key)
        assert not limiter.check(text)
        limiter.refund(key)
        assert limiter.check(text)


def test_costs_charges_and_refunds():
    limiter = Limiter("token-bucket 10 refill=1/d", max_cost=100)
    assert limiter.check("a", 2.5).remaining == 7
    assert not limiter.check("a", cost=8)
    at = limiter.check("a", 7).at
    limiter.refund("a", 7, at)
    assert limiter.peek("a", 7)
    assert not limiter.charge("a", 30)
    assert limiter.peek("a").retry_after > 22 * 86400
    assert limiter.check("a", 0).at
    assert limiter.check("b", 11).retry_after is None
    assert "None" in repr(limiter.check("b", 11))


def test_actions_apply_to_requests_over_the_limit():
    limiter = Limiter("gcra 1/d burst=1", action="observe")
    assert [limiter.check("a").outcome for _ in range(2)] == ["allow", "observe"]
    limiter = Limiter("gcra 1/m burst=1", action="delay", max_delay=90)
    assert [limiter.check("a").outcome for _ in range(3)] == ["allow", "delay", "deny"]
    delayed = Limiter("gcra 1/m burst=1", action="delay", max_delay=90)
    assert delayed.check("a") and 59 < delayed.check("a").delay <= 60


def test_headers():
    limiter = Limiter("gcra 0.1/s burst=2", name="login")
    policy = {"RateLimit-Policy": '"login";q=2;w=20'}
    assert limiter.check("a").headers() == policy | {"RateLimit": '"login";r=1;t=10'}
    assert limiter.check("a").headers() == policy | {"RateLimit": '"login";r=0;t=10'}
    assert limiter.check("a").headers() == policy | {"RateLimit": '"login";r=0;t=10', "Retry-After": "10"}
    assert limiter.check("a", 3).headers() == policy | {"RateLimit": '"login";r=0'}


def test_several_rules_count_a_request_under_all_or_none():
    engine = Engine({"login": "gcra 2/d burst=2", "address": "gcra 9/d burst=9"})
    for _ in range(2):
        assert engine.check({"login": "alice", "address": ("192.0.2.7", 2)})
    denied = engine.check({"login": "alice", "address": "192.0.2.7"})
    assert not denied and denied.rule == "login"
    assert engine.peek({"address": "192.0.2.7"}).remaining == 5
    engine.refund({"login": "alice", "address": ("192.0.2.7", 2)})
    assert engine.peek({"address": "192.0.2.7"}).remaining == 7
    assert engine.charge({"address": ("192.0.2.7", 10)}).rule == "address"
    engine.reset("address", "192.0.2.7")
    assert engine.peek({"address": "192.0.2.7"}).remaining == 9
    assert engine.rules == {"login": "gcra 2/d burst=2", "address": "gcra 9/d burst=9"}


def in_process(code, *arguments):
    """Runs code in another interpreter and returns what it prints."""
    return subprocess.run([sys.executable, "-c", code, *map(str, arguments)], check=True, capture_output=True, text=True).stdout


CHECKS = """
import sys, earrrl
limiter = earrrl.Limiter("gcra 100/d burst=100", path=sys.argv[1])
print(sum(bool(limiter.check("alice")) for _ in range(int(sys.argv[2]))))
"""


def test_processes_share_a_file(path):
    assert in_process(CHECKS, path, 70) == "70\n"
    assert in_process(CHECKS, path, 70) == "30\n"
    assert not Limiter("gcra 100/d burst=100", path=path).check("alice")


def test_a_clear_forgets_the_clients_of_all_processes(path):
    limiter = Limiter("gcra 100/d burst=100", path=path)
    for _ in range(2):
        assert in_process(CHECKS, path, 120) == "100\n"
        assert not limiter.peek("alice")
        assert (limiter.clear(), limiter.clear(), len(limiter)) == (1, 0, 0)
    alone = Limiter("sliding-log 2/1d")
    assert alone.check("alice", 2) and alone.clear() == 1 and alone.check("alice")


def test_a_killed_process_loses_nothing(path):
    code = CHECKS + "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)"
    for _ in range(3):
        killed = subprocess.run([sys.executable, "-c", code, path, "30"], check=False)
        assert killed.returncode == -signal.SIGKILL
    assert Limiter("gcra 100/d burst=100", path=path).peek("alice").remaining == 10


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_limiter_works_after_fork(path):
    limiter = Limiter("gcra 1000/d burst=1000", path=path)
    engine = Engine({"login": "gcra 1000/d burst=1000"}, path=path.parent.parent / "engine")
    assert limiter.check("alice") and engine.check({"login": "alice"})
    children = []
    for _ in range(4):
        if (child := os.fork()) == 0:
            done = all(limiter.check("alice") and engine.check({"login": "alice"}) for _ in range(200))
            os._exit(0 if done else 1)
        children.append(child)
    assert all(os.waitpid(child, 0)[1] == 0 for child in children)
    assert limiter.peek("alice").remaining == engine.peek({"login": "alice"}).remaining == 199


def test_threads_share_a_limiter():
    limiter = Limiter("gcra 5000/d burst=5000")
    counts = []

    def work():
        counts.append(sum(bool(limiter.check("alice")) for _ in range(2000)))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(counts) == 5000


def test_tasks_share_a_limiter():
    limiter = Limiter("gcra 50/d burst=50")

    async def work():
        await asyncio.sleep(0)
        return limiter.check("alice").allowed

    async def all_work():
        return await asyncio.gather(*(work() for _ in range(100)))

    assert sum(asyncio.run(all_work())) == 50


@pytest.mark.parametrize("name", ["earrrl", "earrrl.asgi", "earrrl.wsgi"])
def test_import_takes_no_other_package(name):
    code = f"import sys; before = set(sys.modules); import {name}; print(*sorted(set(sys.modules) - before))"
    imported = in_process(code).split()
    # asyncio and http.client would take most of the time.
    assert not {"asyncio", "http.client"} & set(imported)
    packages = {module.split(".")[0] for module in imported}
    assert packages - sys.stdlib_module_names == {"earrrl"}
