use std::{
    collections::VecDeque,
    io,
    net::IpAddr,
    sync::{Arc, Mutex},
};

use super::*;
use crate::backend::split::Dns;

type Answers = VecDeque<Option<Vec<u8>>>;

/// Returns these answers in order, `None` as an error; then never answers.
#[derive(Clone)]
struct Script(Arc<Mutex<Answers>>);

impl Script {
    async fn resolve(self) -> io::Result<Vec<IpAddr>> {
        let answer = self.0.lock().unwrap().pop_front();
        match answer {
            Some(Some(found)) => Ok(found.into_iter().map(|last| IpAddr::from([10, 0, 0, last])).collect()),
            Some(None) => Err(io::Error::other("no such name")),
            None => std::future::pending().await,
        }
    }
}

#[tokio::test(start_paused = true)]
async fn the_last_share_stays_in_force_after_a_failure() {
    let answers =
        [None, Some(vec![1, 2, 3]), Some(vec![3, 1, 2, 2]), None, Some(vec![1, 3]), Some(vec![]), Some(vec![2])];
    let expected = [None, Some((1, 3)), Some((1, 3)), Some((1, 3)), Some((1, 3)), Some((1, 3)), Some((0, 1))];
    let script = Script(Arc::new(Mutex::new(answers.into())));
    let resolver = script.clone();
    let dns = Dns::new("web", IpAddr::from([10, 0, 0, 2]), move |_| resolver.clone().resolve());
    let (shares, refresh) = dns.every(SECOND).watch();
    let refreshing = tokio::spawn(refresh);
    for expected in expected {
        // Half an interval after the query.
        tokio::time::advance(SECOND / 2).await;
        tokio::task::yield_now().await;
        let share = expected.map_or(Share::none(), |(index, count)| Share::new(index, count).unwrap());
        assert_eq!(*shares.borrow(), share);
        tokio::time::advance(SECOND / 2).await;
    }
    // The resolver does not answer for a while.
    tokio::time::advance(10 * SECOND).await;
    script.0.lock().unwrap().extend([Some(vec![2, 1]), Some(vec![2, 1])]);
    for _ in 0..3 {
        tokio::time::advance(SECOND).await;
        tokio::task::yield_now().await;
    }
    assert_eq!(*shares.borrow(), Share::new(1, 2).unwrap());
    drop(shares);
    refreshing.await.unwrap();
}
#[tokio::test]
async fn the_system_resolves_localhost() {
    let (mut shares, refresh) = Dns::system("localhost", IpAddr::from([127, 0, 0, 1])).watch();
    tokio::spawn(refresh);
    tokio::time::timeout(10 * SECOND, shares.changed()).await.unwrap().unwrap();
    assert_eq!(*shares.borrow(), Share::new(0, 1).unwrap());
}
