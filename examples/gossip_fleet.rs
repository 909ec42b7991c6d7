//! One limit for three processes without a store: shares that follow demand.
//!
//! ```sh
//! cargo run --features gossip --example gossip_fleet
//! ```
//!
//! It starts itself three times. They gossip over UDP on loopback, and print what they
//! admitted in each second of the clock. The load jumps from the first to the third, the
//! second is killed, and comes back.
#![allow(clippy::disallowed_methods, reason = "three processes in real time")]

use std::{
    collections::BTreeMap,
    error::Error,
    net::{SocketAddr, UdpSocket},
    process::Stdio,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader},
    process::{Child, Command},
};
use tower_ratelimit::{
    Algorithm, Descriptor, Quota, RateLimiter,
    backend::split::Gossip,
    time::{Clock, SystemClock},
};

/// Of the fleet, in each second.
const LIMIT: u64 = 1_000;
const SECONDS: u64 = 22;
const JUMP: u64 = 6;
const KILL: u64 = 11;
const RESTART: u64 = 17;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.split_first() {
        Some((own, seeds)) => instance(own.parse()?, seeds).await,
        None => fleet().await,
    }
}

/// One process: asks as often as its input says, and says what was admitted.
async fn instance(own: SocketAddr, seeds: &[String]) -> Result<(), Box<dyn Error>> {
    let gossip = Gossip::new("example", own).seeds(seeds).forget_after(Duration::from_secs(2));
    let limiter = RateLimiter::builder()
        .policy(Quota::per_second(LIMIT).algorithm(Algorithm::FixedWindow))
        .backend(gossip.join().await?)
        .build()?;
    let mut input = BufReader::new(tokio::io::stdin()).lines();
    let (mut load, mut due, mut admitted, mut second) = (0.0, 0.0, 0, now().as_secs());
    let mut ticks = tokio::time::interval(Duration::from_millis(10));
    loop {
        tokio::select! {
            line = input.next_line() => match line? {
                Some(line) => load = line.parse()?,
                // The parent has ended.
                None => break,
            },
            _ = ticks.tick() => {
                if now().as_secs() != second {
                    println!("{second} {admitted}");
                    (second, admitted) = (now().as_secs(), 0);
                }
                due += load / 100.0;
                while due >= 1.0 {
                    due -= 1.0;
                    admitted += u64::from(limiter.check(&Descriptor::new("/")).await.is_allowed());
                }
            }
        }
    }
    limiter.drain().await;
    Ok(())
}

/// What each process admitted, by second and process.
type Admitted = Arc<Mutex<BTreeMap<(u64, usize), u64>>>;

async fn fleet() -> Result<(), Box<dyn Error>> {
    let addresses = free_addresses()?;
    let admitted = Admitted::default();
    let mut children = Vec::new();
    for index in 0..3 {
        children.push(start(index, &addresses, &admitted)?);
    }
    let mut loads = [1_500, 300, 100];
    println!("second  first second  third    all of {LIMIT}");
    let start_at = now().as_secs() + 1;
    for second in 0..SECONDS {
        let passed = Duration::from_secs(start_at + second).saturating_sub(now());
        tokio::time::sleep(passed).await;
        let mut event = "";
        match second {
            JUMP => (loads, event) = ([100, 300, 1_500], "the load jumps from the first to the third"),
            KILL => {
                children[1].kill().await?;
                event = "the second is killed";
            }
            RESTART => {
                children[1] = start(1, &addresses, &admitted)?;
                event = "the second starts again";
            }
            _ => {}
        }
        for (child, load) in children.iter_mut().zip(loads) {
            if let Some(input) = &mut child.stdin {
                // One that was killed reads nothing.
                let _ = input.write_all(format!("{load}\n").as_bytes()).await;
            }
        }
        // Until what was admitted in the second before is known.
        tokio::time::sleep(Duration::from_millis(300)).await;
        if second > 0 {
            print(&admitted, start_at, second - 1);
        }
        if !event.is_empty() {
            println!("       {event}");
        }
    }
    Ok(())
}

fn print(admitted: &Admitted, start_at: u64, second: u64) {
    let known = admitted.lock().unwrap_or_else(PoisonError::into_inner);
    let of = |index| known.get(&(start_at + second, index)).copied().unwrap_or(0);
    let all: u64 = (0..3).map(of).sum();
    println!("{second:>6} {:>6} {:>6} {:>6} {all:>6}", of(0), of(1), of(2));
}

fn start(index: usize, addresses: &[SocketAddr], admitted: &Admitted) -> Result<Child, Box<dyn Error>> {
    let mut child = Command::new(std::env::current_exe()?)
        .arg(addresses[index].to_string())
        .args(addresses.iter().map(ToString::to_string))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()?;
    let (admitted, output) = (Arc::clone(admitted), child.stdout.take().ok_or("no output")?);
    tokio::spawn(async move {
        let mut lines = BufReader::new(output).lines();
        while let Ok(Some(line)) = lines.next_line().await {
            if let Some((second, units)) = line.split_once(' ')
                && let (Ok(second), Ok(units)) = (second.parse(), units.parse())
            {
                admitted.lock().unwrap_or_else(PoisonError::into_inner).insert((second, index), units);
            }
        }
    });
    Ok(child)
}

fn free_addresses() -> Result<Vec<SocketAddr>, Box<dyn Error>> {
    // All at once, so that they differ.
    let sockets = [(); 3].map(|()| UdpSocket::bind("127.0.0.1:0"));
    sockets.into_iter().map(|socket| Ok(socket?.local_addr()?)).collect()
}

fn now() -> Duration {
    Duration::from_nanos(SystemClock::new().now().as_nanos())
}
