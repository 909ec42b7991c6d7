//! What a server says of itself.

use super::*;

#[test]
fn the_run_id_is_read_from_info() {
    assert_eq!(run_id("# Server\r\nredis_version:7.0\r\nrun_id:abc\r\ntcp_port:1\r\n"), Some("abc"));
    assert_eq!(run_id("# Server\r\nrun_id:\r\n"), None);
    assert_eq!(run_id(""), None);
}
