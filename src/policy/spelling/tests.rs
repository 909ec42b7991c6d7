use super::*;

#[test]
fn dots_are_resolved_only_where_there_are_any() {
    assert_eq!(without_dots("/a/../b/./c").as_deref(), Some("/b/c"));
    assert_eq!(without_dots("/../..").as_deref(), Some("/"));
    assert_eq!(without_dots("/file.txt"), None);
}
