# `just` lists what there is; every recipe is one line of shell you can type yourself.

default:
    @just --list

# everything that must pass before a commit lands
test:
    scripts/test

# the properties, extremes and accuracy at length: 50 times the cases, 10 million updates (5 minutes);
# then the server at full load with a million clients and reloads (5 minutes)
long:
    EARRRL_LONG=1 cargo test -p earrrl --test algorithms
    EARRRL_LONG=1 cargo test --release -p earrrl-server --test soak -- --nocapture

# the server with redis-cli, redis-benchmark, redis-py, ioredis and curl, which must be installed
clients:
    EARRRL_CLIENTS=1 cargo test -p earrrl-server --test clients

# the server, its floors and its peers side by side; keep the machine idle (10 minutes)
bench-server:
    bench/server/run.py

# nanoseconds a decision, algorithm by algorithm
bench:
    cargo bench -p earrrl --bench algorithms

# instructions a decision, beside the tracked counts
instructions:
    bench/instructions.sh
