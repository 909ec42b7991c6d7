# Every command also runs without `just`.

# The list of commands.
default:
    @just --list

# All that has to hold before a change goes in.
ci:
    ./.ci/run

# All tests.
test *args:
    ./scripts/test {{args}}

# Format, lints and docs.
lint:
    cargo fmt --check
    cargo clippy --all-targets --features full,test-util -- -D warnings
    RUSTDOCFLAGS="-D warnings" cargo doc --no-deps --features full,test-util

# Run every example and check what it says.
examples:
    ./scripts/examples

# The axum server under examples/policy.yaml.
serve policy="examples/policy.yaml":
    cargo run --example server --features axum,yaml,metrics -- {{policy}}

# Licences, advisories and sources of all dependencies; needs cargo-deny.
deny:
    cargo deny check

# Fuzz a target (headers, policy) for so many seconds; needs cargo-fuzz.
fuzz *args:
    ./scripts/fuzz {{args}}

# This crate beside its peers: see BENCHMARKS.md.
bench *args:
    cargo run --release --manifest-path benches/peers/Cargo.toml -- {{args}}
