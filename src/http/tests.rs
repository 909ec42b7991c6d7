use http::{
    HeaderValue,
    header::{CONTENT_TYPE, COOKIE},
};

use super::*;

/// A request with so many other headers, and with these.
fn request(others: usize, headers: &[(&str, &str)]) -> Request<()> {
    let mut request = Request::new(());
    for other in 0..others {
        let name = HeaderName::try_from(format!("x-other-{other}")).unwrap();
        request.headers_mut().insert(name, HeaderValue::from_static("other"));
    }
    for (name, value) in headers {
        let name = HeaderName::try_from(*name).unwrap();
        request.headers_mut().append(name, HeaderValue::try_from(*value).unwrap());
    }
    request
}

const OTHERS: [usize; 4] = [0, 3, 12, 40];

#[test]
fn a_header_is_found_where_it_was_sent_once_and_is_not_empty() {
    let name = HeaderName::from_static("x-api-key");
    for (headers, found) in [
        (&[][..], None),
        (&[("x-api-key", "k")], Some(&b"k"[..])),
        (&[("x-api-key", " k 1\t")], Some(b"k 1")),
        (&[("x-api-key", "")], None),
        (&[("x-api-key", "  ")], None),
        (&[("x-api-key", "k"), ("x-api-key", "l")], None),
        (&[("x-api-key", "k"), ("x-api-key", "k")], None),
        (&[("x-other-0", "l"), ("x-api-key", "k")], Some(b"k")),
        (&[("x-api-kez", "l")], None),
    ] {
        for others in OTHERS {
            let mut request = request(others, headers);
            assert_eq!(RequestHead::new(&request).single_header(&name), found, "{headers:?} {others}");
            // Few names may have many values.
            for _ in 0..1_000 {
                request.headers_mut().append(COOKIE, HeaderValue::from_static("a=b"));
            }
            assert_eq!(RequestHead::new(&request).single_header(&name), found, "{headers:?} {others}");
        }
    }
}

#[test]
fn a_body_that_a_server_does_not_read_ends_a_connection() {
    for (headers, ends) in [
        (&[][..], false),
        (&[("content-length", "8192")], false),
        (&[("content-length", "8193")], true),
        (&[("content-length", "8193"), ("content-length", "8193")], false),
        (&[("content-length", "many")], false),
        (&[("transfer-encoding", "chunked")], true),
        (&[("content-length", "1"), ("transfer-encoding", "chunked")], true),
        (&[("content-type", "text/plain"), ("content-length", "9000"), ("accept", "*/*")], true),
    ] {
        for others in OTHERS {
            let mut request = request(others, headers);
            let ends_connection = |request: &Request<()>| RequestHead::new(request).ends_connection_unread();
            assert_eq!(ends_connection(&request), ends, "{headers:?} {others}");
            for (version, ends) in
                [(Version::HTTP_09, ends), (Version::HTTP_10, ends), (Version::HTTP_2, false), (Version::HTTP_3, false)]
            {
                *request.version_mut() = version;
                assert_eq!(ends_connection(&request), ends, "{headers:?} {others} {version:?}");
            }
        }
    }
}

#[test]
fn the_first_content_type_counts() {
    for others in OTHERS {
        let request = request(others, &[("content-type", "application/grpc"), ("content-type", "text/plain")]);
        let Protocol::Grpc { content_type } = Protocol::of(request.headers()) else { panic!("{request:?}") };
        assert_eq!(Some(&content_type), request.headers().get(CONTENT_TYPE));
    }
}
