use super::{super::escape::escaped, lines, plain};

#[test]
fn markup_is_text() {
    assert_eq!(escaped("<script>'\"&"), "&lt;script&gt;&#39;&quot;&amp;");
}

#[test]
fn nothing_controls_a_terminal_or_the_direction_of_text() {
    let hostile = "a\u{1b}[31m\u{9b}2J\u{7f}\u{202e}\u{2066}\u{feff}\r\nb";
    let shown = plain(hostile);
    assert!(shown.is_ascii(), "{shown}");
    assert!(!shown.contains(char::is_control), "{shown:?}");
    assert_eq!(plain("naïve café 東京"), "naïve café 東京");
    assert_eq!(plain(r#"rule "x" \d 'y'"#), r#"rule "x" \d 'y'"#);
}

#[test]
fn a_long_name_is_cut() {
    let shown = plain(&"é".repeat(1 << 20));
    assert_eq!(shown.chars().count(), 201);
    assert!(shown.ends_with('…'));
    assert_eq!(lines("a\nb"), ["a", "b"]);
}
