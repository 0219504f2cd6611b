#!/usr/bin/env bash
# Instructions a decision, by algorithm, limiter and engine, counted by valgrind's callgrind.
#
#   bench/instructions.sh            prints the table beside the tracked one; exit status 1 where a
#                                    count grew by more than 2 %
#   bench/instructions.sh --accept   tracks the present counts
set -euo pipefail
cd "$(dirname "$0")/.."
tracked=bench/instructions.txt

binary=$(cargo bench -q -p earrrl --bench algorithms --no-run --message-format=json |
    sed -n 's/.*"name":"algorithms".*"executable":"\([^"]*\)".*/\1/p' | tail -1)

# Prints the instructions of a number of steps of a workload.
count() {
    valgrind --tool=callgrind --callgrind-out-file=/dev/null "$binary" steps "$1" "$2" 2>&1 >/dev/null |
        sed -n 's/.*Collected : \([0-9]*\).*/\1/p'
}

# Subtracts a run of half as many steps, so that the cost of starting up cancels out.
table() {
    "$binary" names | while read -r name; do
        printf '%6d  %s\n' $((($(count "$name" 4000) - $(count "$name" 2000)) / 2000)) "$name"
    done
}

if [[ ${1:-} == --accept ]]; then
    table | tee "$tracked"
    exit
fi
table | awk -v tracked="$tracked" '
    BEGIN { while ((getline line < tracked) > 0) { split(line, word, "  +"); was[substr(line, 9)] = line + 0 } }
    { name = substr($0, 9); grew = was[name] && $1 > was[name] * 1.02 + 1
      printf "%6d  %6s  %s%s\n", $1, was[name] ? was[name] : "new", name, grew ? "  GREW" : ""
      worse = worse || grew }
    END { exit worse }'
