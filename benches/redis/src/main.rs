//! Compares decisions of `tower-ratelimit` through Redis with the alternatives on
//! the same server.
//!
//! `cargo run --release --manifest-path benches/redis/Cargo.toml` prints the
//! tables. `--features limitador` adds that row; `--quick` gives a rough result, and
//! `--levels` only the table of the levels of consistency. `--killed` takes a minute, in
//! which the server is killed every two seconds, and says how long decisions take.

mod contenders;
#[cfg(feature = "ours")]
mod killed;
mod race;
mod server;
#[path = "../../peers/src/table.rs"]
mod table;

use std::{env, error::Error, fs, process::ExitCode, sync::Arc, thread, time::Duration};

use contenders::Contender;
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
    let flags = ["--quick", "--levels", "--killed"];
    let [quick, only_levels, is_killed] = flags.map(|flag| arguments.iter().any(|argument| argument == flag));
    if let Some(unknown) = arguments.iter().find(|argument| !flags.contains(&argument.as_str())) {
        eprintln!("{unknown:?} is none of {}", flags.join(", "));
        return ExitCode::FAILURE;
    }
    let plan = match quick {
        true => Plan { rounds: 3, run: Duration::from_millis(200) },
        false => Plan { rounds: 11, run: Duration::from_millis(1_000) },
    };
    let result = match is_killed {
        false => run(plan, only_levels).await,
        #[cfg(feature = "ours")]
        true => killed::run(if quick { 10 } else { 60 }).await,
        #[cfg(not(feature = "ours"))]
        true => Err("--killed needs the feature `ours`".into()),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

async fn run(plan: Plan, only_levels: bool) -> Result<(), AnyError> {
    let server = Server::start().await?;
    print_machine(plan, &server.version().await?);
    if !only_levels {
        let contenders = contenders::all(&server.url()).await?;
        for (name, keys) in KEYS {
            let title = format!("Decisions through Redis, {name}");
            compare(title, &contenders, keys, plan).await?;
        }
    }
    #[cfg(feature = "ours")]
    {
        let (name, keys) = KEYS[1];
        compare(format!("Levels of consistency, {name}"), &contenders::levels(&server.url()).await?, keys, plan)
            .await?;
    }
    Ok(())
}

/// Prints what each contender makes, and how often it makes what the first one does.
async fn compare(title: String, contenders: &[Arc<Contender>], keys: usize, plan: Plan) -> Result<(), AnyError> {
    let first = contenders.first().map_or("", |first| first.name());
    let columns = ["decides by", "at once", "decisions/s", "p99, us", &format!("times {first}")];
    let mut table = Table::new(title, columns);
    for at_once in AT_ONCE {
        let runs = race::race(contenders, keys, at_once, plan).await?;
        for (contender, own) in contenders.iter().zip(&runs) {
            let ratio = Spread::of(own.iter().zip(&runs[0]).map(|(own, first)| own.rate / first.rate));
            let (rate, p99) = (Spread::of(own.iter().map(|run| run.rate)), Spread::of(own.iter().map(|run| run.p99)));
            let at_once = at_once.to_string();
            table.row([contender.name().to_owned(), at_once, rate.to_string(), p99.to_string(), times(ratio.median)]);
        }
    }
    table.print();
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
