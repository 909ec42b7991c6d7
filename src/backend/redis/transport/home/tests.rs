//! Runtimes that end, or are not driven.

use tokio::{
    runtime::{Builder, Runtime},
    sync::mpsc::{UnboundedReceiver, unbounded_channel},
    task::yield_now,
    time::advance,
};

use super::*;

fn runtime() -> Runtime {
    Builder::new_current_thread().enable_all().start_paused(true).build().unwrap()
}

/// Reports the runtime on which it is started each time.
fn keep_reporting(home: &Home) -> UnboundedReceiver<tokio::runtime::Id> {
    let (started, starts) = unbounded_channel();
    home.keep(move || {
        let started = started.clone();
        async move {
            started.send(Handle::current().id()).unwrap();
            std::future::pending().await
        }
    });
    starts
}

#[test]
fn it_moves_from_a_runtime_that_has_ended() {
    let first = runtime();
    let home = first.block_on(async { Home::new() });
    let old = home.runtime();
    drop(first);
    assert!(old.is_over());
    let mut starts = keep_reporting(&home);
    let second = runtime();
    second.block_on(async {
        assert!(home.move_if_ended().unwrap() && !home.move_if_ended().unwrap());
        assert_eq!(starts.recv().await, Some(Handle::current().id()));
        assert!(!home.runtime().check_is_over());
    });
    assert_eq!(home.moves(), 1);
}

#[test]
fn it_moves_from_a_runtime_that_is_not_driven() {
    let (first, second) = (runtime(), runtime());
    let home = first.block_on(async { Home::new() });
    let mut starts = keep_reporting(&home);
    second.block_on(async {
        home.suspect();
        advance(Duration::from_millis(999)).await;
        home.suspect();
        assert!(!home.move_if_ended().unwrap(), "it may only be late");
        advance(Duration::from_millis(1)).await;
        let old = home.runtime();
        assert!(home.move_if_ended().unwrap() && !home.move_if_ended().unwrap());
        assert!(old.is_over() && !home.runtime().is_over());
        assert_eq!(starts.recv().await, Some(Handle::current().id()));
    });
    // The task that was never polled ends with its old home.
    first.block_on(async { yield_now().await });
    assert!(starts.try_recv().is_err());
}

#[test]
fn it_stays_on_a_runtime_that_is_driven() {
    let (first, second) = (runtime(), runtime());
    let home = first.block_on(async { Home::new() });
    for _ in 0..3 {
        second.block_on(async { home.suspect() });
        first.block_on(async { yield_now().await });
        second.block_on(async {
            advance(Duration::from_secs(10)).await;
            assert!(!home.move_if_ended().unwrap());
        });
    }
    // Nor does a caller on the same runtime find a better one.
    first.block_on(async {
        home.suspect();
        advance(Duration::from_secs(10)).await;
        assert!(!home.move_if_ended().unwrap());
    });
    assert_eq!(home.moves(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_background_task_that_panics_starts_again() {
    let home = Home::new();
    let (started, mut starts) = unbounded_channel();
    let first = Arc::new(AtomicBool::new(true));
    home.keep(move || {
        let (started, first) = (started.clone(), Arc::clone(&first));
        async move {
            started.send(()).unwrap();
            assert!(!first.swap(false, Ordering::Relaxed), "the panic that is tested");
            std::future::pending().await
        }
    });
    assert!(starts.recv().await.is_some() && starts.recv().await.is_some());
}
