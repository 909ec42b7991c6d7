//! Contenders run in turns, several rounds, on one server: what the machine
//! does meanwhile falls on all of them alike.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use tokio::task::JoinSet;

use crate::{AnyError, contenders::Contender};

/// How long and how often each contender runs.
#[derive(Clone, Copy)]
pub struct Plan {
    pub rounds: usize,
    pub turn: Duration,
}

/// Decisions a second of each contender, round by round.
pub async fn race(
    contenders: &[Arc<Contender>],
    keys: usize,
    at_once: usize,
    plan: Plan,
) -> Result<Vec<Vec<f64>>, AnyError> {
    let names: Arc<[String]> = (0..keys).map(|key| format!("tenant-{key:07}")).collect();
    for contender in contenders {
        // Once each, so that every key and connection is there.
        turn(contender, &names, at_once, plan.turn / 5).await?;
    }
    let mut rates = vec![Vec::new(); contenders.len()];
    for round in 0..plan.rounds {
        for place in 0..contenders.len() {
            // Nobody always runs after the same neighbour.
            let who = (place + round) % contenders.len();
            rates[who].push(turn(&contenders[who], &names, at_once, plan.turn).await?);
        }
    }
    Ok(rates)
}

/// Decisions a second, asked for by so many tasks, each one after the other.
async fn turn(
    contender: &Arc<Contender>,
    names: &Arc<[String]>,
    at_once: usize,
    duration: Duration,
) -> Result<f64, AnyError> {
    let start = Instant::now();
    let mut tasks = JoinSet::new();
    for task in 0..at_once {
        let (contender, names) = (Arc::clone(contender), Arc::clone(names));
        tasks.spawn(async move {
            let mut decisions = 0_u64;
            let mut key = task;
            while start.elapsed() < duration {
                if !contender.decide(&names[key % names.len()]).await {
                    return Err(format!("{}: rejected, or gave no answer", contender.name()));
                }
                decisions += 1;
                key += at_once;
            }
            Ok(decisions)
        });
    }
    let mut decisions = 0;
    while let Some(ended) = tasks.join_next().await {
        decisions += ended??;
    }
    Ok(decisions as f64 / start.elapsed().as_secs_f64())
}
