#!/usr/bin/env bash
# How fast `earrrl replay` reads a log, beside goaccess and, as the floor, `wc -l`; and how much
# memory it takes. One core, the best of three, in one run.
#
# usage: bench/replay.sh [LINES]       needs taskset, GNU time, goaccess (apt-get install goaccess time)
set -euo pipefail
cd "$(dirname "$0")/.."

lines=${1:-1000000}
clients=$((lines / 100))
log=$(mktemp --suffix=.log)
trap 'rm -f "$log"' EXIT
cargo build --release --quiet -p earrrl-server
cargo run --release --quiet -p earrrl-server --example make_log -- "$lines" "$clients" 1 > "$log"
earrrl=target/release/earrrl
rule='recent-average 1/s half-life=10s strict'

# Best of three by processor time, which other programs disturb least: that, the time that passed,
# and the peak of the memory in kilobytes.
measure() {
    for _ in 1 2 3; do
        /usr/bin/time -f '%U %S %e %M' taskset -c 0 "$@" 2>&1 >/dev/null | tail -1
    done | awk '{ print $1 + $2, $3, $4 }' | sort -n | head -1
}

report() {
    local name=$1
    shift
    read -r busy passed kilobytes < <(measure "$@")
    awk -v name="$name" -v s="$busy" -v e="$passed" -v k="$kilobytes" -v n="$lines" 'BEGIN {
        if (s < 0.01) s = 0.01
        printf "%-26s %6.2f s busy %6.2f s passed %7.2f million lines/s %7.1f MB\n",
            name, s, e, n / s / 1e6, k / 1024
    }'
}

printf '%s lines, %s clients, %s MB\n' "$lines" "$clients" "$(($(stat -c %s "$log") / 1000000))"
report 'wc -l' wc -l "$log"
report 'earrrl replay, streamed' "$earrrl" replay --assume-sorted --rule "$rule" "$log"
report 'earrrl replay, sorted' "$earrrl" replay --rule "$rule" "$log"
report 'goaccess' goaccess "$log" --log-format=COMBINED --no-progress
