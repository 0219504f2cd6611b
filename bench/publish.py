#!/usr/bin/env python3
"""Compares limiters over several runs, and prints medians and spreads of ratios as Markdown.

    bench/publish.py [--runs N] [--stolen SHARE] [-- OPTION…]

The options after `--` go to the benchmark, such as `--only several`. `--stolen` is the share of the processors that the
hypervisor may take during a run, 0.005 unless given; the report says how much it was.

A run is one process of bench/, with memory and hash keys of its own. A ratio is of two rows of one run, so that what
slows the machine for a while slows both. A run is repeated if other work used the machine; exit status 1 if that
happens as often as there are runs.
"""

import pathlib
import re
import statistics
import subprocess
import sys
import time

FOLDER = pathlib.Path(__file__).resolve().parent
RUNS = 5
# The row that others are compared with, by what a table's title contains.
BASES = {"several rules": "a limiter for each, the verdicts only", "": "governor, foldhash, ticking clock"}
# The most of the processors that other work may use before a run, and that the hypervisor may take during one.
MOST_BUSY = 0.03
STOLEN = 0.005


class TooNoisy(Exception):
    """Other work uses the machine."""


def ticks():
    """Returns the processors' ticks in all, idle, and taken by the hypervisor."""
    fields = [int(field) for field in pathlib.Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    return sum(fields), fields[3] + fields[4], fields[7]


def refuse(why):
    raise TooNoisy(f"this machine is too noisy: {why}")


def check_idle():
    total, idle, _ = ticks()
    time.sleep(3)
    total, idle = (after - before for after, before in zip(ticks(), (total, idle)))
    busy = 1 - idle / max(total, 1)
    if busy > MOST_BUSY:
        refuse(f"other work uses {busy:.0%} of its processors; at most {MOST_BUSY:.0%}")


def run(options, most_stolen):
    """Returns the benchmark's output and the share of the processors that the hypervisor took."""
    check_idle()
    total, _, stolen = ticks()
    command = ["cargo", "run", "--quiet", "--release", "--manifest-path", FOLDER / "Cargo.toml", "--", *options]
    output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    after, _, stolen_after = ticks()
    share = (stolen_after - stolen) / max(after - total, 1)
    if share > most_stolen:
        refuse(f"the hypervisor took {share:.1%} of its processors; at most {most_stolen:.1%}")
    return output, share


def quiet_runs(count, options, most_stolen):
    """Returns the output of this many runs that nothing disturbed, and the share that the hypervisor took of each."""
    outputs, disturbed = [], 0
    while len(outputs) < count:
        try:
            outputs.append(run(options, most_stolen))
            print(f"run {len(outputs)} of {count}", file=sys.stderr)
        except TooNoisy as error:
            disturbed += 1
            print(error, file=sys.stderr)
            if disturbed >= count:
                sys.exit(1)
    return outputs


def tables(output):
    """Returns the figures by table, row and column."""
    found, title, columns = {}, None, []
    for line in output.splitlines():
        if line.startswith("### "):
            title, columns = line[4:], []
        elif line.startswith("| |"):
            columns = [cell.strip() for cell in line.split("|")[2:-1]]
        elif line.startswith("| ") and title and title.startswith("ns "):
            row, *cells = [cell.strip() for cell in line.split("|")[1:-1]]
            for column, cell in zip(columns, cells):
                if figure := re.match(r"[\d.]+", cell):
                    found.setdefault(title, {}).setdefault(row, {})[column] = float(figure[0])
    return found


def cell(runs, title, row, column, base):
    """Returns the median of the figure, and the median and the spread of its ratios to the base."""
    figures = [run.get(title, {}).get(row, {}).get(column) for run in runs]
    bases = [run.get(title, {}).get(base, {}).get(column) for run in runs]
    if None in figures:
        return ""
    median = f"{statistics.median(figures):.1f}"
    if None in bases or row == base:
        return median
    ratios = [figure / base for figure, base in zip(figures, bases)]
    return f"{median} ({statistics.median(ratios):.2f}, {min(ratios):.2f}–{max(ratios):.2f})"


def report(runs):
    for title, rows in runs[0].items():
        base = next(base for part, base in BASES.items() if part in title)
        columns = list(dict.fromkeys(column for row in rows.values() for column in row))
        print(f"\n### {title}: medians of {len(runs)} runs, and ratios to “{base}”, lowest to highest\n")
        print(f"| | {' | '.join(columns)} |\n|---|{'---:|' * len(columns)}")
        for row in rows:
            print(f"| {row} | {' | '.join(cell(runs, title, row, column, base) for column in columns)} |")


def main():
    arguments = sys.argv[1:]
    options = arguments[arguments.index("--") + 1:] if "--" in arguments else []
    own = arguments[: len(arguments) - len(options)]
    count = int(own[own.index("--runs") + 1]) if "--runs" in own else RUNS
    if count < RUNS:
        sys.exit(f"--runs: {count}; at least {RUNS}, since a single run can be twice as slow as usual")
    subprocess.run(["cargo", "build", "--quiet", "--release", "--manifest-path", FOLDER / "Cargo.toml"], check=True)
    stolen = float(own[own.index("--stolen") + 1]) if "--stolen" in own else STOLEN
    outputs, shares = zip(*quiet_runs(count, options, stolen))
    print(f"The hypervisor took {min(shares):.1%} to {max(shares):.1%} of the processors.")
    report([tables(output) for output in outputs])


if __name__ == "__main__":
    main()
