//! Requests that a page of another site makes a browser send.
//!
//! A browser says so itself in `Sec-Fetch-Site` and `Origin`. What it does not say (a site without TLS that is not
//! loopback, an old browser) the token in each form decides, which no other site can read. A site whose name was pointed at
//! a loopback address (DNS rebinding) is told by its `Host`.

use std::net::IpAddr;

use axum::http::request::Parts;
use axum::http::{HeaderMap, header};

/// Refuses a request to a host that is neither loopback nor one of `hosts`.
pub(crate) fn host(parts: &Parts, hosts: &[String]) -> Result<(), String> {
    let host = named_host(parts);
    let name = host.map(without_port).unwrap_or_default();
    let is_known = is_loopback(name) || hosts.iter().any(|host| host.eq_ignore_ascii_case(name));
    if is_known {
        return Ok(());
    }
    Err(format!(
        "the request is addressed to `{name}`, and without a login only localhost and loopback addresses are answered; set up \
         tokens, or name the host where something else asks for a login"
    ))
}

fn named_host(parts: &Parts) -> Option<&str> {
    let header = parts.headers.get(header::HOST).and_then(|host| host.to_str().ok());
    // HTTP/2 has it in the request line.
    header.or_else(|| parts.uri.authority().map(|authority| authority.as_str()))
}

fn without_port(host: &str) -> &str {
    match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    }
}

fn is_loopback(name: &str) -> bool {
    // The name is compared and never resolved: a name that resolves to loopback is just what has to be refused.
    let address = name.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
    name.eq_ignore_ascii_case("localhost") || address.is_ok_and(|address| address.is_loopback())
}

/// Evidence about the page that sent a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sender {
    /// The browser says that it is a page of this site, or the user themselves.
    SameSite,
    /// The browser says that it is another site.
    Other,
    /// It is a browser, and does not say.
    Unknown,
    /// Nothing in the request is from a browser.
    NoBrowser,
}

/// Returns the evidence in the headers of a request.
pub(crate) fn sender(parts: &Parts) -> Sender {
    let text = |name: &str| parts.headers.get(name).and_then(|value| value.to_str().ok());
    match text("sec-fetch-site") {
        // `same-site` is not enough: another service on a neighbouring name is not trusted with the letters.
        Some("same-origin" | "none") => return Sender::SameSite,
        Some(_) => return Sender::Other,
        None => {}
    }
    // Only browsers older than `Sec-Fetch-Site`, and sites without TLS, get as far as this.
    match text("origin") {
        // A page that sends no referrer sends this in the place of its origin.
        Some("null") => Sender::Unknown,
        Some(origin) => {
            // The scheme is left out of the comparison, since behind a proxy that ends TLS it differs from ours.
            let host = origin.split_once("://").map_or(origin, |(_, host)| host);
            let is_ours = named_host(parts).is_some_and(|ours| ours.eq_ignore_ascii_case(host))
                || forwarded_host(&parts.headers)
                    .is_some_and(|ours| ours.eq_ignore_ascii_case(host));
            if is_ours { Sender::SameSite } else { Sender::Other }
        }
        // Programs seldom send these two, so a request that has one is taken for a browser's, whatever else it leaves
        // out.
        None if parts.headers.contains_key(header::REFERER) => Sender::Unknown,
        None if parts.headers.contains_key(header::COOKIE) => Sender::Unknown,
        None => Sender::NoBrowser,
    }
}

/// Returns the host that a proxy was asked for. A page of another site cannot set this header without being asked first.
fn forwarded_host(headers: &HeaderMap) -> Option<&str> {
    headers.get("x-forwarded-host").and_then(|host| host.to_str().ok())
}

#[cfg(test)]
mod tests {
    use axum::http::Request;

    use super::*;

    fn parts(headers: &[(&str, &str)]) -> Parts {
        let request =
            headers.iter().fold(Request::builder().uri("/x"), |request, (name, value)| {
                request.header(*name, *value)
            });
        request.body(()).unwrap().into_parts().0
    }

    #[test]
    fn only_loopback_and_known_hosts_are_answered() {
        for name in
            ["localhost", "LOCALHOST:9400", "127.0.0.1:80", "127.9.9.9", "[::1]:9400", "dlq:1"]
        {
            assert!(host(&parts(&[("host", name)]), &["dlq".to_owned()]).is_ok(), "{name}");
        }
        for name in
            ["evil.example", "localhost.evil.example", "10.0.0.1:9400", "", "127.0.0.1.evil:1"]
        {
            assert!(host(&parts(&[("host", name)]), &[]).is_err(), "{name}");
        }
        assert!(host(&parts(&[]), &[]).is_err());
    }

    #[test]
    fn a_browser_says_which_site_asks() {
        let of = |headers: &[(&str, &str)]| sender(&parts(headers));
        assert_eq!(of(&[("sec-fetch-site", "same-origin")]), Sender::SameSite);
        assert_eq!(of(&[("sec-fetch-site", "cross-site"), ("origin", "http://h")]), Sender::Other);
        assert_eq!(of(&[("sec-fetch-site", "same-site")]), Sender::Other);
        assert_eq!(of(&[("origin", "http://h:1"), ("host", "h:1")]), Sender::SameSite);
        assert_eq!(of(&[("origin", "http://h:2"), ("host", "h:1")]), Sender::Other);
        assert_eq!(of(&[("origin", "null"), ("host", "h:1")]), Sender::Unknown);
        assert_eq!(of(&[("cookie", "a=b")]), Sender::Unknown);
        assert_eq!(of(&[("host", "h:1")]), Sender::NoBrowser);
    }
}
