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
    cargo run --release -p earrrl --example flood
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

# nanoseconds and bytes beside other limiters and the floors, as Markdown (half an hour)
compare:
    cargo run --release --manifest-path bench/Cargo.toml

# the table under Miri
miri:
    RUSTFLAGS="-Ctarget-feature=+cmpxchg16b" MIRIFLAGS=-Zmiri-disable-isolation PROPTEST_CASES=1 cargo +nightly miri test -p earrrl --lib table::
