use std::os::unix::fs::symlink;

use super::*;

#[test]
fn every_link_on_the_path_is_found() {
    let home = std::env::temp_dir().join(format!("tower-ratelimit-folders-{}", std::process::id()));
    let home = fs::create_dir_all(&home).and_then(|()| fs::canonicalize(&home)).unwrap();
    let folder = |name: &str| {
        fs::create_dir_all(home.join(name)).unwrap();
        home.join(name)
    };
    let (release, volume) = (folder("releases/7/limits"), folder("volume/..2026"));
    let _ = symlink("releases/7", home.join("current"));
    let _ = symlink("..2026", home.join("volume/..data"));
    let _ = symlink("../../volume/./..data/../..data/policy.yaml", home.join("releases/7/policy.yaml"));
    let _ = symlink(home.join("loop"), home.join("loop"));
    fs::write(volume.join("policy.yaml"), "").unwrap();

    let all = |names: &[&str]| names.iter().map(|name| home.join(name)).collect::<BTreeSet<_>>();
    assert_eq!(folders(&release.join("policy.yaml")), all(&["releases/7/limits"]), "the file does not exist yet");
    let expected =
        BTreeSet::from([home.clone(), home.join("releases/7"), home.join("volume"), home.join("volume/..2026")]);
    assert_eq!(folders(&home.join("current/policy.yaml")), expected);
    assert_eq!(folders(&home.join("loop/policy.yaml")), BTreeSet::from([home.clone()]), "a cycle of links ends");
    fs::remove_dir_all(&home).unwrap();
}
