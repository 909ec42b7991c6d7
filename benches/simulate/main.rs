//! Simulates a fleet that shares a limit: without a store, and at each level of
//! consistency through one. Prints what each window admitted, and draws it.
//!
//! - `cargo run --features redis --example simulate`: `Split`, without a store.
//! - `cargo run --release --features redis --example simulate -- levels`: `leased`
//!   through a real `redis-server`, with a naive scheme beside it.
//! - `cargo run --release --features gossip,redis --example simulate -- gossip`: shares
//!   that follow demand, with fixed ones beside them.
//! - `cargo run --release --features redis --example simulate -- overload`: one server
//!   that is overloaded, behind several protections. `benches/overload` has more of them.
//!
//! A folder as the last argument is for the pictures: `-- docs`, `-- levels docs`, `-- gossip docs`.
//! Every instance is a real limiter on a clock that the simulation steps.

mod draw;
#[path = "../../tests/sim/executor.rs"]
mod executor;
#[path = "../../tests/sim/fleet.rs"]
mod fleet;
#[cfg(feature = "gossip")]
#[path = "../../tests/sim/gossip.rs"]
mod gossip;
#[cfg(feature = "gossip")]
mod gossiped;
#[path = "../../tests/sim/levels.rs"]
mod levels;
#[path = "../../tests/sim/network.rs"]
mod network;
#[path = "../../tests/sim/outcome.rs"]
mod outcome;
mod overload;
#[path = "../../tests/sim/protections.rs"]
mod protections;
#[path = "../../tests/sim/server.rs"]
mod server;
mod shared;
mod split;

use std::{error::Error, path::Path};

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => split::run(None),
        ["levels"] => shared::run(None),
        ["levels", folder] => shared::run(Some(Path::new(folder))),
        #[cfg(feature = "gossip")]
        ["gossip"] => gossiped::run(None),
        #[cfg(feature = "gossip")]
        ["gossip", folder] => gossiped::run(Some(Path::new(folder))),
        ["overload"] => overload::run(None, &[]),
        ["overload", folder] => overload::run(Some(Path::new(folder)), &[]),
        [folder] => split::run(Some(Path::new(folder))),
        _ => {
            Err("expected at most `levels`, `overload` or `gossip` (with that feature), and a folder for the pictures"
                .into())
        }
    }
}
