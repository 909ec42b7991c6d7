//! Compares `tower-ratelimit` with the crates that a user would otherwise choose.
//!
//! `cargo run --release --manifest-path benches/peers/Cargo.toml` prints every
//! table. Name sections to print only those; add `--quick` for a rough result, and
//! `--chart=FILE` for a chart of the section `layer`. `--draw TITLE` draws the lines
//! of `name,cost` that it reads.

mod alloc;
mod axum_load;
mod axum_server;
mod chart;
mod contenders;
mod cpu;
mod crowd;
mod decision;
mod keys;
mod layer;
mod layers;
#[cfg(feature = "ours")]
mod matching;
mod memory;
#[cfg(feature = "ours")]
mod ours;
mod pacers;
mod race;
mod table;
mod tiers;
mod waits;

use std::{env, fs, io, process::ExitCode, thread, time::Duration};

use race::Plan;

const SECTIONS: [&str; 8] = ["decision", "tiers", "layer", "rejection", "memory", "matching", "waits", "axum"];

fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    if let [serve, name, port] = &arguments[..]
        && serve == "--serve"
    {
        return match port.parse().map(|port| axum_server::serve(name, port)) {
            Ok(Ok(())) => ExitCode::SUCCESS,
            _ => ExitCode::FAILURE,
        };
    }
    if let [draw, title] = &arguments[..]
        && draw == "--draw"
    {
        let costs = io::read_to_string(io::stdin()).ok().and_then(|lines| chart::parse(&lines));
        return match costs {
            Some(costs) => {
                print!("{}", chart::draw(title, &costs));
                ExitCode::SUCCESS
            }
            None => ExitCode::FAILURE,
        };
    }
    let (options, mut sections): (Vec<_>, Vec<_>) =
        arguments.iter().map(String::as_str).partition(|argument| argument.starts_with("--"));
    let is_option = |option: &&str| *option == "--quick" || option.starts_with("--chart=");
    let unknown = sections.iter().find(|name| !SECTIONS.contains(name));
    let unknown = unknown.or_else(|| options.iter().find(|option| !is_option(option)));
    if let Some(unknown) = unknown {
        eprintln!("{unknown:?} is neither --quick, --chart=FILE nor one of {}", SECTIONS.join(", "));
        return ExitCode::FAILURE;
    }
    if sections.is_empty() {
        sections = SECTIONS.to_vec();
    }
    let chart = options.iter().find_map(|option| option.strip_prefix("--chart="));
    run(&sections, options.contains(&"--quick"), chart);
    ExitCode::SUCCESS
}

fn run(sections: &[&str], quick: bool, chart: Option<&str>) {
    // Layers with a background task need a runtime, as in a server.
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime");
    let _entered = runtime.enter();

    let (rounds, millis) = if quick { (3, 30) } else { (11, 100) };
    let plan = Plan { rounds, run: Duration::from_millis(millis) };
    print_machine(rounds);
    for section in sections {
        match *section {
            "decision" => decision::section(plan),
            "tiers" => tiers::section(plan),
            "layer" => layer::admission(plan, chart),
            "rejection" => layer::rejection(plan),
            "memory" => memory::section(),
            #[cfg(feature = "ours")]
            "matching" => matching::section(plan),
            "waits" if quick => waits::section(3, 1),
            "waits" => waits::section(11, 3),
            "axum" => axum_load::section(if quick { 5 } else { 25 }),
            _ => {}
        }
    }
}

fn print_machine(rounds: usize) {
    let cpus = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpus.lines().find_map(|line| line.strip_prefix("model name"));
    let model = model.unwrap_or("unknown").trim_start_matches([' ', '\t', ':']);
    let cores = thread::available_parallelism().map_or(0, usize::from);
    println!("{model}, {cores} cores; {}; system allocator.", env!("RUSTC_VERSION"));
    println!(
        "Medians of {rounds} interleaved rounds (lowest..highest); ratios and differences are taken \
         within each round."
    );
    println!("{}.", peers().join(", "));
}

/// Name and version of each contestant, from the lock file.
fn peers() -> Vec<String> {
    const NAMES: [&str; 11] = [
        "axum-governor",
        "governor",
        "leaky-bucket",
        "limitador",
        "rate-net",
        "throttle-kit",
        "tokio",
        "tower",
        "tower-rate-limiter",
        "tower-resilience-ratelimiter",
        "tower_governor",
    ];
    let field = |line: &'static str, name| line.strip_prefix(name)?.trim().strip_prefix("= ");
    let lock: Vec<&'static str> = include_str!("../Cargo.lock").lines().collect();
    lock.windows(2)
        .filter_map(|lines| Some((field(lines[0], "name")?, field(lines[1], "version")?)))
        .map(|(name, version)| (name.trim_matches('"'), version.trim_matches('"')))
        .filter(|(name, _)| NAMES.contains(name))
        .map(|(name, version)| format!("{name} {version}"))
        .collect()
}
