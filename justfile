# Every recipe also runs without `just`.

# List the recipes.
default:
    @just --list

# Run everything that must pass before a change is merged.
ci:
    ./.ci/run

# Run all tests.
test *args:
    ./scripts/test {{args}}

# Check format, lints, docs, each feature alone, lock files and licences.
lint:
    ./scripts/lint

# Run every example and check its output.
examples:
    ./scripts/examples

# Test with third-party clients and servers; installs them where they are missing.
interop *args:
    ./scripts/interop {{args}}

# Start the axum server with examples/policy.yaml.
serve policy="examples/policy.yaml":
    cargo run --example server --features admin,axum,metrics,watch -- {{policy}}

# Check a policy file: what each rule does, and what can never act.
check-policy policy="examples/policy.yaml":
    cargo run --features cli -- check {{policy}}

# Check licences and sources of all dependencies.
deny:
    ./scripts/deny

# Fuzz a target (headers, policy) for a number of seconds; needs cargo-fuzz.
fuzz *args:
    ./scripts/fuzz {{args}}

# Soak servers and a Redis with load and faults for a number of seconds (600).
soak *args:
    ./scripts/soak {{args}}

# Benchmark this crate against its peers; see BENCHMARKS.md.
bench *args:
    cargo run --release --manifest-path benches/peers/Cargo.toml -- {{args}}
