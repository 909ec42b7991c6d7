//! CPU time that a limiter adds to a request of an axum server under load.
//!
//! The load generator runs on the same machine, so throughput is meaningless.
//! The server's CPU time divided by its answered requests is reproducible.

use std::{
    env, fs,
    io::{BufRead, BufReader, Error, Result},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use crate::{
    axum_server as server,
    table::{Spread, Table, times},
};

/// The first variant is the bare server.
const VARIANTS: &[(&str, bool)] = &[
    (server::BARE, false),
    (server::TOWER_GOVERNOR, false),
    (server::TOWER_GOVERNOR_HEADERS, true),
    (server::AXUM_GOVERNOR, true),
    (server::LIMITADOR, false),
    #[cfg(feature = "ours")]
    (server::OURS, false),
    #[cfg(feature = "ours")]
    (server::OURS_HEADERS, true),
];

pub fn section(rounds: usize) {
    if Command::new("wrk").arg("--version").output().is_err() {
        println!("\n### axum under load\n\nskipped: install `wrk` (`apt-get install wrk`)");
        return;
    }
    if let Err(error) = try_section(rounds) {
        println!("\n### axum under load\n\nfailed: {error}");
    }
}

fn try_section(rounds: usize) -> Result<()> {
    let script = env::temp_dir().join(format!("peers-{}.lua", std::process::id()));
    fs::write(&script, include_str!("load.lua"))?;
    let samples = sample(rounds, &script);
    fs::remove_file(&script)?;
    print(&samples?);
    Ok(())
}

/// Compares each variant with the bare server of the same round, which cancels
/// noise that slowed the whole round.
fn print(samples: &[Vec<f64>]) {
    let bare = &samples[0];
    let added: Vec<Spread> =
        samples.iter().map(|own| Spread::of(own.iter().zip(bare).map(|(own, bare)| own - bare))).collect();
    let bare = Spread::of(bare.iter().copied());
    let mut table = Table::new(
        "axum under load, 10,000 keys by a header",
        ["layer", "CPU us a request", "added", "of the bare server", "of tower_governor's"],
    );
    for (index, (name, headers)) in VARIANTS.iter().enumerate() {
        let mut cells = [String::new(), String::new(), String::new()];
        if index > 0 {
            let base = VARIANTS.iter().skip(1).position(|(_, has)| has == headers);
            let base = added[1 + base.expect("tower_governor of each kind")].median;
            cells = [
                added[index].to_string(),
                format!("{:.1}%", 100.0 * added[index].median / bare.median),
                times(added[index].median / base),
            ];
        }
        let [plus, share, of_governor] = cells;
        let whole = Spread::of(samples[index].iter().copied());
        table.row([(*name).to_owned(), whole.to_string(), plus, share, of_governor]);
    }
    table.print();
    println!("\n`limitador` has no layer: it is called from a middleware written by hand.");
}

/// Microseconds of CPU a request, for each variant and round. The kernel's share
/// varies between sets of connections, so many short rounds are more precise
/// than a few long ones.
fn sample(rounds: usize, script: &Path) -> Result<Vec<Vec<f64>>> {
    let servers: Vec<Server> = VARIANTS.iter().map(|(name, _)| Server::start(name)).collect::<Result<_>>()?;
    let mut samples = vec![Vec::new(); VARIANTS.len()];
    // The first round warms up: it touches every key and is not recorded.
    for round in 0..=rounds {
        for position in 0..VARIANTS.len() {
            let index = (position + round) % VARIANTS.len();
            let before = servers[index].cpu_micros()?;
            let requests = servers[index].load(round, script)?;
            let micros = (servers[index].cpu_micros()? - before) / requests;
            if round > 0 {
                samples[index].push(micros);
            }
        }
    }
    Ok(samples)
}

/// A child process: this binary as a server.
struct Server {
    process: Child,
    port: String,
}

impl Server {
    fn start(name: &str) -> Result<Self> {
        let binary: PathBuf = env::current_exe()?;
        let mut process = Command::new(binary).args(["--serve", name, "0"]).stdout(Stdio::piped()).spawn()?;
        let mut port = String::new();
        let output = process.stdout.take().ok_or_else(|| Error::other("no output"))?;
        BufReader::new(output).read_line(&mut port)?;
        Ok(Self { process, port: port.trim().to_owned() })
    }

    /// Puts load on the server. Returns the number of requests that it answered.
    fn load(&self, round: usize, script: &Path) -> Result<f64> {
        let output = Command::new("wrk")
            .args(["--threads", "1", "--connections", "32", "--duration", "1s"])
            .arg("--script")
            .arg(script)
            .arg(format!("http://127.0.0.1:{}/", self.port))
            .args(["--", &(round + 1).to_string()])
            .output()?;
        let text = String::from_utf8_lossy(&output.stdout);
        // The last line of the script's output: `requests N failed N`.
        let last: Vec<&str> = text.lines().last().unwrap_or_default().split(' ').collect();
        match last[..] {
            ["requests", requests, "failed", "0"] => requests.parse().map_err(Error::other),
            _ => Err(Error::other(format!("the load failed: {text}"))),
        }
    }

    /// User and system time of all threads, in microseconds. `schedstat` counts
    /// nanoseconds, `stat` only hundredths of a second.
    fn cpu_micros(&self) -> Result<f64> {
        let mut nanos = 0;
        for task in fs::read_dir(format!("/proc/{}/task", self.process.id()))? {
            let schedstat = fs::read_to_string(task?.path().join("schedstat"))?;
            let on_cpu = schedstat.split(' ').next().unwrap_or_default();
            nanos += on_cpu.parse::<u64>().map_err(Error::other)?;
        }
        Ok(nanos as f64 / 1e3)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // A server that died already is reported by `load`.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
