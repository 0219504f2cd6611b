# `just` lists what there is; every recipe is one line of shell you can type yourself.

default:
    @just --list

# the tests; installs what they need into target/tools
test:
    scripts/test

# lints, docs, licences, the oldest compiler, fuzzers
gate:
    scripts/gate

# the properties, extremes, accuracy and the stress tests at length: 50 times the cases, 10 million updates
# (5 minutes); 200 kills of processes that share a state file (2 minutes); 10 million checks each from Python and Node (3 minutes); 96 mutants of the core, each of which a test must catch (2 minutes);
# then the server at full load with a million clients and reloads (5 minutes), and a flood of 100 million keys (15 minutes);
# then everything that can go wrong at once, and a restart every minute (10 minutes);
# then 200,000 reservations while clients, servers and Redis are killed (20 minutes);
# then a real Envoy that waits for 20 ms while its rate limit service reloads, changes certificates, restarts and
# crashes (2 minutes); 200,000 mutated requests of a client over its limit through each of Envoy, nginx and HAProxy
# (5 minutes; nginx and HAProxy as scripts/gate installs them);
# a log that is followed through rotation at 5,000 lines a second (10 minutes);
# then Rust and Lua over a million requests of every algorithm (10 minutes), near rules of 2 to 8 servers, 10,000 cut
# connections of one Redis and of a Cluster, calls without an answer, and clocks that are set;
# then the packages
long:
    EARRRL_LONG=1 cargo test -p earrrl --all-features --lib
    EARRRL_LONG=1 cargo test -p earrrl --all-features --test all algorithms::
    EARRRL_LONG=1 cargo test -p earrrl --all-features --test all state_file::
    EARRRL_LONG=1 scripts/python tests/test_cost.py
    EARRRL_LONG=1 scripts/node memory.test.mjs hostile.test.mjs
    scripts/mutants
    scripts/miri
    scripts/fuzz 120 0
    cargo run --release -p earrrl --example flood
    EARRRL_LONG=1 cargo test --release -p earrrl-server --test all -- soak:: --nocapture
    EARRRL_LONG=1 cargo test --release -p earrrl-server --test all -- flood:: --nocapture
    EARRRL_LONG=1 cargo test --release -p earrrl-server --test all -- chaos:: --nocapture
    EARRRL_LONG=1 cargo test --release -p earrrl-server --test all -- ledger:: --nocapture
    EARRRL_LONG=1 cargo test --release -p earrrl-server --test all -- envoy_trouble:: --nocapture
    EARRRL_LONG=1 cargo test --release -p earrrl-server --test all -- no_request_gets_past --nocapture
    EARRRL_LONG=1 cargo test --release -p earrrl-server --test debian -- no_request_gets_past --nocapture
    EARRRL_LONG=1 cargo test --release -p earrrl-server --test all -- crowds:: --nocapture
    EARRRL_LONG=1 cargo test --release -p earrrl-server --test all -- follow:: --nocapture
    EARRRL_LONG=1 cargo test --release -p earrrl-redis --test all -- agreement:: commits:: near:: audit:: cuts:: receipts:: clocks::
    EARRRL_LONG=1 cargo test --release -p earrrl-server --test all -- near:: --nocapture
    just packages

# packages for this machine: makes, installs and starts each, without the optimisation of a release (10 minutes; needs
# lowdown and umoci from Debian, and scripts/python to have run)
packages:
    CARGO_PROFILE_DIST_LTO=off CARGO_PROFILE_DIST_CODEGEN_UNITS=16 CARGO_PROFILE_DIST_OPT_LEVEL=0 scripts/dist x86_64-unknown-linux-musl
    scripts/packages

# the server, its floors and its peers side by side; keep the machine idle (10 minutes)
bench-server:
    bench/server/run.py

# Envoy's rate limit service beside a bare tonic echo, and how long calls take at four fifths of what the
# machine can do (5 minutes; needs h2load; keep the machine idle)
bench-envoy:
    cargo build --profile dist -p earrrl-server --bin earrrl --example echo_grpc
    bench/envoy.py cpu
    bench/envoy.py late

# Redis's processor time a decision and bytes a client beside other scripts, then decisions while it breaks
# (15 minutes with a million clients; keep the machine idle)
bench-redis clients="1000000":
    cargo run --release --manifest-path bench/redis/Cargo.toml -- all {{clients}}

# Fleets of near servers over simulated time: `scenes`, `new`, `scale`, or `model`, which compares with real time.
bench-fleet what="scenes":
    cargo run --release --manifest-path bench/redis/Cargo.toml -- {{what}}

# how long decisions take while limits, half-lives and capacities change (2 minutes; 1 GB)
reloads:
    cargo run --profile dist -p earrrl --example reloads

# nanoseconds a decision, algorithm by algorithm
bench:
    cargo bench -p earrrl --bench algorithms

# instructions a decision, beside the tracked counts
instructions:
    bench/instructions.sh

# medians of ratios to other limiters over five runs, with their spread; refuses a noisy machine (two hours)
publish:
    bench/publish.py

# nanoseconds and bytes beside other limiters and the floors, as Markdown (half an hour)
compare:
    cargo run --release --manifest-path bench/Cargo.toml

# microseconds a check from Python, beside the storages of `limits` (one minute; keep the machine idle)
bench-python:
    scripts/setup
    scripts/python --quiet
    target/python/bin/python bench/python.py

# microseconds a check from Node, beside express-rate-limit and rate-limiter-flexible (one minute; keep the machine idle)
bench-node:
    mkdir -p target/bench-node
    cp bench/package.json bench/package-lock.json bench/node.mjs target/bench-node
    PATH=$PATH:$PWD/target/tools/bin; package=$(scripts/node --pack) && cd target/bench-node && npm ci --no-audit --no-fund && \
        npm install --no-save --no-audit --no-fund $package && node node.mjs ../tools/bin/valkey-server

# processor time of a request through FastAPI, Flask, Express and Fastify, with and without a limit, beside other packages
# (3 minutes; needs h2load; keep the machine idle)
bench-frameworks:
    scripts/setup
    scripts/python --quiet
    mkdir -p target/bench-node
    cp bench/package.json bench/package-lock.json bench/frameworks.mjs target/bench-node
    export PATH=$PATH:$PWD/target/tools/bin; package=$(scripts/node --pack) && (cd target/bench-node && npm ci --no-audit --no-fund && \
        npm install --no-save --no-audit --no-fund $package) && target/python/bin/python bench/frameworks.py

# the table under Miri
miri:
    scripts/miri
