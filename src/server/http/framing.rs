//! The parts of HTTP on which a proxy and this server must agree: which host a request is for, and where its body ends.
//!
//! What is ambiguous is refused (RFC 9112): a proxy that reads it in another way would let requests pass that it should
//! not. Not here: which hosts and clients are allowed (`access`).

use axum::extract::Request;
use axum::http::{Version, header};

use super::error::Error;

/// Refuses a request whose host or whose body is ambiguous.
pub(crate) fn check(request: &Request) -> Result<(), Error> {
    let headers = request.headers();
    let mut hosts = headers.get_all(header::HOST).iter();
    let host = hosts.next();
    if hosts.next().is_some() {
        return Err(Error::Malformed("it has more than one `Host` header"));
    }
    if host.is_none() && request.version() == Version::HTTP_11 {
        return Err(Error::Malformed("it has no `Host` header"));
    }
    if let (Some(host), Some(authority)) = (host, request.uri().authority()) {
        let named = authority.as_str().rsplit('@').next().unwrap_or_default();
        if !host.as_bytes().eq_ignore_ascii_case(named.as_bytes()) {
            return Err(Error::Malformed("`Host` is not the host of its URL"));
        }
    }
    let codings = headers.get_all(header::TRANSFER_ENCODING).iter();
    let mut codings = codings.flat_map(|value| value.as_bytes().split(|byte| *byte == b','));
    if !codings.all(|coding| coding.trim_ascii().eq_ignore_ascii_case(b"chunked")) {
        return Err(Error::TransferCoding);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use axum::body::Body;

    use super::*;

    fn refused(uri: &str, headers: &[(&str, &str)]) -> Option<u16> {
        let mut request = Request::builder().uri(uri);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(Body::empty()).expect("sound");
        check(&request).err().map(|error| error.status().as_u16())
    }

    #[test]
    fn a_request_has_one_host() {
        assert_eq!(refused("/", &[("host", "a")]), None);
        assert_eq!(refused("http://A:80/", &[("host", "a:80")]), None);
        assert_eq!(refused("/", &[]), Some(400));
        assert_eq!(refused("http://a/", &[]), Some(400));
        assert_eq!(refused("/", &[("host", "a"), ("host", "a")]), Some(400));
        assert_eq!(refused("http://b/", &[("host", "a")]), Some(400));
        assert_eq!(refused("http://a:81/", &[("host", "a:80")]), Some(400));
        let mut old = Request::builder()
            .uri("/")
            .body(Body::empty())
            .expect("sound");
        *old.version_mut() = Version::HTTP_10;
        assert!(check(&old).is_ok());
    }

    #[test]
    fn bodies_are_in_chunks_or_have_a_length() {
        let with = |coding| refused("/", &[("host", "a"), ("transfer-encoding", coding)]);
        assert_eq!(with("chunked"), None);
        assert_eq!(with(" Chunked "), None);
        for other in [
            "gzip, chunked",
            "gzip",
            "identity",
            "chunked, gzip",
            "x-chunked",
            "",
        ] {
            assert_eq!(with(other), Some(501), "{other}");
        }
    }
}
