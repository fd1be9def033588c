//! Secure connections.

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;

use redis::{Client, ConnectionAddr, ConnectionInfo, TlsCertificates};

use super::{RedisConfig, RedisError};

/// The authority that servers are trusted by, if it is not those of the web.
pub(super) fn certificates(config: &RedisConfig) -> Option<TlsCertificates> {
    let pem = config.root_certificate.as_ref()?;
    Some(TlsCertificates { client_tls: None, root_cert: Some(pem.to_vec()) })
}

/// Makes an address ready for secure connections, if it is one.
pub(super) fn secured(
    info: ConnectionInfo,
    config: &RedisConfig,
) -> Result<ConnectionInfo, RedisError> {
    let is_secure = matches!(info.addr(), ConnectionAddr::TcpTls { .. });
    if is_secure && rustls::crypto::CryptoProvider::get_default().is_none() {
        // The client panics where the process has chosen none. Another thread may be faster, which is fine.
        let _ = rustls::crypto::ring::default_provider().install_default();
    }
    let is_read =
        |pem: &[u8]| CertificateDer::pem_slice_iter(pem).next().is_some_and(|it| it.is_ok());
    match certificates(config) {
        None => Ok(info),
        Some(TlsCertificates { root_cert: Some(pem), .. }) if !is_read(&pem) => {
            Err(RedisError::config(
                "cannot read the root certificate; give it in PEM, beginning with `-----BEGIN CERTIFICATE-----`",
            ))
        }
        Some(_) if !is_secure => Err(RedisError::config(
            "a root certificate is for secure connections; begin the URL with `rediss://`",
        )),
        Some(certificates) => {
            let client = Client::build_with_tls(info, certificates)?;
            Ok(client.get_connection_info().clone())
        }
    }
}

/// A client of the master of these sentinels, if an authority is given. All sentinels have user and password of the first.
#[cfg(feature = "sentinel")]
pub(super) fn sentinels(
    urls: &[String],
    master: &str,
    config: &RedisConfig,
) -> Result<Option<redis::sentinel::SentinelClient>, RedisError> {
    use redis::sentinel::{SentinelClientBuilder, SentinelServerType};

    // Without an authority the plain client will do, which is made by what each URL says.
    let Some(certificates) = certificates(config) else { return Ok(None) };
    let infos = urls.iter().map(|url| super::endpoint::read(url, config));
    let infos = infos.collect::<Result<Vec<_>, _>>()?;
    let addresses = infos.iter().map(|info| info.addr().clone());
    let mut builder = SentinelClientBuilder::new(addresses, master, SentinelServerType::Master)?
        .set_client_to_redis_tls_mode(redis::TlsMode::Secure)
        .set_client_to_sentinel_tls_mode(redis::TlsMode::Secure)
        .set_client_to_redis_certificates(certificates.clone())
        .set_client_to_sentinel_certificates(certificates);
    if let Some(settings) = infos.first().map(ConnectionInfo::redis_settings) {
        builder = builder.set_client_to_redis_db(settings.db());
        if let Some(user) = settings.username() {
            builder =
                builder.set_client_to_redis_username(user).set_client_to_sentinel_username(user);
        }
        if let Some(password) = settings.password() {
            builder = builder
                .set_client_to_redis_password(password)
                .set_client_to_sentinel_password(password);
        }
    }
    Ok(Some(builder.build()?))
}
