use super::*;

fn matcher(patterns: &[&str]) -> Matcher {
    let mut matcher = Matcher::default();
    for (index, pattern) in patterns.iter().enumerate() {
        let rule = u32::try_from(index).unwrap();
        matcher.insert(pattern, false, PatternMatch { rule, pattern: 0, resolved: false });
    }
    matcher
}

fn found(patterns: &[&'static str], path: &str) -> Vec<&'static str> {
    let mut matches = PatternMatches::new();
    matcher(patterns).find_spelled(&Spelling::new(path, false), &mut matches);
    matches.iter().map(|found| patterns[found.rule as usize]).collect()
}

const PATTERNS: &[&str] = &[
    "/",
    "/{*all}",
    "/product/{id}",
    "/product/*",
    "/product/new",
    "/product/{id}/parts/{part}",
    "/file-{name}.txt",
    "/v1/{*rest}",
    "/{{literal}}",
    "/caf%C3%A9",
];

#[test]
fn every_pattern_that_matches_is_found_the_most_specific_first() {
    for (path, expected) in [
        ("/", &["/", "/{*all}"][..]),
        ("/product/new", &["/product/new", "/product/{id}", "/product/*", "/{*all}"]),
        ("/product/7", &["/product/{id}", "/product/*", "/{*all}"]),
        ("/product", &["/{*all}"]),
        ("/product/7/parts/8", &["/product/{id}/parts/{part}", "/{*all}"]),
        ("/file-a.txt", &["/file-{name}.txt", "/{*all}"]),
        ("/file-.txt", &["/{*all}"]),
        ("/v1/a/b/c", &["/v1/{*rest}", "/{*all}"]),
        ("/v1", &["/v1/{*rest}", "/{*all}"]),
        ("/v1//", &["/v1/{*rest}", "/{*all}"]),
        ("/caf%C3%A9%ff", &["/{*all}"]),
        ("/{literal}", &["/{{literal}}", "/{*all}"]),
        ("/caf\u{e9}", &["/caf%C3%A9", "/{*all}"]),
        ("/caf%C3%A9", &["/caf%C3%A9", "/{*all}"]),
    ] {
        assert_eq!(found(PATTERNS, path), expected, "{path}");
    }
}

#[test]
fn no_spelling_escapes() {
    for path in ["//product//7", "/product/7/", "/pro%64uct/7", "/product/%37", "/product/a%2Fb", "/product/7//"] {
        assert!(found(PATTERNS, path).contains(&"/product/{id}"), "{path}");
    }
}

#[test]
fn letters_fold_where_told() {
    let mut matcher = Matcher::default();
    matcher.insert("/Product/{Id}", true, PatternMatch { rule: 0, pattern: 0, resolved: false });
    for path in ["/product/X", "/PRODUCT/x", "/p%52oduct/x"] {
        let mut found = PatternMatches::new();
        matcher.find_spelled(&Spelling::new(path, true), &mut found);
        assert_eq!(found.len(), 1, "{path}");
    }
}

#[test]
fn of_parameters_with_prefix_and_suffix_the_longest_text_comes_first() {
    let patterns = ["/{any}", "/file-{n}", "/{n}.txt", "/file-{n}.txt", "/fil{n}.txt", "/file-1.txt", "/x-{n}"];
    let expected = ["/file-1.txt", "/file-{n}.txt", "/fil{n}.txt", "/file-{n}", "/{n}.txt", "/{any}"];
    assert_eq!(found(&patterns, "/file-1.txt"), expected);
    assert_eq!(found(&patterns, "/file-.txt"), ["/fil{n}.txt", "/file-{n}", "/{n}.txt", "/{any}"]);
    // A parameter takes whole characters.
    assert_eq!(found(&["/\u{e9}{n}", "/{n}\u{e9}"], "/\u{e9}\u{e9}"), ["/\u{e9}{n}", "/{n}\u{e9}"]);
    assert_eq!(found(&["/a{n}"], "/\u{e9}"), Vec::<&str>::new());
}

#[test]
fn bytes_that_are_no_text_do_not_hide_the_rest() {
    for path in ["/caf%C3%A9/%ff", "/caf\u{e9}/%FF", "/caf%c3%a9/%FF/"] {
        assert_eq!(found(&["/caf%C3%A9/{id}"], path).len(), 1, "{path}");
    }
}

#[test]
fn an_encoded_brace_or_asterisk_is_a_letter() {
    assert_eq!(found(&["/%7Bid%7D", "/%2A", "/50%25{x}"], "/anything"), Vec::<&str>::new());
    assert_eq!(found(&["/%7Bid%7D"], "/{id}"), ["/%7Bid%7D"]);
    assert_eq!(found(&["/%2A"], "/*"), ["/%2A"]);
    assert_eq!(found(&["/50%25{x}"], "/50%25off"), ["/50%25{x}"]);
}

/// Many parameters with a prefix are found by hash: the branches of a node do not grow
/// with the number of rules, neither to insert nor to find one.
#[test]
fn many_parameters_with_a_prefix_are_one_branch() {
    let patterns: Vec<String> = (10_000..20_000).map(|id| format!("/v1/item-{id}-{{part}}")).collect();
    let patterns: Vec<&str> = patterns.iter().map(String::as_str).collect();
    let matcher = matcher(&patterns);
    let lengths = |node: &Node| node.affixed.as_ref().map(|affixed| affixed.lengths.len());
    let largest = matcher.nodes.iter().filter_map(lengths).max();
    assert_eq!((largest, matcher.nodes.len()), (Some(1), 10_002));
    let mut found = PatternMatches::new();
    matcher.find_spelled(&Spelling::new("/v1/item-19999-left", false), &mut found);
    assert_eq!(found.iter().map(|found| found.rule).collect::<Vec<_>>(), [9_999]);
}

/// All pairs of many prefixes and suffixes match: the longest in total comes first.
#[test]
fn prefixes_and_suffixes_of_many_lengths_are_found() {
    let lengths = || 1..=80_usize;
    let pair = |(prefix, suffix): (usize, usize)| format!("/{}{{x}}{}", "a".repeat(prefix), "b".repeat(suffix));
    let pairs = || lengths().flat_map(|prefix| lengths().map(move |suffix| (prefix, suffix)));
    let patterns: Vec<String> = pairs().map(pair).collect();
    let matcher = matcher(&patterns.iter().map(String::as_str).collect::<Vec<_>>());
    let find = |path: &str| {
        let mut found = PatternMatches::new();
        matcher.find_spelled(&Spelling::new(path, false), &mut found);
        found.iter().map(|found| patterns[found.rule as usize].clone()).collect::<Vec<_>>()
    };
    assert!(find(&format!("/{}", "c".repeat(200))).is_empty());
    assert_eq!(find(&format!("/a{}b", "c".repeat(200))), ["/a{x}b"]);
    let found = find(&format!("/{}c{}", "a".repeat(80), "b".repeat(80)));
    assert_eq!(found.len(), 6_400);
    let total = |pattern: &String| pattern.len();
    assert!(found.is_sorted_by(|one, other| total(one) >= total(other)));
}

#[test]
fn a_segment_ends_at_its_first_slash_wherever_a_word_ends() {
    for (before, behind) in (0..20).flat_map(|before| (0..20).map(move |behind| (before, behind))) {
        let (first, left) = ("a".repeat(before), format!("{}/\u{ef}", "b".repeat(behind)));
        assert_eq!(split_segment(&format!("{first}/{left}")), (&*first, Some(&*left)));
        assert_eq!(split_segment(&first), (&*first, None));
        // A dot is the byte before a slash.
        let (first, left) = (".".repeat(before), ".".repeat(behind));
        assert_eq!(split_segment(&format!("{first}/{left}")), (&*first, Some(&*left)));
    }
}
