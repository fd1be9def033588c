//! Receivers of alerts about groups: where they are, and in which form they take an alert.

use reqwest::Client;

use super::FORMATS;
use super::http::Webhook;
use crate::error::CliError;
use crate::secret;

/// Form in which a receiver takes an alert.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Format {
    /// JSON of ours.
    Webhook,
    /// A message of Slack, or of what understands those.
    Slack,
    /// An event of PagerDuty's Events API v2.
    PagerDuty { routing_key: String },
}

/// Receiver of alerts.
#[derive(Clone, Debug)]
pub(super) struct Receiver {
    pub(super) format: Format,
    pub(super) webhook: Webhook,
    /// Name by which stores know it: it stays the same from process to process, and does not tell the URL.
    pub(super) id: String,
}

impl Receiver {
    /// Reads `[FORMAT+]URL`.
    pub(super) fn parse(client: &Client, text: &str) -> Result<Self, CliError> {
        let (format, url) = match text.split_once("://") {
            // Only what stands before `://` can be a format: paths and queries have a `+` as well.
            Some((scheme, _)) if scheme.contains('+') => {
                text.split_once('+').unwrap_or(("webhook", text))
            }
            _ => ("webhook", text),
        };
        let mut webhook = Webhook::parse(client, url, "--alert")?;
        let format = match format {
            "webhook" => Format::Webhook,
            "slack" => Format::Slack,
            "pagerduty" => Format::PagerDuty { routing_key: take_routing_key(&mut webhook)? },
            _ => {
                return Err(CliError::refused(format!(
                    "cannot use --alert: its format is none; write one of {} before the `+`, or the URL alone",
                    FORMATS.join(", ")
                )));
            }
        };
        // The store knows receivers by this and must not know the URL, which is a secret.
        let digest = blake3::hash(text.as_bytes()).to_hex();
        let mut receiver = Self { format, webhook, id: String::new() };
        receiver.id = format!("{}-{}", receiver.format_name(), &digest[..16]);
        Ok(receiver)
    }

    pub(super) const fn format_name(&self) -> &'static str {
        match self.format {
            Format::Webhook => FORMATS[0],
            Format::Slack => FORMATS[1],
            Format::PagerDuty { .. } => FORMATS[2],
        }
    }

    /// Returns its name for people, without a secret.
    pub(super) fn shown(&self) -> String {
        format!("{} at {}", self.format_name(), self.webhook.host())
    }
}

/// Takes the routing key out of the URL, since it belongs into the events.
fn take_routing_key(webhook: &mut Webhook) -> Result<String, CliError> {
    let is_key = |name: &str| name == "routing_key";
    let pairs = webhook.url.query_pairs().into_owned();
    let (keys, rest): (Vec<_>, Vec<_>) = pairs.partition(|(name, _)| is_key(name));
    let Some((_, key)) = keys.into_iter().next().filter(|(_, key)| !key.is_empty()) else {
        return Err(CliError::refused(
            "cannot use --alert: events of PagerDuty need a routing key; write \
             pagerduty+https://events.pagerduty.com/v2/enqueue?routing_key=KEY",
        ));
    };
    secret::keep_path(&key);
    // A key that stayed in the URL would end up in the logs of proxies.
    webhook.url.set_query(None);
    if !rest.is_empty() {
        webhook.url.query_pairs_mut().extend_pairs(rest);
    }
    Ok(key)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_format_stands_before_the_url() {
        let client = super::super::http::client(None).unwrap();
        let read =
            |text: &str| Receiver::parse(&client, text).map_err(|error| format!("{error:?}"));
        let plain = read("https://h/hook?a+b=c").unwrap();
        assert_eq!((&plain.format, plain.webhook.url.path()), (&Format::Webhook, "/hook"));
        let slack = read("slack+https://hooks.example/T0/B0/s3cret").unwrap();
        assert_eq!((&slack.format, &*slack.shown()), (&Format::Slack, "slack at hooks.example"));
        assert!(slack.id.starts_with("slack-") && slack.id.len() == 22, "{}", slack.id);
        assert_ne!(slack.id, read("slack+https://hooks.example/T0/B0/other").unwrap().id);
        let pager = read("pagerduty+https://h/v2/enqueue?x=1&routing_key=k3y").unwrap();
        assert_eq!(pager.format, Format::PagerDuty { routing_key: "k3y".to_owned() });
        assert_eq!(pager.webhook.url.as_str(), "https://h/v2/enqueue?x=1");
        for (wrong, says) in [
            ("teams+https://h/s3cret", "webhook, slack, pagerduty"),
            ("pagerduty+https://h/v2/enqueue?key=s3cret", "need a routing key"),
            ("slack+s3cret", "--alert"),
            ("slack+ftp://h/s3cret", "no URL of HTTP"),
        ] {
            let error = read(wrong).unwrap_err();
            assert!(error.contains(says) && !error.contains("s3cret"), "{wrong}: {error}");
        }
    }
}
