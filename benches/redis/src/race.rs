//! Interleaved measurement: contenders alternate on one server for several
//! rounds, so that noise from the machine affects all of them.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use tokio::task::JoinSet;

use crate::{AnyError, contenders::Contender};

/// The length and number of each contender's runs.
#[derive(Clone, Copy)]
pub struct Plan {
    pub rounds: usize,
    pub run: Duration,
}

/// Decisions a second of each contender, one value for each round.
pub async fn race(
    contenders: &[Arc<Contender>],
    keys: usize,
    at_once: usize,
    plan: Plan,
) -> Result<Vec<Vec<f64>>, AnyError> {
    let names: Arc<[String]> = (0..keys).map(|key| format!("tenant-{key:07}")).collect();
    for contender in contenders {
        // Warm up: create every key and connection.
        run(contender, &names, at_once, plan.run / 5).await?;
    }
    let mut rates = vec![Vec::new(); contenders.len()];
    for round in 0..plan.rounds {
        for position in 0..contenders.len() {
            // Rotate the order, so that no contender always follows the same one.
            let index = (position + round) % contenders.len();
            rates[index].push(run(&contenders[index], &names, at_once, plan.run).await?);
        }
    }
    Ok(rates)
}

/// Decisions a second with `at_once` tasks, each of which decides sequentially.
async fn run(
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
                if !contender.is_admitted(&names[key % names.len()]).await {
                    return Err(format!("{}: rejected, or the store failed", contender.name()));
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
