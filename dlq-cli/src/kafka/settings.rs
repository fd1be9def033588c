//! The settings of the client: from a file, the environment, the command line and the URL, of which later ones prevail.

use std::path::Path;

use dlq_kafka::Brokers;

use super::url::KafkaUrl;
use crate::cli::{BrokerArgs, Setting};
use crate::error::CliError;

/// Variables of the environment begin so.
const PREFIX: &str = "DLQ_KAFKA_";
/// Variables that are no settings: they name the file, and the cluster.
const OTHERS: [&str; 2] = ["CONFIG", "CLUSTER"];

/// The cluster that the URL names, spoken to as the settings say.
pub(super) fn brokers(url: &KafkaUrl, args: &BrokerArgs) -> Result<Brokers, CliError> {
    let mut settings = Vec::new();
    if let Some(file) = &args.kafka_config {
        settings.extend(read(file)?);
    }
    settings.extend(from_environment(std::env::vars_os()));
    settings.extend(args.kafka.iter().cloned());
    let mut brokers = Brokers::at(&*url.bootstrap);
    // A variable that is set to nothing says nothing.
    if let Some(alias) = args.kafka_cluster.as_ref().filter(|alias| !alias.is_empty()) {
        brokers = brokers.with_cluster(alias.as_str());
    }
    if let Some(key) = args.binding_key()? {
        brokers = brokers.with_binding_key(key);
    }
    // What follows from others comes first, so that each setting which is given takes its place.
    for setting in assumed(url, args)?.into_iter().chain(settings) {
        // The setting could lead to another cluster than the one that every message names.
        if setting.key == "bootstrap.servers" {
            return Err(CliError::refused(
                "the setting `bootstrap.servers` is in the URL: kafka://HOST:PORT/TOPIC; leave it out",
            ));
        }
        brokers = brokers.with(setting.key, setting.value);
    }
    if let Some((user, password)) = &url.login {
        // The login of the URL comes last: a context has its password there, whatever the environment holds.
        brokers = brokers.with("sasl.username", user).with("sasl.password", password);
    }
    Ok(brokers)
}

/// Returns settings that follow from a login or certificates, unless they are given.
fn assumed(url: &KafkaUrl, args: &BrokerArgs) -> Result<Vec<Setting>, CliError> {
    let setting = |key: &str, value: &str| Setting { key: key.to_owned(), value: value.to_owned() };
    let mut settings = Vec::new();
    let protocol = match (&url.login, &args.tls_ca) {
        (Some(_), Some(_)) => Some("sasl_ssl"),
        (Some(_), None) => Some("sasl_plaintext"),
        (None, Some(_)) => Some("ssl"),
        (None, None) => None,
    };
    settings.extend(protocol.map(|protocol| setting("security.protocol", protocol)));
    if url.login.is_some() {
        settings.push(setting("sasl.mechanisms", "PLAIN"));
    }
    if let Some(file) = &args.tls_ca {
        if !file.is_file() {
            let text = format!("there is no file {} with certificates", file.display());
            return Err(CliError::refused(text));
        }
        settings.push(setting("ssl.ca.location", &file.display().to_string()));
    }
    Ok(settings)
}

fn read(path: &Path) -> Result<Vec<Setting>, CliError> {
    let text = std::fs::read_to_string(path)
        .map_err(|error| CliError::refused(format!("cannot read {}: {error}", path.display())))?;
    let mut settings = Vec::new();
    for (number, line) in (1..).zip(text.lines().map(str::trim)) {
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        settings.push(line.parse().map_err(|why| {
            // The line may hold a password, so it is not quoted.
            CliError::refused(format!("line {number} of {} is no setting: {why}", path.display()))
        })?);
    }
    Ok(settings)
}

fn from_environment(
    variables: impl IntoIterator<Item = (std::ffi::OsString, std::ffi::OsString)>,
) -> Vec<Setting> {
    let setting = |(name, value): (std::ffi::OsString, std::ffi::OsString)| {
        let key = name.to_str()?.strip_prefix(PREFIX).filter(|key| !OTHERS.contains(key))?;
        // Names of variables can hold no dots, with which settings of the client are written.
        let key = key.to_ascii_lowercase().replace('_', ".");
        Some(Setting { key, value: value.into_string().ok()? })
    };
    let mut settings: Vec<Setting> = variables.into_iter().filter_map(setting).collect();
    // The environment has no order of its own.
    settings.sort_by(|one, other| one.key.cmp(&other.key));
    settings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_environment_has_settings_too() {
        let variables = [
            ("DLQ_KAFKA_SECURITY_PROTOCOL", "ssl"),
            ("DLQ_KAFKA_CONFIG", "/etc/dlq"),
            ("DLQ_KAFKA_CLUSTER", "prod"),
            ("DLQ_FROM", "x"),
            ("DLQ_KAFKA_CLIENT_ID", "ops"),
        ];
        let found = from_environment(variables.map(|(name, value)| (name.into(), value.into())));
        let found: Vec<_> = found.iter().map(|one| (&*one.key, &*one.value)).collect();
        assert_eq!(found, [("client.id", "ops"), ("security.protocol", "ssl")]);
    }

    #[test]
    fn a_file_has_one_a_line() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("client.properties");
        std::fs::write(&file, "# ours\n\nsecurity.protocol = ssl\r\nsasl.password=a=b\n").unwrap();
        let found = read(&file).unwrap();
        let found: Vec<_> = found.iter().map(|one| (&*one.key, &*one.value)).collect();
        assert_eq!(found, [("security.protocol", "ssl"), ("sasl.password", "a=b")]);
        std::fs::write(&file, "x=1\ns3cret\n").unwrap();
        let error = format!("{:?}", read(&file).unwrap_err());
        assert!(error.contains("line 2") && !error.contains("s3cret"), "{error}");
    }
}
