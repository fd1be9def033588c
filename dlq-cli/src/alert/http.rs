//! POSTs of JSON to webhooks, over HTTPS or HTTP.

use std::error::Error;
use std::io;
use std::path::Path;
use std::sync::Arc;

use reqwest::header::CONTENT_TYPE;
use reqwest::redirect::Policy;
use reqwest::{Client, Url};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use rustls::{ClientConfig, RootCertStore};

use super::{PATIENCE, Refusal};
use crate::error::{CliError, chain};
use crate::secret;

/// Returns the client of all webhooks. Besides the authorities of the system it trusts the one in this file.
pub(super) fn client(authority: Option<&Path>) -> Result<Client, CliError> {
    let failed = |error: &dyn std::error::Error| {
        CliError::failed(format!("cannot set up the client of webhooks: {}", chain(error)))
    };
    // The provider is named, since a process in which two crates bring one each has no default, and would panic.
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let tls = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let tls = tls.map_err(|error| failed(&error))?;
    let tls = tls.with_root_certificates(roots(authority)?).with_no_client_auth();
    Client::builder()
        .tls_backend_preconfigured(tls)
        // A body that was posted to one address is not for another.
        .redirect(Policy::none())
        .timeout(PATIENCE)
        .user_agent(concat!("dlq/", env!("CARGO_PKG_VERSION")))
        .build()
        .map_err(|error| failed(&error))
}

fn roots(authority: Option<&Path>) -> Result<RootCertStore, CliError> {
    let mut roots = RootCertStore::empty();
    // Errors are passed over: one certificate of the system that cannot be read must not take away the others.
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    // An image without a file of authorities has those of the browsers.
    if roots.is_empty() {
        roots.extend(webpki_roots::TLS_SERVER_ROOTS.iter().cloned());
    }
    let Some(path) = authority else { return Ok(roots) };
    let refused = |why: String| {
        CliError::refused(format!(
            "cannot trust the authority in {}: {why}; name a file with its certificate in PEM",
            path.display()
        ))
    };
    let certificates = CertificateDer::pem_file_iter(path);
    let mut count = 0;
    for certificate in certificates.map_err(|error| refused(error.to_string()))? {
        let certificate = certificate.map_err(|error| refused(error.to_string()))?;
        roots.add(certificate).map_err(|error| refused(error.to_string()))?;
        count += 1;
    }
    if count == 0 { Err(refused("it holds no certificate".to_owned())) } else { Ok(roots) }
}

/// Webhook that alerts are posted to.
#[derive(Clone, Debug)]
pub(super) struct Webhook {
    client: Client,
    pub(super) url: Url,
}

impl Webhook {
    /// Reads a URL, which is never quoted: its path or its query may be the secret of the receiver.
    pub(super) fn parse(client: &Client, url: &str, option: &str) -> Result<Self, CliError> {
        // It is kept before it is parsed, so that nothing which fails from here on can print it.
        secret::keep(url);
        let refused = |why: &str| {
            Err(CliError::refused(format!(
                "cannot use the URL of {option}: {why}; write https://HOST[:PORT]/PATH"
            )))
        };
        // The parser would leave out line breaks, and read another URL than was written.
        let is_odd = |c: char| c.is_whitespace() || c.is_control() || c == '#';
        if url.contains(is_odd) {
            return refused("it holds a blank, a control character or a `#`");
        }
        let Ok(url) = Url::parse(url) else { return refused("it is none") };
        if !matches!(url.scheme(), "https" | "http") || !url.has_host() {
            return refused("it is no URL of HTTP");
        }
        // Slack and others have their secret in the path.
        secret::keep_path(url.path());
        secret::keep_path(url.query().unwrap_or_default());
        Ok(Self { client: client.clone(), url })
    }

    /// Returns the host, which alone is fit to be shown.
    pub(super) fn host(&self) -> &str {
        self.url.host_str().unwrap_or_default()
    }

    /// Posts a JSON document; done when the answer is one of success. The body of the answer is not read.
    pub(super) async fn post(&self, json: &[u8]) -> Result<(), Refusal> {
        let request = self.client.post(self.url.clone());
        let request = request.header(CONTENT_TYPE, "application/json").body(json.to_vec());
        let answer = request.send().await.map_err(|error| Refusal {
            // A certificate that is not trusted is not trusted a second later.
            is_transient: !is_distrust(&error),
            why: format!("{}: {}", self.host(), chain(&error.without_url())),
        })?;
        let status = answer.status();
        // The body of the answer is a stranger's text of any length, and the status says enough.
        if status.is_success() {
            return Ok(());
        }
        Err(Refusal {
            why: format!("{} answered `{status}`", self.host()),
            // A request that is wrong is wrong again; one that came too early or too often is not.
            is_transient: !matches!(status.as_u16(), 300..=407 | 409..=424 | 426..=428 | 430..500),
        })
    }
}

/// Returns true if the certificate of the server was not accepted.
fn is_distrust(error: &(dyn Error + 'static)) -> bool {
    if let Some(error) = error.downcast_ref::<rustls::Error>() {
        return matches!(error, rustls::Error::InvalidCertificate(_));
    }
    // An error of I/O passes over what it holds, and has the source of that as its own.
    let held = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
    let held = held.map(|held| held as &(dyn Error + 'static));
    held.or_else(|| error.source()).is_some_and(is_distrust)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_urls_of_http_are_taken_and_none_is_quoted() {
        let client = client(None).unwrap();
        let hook = |url: &str| {
            Webhook::parse(&client, url, "--alert").map_err(|error| format!("{error:?}"))
        };
        assert_eq!(hook("https://h:8443/a/b?c=d").unwrap().host(), "h");
        assert_eq!(hook("http://[::1]").unwrap().url.as_str(), "http://[::1]/");
        for wrong in [
            "h/s3cret",
            "https://",
            "http://h:x/s3cret",
            "http://h/s3cret b",
            "http://h/\r\nX: s3cret",
            "ftp://ana:s3cret@h/",
            "https://h/x#s3cret",
        ] {
            let error = hook(wrong).unwrap_err();
            assert!(error.contains("--alert") && !error.contains("s3cret"), "{wrong}: {error}");
        }
    }

    #[test]
    fn a_file_without_a_certificate_is_refused() {
        let file = tempfile::NamedTempFile::new().unwrap();
        for path in [file.path(), Path::new("/nowhere")] {
            let error = format!("{:?}", client(Some(path)).unwrap_err());
            assert!(error.contains("cannot trust the authority in"), "{error}");
        }
    }
}
