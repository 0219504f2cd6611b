#!/usr/bin/env python3
"""Measures the advice of `earrrl suggest` on made-up logs whose abusers are known.

usage: bench/suggest.py [EARRRL [FIRST]]    (target/release/earrrl and the first seed, a multiple of 60: 120 unless named)

60 mixes of honest clients, drawn from seeds: visitors, offices behind one address, crawlers, cron jobs, phones and
monitors. 48 of them hold abusers of six kinds. Prints, for the advice and for limits that are often advised,
recall and precision over the abusers whose peak is more than ten times the median, and the honest clients touched.
The constants of the advice were chosen on the seeds 0 to 59.

In a second table some of the honest clients log in, abusers guess passwords more slowly than readers read, and the
rules for single paths are judged.
"""
import json
import math
import random
import subprocess
import sys
import tempfile

HOURS = 2
END = HOURS * 3600
HALF_LIVES = (10, 60)
MIXES = 60
WITHOUT_ABUSERS = 12


def visitor(draw, pages, start, end):
    """Page views with their images, and pauses between them."""
    time = start
    for _ in range(pages):
        for _ in range(draw.randint(2, 14)):
            yield time + draw.uniform(0, 2)
        time += draw.lognormvariate(3, 1)
        if time > end:
            return


def steady(draw, rate, start, end):
    """Requests at random times with one mean rate."""
    time = start
    while (time := time + draw.expovariate(rate)) < end:
        yield time


def bursts(draw, count, every, start, end):
    """Bursts within two seconds."""
    while start < end:
        yield from (start + draw.uniform(0, 2) for _ in range(count))
        start += every


def office(draw):
    for _ in range(draw.randint(4, 15)):
        for _ in range(draw.randint(1, 3)):
            yield from visitor(draw, draw.randint(2, 12), draw.uniform(0, END), END)


def honest(draw):
    for _ in range(draw.randint(150, 500)):
        yield visitor(draw, 1 + int(draw.expovariate(0.25)), draw.uniform(0, END), END)
    for _ in range(draw.randint(1, 4)):
        yield office(draw)
    for _ in range(draw.randint(1, 3)):
        yield steady(draw, draw.uniform(0.1, 0.8), 0, END)  # crawlers
    for _ in range(draw.randint(1, 4)):
        yield bursts(draw, draw.randint(5, 25), draw.choice([300, 900]), draw.uniform(0, 300), END)  # cron jobs
    for _ in range(draw.randint(5, 20)):
        yield steady(draw, draw.uniform(0.01, 0.05), 0, END)  # phones
    for _ in range(draw.randint(1, 3)):
        yield steady(draw, draw.uniform(0.05, 0.1), 0, END)  # monitors


def abuser(draw):
    start = draw.uniform(0, END * 0.7)
    return draw.choice([
        lambda: steady(draw, draw.uniform(10, 80), start, start + draw.uniform(60, 400)),  # hammer
        lambda: steady(draw, draw.uniform(3, 12), start, start + draw.uniform(600, 1800)),  # scraper
        lambda: steady(draw, draw.uniform(1, 4), start, start + 1800),  # guesses of passwords
        lambda: bursts(draw, draw.randint(150, 400), draw.uniform(20, 60), start, start + 1200),  # floods
        lambda: steady(draw, draw.uniform(5, 20), start, start + draw.uniform(30, 300)),  # retries without a pause
        lambda: steady(draw, draw.uniform(1.5, 3), 0, END),  # all day long
    ])()


def mix(seed):
    """The requests of a mix in order, and the names of its abusers."""
    draw = random.Random(seed)
    requests = [(time, f"honest-{n}") for n, client in enumerate(honest(draw)) for time in client]
    count = 0 if seed % MIXES < WITHOUT_ABUSERS else draw.randint(1, 6)
    for n in range(count):
        requests += [(time, f"abuser-{n}") for time in abuser(draw)]
    return sorted(requests)


def peaks(requests, half_life):
    """Each client's greatest recent average rate."""
    decay, counts, found = math.log(2) / half_life, {}, {}
    for time, client in requests:
        count, last = counts.get(client, (0.0, time))
        count *= math.exp(-decay * (time - last))
        found[client] = max(found.get(client, 0.0), count * decay)
        counts[client] = (count + 1, time)
    return found


def suggested(earrrl, header, rows):
    """The advice for a log of these columns."""
    with tempfile.NamedTemporaryFile("w", suffix=".csv") as log:
        log.write(header + "\n")
        log.writelines(f"{1_700_000_000 + time:.6f},{','.join(rest)}\n" for time, *rest in rows)
        log.flush()
        command = [earrrl, "suggest", log.name, "--output", "json"]
        return json.loads(subprocess.run(command, check=True, capture_output=True).stdout)


def with_paths(seed):
    """The requests of a mix in order, with their paths: pages of a popularity that falls, a page that programs ask
    for again and again, and a login at the start of some visits. Slow guessers of passwords ask for the login alone."""
    draw = random.Random(seed)
    weights = [1 / (page + 1) for page in range(60)]
    requests = []
    for n, client in enumerate(honest(draw)):
        times, kind = list(client), draw.random()
        pages = draw.choices(range(60), weights, k=len(times))
        requests += [(time, f"honest-{n}", f"/page/{page}" if kind > 0.1 else "/api/status")
                     for time, page in zip(times, pages)]
        if times and draw.random() < 0.5:
            requests += [(times[0] + draw.uniform(1, 20), f"honest-{n}", "/login") for _ in range(draw.choice([1, 1, 2, 3]))]
    for n in range(0 if seed % MIXES < WITHOUT_ABUSERS else draw.randint(1, 3)):
        start = draw.uniform(0, END / 2)
        guesses = steady(draw, draw.uniform(0.3, 1), start, start + draw.uniform(600, 3600))
        requests += [(time, f"abuser-{n}", "/login") for time in guesses]
    return sorted(requests)


def judge_paths(earrrl, first):
    """Prints how many guessers of passwords the advice catches, by all rules and by those for all paths."""
    abusers = honest = right = wrong = alone = usual = 0
    for seed in range(first, first + MIXES):
        requests = with_paths(seed)
        clients = {client for _, client, _ in requests}
        found = suggested(earrrl, "time,key,path", ((time, client, path) for time, client, path in requests))
        rules = [rule for rule in (found["suggestion"], found["second"]) if rule]
        touched = [{client["key"] for rule in some for client in rule["touched"]} for some in (rules, found["paths"])]
        abusers += sum(client.startswith("abuser") for client in clients)
        honest += sum(client.startswith("honest") for client in clients)
        usual += sum(client.startswith("abuser") for client in touched[0])
        right += sum(client.startswith("abuser") for client in touched[0] | touched[1])
        more = sum(client.startswith("honest") for client in touched[1] - touched[0])
        wrong += more
        alone += more if seed % MIXES < WITHOUT_ABUSERS else 0
    print(f"{MIXES} mixes with paths: {abusers} slow guessers of passwords, {honest} honest clients")
    print(f"caught by rules for all paths {usual / abusers:.2f}, with those for single paths {right / abusers:.2f}; "
          f"honest clients that only rules for single paths touch {wrong}, in logs without abusers {alone}")


def advice(earrrl, requests):
    """The clients that the advice touches."""
    found = suggested(earrrl, "time,key", requests)
    touched = lambda rule: {client["key"] for client in found[rule]["touched"]} if found[rule] else set()
    return touched("suggestion"), touched("suggestion") | touched("second")


def exim_peaks(requests, period=3600):
    """Each client's peak as Exim's util/ratelimit.pl computes it, in its documentation's period of an hour."""
    rates, times, found = {}, {}, {}
    for time, client in requests:
        if client in times:
            interval = max((time - times[client]) / period, 1e-9)
            decay = math.exp(-interval)
            rates[client] = (1 - decay) / interval + decay * rates.get(client, 0.0)
        found[client] = max(found.get(client, 0.0), rates.get(client, 0.0))
        times[client] = time
    return found


def widest_gap(peaks):
    """The clients above the widest gap in the upper half of a list of peaks, where one would look for a limit."""
    descending = sorted(((peak, client) for client, peak in peaks.items() if peak > 0), reverse=True)
    half = descending[:len(descending) // 2 + 1]
    place = max(range(1, len(half)), key=lambda at: half[at - 1][0] / half[at][0])
    return {client for _, client in half[:place]}


def above(peaks, share, times):
    """The clients above so many times the peak that this share of the clients does not exceed."""
    descending = sorted(peaks.values(), reverse=True)
    limit = times * descending[int(len(descending) * (1 - share))]
    return {client for client, peak in peaks.items() if peak > limit}


def main():
    earrrl = sys.argv[1] if len(sys.argv) > 1 else "target/release/earrrl"
    first = int(sys.argv[2]) if len(sys.argv) > 2 else 120
    table = {name: [0, 0, 0, 0] for name in (
        "earrrl suggest", "earrrl suggest, both rules", "2 x p99 of peaks", "p99 of peaks",
        "widest gap in Exim's peaks")}
    abusers = honest = 0
    for seed in range(first, first + MIXES):
        requests = mix(seed)
        found = [peaks(requests, half_life) for half_life in HALF_LIVES]
        median = [max(sorted(by_client.values())[len(by_client) // 2], math.log(2) / half_life)
                  for by_client, half_life in zip(found, HALF_LIVES)]
        strong = {client for by_client, middle in zip(found, median) for client, peak in by_client.items()
                  if client.startswith("abuser") and peak > 10 * middle}
        abusers += len(strong)
        honest += sum(client.startswith("honest") for client in found[0])
        rules = (*advice(earrrl, requests), above(found[0], 0.99, 2), above(found[0], 0.99, 1),
                 widest_gap(exim_peaks(requests)))
        for row, touched in zip(table.values(), rules):
            wrong = sum(client.startswith("honest") for client in touched)
            row[0] += len(touched & strong)
            row[1] += wrong
            row[2] += wrong if seed % MIXES < WITHOUT_ABUSERS else 0
            row[3] += len(touched) > 0
    print(f"{MIXES} mixes from seed {first}: {abusers} abusers, {honest} honest clients")
    print("recall  precision  honest touched  of them in logs without abusers  logs with advice")
    for name, (right, wrong, alone, logs) in table.items():
        precision = right / max(1, right + wrong)
        print(f"{right / abusers:6.2f}  {precision:9.2f}  {wrong:14}  {alone:31}  {logs:16}  {name}")
    judge_paths(earrrl, first)


if __name__ == "__main__":
    main()
