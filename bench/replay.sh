#!/usr/bin/env bash
# How fast `earrrl replay` reads a log of few, many and very many clients: beside `wc -l` as the floor, beside
# DuckDB and a Python regex, which only count, and compressed beside zcat, which only decompresses.
#
# usage: bench/replay.sh [--lines N] [CLIENTS…]      10000, 100000 and 1000000 clients unless some are named
#
# Busy is processor time, passed is time on the clock; each the best of three, in one run. Needs GNU time
# and taskset; fetches DuckDB from PyPI. With goaccess installed that is measured, too.
set -euo pipefail
cd "$(dirname "$0")/.."

lines=2000000
if [ "${1:-}" = --lines ]; then
    lines=$2
    shift 2
fi
[ $# -gt 0 ] || set -- 10000 100000 1000000

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
log=$folder/access.log
cargo build --release --quiet -p earrrl-server --bin earrrl -p earrrl-logs --example make_log
earrrl=target/release/earrrl
python=target/tools/duckdb
[ -d "$python/duckdb" ] || python3 -m pip install --quiet --target "$python" duckdb
rule='recent-average 1/s half-life=10s strict'

cat > "$folder/regex.py" <<'PYTHON'
import collections, re, sys
line = re.compile(r'(\S+) \S+ \S+ \[([^\]]+)\] "(\S+) (\S+) [^"]*" (\d+) (\S+)')
clients = collections.Counter()
for text in open(sys.argv[1]):
    clients[line.match(text)[1]] += 1
print(len(clients))
PYTHON

# A fixed window of 60 a minute, the one limit that a query can express easily.
cat > "$folder/query.py" <<'PYTHON'
import duckdb, sys
duckdb.sql("set threads = 2")
print(duckdb.sql(r"""
    select sum(requests), count(distinct client), sum(greatest(requests - 60, 0)) from (
        select found.client as client, count(*) as requests
        from (select regexp_extract(line, '^(\S+) \S+ \S+ \[([^\]]+)\]', ['client', 'time']) as found
              from read_csv(?, columns = {'line': 'varchar'}, delim = '\x01', quote = '', escape = '', header = false))
        group by client, date_trunc('minute', strptime(found.time, '%d/%b/%Y:%H:%M:%S %z')))
    """, params=[sys.argv[1]]).fetchall())
PYTHON

# Prints the least busy and the least passed seconds of three, and the peak of the memory in kilobytes.
measure() {
    for _ in 1 2 3; do
        /usr/bin/time -f '%U %S %e %M' "$@" 2>&1 >/dev/null | tail -1
    done | awk '{
        busy = $1 + $2
        if (NR == 1 || busy < least) least = busy
        if (NR == 1 || $3 < passed) passed = $3
        if ($4 > memory) memory = $4
    } END { print least, passed, memory }'
}

report() {
    local name=$1 busy passed kilobytes
    shift
    read -r busy passed kilobytes < <(measure "$@")
    awk -v name="$name" -v s="$busy" -v e="$passed" -v k="$kilobytes" -v n="$lines" 'BEGIN {
        # On one core, what other programs take is left out.
        used = name ~ /one core/ ? s : e
        if (used < 0.01) used = 0.01
        printf "%-34s %6.2f s busy %6.2f s passed %7.2f million lines/s %7.1f MB\n",
            name, s, e, n / used / 1e6, k / 1024
    }'
}

one_core() { report "$1, one core" taskset -c 0 "${@:2}"; }

for clients in "$@"; do
    target/release/examples/make_log "$lines" "$clients" 1 > "$log"
    met=$(cut -d ' ' -f 1 "$log" | sort -u | wc -l)
    printf '\n%s lines, %s clients, %s MB\n' "$lines" "$met" "$(($(stat -c %s "$log") / 1000000))"
    one_core 'wc -l' wc -l "$log"
    one_core 'earrrl replay, streamed' "$earrrl" replay --assume-sorted --rule "$rule" "$log"
    one_core 'earrrl replay, sorted' "$earrrl" replay --rule "$rule" "$log"
    report 'earrrl replay, streamed' "$earrrl" replay --assume-sorted --rule "$rule" "$log"
    report 'earrrl replay, sorted' "$earrrl" replay --rule "$rule" "$log"
done

printf '\nThe same, compressed, and what else reads logs\n'
gzip -c "$log" > "$log.gz"
report 'zcat' zcat "$log.gz"
report 'zcat | earrrl replay, streamed' sh -c "zcat '$log.gz' | '$earrrl' replay --assume-sorted --rule '$rule' -"
report 'earrrl replay, streamed, of .gz' "$earrrl" replay --assume-sorted --rule "$rule" "$log.gz"
report 'DuckDB, a count a minute' env PYTHONPATH="$python" python3 "$folder/query.py" "$log"
report 'Python, a regex' python3 "$folder/regex.py" "$log"
if command -v goaccess > /dev/null; then
    one_core 'goaccess' goaccess "$log" --log-format=COMBINED --no-progress
fi
