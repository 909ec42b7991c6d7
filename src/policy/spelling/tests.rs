use super::*;

#[test]
fn a_canonical_path_is_not_spelled_again() {
    let mut paths = vec![String::from("/")];
    for _ in 0..6 {
        for (path, ignore_case) in paths.iter().flat_map(|path| [(path, false), (path, true)]) {
            let (Scan { is_canonical, may_have_dots }, respelled) =
                (scan(path, ignore_case), respell(path.as_bytes(), ignore_case));
            assert!(!is_canonical || respelled == *path, "{path}");
            assert!(may_have_dots || without_dots(path).is_none(), "{path}");
            let spelling = Spelling::new(path, ignore_case);
            assert_eq!((&*spelling.canonical, spelling.resolved), (&*respelled, without_dots(&respelled)), "{path}");
        }
        let longer = |path: &String| ["/", ".", "a", "A", "%"].map(|byte| format!("{path}{byte}"));
        paths = paths.iter().flat_map(longer).collect();
    }
    for (path, ignore_case) in [("/", false), ("/v1/items/7", true), ("/Items", false)] {
        let Scan { is_canonical, may_have_dots } = scan(path, ignore_case);
        assert!(is_canonical && !may_have_dots, "{path}");
    }
}

#[test]
fn dots_are_resolved_only_where_there_are_any() {
    assert_eq!(without_dots("/a/../b/./c").as_deref(), Some("/b/c"));
    assert_eq!(without_dots("/../..").as_deref(), Some("/"));
    assert_eq!(without_dots("/file.txt"), None);
}
