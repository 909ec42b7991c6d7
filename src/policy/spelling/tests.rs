use super::*;

#[test]
fn a_plain_path_has_one_spelling() {
    let mut paths = vec![String::new()];
    for _ in 0..6 {
        let longer = |path: &String| ["/", ".", "a", "A", "%"].map(|byte| format!("{path}{byte}"));
        paths = paths.iter().flat_map(longer).collect();
        for (path, ignore_case) in paths.iter().flat_map(|path| [(path, false), (path, true)]) {
            if is_plain(path, ignore_case) {
                assert_eq!((&*canonical(path, ignore_case), without_dots(path)), (&**path, None));
            }
        }
    }
    assert!(is_plain("/", false) && is_plain("/v1/items/7", true) && is_plain("/Items", false));
}

#[test]
fn dots_are_resolved_only_where_there_are_any() {
    assert_eq!(without_dots("/a/../b/./c").as_deref(), Some("/b/c"));
    assert_eq!(without_dots("/../..").as_deref(), Some("/"));
    assert_eq!(without_dots("/file.txt"), None);
}
