//! Simulates a fleet that shares a limit: without a store, and at each level of
//! consistency through one. Prints what each window admitted, and draws it.
//!
//! - `cargo run --features redis --example simulate`: `Split`, without a store.
//! - `cargo run --release --features redis --example simulate -- levels`: `leased`
//!   through a real `redis-server`, with a naive scheme beside it.
//!
//! A folder as the last argument is for the pictures: `-- docs` and `-- levels docs`.
//! Every instance is a real limiter on its own clock, which the simulation steps.

mod draw;
#[path = "../../tests/sim/fleet.rs"]
mod fleet;
#[path = "../../tests/sim/levels.rs"]
mod levels;
#[path = "../../tests/sim/network.rs"]
mod network;
#[path = "../../tests/sim/outcome.rs"]
mod outcome;
mod shared;
mod split;

use std::{error::Error, path::Path};

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => split::run(None),
        ["levels"] => shared::run(None),
        ["levels", folder] => shared::run(Some(Path::new(folder))),
        [folder] => split::run(Some(Path::new(folder))),
        _ => Err("expected at most `levels`, and a folder for the pictures".into()),
    }
}
