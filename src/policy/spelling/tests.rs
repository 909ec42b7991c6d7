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
            let resolved = without_dots(&respelled);
            assert_eq!((spelling.canonical(path), spelling.resolved()), (&*respelled, resolved.as_deref()), "{path}");
        }
        let longer = |path: &String| ["/", ".", "a", "A", "%"].map(|byte| format!("{path}{byte}"));
        paths = paths.iter().flat_map(longer).collect();
    }
    for (path, ignore_case) in [("/", false), ("/v1/items/7", true), ("/Items", false)] {
        let Scan { is_canonical, may_have_dots } = scan(path, ignore_case);
        assert!(is_canonical && !may_have_dots, "{path}");
    }
}

/// Whatever stands before and behind it, and wherever a word ends.
#[test]
fn each_byte_of_a_path_is_looked_at() {
    for (before, behind) in (0..20).flat_map(|before| (0..20).map(move |behind| (before, behind))) {
        let path =
            |part: &str| format!("/{}{part}{}", "é".repeat(before % 3) + &"a".repeat(before), "b".repeat(behind));
        let seen = |part| scan(&path(part), false);
        for part in ["", "x/y", ".", "x.y", "\u{ae}", "/\u{af}", "\u{5}"] {
            let (path, Scan { is_canonical, may_have_dots }) = (path(part), seen(part));
            assert_eq!(is_canonical, path == "/" || !path.ends_with('/') && !path.contains("//"), "{path}");
            assert_eq!(may_have_dots, path.contains("/."), "{path}");
        }
        for part in ["%", "//"] {
            assert!(!seen(part).is_canonical, "{}", path(part));
        }
        for part in ["x/.", "x/..y"] {
            assert!(seen(part).may_have_dots, "{}", path(part));
        }
    }
    assert!(!scan("", false).is_canonical);
}

#[test]
fn dots_are_resolved_only_where_there_are_any() {
    assert_eq!(without_dots("/a/../b/./c").as_deref(), Some("/b/c"));
    assert_eq!(without_dots("/../..").as_deref(), Some("/"));
    assert_eq!(without_dots("/file.txt"), None);
}

#[test]
fn a_segment_ends_at_its_first_slash_wherever_a_word_ends() {
    for (before, behind) in (0..20).flat_map(|before| (0..20).map(move |behind| (before, behind))) {
        let (first, left) = ("a".repeat(before), format!("{}/\u{ef}", "b".repeat(behind)));
        assert_eq!(split_segment(&format!("{first}/{left}")), (&*first, Some(&*left)));
        assert_eq!(split_segment(&first), (&*first, None));
    }
}
