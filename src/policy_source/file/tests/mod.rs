#[cfg(unix)]
mod folders;

use notify::event::CreateKind;

use super::*;

#[tokio::test]
async fn without_events_polling_sees_every_change() {
    let path = std::env::temp_dir().join(format!("tower-ratelimit-file-{}.yaml", std::process::id()));
    let mut file = FileSource::new(&path).poll_interval(Duration::from_millis(10));
    file.events = Some(FolderEvents::none());
    for text in ["one", "another", "longer than that"] {
        fs::write(&path, text).unwrap();
        let update = timeout(TIMEOUT, file.next()).await.unwrap().unwrap();
        assert_eq!(update, Some(Document::yaml(text)));
    }
    // Of the same length, another inode.
    fs::write(path.with_extension("new"), "LONGER THAN THAT").unwrap();
    fs::rename(path.with_extension("new"), &path).unwrap();
    let update = timeout(TIMEOUT, file.next()).await.unwrap().unwrap();
    assert_eq!(update, Some(Document::yaml("LONGER THAN THAT")));
    fs::remove_file(&path).unwrap();
    assert!(timeout(TIMEOUT, file.next()).await.unwrap().is_err());
}

/// A check that never returns fails at its timeout. The source recovers once
/// the file can be read, although the check is still under way.
#[tokio::test(start_paused = true)]
async fn a_file_system_that_hangs_is_reported_and_recovered_from() {
    let path = std::env::temp_dir().join(format!("tower-ratelimit-hangs-{}.yaml", std::process::id()));
    let mut file = FileSource::new(&path).poll_interval(Duration::from_millis(10));
    file.events = Some(FolderEvents::none());
    fs::write(&path, "one").unwrap();
    assert_eq!(file.next().await.unwrap(), Some(Document::yaml("one")));

    file.checking = Some(tokio::spawn(std::future::pending()));
    let start = tokio::time::Instant::now();
    let error = file.next().await.unwrap_err();
    assert_eq!(error.to_string(), "was not looked at within 5s");
    assert!(start.elapsed() < 2 * TIMEOUT);
    assert!(file.checking.is_some(), "no second thread while it hangs");

    for text in ["one", "two!", "three"] {
        fs::write(&path, text).unwrap();
        assert_eq!(file.next().await.unwrap(), Some(Document::yaml(text)));
    }
    fs::remove_file(&path).unwrap();
}

/// A pipe may replace the file between the check and the opening.
#[cfg(unix)]
#[test]
fn opening_a_pipe_does_not_block() {
    let path = std::env::temp_dir().join(format!("tower-ratelimit-pipe-{}", std::process::id()));
    assert!(std::process::Command::new("mkfifo").arg(&path).status().unwrap().success());
    let (sender, opened) = std::sync::mpsc::channel();
    let pipe = path.clone();
    std::thread::spawn(move || sender.send(open(&pipe).and_then(|file| contents(file, 100))));
    let found = opened.recv_timeout(Duration::from_secs(60));
    fs::remove_file(&path).unwrap();
    assert_eq!(found.expect("the pipe has no writer").unwrap().1, Document::invalid("is not a regular file"));
}

#[test]
fn a_read_is_not_a_change() {
    for (kind, read) in [
        (EventKind::Access(AccessKind::Open(AccessMode::Any)), true),
        (EventKind::Access(AccessKind::Close(AccessMode::Read)), true),
        (EventKind::Access(AccessKind::Close(AccessMode::Write)), false),
        (EventKind::Create(CreateKind::File), false),
        (EventKind::Any, false),
    ] {
        assert_eq!(is_read(kind), read, "{kind:?}");
    }
}
