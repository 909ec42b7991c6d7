//! The structured fields of the IETF's draft.

use tower_ratelimit::headers::parse::{Dialect, Parser};

use super::{millis, read, read_by, secs};

#[test]
fn versions_08_and_later() {
    for (value, cooldown) in [
        (r#""burst";r=0;t=30"#, secs(30)),
        (r#""burst";r=50;t=30,"daily";r=0;t=60"#, secs(60)),
        (r#""burst";r=0;t=30, "daily";r=0;t=90, "yearly";r=1;t=500"#, secs(90)),
        (r#""default";t=5;r=0;pk=:dHdlbHZl:"#, secs(5)),
        (r#""a\"b";r=0;t=1"#, secs(1)),
        // Token names, and the proposed parameters.
        ("default;r=0;t=30", secs(30)),
        (r#""default";a=0;w=20"#, secs(20)),
        (r#""default";r=5;a=0;t=3;w=20"#, secs(20)),
        (r#""default";r=0;t=2.5"#, millis(2_500)),
        (r#""default";r=0;t=999999999999999"#, secs(600)),
        // The last parameter of a name counts.
        (r#""default";r=9;r=0;t=1;t=8"#, secs(8)),
        // Well-formed items beside unknown ones.
        (r#"("x";r=0;t=9), 5;r=0;t=9, "ok";r=0;t=3"#, secs(3)),
        (r#""bad";r=-1;t=9, "ok";r=0;t=3"#, secs(3)),
        // Units remain, or no reset is given.
        (r#""burst";r=50;t=30"#, None),
        (r#""burst";r=1;t=30"#, None),
        (r#""burst";r=0"#, None),
        (r#""burst";r=0;t=0"#, None),
        (r#""burst";t=30"#, None),
        (r#""burst";r=-1;t=30"#, None),
        (r#""burst";r=0;t=-30"#, None),
        (r#""burst";r=?0;t=30"#, None),
        (r#""burst";r="0";t=30"#, None),
        // The whole line is malformed.
        ("", None),
        (r#""burst;r=0;t=30"#, None),
        (r#""burst";r=0;t=30,"#, None),
        (r#""burst";r=0;t=30 "next";r=0;t=3"#, None),
        (r#""burst";R=0;T=30"#, None),
        (r#""burst";r=0;t=9999999999999999"#, None),
        ("0", None),
    ] {
        for status in [200, 429] {
            let signal = read(status, &[("ratelimit", value)]);
            assert_eq!(signal.cooldown(), cooldown, "{status} {value}");
            assert_eq!(signal.dialect(), cooldown.map(|_| Dialect::Ietf), "{value}");
        }
        let pinned = |dialect| read_by(Parser::new().dialect(dialect), 200, &[("ratelimit", value)]).cooldown();
        assert_eq!(pinned(Dialect::Ietf), cooldown, "{value}");
        assert_eq!(pinned(Dialect::Ietf07), None, "{value}");
        assert_eq!(pinned(Dialect::GitHub), None, "{value}");
    }
}

#[test]
fn the_binding_limit_is_reported_with_its_quota() {
    let policy = ("ratelimit-policy", r#""burst";q=100;w=60, "daily";q=1000;w=86400, "burst";q=-7"#);
    let bound = |limit| {
        let signal = read(200, &[policy, ("ratelimit", limit)]);
        (signal.limit(), signal.remaining(), signal.reset())
    };
    assert_eq!(bound(r#""burst";r=50;t=30, "daily";r=900;t=7"#), (Some(100), Some(50), secs(30)));
    assert_eq!(bound(r#""burst";r=50;t=30, "daily";r=400;t=7"#), (Some(1000), Some(400), secs(7)));
    assert_eq!(bound(r#"burst;r=0;t=30, "daily";r=0;t=7"#), (Some(100), Some(0), secs(30)));
    assert_eq!(bound(r#""other";r=5;t=7200"#), (None, Some(5), secs(600)));
}

#[test]
fn version_07() {
    for (value, cooldown) in [
        ("limit=100, remaining=0, reset=5", secs(5)),
        ("remaining=0,reset=7", secs(7)),
        ("limit=100;w=60, remaining=0;x, reset=5;y=1, other=(1 2)", secs(5)),
        ("limit=100, remaining=0, reset=1.5", millis(1_500)),
        ("limit=100, remaining=0, reset=9, remaining=0, reset=2", secs(2)),
        ("limit=100, remaining=50, reset=5", None),
        ("limit=100, remaining=0", None),
        ("limit=100, remaining=-1, reset=-5", None),
        ("limit=100, remaining=0, reset=(5)", None),
        ("limit=100, remaining=0, reset=\"5\"", None),
        ("limit=100, remaining=0, reset=5,", None),
        ("limit=100 remaining=0 reset=5", None),
        ("Limit=100, Remaining=0, Reset=5", None),
    ] {
        let signal = read(200, &[("ratelimit", value)]);
        assert_eq!(signal.cooldown(), cooldown, "{value}");
        assert_eq!(signal.dialect(), cooldown.map(|_| Dialect::Ietf07), "{value}");
        let pinned = |dialect| read_by(Parser::new().dialect(dialect), 200, &[("ratelimit", value)]).cooldown();
        assert_eq!((pinned(Dialect::Ietf07), pinned(Dialect::Ietf)), (cooldown, None), "{value}");
    }
    let signal = read(200, &[("ratelimit", "limit=100, remaining=50, reset=5")]);
    assert_eq!((signal.limit(), signal.remaining(), signal.reset()), (Some(100), Some(50), secs(5)));
}

#[test]
fn lines_are_read_one_by_one() {
    let lines = [r#""a";r=0;t=3"#, "nonsense\"", r#""b";r=0;t=8"#, ""].map(|value| ("ratelimit", value));
    assert_eq!(read(200, &lines).cooldown(), secs(8));
}

#[test]
fn a_list_is_read_as_far_as_its_64th_item() {
    let list = |items: usize| "a;r=1,".repeat(items - 1) + "a;r=0;t=5";
    assert_eq!(read(200, &[("ratelimit", &list(64))]).cooldown(), secs(5));
    assert_eq!(read(200, &[("ratelimit", &list(65))]).cooldown(), None);
    let policies = "b;q=1,".repeat(64) + "a;q=7";
    let lines = [("ratelimit-policy", policies.as_str()), ("ratelimit", "a;r=5")];
    assert_eq!((read(200, &lines).limit(), read(200, &lines).remaining()), (None, Some(5)));
}

/// 10,000 lines of 2,000 policies each, each parsed at most once.
#[test]
fn work_is_bounded() {
    let (many, policies) = ("a;r=1,".repeat(680) + "a;r=1", "b;q=1,".repeat(680) + "a;q=7");
    let mut lines = vec![("ratelimit", many.as_str()); 5_000];
    lines.resize(10_000, ("ratelimit-policy", policies.as_str()));
    assert_eq!(read(200, &lines).remaining(), Some(1));
    let long = "a;r=0;t=5,".repeat(100_000) + "a;r=0;t=5";
    assert_eq!(read(200, &[("ratelimit", &long), ("ratelimit", "b;r=0;t=3")]).cooldown(), secs(3));
}
