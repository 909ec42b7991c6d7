use super::*;

const NORMAL: Priority = Priority::Normal;

fn key(number: u128) -> Fingerprint {
    Fingerprint::from_u128(number << 64)
}

fn is_called(entry: &QueueEntry) -> bool {
    entry.poll_called(&mut Context::from_waker(Waker::noop())).is_ready()
}

#[test]
fn only_the_first_of_a_queue_is_called_as_it_joins() {
    let queues = Arc::new(WaitQueues::default());
    let (first, second) = (queues.join(key(1), NORMAL, None), queues.join(key(1), NORMAL, None));
    assert_eq!((is_called(&first), is_called(&second)), (true, false));
    assert_eq!((first.is_first(), second.is_first()), (true, false));
    assert!(!is_called(&first), "once");
    drop(first);
    assert!(is_called(&second) && second.is_first());
}

#[test]
fn a_higher_priority_is_ahead_of_all_lower_ones() {
    let queues = Arc::new(WaitQueues::default());
    let join = |priority| queues.join(key(1), priority, None);
    let (low, high, late) = (join(Priority::Low), join(Priority::High), join(Priority::High));
    assert_eq!([&low, &high, &late].map(QueueEntry::is_first), [false, true, false]);
    let is_behind = |priority| queues.is_behind(key(1), priority, None);
    assert_eq!(Priority::ALL.iter().map(|class| is_behind(*class)).collect::<Vec<_>>(), [true, true, true, false]);
    drop(high);
    assert!(is_called(&late) && late.is_first());
    drop(late);
    assert!(is_called(&low) && low.is_first() && !is_behind(Priority::Normal));
}

/// By its number, it is ahead of those that came later.
#[test]
fn an_entry_that_moves_to_the_front_of_another_queue_is_called() {
    let queues = Arc::new(WaitQueues::default());
    let (mut early, other, mut late) =
        (queues.join(key(1), NORMAL, None), queues.join(key(2), NORMAL, None), queues.join(key(1), NORMAL, None));
    assert_eq!([&early, &other, &late].map(is_called), [true, true, false]);
    early.move_to(key(2), NORMAL);
    late.move_to(key(2), NORMAL);
    assert_eq!([&early, &other, &late].map(is_called), [true, false, false]);
    assert_eq!([&early, &other, &late].map(QueueEntry::is_first), [true, false, false]);
    drop((early, other, late));
    assert!(queues.are_empty());
    assert_eq!(queues.queues.each().map(|queues| queues.len()).sum::<usize>(), 0, "no queue is left");
}
