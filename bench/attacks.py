#!/usr/bin/env python3
"""Measures what `earrrl suggest` finds of attacks from many addresses, in made-up logs whose attackers are known.

usage: bench/attacks.py [--seeds 1-5] [--kinds stuffing,none] [--formats combined,json] [--binary EARRRL] [--keep DIR]
                        [-j N] [--least 3] [-v]

Every log has honest visitors, some other honest kinds of clients, and one kind of attack; the kinds of logs whose names
begin with `none` have no attack, and nobody should be touched there. A seed, the kind and the format draw all sizes,
paces, addresses, agents, paths and answers, so that each log differs. The generator follows reports of operators and
OWASP's list of automated threats, and knows nothing of the rules that it tests.

The advice is taken as an operator would take it: `earrrl suggest LOG --config` writes the rules, and `earrrl replay`
puts the same log through them. A client (an address, or an IPv6 network of 64 bits) is touched if at least one of its
requests is not allowed. Recall is the share of attackers with at least --least requests that are touched. (If few
have as many, all attackers count.) The owner of a stolen key counts as neither attacker nor honest.

Formats: `combined` with the parts of pages, `pages` is combined without parts (those come from a CDN), `common` has no
referer and no agent, `json` is an application's log with the user.
"""
import argparse
import concurrent.futures
import ipaddress
import json
import pathlib
import random
import subprocess
import sys
import tempfile
import time as clock
from collections import Counter, defaultdict

START = 1_764_547_200
FORMATS = ("combined", "pages", "common", "json")
WINDOWS, MAC, PHONE = "Windows NT 10.0; Win64; x64", "Macintosh; Intel Mac OS X 10_15_7", "Linux; Android 10; K"
WORDS = "red blue oak iron lamp desk chair table shirt mug book phone cable bag shoe ring watch pen bike tent".split()
MISSING = ("/.env /.git/config /wp-login.php /wp-admin/setup-config.php /xmlrpc.php /phpinfo.php /admin.php /backup.zip "
           "/config.json /server-status /actuator/env /vendor/phpunit/src/Util/PHP/eval-stdin.php /cgi-bin/luci /.aws/"
           "credentials /api/.env /old/index.php /test.php /shell.php /db.sql /phpmyadmin/index.php /solr/admin/info "
           "/owa/auth/logon.aspx /boaform/admin/formLogin /HNAP1 /.vscode/sftp.json /wp-content/plugins/x.php").split()
CRAWLERS = ("Mozilla/5.0 (compatible; Googlebot/2.1; +http://www.google.com/bot.html)",
            "Mozilla/5.0 (compatible; bingbot/2.0; +http://www.bing.com/bingbot.htm)",
            "Mozilla/5.0 (compatible; YandexBot/3.0; +http://yandex.com/bots)", "DuckDuckBot/1.1; "
            "(+http://duckduckgo.com/duckduckbot.html)")
AI_CRAWLERS = ("Mozilla/5.0 AppleWebKit/537.36 (KHTML, like Gecko; compatible; GPTBot/1.2; +https://openai.com/gptbot)",
               "Mozilla/5.0 AppleWebKit/537.36 (KHTML, like Gecko; compatible; ClaudeBot/1.0; +claudebot@anthropic.com)",
               "Mozilla/5.0 (compatible; Bytespider; spider-feedback@bytedance.com)", "meta-externalagent/1.1 "
               "(+https://developers.facebook.com/docs/sharing/webmasters/crawler)")
TOOLS = ("python-requests/2.32.3", "Go-http-client/2.0", "curl/8.5.0", "okhttp/4.12.0", "axios/1.7.2", "-")


def chrome(system, version, end=""):
    mobile = " Mobile" if system == PHONE else ""
    return f"Mozilla/5.0 ({system}) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/{version}.0.0.0{mobile} Safari/537.36{end}"


def browser(draw):
    """The agent of a browser that people use now: a few are very common."""
    version, kind = draw.choices((143, 142, 141, 138, 131, 109), (55, 25, 8, 6, 4, 2))[0], draw.random()
    if kind < 0.55:
        return chrome(draw.choices((WINDOWS, PHONE, MAC, "X11; Linux x86_64"), (40, 38, 15, 4))[0], version)
    if kind < 0.78:
        ios = f"{draw.choice((26, 18, 18, 17))}_{draw.randint(0, 6)}"
        return (f"Mozilla/5.0 (iPhone; CPU iPhone OS {ios} like Mac OS X) AppleWebKit/605.1.15 (KHTML, like Gecko) "
                f"Version/{ios.replace('_', '.')} Mobile/15E148 Safari/604.1")
    if kind < 0.9:
        return chrome(WINDOWS, version, f" Edg/{version}.0.0.0")
    version = draw.choice((145, 144, 140, 128))
    return f"Mozilla/5.0 ({draw.choice((WINDOWS, 'X11; Linux x86_64'))}; rv:{version}.0) Gecko/20100101 Firefox/{version}.0"


def identity(address):
    """The client that `earrrl` sees: IPv6 addresses of one network of 64 bits are one."""
    return str(ipaddress.ip_network(f"{address}/64", strict=False).network_address) if ":" in address else address


class Log:
    """A log that is being made up, with its site, whose paths and answers the seed draws."""

    def __init__(self, seed, kind, form):
        self.draw = draw = random.Random(f"{seed} {kind} {form}")
        self.kind, self.form, self.rows, self.labels, self.used = kind, form, [], {}, set()
        self.parts = form == "combined" or form == "common" and draw.random() < 0.5
        self.span = 3600 * draw.choice((1, 2, 3, 6, 12, 24))
        self.size = int(20_000 * 3.5 ** draw.random())
        self.login = draw.choice(("/login", "/account/login", "/users/sign_in", "/api/v1/session", "/auth/token"))
        self.refused = draw.choice((401, 401, 401, 200, 302, 422))
        self.welcome = draw.choice((302, 303)) if self.refused != 302 else 200
        self.item = draw.choice(("/product/{}", "/p/{word}-{}", "/item?id={}", "/{word}/{}.html"))
        self.items = draw.randint(200, 20_000)
        self.search = draw.choice(("/search?q={}", "/s/{}", "/api/search?q={}", "/suche?text={}&sort=price"))
        self.pay, self.otp = draw.choice(("/checkout/payment", "/api/pay")), draw.choice(("/otp", "/api/verify/send"))
        self.signup = draw.choice(("/register", "/signup", "/api/users"))
        self.gift = draw.choice(("/giftcard/balance", "/api/coupons/apply"))
        self.seats = draw.choice(("/api/availability/{}", "/events/{}/seats", "/stock?sku={}"))
        self.page_parts = [f"/assets/{name}.{draw.getrandbits(24):06x}.{end}" for name, end in draw.sample(
            [("app", "js"), ("main", "css"), ("font", "woff2"), ("logo", "svg"), ("vendor", "js"), ("hero", "webp"),
             ("icons", "png"), ("print", "css"), ("chunk", "js")], draw.randint(3, 8))]

    def send(self, time, address, path, method="GET", status=200, referer="-", agent="-", user="-"):
        if 0 <= time < self.span:
            self.rows.append((time, address, user, method, path, status, referer, agent))

    def address(self, kind, prefix=None, v6=0.3):
        """A new address, mostly of a home, and labels it."""
        while True:
            if prefix:
                address = prefix + str(self.draw.randint(1, 254))
            elif self.draw.random() < v6:
                address = f"2a0{self.draw.randint(0, 9)}:{self.draw.getrandbits(16):x}:{self.draw.getrandbits(16):x}:" \
                          f"{self.draw.getrandbits(8):x}::{self.draw.randint(1, 0xffff):x}"
            else:
                address = ".".join(map(str, (self.draw.choice((2, 5, 31, 46, 62, 78, 84, 91, 109, 151, 178, 186, 201)),
                                             *(self.draw.randint(1, 254) for _ in range(3)))))
            if address not in self.used:
                self.used.add(address)
                self.labels.setdefault(identity(address), kind)
                return address

    def networks(self, count):
        """The beginnings of networks of 24 bits, as at providers of servers."""
        return [f"{self.draw.choice((3, 34, 45, 47, 103, 185, 193))}.{self.draw.randint(0, 255)}."
                f"{self.draw.randint(0, 255)}." for _ in range(count)]

    def one(self, item=None):
        """The path of an item: a few are popular."""
        item = item or min(self.items, int(self.draw.paretovariate(0.6)))
        return self.item.format(item, word=WORDS[item % len(WORDS)])

    def query(self):
        return "+".join(self.draw.sample(WORDS, self.draw.randint(1, 2)))


# Honest clients

def page(log, time, who, path, referer="-", cached=False, **more):
    """A page with its parts, if the log has them."""
    address, agent = who
    log.send(time, address, path, referer=referer, agent=agent, **more)
    if log.parts and not log.draw.random() < 0.05:
        for part in log.page_parts[:1 if cached else None]:
            log.send(time + log.draw.uniform(0.1, 2), address, part, referer="https://shop.example" + path, agent=agent,
                     status=304 if log.draw.random() < 0.1 else 200)


def form(log, time, who, path, statuses, user="-", shown=None):
    """A page with a form, and some posts of it with these statuses."""
    page(log, time, who, shown or path, "https://shop.example/", True)
    for status in statuses:
        time += log.draw.lognormvariate(2.3, 0.6)
        log.send(time, who[0], path, "POST", status, "https://shop.example" + (shown or path), who[1], user)
    return time


def visit(log, who, time, pages=None, referer=None, user=None):
    """A session: pages with pauses, searches, and sometimes a form."""
    draw = log.draw
    referer = referer or draw.choice(("-", "-", "https://www.google.com/", "https://duckduckgo.com/", "https://www.bing.com/"))
    user = user or f"u{draw.randint(1, 20_000)}"
    for at in range(pages or min(80, 1 + int(draw.paretovariate(1.1)))):
        kind = draw.random()
        path = "/" if at == 0 and kind < 0.4 else log.search.format(log.query()) if kind < 0.5 else log.one()
        page(log, time, who, path, referer, at > 0)
        if draw.random() < 0.08:
            log.send(time + 2, who[0], log.seats.format(draw.randint(1, 30)), referer="https://shop.example" + path,
                     agent=who[1])
        referer, time = "https://shop.example" + path, time + draw.lognormvariate(3, 1)
    choice = draw.random()
    if choice < 0.12:
        wrong = draw.choices((0, 1, 2, 3, 5), (75, 14, 6, 3, 2))[0]
        form(log, time, who, log.login, [log.refused] * wrong + [log.welcome], user)
    elif choice < 0.2:
        form(log, time, who, log.pay, draw.choice(([302], [302], [402, 302], [200])), user, "/checkout")
    elif choice < 0.25:
        time = form(log, time, who, log.signup, draw.choice(([302], [422, 302])))
        log.send(time + 3, who[0], log.otp, "POST", 200, "https://shop.example" + log.signup, who[1], user)
    elif choice < 0.27:
        form(log, time, who, log.gift, draw.choice(([200], [404, 200])), user, "/cart")
    elif choice < 0.29:
        form(log, time, who, "/comments", [302], user, log.one())


def visitors(log):
    while len(log.rows) < log.size:
        who, time = (log.address("visitors"), browser(log.draw)), log.draw.uniform(0, log.span)
        for _ in range(log.draw.choice((1, 1, 1, 2))):
            visit(log, who, time)
            time += log.draw.expovariate(1 / 5000)


def flash_crowd(log):
    start, path = log.draw.uniform(0.1, 0.7) * log.span, log.one()
    source = log.draw.choice(("https://news.ycombinator.com/", "https://t.co/x", "-", "https://www.spiegel.de/"))
    for _ in range(log.draw.randint(300, 1500)):
        who, time = (log.address("flash_crowd"), browser(log.draw)), start + log.draw.expovariate(1 / 900)
        page(log, time, who, path, source)
        if log.draw.random() < 0.15:
            visit(log, who, time + 20, log.draw.randint(1, 4), "https://shop.example" + path)


def waiting_room(log):
    start, every = log.draw.uniform(0.1, 0.7) * log.span, log.draw.choice((10, 15, 30))
    for _ in range(log.draw.randint(100, 500)):
        who, time = (log.address("waiting_room"), browser(log.draw)), start + log.draw.expovariate(1 / 200)
        page(log, time, who, "/queue", log.draw.choice(("-", "https://shop.example/")))
        for _ in range(log.draw.randint(2, 30)):
            time += every + log.draw.uniform(-0.5, 0.5)
            page(log, time, who, "/queue", "https://shop.example/queue", True)
        visit(log, who, time + 3, log.draw.randint(1, 6), "https://shop.example/queue")


def ticket_start(log):
    start, event = 3600 * log.draw.randrange(log.span // 3600) + log.draw.choice((0, 1200)), log.draw.randint(1, 30)
    for _ in range(log.draw.randint(200, 800)):
        who, time = (log.address("ticket_start"), browser(log.draw)), start + log.draw.gauss(0, 60)
        page(log, time, who, f"/events/{event}", "https://shop.example/")
        for _ in range(log.draw.randint(1, 12)):
            time += log.draw.lognormvariate(1.5, 0.8)
            log.send(time, who[0], log.seats.format(event), referer=f"https://shop.example/events/{event}", agent=who[1],
                     status=log.draw.choice((200, 200, 200, 503)))


def shared(log, kind, people, addresses=1):
    """Many people behind few addresses."""
    behind = [log.address(kind, v6=0) for _ in range(addresses)]
    for _ in range(people):
        visit(log, (log.draw.choice(behind), browser(log.draw)), log.draw.uniform(0, log.span))


def office(log):
    for _ in range(log.draw.randint(2, 8)):
        shared(log, "office", log.draw.randint(10, 80))


def carrier(log):
    shared(log, "carrier", log.draw.randint(300, 900), log.draw.randint(5, 30))


def university(log):
    shared(log, "university", log.draw.randint(150, 600), log.draw.randint(1, 4))


def reverse_proxy(log):
    shared(log, "reverse_proxy", log.draw.randint(400, 1000), log.draw.randint(3, 20))


def exam(log):
    address, start, agent = log.address("exam", v6=0), log.draw.uniform(0, 0.8) * log.span, browser(log.draw)
    for student in range(log.draw.randint(20, 120)):
        who, time = (address, agent), start + log.draw.uniform(0, 120)
        form(log, time, who, log.login, [log.refused] * log.draw.choice((0, 0, 0, 1, 2)) + [log.welcome], f"student{student}")
        visit(log, who, time + 30, log.draw.randint(5, 20), "https://shop.example/", f"student{student}")


def sso(log):
    address, start = log.address("sso", v6=0), log.draw.uniform(0, 0.8) * log.span
    for user in range(log.draw.randint(30, 200)):
        agent, time = browser(log.draw), start + log.draw.expovariate(1 / 900)
        log.send(time, address, "/sso/start", status=302, agent=agent)
        log.send(time + 2, address, "/sso/callback", "POST", 302, "https://login.microsoftonline.com/", agent, f"staff{user}")
        visit(log, (address, agent), time + 3, None, "https://login.microsoftonline.com/", f"staff{user}")


def mistyped(log):
    for _ in range(log.draw.randint(30, 200)):
        who, user = (log.address("mistyped"), browser(log.draw)), f"u{log.draw.randint(1, 20_000)}"
        statuses = [log.refused] * log.draw.randint(1, 7) + [log.welcome] * (log.draw.random() < 0.75)
        form(log, log.draw.uniform(0, log.span), who, log.login, statuses, user)


def prefetch(log):
    for _ in range(log.draw.randint(50, 300)):
        who, time = (log.address("prefetch"), chrome(WINDOWS, 143)), log.draw.uniform(0, log.span)
        for _ in range(log.draw.randint(2, 6)):
            source = log.one()
            page(log, time, who, source, "https://shop.example/", True)
            for _ in range(log.draw.randint(2, 8)):
                log.send(time + log.draw.uniform(1, 4), who[0], log.one(), referer="https://shop.example" + source, agent=who[1])
            time += log.draw.lognormvariate(3, 1)


def repeat(log, kind, clients, agent, path, pace, user=None, jitter=0.05, method="GET", prefix=None, status=200):
    """Programs that ask at a steady pace; `agent`, `path` and `user` are called for each client or request."""
    draw = log.draw
    for number in range(clients):
        address, own, every = log.address(kind, prefix), agent(), draw.uniform(*pace)
        time, end = draw.uniform(0, every), log.span
        if draw.random() < 0.3:
            time, end = draw.uniform(0, log.span / 2), draw.uniform(log.span / 2, log.span)
        while time < end:
            log.send(time, address, path(), method, status, agent=own, user=user(number) if user else "-")
            time += every * max(0.1, draw.gauss(1, jitter))


def search_engines(log):
    for agent in log.draw.sample(CRAWLERS, 3):
        prefix = f"66.{log.draw.randint(1, 250)}.{log.draw.randint(1, 250)}."
        repeat(log, "search_engines", log.draw.randint(1, 20), lambda: agent,
               lambda: log.one(log.draw.randint(1, log.items)), (20, 400), None, 0.8, prefix=prefix)


def feed_readers(log):
    agents = ("Feedly/1.0 (+http://www.feedly.com/fetcher.html; 16 subscribers)", "FreshRSS/1.24 (Linux)", "NetNewsWire "
              "(RSS Reader; https://netnewswire.com/)", "Tiny Tiny RSS/24 (https://tt-rss.org/)", "Miniflux/2.2")
    repeat(log, "feed_readers", log.draw.randint(20, 200), lambda: log.draw.choice(agents), lambda: "/feed.xml",
           (900, 3600), status=log.draw.choice((200, 304)))


def monitors(log):
    agents = ("Mozilla/5.0 (compatible; UptimeRobot/2.0)", "Pingdom.com_bot_version_1.4", "StatusCake", "Blackbox Exporter/0.25")
    repeat(log, "monitors", log.draw.randint(2, 30), lambda: log.draw.choice(agents), lambda: log.draw.choice(("/", "/health")),
           (30, 300), None, 0.01)


def partners(log):
    repeat(log, "partners", log.draw.randint(3, 20), lambda: log.draw.choice(TOOLS[:5]), lambda:
           f"/api/v2/orders?page={log.draw.randint(1, 9)}", (20, 600), lambda number: f"partner{number}")


def apps(log):
    agents = [f"ShopApp/{version} ({system})" for version in ("7.1.0", "7.0.3", "6.9") for system in ("iOS 18", "Android 15")]
    repeat(log, "apps", log.draw.randint(50, 300), lambda: log.draw.choice(agents), lambda: log.draw.choice((
        "/api/v2/inbox", "/api/v2/inbox", f"/api/v2/products/{log.draw.randint(1, log.items)}")), (60, 900),
        lambda number: f"u{number}", 0.5)


def spa(log):
    for _ in range(log.draw.randint(50, 250)):
        who, time, user = (log.address("spa"), browser(log.draw)), log.draw.uniform(0, log.span), f"u{log.draw.randint(1, 9999)}"
        page(log, time, who, "/app", "-")
        for _ in range(log.draw.randint(5, 60)):
            time += log.draw.choice((0.1, 0.3, 5, 15, 30))
            path = log.draw.choice(("/api/v2/me", "/api/v2/inbox", f"/api/v2/products/{log.draw.randint(1, log.items)}"))
            log.send(time, who[0], path, referer="https://shop.example/app", agent=who[1], user=user)


def podcast(log):
    agents = ("AppleCoreMedia/1.0.0.22B91 (iPhone; U; CPU OS 18_1 like Mac OS X)", "Overcast/3.0 (+http://overcast.fm/)",
              "AntennaPod/3.5.0", "Spotify/9.0 Android/34")
    for _ in range(log.draw.randint(50, 300)):
        address, agent, time = log.address("podcast"), log.draw.choice(agents), log.draw.uniform(0, log.span)
        log.send(time, address, "/podcast.xml", agent=agent)
        for _ in range(log.draw.randint(1, 12)):
            log.send(time := time + log.draw.uniform(1, 60), address, "/audio/episode-212.mp3", status=206, agent=agent)


def webhooks(log):
    repeat(log, "webhooks", log.draw.randint(2, 12), lambda: "Stripe/1.0 (+https://stripe.com/docs/webhooks)", lambda:
           "/hooks/payment", (5, 120), None, 0.9, "POST", "54.187.174.")


def accessibility(log):
    repeat(log, "accessibility", log.draw.randint(1, 3), lambda: "Mozilla/5.0 (compatible; Siteimprove.com) Check",
           lambda: log.one(log.draw.randint(1, log.items)), (2, 10), None, 0.3)


def previews(log):
    agents = ("WhatsApp/2.23.20.0", "Slackbot-LinkExpanding 1.0 (+https://api.slack.com/robots)", "TelegramBot (like "
              "TwitterBot)", "facebookexternalhit/1.1 (+http://www.facebook.com/externalhit_uatext.php)", "Mozilla/5.0 "
              "(compatible; Discordbot/2.0; +https://discordapp.com)")
    path, start = log.one(), log.draw.uniform(0, log.span)
    for _ in range(log.draw.randint(50, 300)):
        log.send(start + log.draw.expovariate(1 / 2000), log.address("previews"), path, agent=log.draw.choice(agents))


CROWDS = (flash_crowd, waiting_room, ticket_start)
SHARED = (office, carrier, university, reverse_proxy, exam, sso)
PROGRAMS = (search_engines, feed_readers, monitors, partners, apps, podcast, webhooks, accessibility, previews)
PEOPLE = (mistyped, prefetch, spa)


# Attacks

def agents_of(log):
    """How the attackers name themselves: with one agent, an agent each, or another one for each request."""
    draw, kind = log.draw, log.draw.random()
    if kind < 0.35:
        one = draw.choice((chrome("Windows NT 6.1; WOW64", draw.randint(70, 110)), browser(draw), draw.choice(TOOLS)))
        return lambda: lambda: one
    several = [browser(draw) for _ in range(draw.choice((5, 20, 60)))]
    if kind < 0.75:
        return lambda: (lambda agent: lambda: agent)(draw.choice(several))
    return lambda: lambda: draw.choice(several)


def attack(log, clients, tries, pace, request, networks=None, before=None, user=None, jitter=None):
    """Attackers: `request()` gives method, path and status of a try; some post after a page that they load first."""
    draw, agents = log.draw, agents_of(log)
    # Networks of 24 bits must have room for all.
    prefixes = log.networks(networks or draw.randint(2, 12) + clients[1] // 150)
    share = 1 if networks else draw.choice((0, 0.3, 0.6))
    referer = draw.choice(("-", "-", "https://shop.example/", "https://www.google.com/"))
    before, jitter = before if draw.random() < 0.4 else None, jitter or draw.choice((0.1, 0.4, 1))
    begin, window = draw.uniform(0, 0.3) * log.span, draw.uniform(0.4, 0.7) * log.span
    for number in range(draw.randint(*clients)):
        prefix = draw.choice(prefixes) if draw.random() < share else None
        address, agent, every = log.address("attack", prefix, 0.1), agents(), draw.uniform(*pace)
        count = draw.randint(*tries)
        time = begin + draw.uniform(0, max(every, window - count * every))
        for _ in range(count):
            own, (method, path, status) = agent(), request()
            if before:
                log.send(time - draw.uniform(0.3, 3), address, before, referer="-", agent=own)
            log.send(time, address, path, method, status, referer, own, user() if user else "-")
            time += every * max(0.05, draw.gauss(1, jitter))


def mostly(log, common, rare, share=0.02):
    return rare if log.draw.random() < share else common


def stuffing(log):
    attack(log, (150, 600), (6, 40), (180, 600), lambda: ("POST", log.login, mostly(log, log.refused, log.welcome)),
           before=log.login, user=lambda: f"u{log.draw.randint(1, 20_000)}")


def guessing(log):
    users, inside = [f"u{log.draw.randint(1, 20_000)}" for _ in range(log.draw.randint(3, 30))], log.draw.random() < 0.3
    path = (lambda: f"/users/{log.draw.choice(users)}/login") if inside else lambda: log.login
    attack(log, (50, 400), (3, 30), (60, 1800), lambda: ("POST", path(), log.refused), user=lambda: log.draw.choice(users))


def costly(log):
    kind = log.draw.choice(("search", "export", "cart"))
    request = {"search": lambda: ("GET", log.search.format(f"{log.query()}{log.draw.randint(1, 999)}"), 200),
               "export": lambda: ("GET", "/export.csv", mostly(log, 200, 503, 0.2)),
               "cart": lambda: ("POST", "/cart/add", 302)}[kind]
    attack(log, (100, 1000), (5, 60), (5, 120), request)


def scraping(log):
    attack(log, (300, 2500), (1, 30), (5, 90), lambda: ("GET", log.one(log.draw.randint(1, log.items)), mostly(log, 200, 404)))


def api_scraping(log):
    attack(log, (100, 800), (5, 60), (3, 60), lambda: ("GET", f"/api/v2/products/{log.draw.randint(1, log.items)}", 200))


def crawler_forged(log):
    attack(log, (100, 600), (10, 80), (5, 120), lambda: ("GET", log.one(log.draw.randint(1, log.items)), 200),
           networks=log.draw.randint(4, 30))


def crawler_declared(log):
    agent, prefixes = log.draw.choice(AI_CRAWLERS), log.networks(log.draw.randint(2, 10))
    for prefix in prefixes:
        repeat(log, "attack", log.draw.randint(10, 60), lambda: agent, lambda: log.one(log.draw.randint(1, log.items)),
               (log.span / 100, log.span / 20), None, 0.6, prefix=prefix)


def ipv6(log):
    """Few attackers who change their address in a network of 64 or 48 bits."""
    draw, agents = log.draw, agents_of(log)
    bits, login = draw.choice((64, 48)), draw.random() < 0.5
    for _ in range(draw.randint(10, 60) if bits == 64 else draw.randint(2, 10)):
        network, agent, time = f"2001:{draw.getrandbits(12):x}:{draw.getrandbits(16):x}", agents(), draw.uniform(0, log.span / 2)
        for _ in range(draw.randint(100, 400) if bits == 64 else draw.randint(500, 2500)):
            address = f"{network}:{1 if bits == 64 else draw.randint(1, 400):x}::{draw.randint(1, 0xffff):x}"
            log.labels.setdefault(identity(address), "attack")
            path = log.login if login else log.one(draw.randint(1, log.items))
            log.send(time, address, path, "POST" if login else "GET", log.refused if login else 200, agent=agent())
            time += draw.expovariate(1 / 8) if bits == 64 else draw.expovariate(1)


def scanners(log):
    attack(log, (30, 400), (3, 40), (0.3, 60), lambda: ("GET", log.draw.choice(MISSING), mostly(log, 404, 403, 0.1)))


def scalping(log):
    event = log.draw.randint(1, 30)
    attack(log, (50, 400), (20, 120), (2, 30), lambda: ("GET", log.seats.format(event), mostly(log, 200, 429, 0.1)))


def gift_cards(log):
    coupon = log.draw.random() < 0.3
    attack(log, (50, 800), (2, 20), (10, 300), lambda: (
        ("GET", f"/coupon/{log.draw.getrandbits(40):010X}", mostly(log, 404, 200)) if coupon else
        ("POST", log.gift, mostly(log, log.draw.choice((404, 422)), 200))), before="/cart")


def accounts(log):
    attack(log, (50, 600), (1, 8), (30, 900), lambda: ("POST", log.signup, mostly(log, 302, 422, 0.2)), before=log.signup)


def sms(log):
    attack(log, (50, 600), (2, 15), (30, 600), lambda: ("POST", log.otp, mostly(log, 200, 429, 0.1)))


def cards(log):
    attack(log, (50, 500), (2, 25), (20, 600), lambda: ("POST", log.pay, mostly(log, 402, 302, 0.05)), before="/checkout")


def spam(log):
    attack(log, (50, 500), (2, 15), (30, 900), lambda: ("POST", "/comments", mostly(log, 302, 403, 0.2)), before=log.one())


def flood(log, path=None):
    pages = ["/", log.one(), log.search.format("a")]
    random_path = lambda: f"{log.draw.choice(pages).split('?')[0]}?{log.draw.getrandbits(32):x}={log.draw.getrandbits(32):x}"
    least = log.draw.randint(500, 2400)
    tries = 60_000 // least
    attack(log, (least, least + 600), (tries // 3, tries), (0.3, 2),
           lambda: ("GET", path or random_path(), mostly(log, 200, 503, 0.3)))


def flood_url(log):
    flood(log, log.draw.choice(("/", log.one())))


def stolen_key(log):
    """One customer's key at many addresses, beside its owner's own program and other customers."""
    path = lambda: f"/api/v2/products/{log.draw.randint(1, log.items)}"
    repeat(log, "owner", 1, lambda: TOOLS[0], path, (5, 60), lambda _: "customer0")
    repeat(log, "partners", log.draw.randint(10, 60), lambda: log.draw.choice(TOOLS[:5]), path, (10, 200),
           lambda number: f"customer{number + 1}", 0.3)
    attack(log, (50, 800), (5, 60), (5, 120), lambda: ("GET", path(), 200), user=lambda: "customer0")


ATTACKS = {made.__name__: made for made in (
    stuffing, guessing, costly, scraping, api_scraping, crawler_forged, crawler_declared, ipv6, scanners, scalping,
    gift_cards, accounts, sms, cards, spam, flood, flood_url, stolen_key)}
QUIET = {"none": (), "none_crowds": CROWDS, "none_shared": SHARED, "none_programs": PROGRAMS, "none_people": PEOPLE}


def made_up(seed, kind, form_of_log):
    """A log: visitors, some other honest clients, and the attack."""
    log = Log(seed, kind, form_of_log)
    honest = QUIET.get(kind) or log.draw.sample(CROWDS + SHARED + PROGRAMS + PEOPLE, log.draw.randint(3, 8))
    for crowd in honest:
        crowd(log)
    log.size = min(90_000, len(log.rows) + log.size)
    visitors(log)
    if kind in ATTACKS:
        ATTACKS[kind](log)
    log.rows.sort(key=lambda row: row[0])
    return log


def lines(log):
    """The log in its format."""
    for time, address, user, method, path, status, referer, agent in log.rows:
        if log.form == "json":
            yield json.dumps({"time": round(START + time, 3), "remote_addr": address, "remote_user": user if user != "-" else "",
                              "request_method": method, "request_uri": path, "status": status, "http_referer": referer,
                              "http_user_agent": agent}) + "\n"
            continue
        # Applications know the user of a form, but the logs of web servers do not.
        user = user if method == "GET" and user.startswith(("partner", "customer")) else "-"
        stamp = clock.strftime("%d/%b/%Y:%H:%M:%S +0000", clock.gmtime(START + time))
        end = "" if log.form == "common" else f' "{referer}" "{agent}"'
        yield f'{address} - {user} [{stamp}] "{method} {path} HTTP/1.1" {status} {200 + len(path) * 37}{end}\n'


# Measurement

def denied(binary, log, config):
    """How many requests of each client the advice for a log does not allow, and how many rules it has."""
    advice = subprocess.run([binary, "suggest", log, "--config"], capture_output=True, text=True)
    if "no rule is suggested" in advice.stderr or advice.returncode == 0 and "[[rule]]" not in advice.stdout:
        return Counter(), 0
    if advice.returncode != 0:
        raise RuntimeError(f"{log}: {advice.stderr}")
    config.write_text(advice.stdout)
    replay = subprocess.run([binary, "replay", log, "--config", config, "--output", "jsonl"], check=True,
                            capture_output=True, text=True)
    found = Counter()
    for line in replay.stdout.splitlines():
        if '"allowed":false' in line:
            found[identity(json.loads(line)["key"].split("/")[0])] += 1
    return found, advice.stdout.count("[[rule]]")


def judge(job):
    """Makes one log, and counts what the advice touches of each kind of its clients."""
    seed, kind, form_of_log, options = job
    log = made_up(seed, kind, form_of_log)
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(options.keep or temporary)
        name = f"{kind}-{form_of_log}-{seed}"
        path = folder / f"{name}.log"
        path.write_text("".join(lines(log)))
        if options.keep:
            (folder / f"{name}.labels.json").write_text(json.dumps(log.labels, indent=0))
        found, rules = denied(options.binary, path, folder / f"{name}.toml")
    sent = Counter(identity(row[1]) for row in log.rows)
    attackers = {client for client, label in log.labels.items() if label == "attack" and sent[client]}
    strong = {client for client in attackers if sent[client] >= options.least}
    strong = strong if len(strong) >= 10 else attackers
    honest = defaultdict(lambda: [0, 0])
    for client in sent:
        if (label := log.labels[client]) not in ("attack", "owner"):
            honest[label][0] += client in found
            honest[label][1] += 1
    stopped = sum(min(found[client], sent[client]) for client in attackers)
    return (seed, kind, form_of_log, len(log.rows), rules, len(strong & found.keys()), len(strong), stopped,
            sum(sent[client] for client in attackers), dict(honest))


def print_attacks(results, forms):
    """Recall by kind of attack and by format."""
    print("\nrecall by kind of attack: of all formats, and of each; the share of their requests that is not allowed; logs in "
          "which half\nof the attackers are touched; honest clients touched, and in how many logs")
    print(f"{'kind':17} recall " + "".join(f"{name:>9}" for name in forms) + "  denied    logs  honest touched  in logs")
    for kind in ATTACKS:
        rows = [row for row in results if row[1] == kind]
        if not rows:
            continue
        share = lambda some: f"{sum(row[5] for row in some) / max(1, sum(row[6] for row in some)):.2f}"
        per = "".join(f"{share([row for row in rows if row[2] == name]):>9}" for name in forms)
        touched = [sum(count for count, _ in row[9].values()) for row in rows]
        good = sum(2 * row[5] >= row[6] for row in rows)
        print(f"{kind:17} {share(rows):>6} {per}  {sum(row[7] for row in rows) / sum(row[8] for row in rows):6.2f}  "
              f"{good:2} of {len(rows):2} {sum(touched):15} {sum(map(bool, touched)):8}")


def print_honest(results, forms):
    """Honest clients touched, by their kind, beside attacks and without any."""
    print("\nhonest clients touched, of how many: beside attacks; without attacks; without attacks by format")
    table = defaultdict(lambda: defaultdict(lambda: [0, 0]))
    for row in results:
        for label, (touched, count) in row[9].items():
            for place in ("alone", row[2]) if row[1] in QUIET else ("beside",):
                for name in (label, "all"):
                    table[name][place][0] += touched
                    table[name][place][1] += count
    cell = lambda pair: f"{pair[0]}/{pair[1]}"
    print(f"{'kind':17}" + "".join(f"{name:>14}" for name in ("beside", "alone", *forms)))
    for name in sorted(table, key=lambda name: (name == "all", name)):
        print(f"{name:17}" + "".join(f"{cell(table[name][place]):>14}" for place in ("beside", "alone", *forms)))
    quiet = [row for row in results if row[1] in QUIET]
    print(f"logs without attack: {len(quiet)}, with rules: {sum(row[4] > 0 for row in quiet)}, in which somebody is "
          f"touched: {sum(any(touched for touched, _ in row[9].values()) for row in quiet)}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", default="1-5")
    parser.add_argument("--kinds", default=",".join((*ATTACKS, *QUIET)))
    parser.add_argument("--formats", default=",".join(FORMATS))
    parser.add_argument("--binary", default="target/release/earrrl")
    parser.add_argument("--keep", metavar="DIR", help="keep logs, labels and rules in this directory")
    parser.add_argument("--least", type=int, default=3, help="requests of the attackers that count")
    parser.add_argument("-j", type=int, default=1, metavar="N", help="processes")
    parser.add_argument("-v", action="store_true", help="a line for each log")
    options = parser.parse_args()
    first, _, last = options.seeds.partition("-")
    forms, kinds = options.formats.split(","), options.kinds.split(",")
    if unknown := ({*kinds} - {*ATTACKS, *QUIET}) | ({*forms} - {*FORMATS}):
        parser.error(f"unknown: {', '.join(sorted(unknown))}")
    if options.keep:
        pathlib.Path(options.keep).mkdir(parents=True, exist_ok=True)
    jobs = [(seed, kind, form_of_log, options) for seed in range(int(first), int(last or first) + 1)
            for kind in kinds for form_of_log in forms]
    results = []
    with concurrent.futures.ProcessPoolExecutor(options.j) as pool:
        for row in pool.map(judge, jobs):
            results.append(row)
            if options.v:
                touched = {label: count for label, (count, _) in row[9].items() if count}
                print(*row[:3], f"{row[3]} lines, {row[4]} rules, {row[5]} of {row[6]}, touched {touched}", file=sys.stderr, flush=True)
    print_attacks(results, forms)
    print_honest(results, forms)


if __name__ == "__main__":
    main()
