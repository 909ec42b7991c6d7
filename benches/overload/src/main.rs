//! Overload protection by `tower-ratelimit` beside other protections.
//!
//! - `cargo run --release --manifest-path benches/overload/Cargo.toml -- simulate`: in
//!   virtual time. A folder after it is for the picture.
//! - `cargo run --release --manifest-path benches/overload/Cargo.toml -- serve`: an axum
//!   server under three times the load that it can take. Needs two cores and `taskset`. A
//!   part of a name after it measures only such protections.

#[allow(dead_code, reason = "fleets are drawn elsewhere")]
#[path = "../../simulate/draw.rs"]
mod draw;
#[path = "../../../tests/sim/executor.rs"]
mod executor;
#[path = "../../../tests/sim/fleet.rs"]
mod fleet;
mod loaded;
#[path = "../../simulate/overload.rs"]
mod overload;
mod peers;
#[path = "../../../tests/sim/protections.rs"]
mod protections;
mod served;
#[path = "../../../tests/sim/server.rs"]
mod server;

use std::{error::Error, path::Path};

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["simulate"] => overload::run(None, &peers::SIMULATED),
        ["simulate", folder] => overload::run(Some(Path::new(folder)), &peers::SIMULATED),
        ["serve"] => loaded::run(""),
        ["serve", part] => loaded::run(part),
        ["server", protection, handler] => Ok(served::serve(protection, handler)?),
        _ => Err("expected `simulate` with an optional folder for the picture, or `serve` with an optional part of a name".into()),
    }
}
