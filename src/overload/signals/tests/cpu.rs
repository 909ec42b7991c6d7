use super::super::*;

#[test]
fn a_group_without_a_limit_has_none() {
    assert_eq!(quota("max 100000\n"), None);
    assert_eq!(quota("150000 100000\n"), Some(1.5));
    assert_eq!(quota(""), None);
}

#[test]
fn the_machine_is_in_use_when_it_is_not_idle() {
    let sample = |idle| machine(&format!("cpu  10 0 10 {idle} 0 0 0 0 0 0\ncpu0 1 2 3 4\n")).unwrap();
    let now = Instant::now();
    let (from, to) = (sample(80), Sample { used: 40.0, available: Some(200.0) });
    assert_eq!(from, Sample { used: 20.0, available: Some(100.0) });
    assert!((Source::Machine.part((now, from), (now, to)) - 0.2).abs() < 1e-9);
    assert_eq!(machine("intr 1 2 3"), None);
    assert_eq!(machine("cpu  1 x"), None);
}

#[test]
fn a_limited_group_is_preferred_to_the_machine() {
    let root = std::env::temp_dir().join(format!("tower-ratelimit-cpu-{}", std::process::id()));
    let group = root.join("sys/fs/cgroup/app");
    fs::create_dir_all(&group).unwrap();
    fs::create_dir_all(root.join("proc/self")).unwrap();
    fs::write(root.join("proc/stat"), "cpu  1 2 3 4 5 6 7 8 9 10\n").unwrap();
    fs::write(root.join("proc/self/cgroup"), "0::/app\n").unwrap();
    fs::write(group.join("cpu.max"), "max 100000\n").unwrap();
    fs::write(group.join("cpu.stat"), "usage_usec 2000000\nuser_usec 1\n").unwrap();
    assert_eq!(Source::find(&root), Some(Source::Machine));
    fs::write(group.join("cpu.max"), "50000 100000\n").unwrap();
    let found = Source::find(&root).unwrap();
    assert_eq!(found, Source::Group(group, 0.5));
    let from = found.sample(&root).unwrap();
    assert_eq!(from, Sample { used: 2.0, available: None });
    let (start, used) = (Instant::now(), Sample { used: 2.4, ..from });
    assert!((found.part((start, from), (start + Duration::from_secs(1), used)) - 0.8).abs() < 1e-9);
    fs::remove_dir_all(&root).unwrap();
    assert_eq!(Source::find(&root), None);
}
