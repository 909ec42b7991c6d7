use super::*;

#[test]
fn a_canonical_path_is_not_spelled_again() {
    let mut paths = vec![String::from("/")];
    for _ in 0..6 {
        for (path, ignore_case) in paths.iter().flat_map(|path| [(path, false), (path, true)]) {
            let (is_usual, respelled) = (is_usual(path, ignore_case), canonical(path.as_bytes(), ignore_case));
            assert!(!is_usual || respelled == *path && without_dots(path).is_none(), "{path}");
            let spelling = Spelling::new(path, ignore_case);
            let resolved = without_dots(&respelled);
            assert_eq!((spelling.canonical(), spelling.resolved()), (&*respelled, resolved.as_deref()), "{path}");
        }
        let longer = |path: &String| ["/", ".", "a", "A", "%"].map(|byte| format!("{path}{byte}"));
        paths = paths.iter().flat_map(longer).collect();
    }
    for (path, ignore_case) in [("/", false), ("/v1/items/7.txt", true), ("/Items", false)] {
        assert!(is_usual(path, ignore_case), "{path}");
    }
}

/// Whatever stands before and behind it, and wherever a word ends.
#[test]
fn each_byte_of_a_path_is_looked_at() {
    for (before, behind) in (0..20).flat_map(|before| (0..20).map(move |behind| (before, behind))) {
        let path =
            |part: &str| format!("/{}{part}{}", "é".repeat(before % 3) + &"a".repeat(before), "b".repeat(behind));
        let is_usual = |part| is_usual(&path(part), false);
        for part in ["", "x/y", ".", "x.y", "\u{ae}", "/\u{af}", "\u{5}", "$", "&", "\u{a5}"] {
            let path = path(part);
            let usual = path == "/" || !path.ends_with('/') && !path.contains("//") && !path.contains("/.");
            assert_eq!(is_usual(part), usual, "{path}");
        }
        for part in ["%", "//", "/.", "/..", "x/.", "x/..y"] {
            assert!(!is_usual(part), "{}", path(part));
        }
    }
    assert!(!is_usual("", false));
}

/// Paths of several words, of the bytes that matter and those next to them.
#[test]
fn any_path_has_the_spellings_that_it_has_byte_by_byte() {
    const PARTS: [&str; 12] = ["/", "/", ".", "%", "%2e", "%2F", "$", "&", "-", "0", "a\u{e9}", "bcdefg"];
    let mut random = 0x2545_F491_4F6C_DD1D_u64;
    let mut unusual = 0;
    for _ in 0..50_000 {
        let mut path = String::from("/");
        for _ in 0..random % 15 {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            path += PARTS[(random >> 40) as usize % PARTS.len()];
        }
        random = random.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
        let (spelling, canonical) = (Spelling::new(&path, false), canonical(path.as_bytes(), false));
        let resolved = without_dots(&canonical);
        assert_eq!((spelling.canonical(), spelling.resolved()), (&*canonical, resolved.as_deref()), "{path}");
        unusual += usize::from(canonical != path || resolved.is_some());
    }
    assert!((5_000..45_000).contains(&unusual), "{unusual}");
}

#[test]
fn dots_are_resolved_only_where_there_are_any() {
    assert_eq!(without_dots("/a/../b/./c").as_deref(), Some("/b/c"));
    assert_eq!(without_dots("/../..").as_deref(), Some("/"));
    assert_eq!(without_dots("/file.txt"), None);
}
