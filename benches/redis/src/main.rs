//! Compares decisions of `tower-ratelimit` through Redis with the alternatives on
//! the same server.
//!
//! `cargo run --release --manifest-path benches/redis/Cargo.toml` prints the
//! table. `--features limitador` adds that row; `--quick` gives a rough result.

mod contenders;
mod race;
mod server;
#[path = "../../peers/src/table.rs"]
mod table;

use std::{env, error::Error, fs, process::ExitCode, thread, time::Duration};

use race::Plan;
use server::Server;
use table::{Spread, Table, times};

pub type AnyError = Box<dyn Error + Send + Sync>;

/// The number of concurrent requests.
const AT_ONCE: [usize; 3] = [1, 64, 512];

/// Nearly all keys different, and a few hot keys.
const KEYS: [(&str, usize); 2] = [("10,000 keys", 10_000), ("25 hot keys", 25)];

#[tokio::main]
async fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let quick = arguments.iter().any(|argument| argument == "--quick");
    if let Some(unknown) = arguments.iter().find(|argument| *argument != "--quick") {
        eprintln!("{unknown:?} is not --quick");
        return ExitCode::FAILURE;
    }
    let plan = match quick {
        true => Plan { rounds: 3, run: Duration::from_millis(200) },
        false => Plan { rounds: 11, run: Duration::from_millis(1_000) },
    };
    match run(plan).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

async fn run(plan: Plan) -> Result<(), AnyError> {
    let server = Server::start().await?;
    print_machine(plan, &server.version().await?);
    let contenders = contenders::all(&server.url()).await?;
    for (name, keys) in KEYS {
        let columns = ["decides by", "at once", "decisions/s", "times one EVALSHA a decision"];
        let mut table = Table::new(format!("Decisions through Redis, {name}"), columns);
        for at_once in AT_ONCE {
            let rates = race::race(&contenders, keys, at_once, plan).await?;
            for (contender, own) in contenders.iter().zip(&rates) {
                let ratio = Spread::of(own.iter().zip(&rates[0]).map(|(own, plain)| own / plain));
                let rate = Spread::of(own.iter().copied()).to_string();
                table.row([contender.name().to_owned(), at_once.to_string(), rate, times(ratio.median)]);
            }
        }
        table.print();
    }
    Ok(())
}

fn print_machine(plan: Plan, server: &str) {
    let cpus = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpus.lines().find_map(|line| line.strip_prefix("model name"));
    let model = model.unwrap_or("unknown").trim_start_matches([' ', '\t', ':']);
    let cores = thread::available_parallelism().map_or(0, usize::from);
    println!("{model}, {cores} cores; {}; {server} on the same machine.", env!("RUSTC_VERSION"));
    println!(
        "Medians of {} interleaved rounds of {} ms (lowest..highest); ratios are taken within each round.",
        plan.rounds,
        plan.run.as_millis()
    );
    println!("{}.", peers().join(", "));
}

/// Name and version of each contender, from the lock file.
fn peers() -> Vec<String> {
    let field = |line: &'static str, name| line.strip_prefix(name)?.trim().strip_prefix("= ");
    let lock: Vec<&'static str> = include_str!("../Cargo.lock").lines().collect();
    lock.windows(2)
        .filter_map(|lines| Some((field(lines[0], "name")?, field(lines[1], "version")?)))
        .map(|(name, version)| (name.trim_matches('"'), version.trim_matches('"')))
        .filter(|(name, _)| ["limitador", "redis", "throttle-kit", "tokio"].contains(name))
        .map(|(name, version)| format!("{name} {version}"))
        .collect()
}
