use std::time::Duration;

use dlq_core::TransportError;
use dlq_core::TransportErrorKind::InvalidConfig;
use dlq_core::policy::duration;
use serde::{Deserialize, Serialize};

/// The retry topics of a consumer: one for each delay, from short to long.
///
/// A message that has to wait goes to the first stage whose delay is long enough, and waits there for that delay: the
/// records of a stage are due in the order in which they were written, so that none waits behind one that is due later.
/// Only the last stage has records that wait longer than its delay, by a day at most, when the policy's delays are longer.
/// Such a record is written into the stage again each time that the delay is over, but every five seconds at most; give a
/// ladder a stage for the longest delay to save that.
///
/// Names are made by a template in which `{topic}`, `{group}` and `{delay}` stand for what they say. Where the template
/// has no `{group}`, several groups share the topics, and each passes over the records of the others.
///
/// A stage that is taken off a ladder is read all the same while its topic is there, and so is every stage of a consumer
/// that goes without retries from now on: what waits there was acknowledged. They are found by their names, of the same
/// template, and where groups share the topics by what the group has committed there; delete such a topic when nothing
/// waits in it any more.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[must_use]
pub struct Ladder {
    #[serde(with = "delays")]
    pub(crate) delays: Vec<Duration>,
    pub(crate) template: String,
}

/// A retry topic.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stage {
    /// Its name.
    pub topic: String,
    /// For how long a record waits in it.
    pub delay: Duration,
}

impl Ladder {
    /// Stages of 30 s, 5 min and 1 h, named `<topic>.<group>.retry.30s` and so on.
    pub fn new() -> Self {
        Self::of([30, 5 * 60, 60 * 60].map(Duration::from_secs))
    }

    /// Stages of these delays.
    pub fn of(delays: impl IntoIterator<Item = Duration>) -> Self {
        let mut delays: Vec<_> = delays.into_iter().collect();
        // Sorted, so that the first stage that is long enough is the shortest one, and the last is the longest.
        delays.sort_unstable();
        delays.dedup();
        Self { delays, template: "{topic}.{group}.retry.{delay}".to_owned() }
    }

    /// Sets how the topics are named, e.g. `{topic}.retry.{delay}`. Defaults to `{topic}.{group}.retry.{delay}`.
    pub fn names(mut self, template: impl Into<String>) -> Self {
        self.template = template.into();
        self
    }

    /// Returns true if groups share the topics.
    pub(crate) fn is_shared(&self) -> bool {
        !self.template.contains("{group}")
    }

    /// The topics of this ladder for `group`, whose own topic is `topic`, from short to long.
    ///
    /// # Errors
    ///
    /// `InvalidConfig` when a delay is zero, two stages would have one name, or a name is none that Kafka takes.
    pub fn stages(&self, topic: &str, group: &str) -> Result<Vec<Stage>, TransportError> {
        let wrong = |text: String| {
            Err(TransportError::new(InvalidConfig, "name the retry topics").with_detail(text))
        };
        let mut stages: Vec<Stage> = Vec::new();
        for delay in &self.delays {
            if delay.is_zero() {
                return wrong(
                    "a stage has a delay of 0; leave it out: short delays are spent in the process"
                        .into(),
                );
            }
            let name = named(&self.template_of(topic, group), *delay);
            if !is_topic(&name) {
                return wrong(format!(
                    "`{name}`, made from `{}`, is no name of a topic: letters, digits, `.`, `_` and `-`, at most 249",
                    self.template
                ));
            }
            // Two stages in one topic would hold up each other's records, and a stage in the topic itself would delay its
            // messages.
            if name == topic || stages.iter().any(|stage| stage.topic == name) {
                return wrong(format!(
                    "`{}` gives the name `{name}` twice; it has to contain {{topic}} and {{delay}}",
                    self.template
                ));
            }
            stages.push(Stage { topic: name, delay: *delay });
        }
        Ok(stages)
    }

    /// Returns those of these topics that are named like stages and are none: they were stages of `group` and its topic
    /// once.
    pub(crate) fn former(&self, names: &[String], topic: &str, group: &str) -> Vec<Stage> {
        let template = self.template_of(topic, group);
        let Some((before, after)) = template.split_once("{delay}") else { return Vec::new() };
        let stage = |name: &String| {
            let text = name.strip_prefix(before)?.strip_suffix(after)?;
            let delay = duration::parse(text).ok().filter(|delay| !delay.is_zero())?;
            // A delay has one spelling in our names, so a topic with another spelling is somebody else's.
            let is_former = !self.delays.contains(&delay) && named(&template, delay) == *name;
            is_former.then(|| Stage { topic: name.clone(), delay })
        };
        names.iter().filter_map(stage).collect()
    }

    /// The template, in which the delay is open still.
    fn template_of(&self, topic: &str, group: &str) -> String {
        self.template.replace("{topic}", topic).replace("{group}", group)
    }
}

fn named(template: &str, delay: Duration) -> String {
    template.replace("{delay}", &duration::format(delay).replace(' ', ""))
}

impl Default for Ladder {
    fn default() -> Self {
        Self::new()
    }
}

/// Returns true if a topic can have this name.
pub(crate) fn is_topic(name: &str) -> bool {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    !name.is_empty()
        && name.len() <= 249
        && name != "."
        && name != ".."
        && name.chars().all(is_plain)
}

/// Delays as texts such as `30s`.
mod delays {
    use std::time::Duration;

    use dlq_core::policy::duration;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub(crate) fn serialize<S: Serializer>(
        delays: &[Duration],
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        let texts: Vec<_> = delays.iter().map(|delay| duration::format(*delay)).collect();
        texts.serialize(serializer)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Vec<Duration>, D::Error> {
        let texts = Vec::<String>::deserialize(deserializer)?;
        let delays = texts.iter().map(|text| duration::parse(text)).collect::<Result<Vec<_>, _>>();
        delays.map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(ladder: &Ladder) -> Vec<String> {
        let stages = ladder.stages("orders", "billing").unwrap();
        stages.into_iter().map(|stage| stage.topic).collect()
    }

    #[test]
    fn stages_are_named_by_the_template() {
        assert_eq!(
            names(&Ladder::new()),
            ["orders.billing.retry.30s", "orders.billing.retry.5m", "orders.billing.retry.1h"]
        );
        let shared = Ladder::of([Duration::from_secs(30)]).names("{topic}.retry.{delay}");
        assert_eq!(names(&shared), ["orders.retry.30s"]);
        let odd = Ladder::of([Duration::from_millis(90_500)]);
        assert!(is_topic(&names(&odd)[0]), "{:?}", names(&odd));
    }

    #[test]
    fn g1_stages_that_were_taken_off_are_known_by_their_names() {
        let names = ["30s", "1m30s", "90s", "0s", "x", "30s.dlq", "1h"];
        let mut names: Vec<_> =
            names.iter().map(|end| format!("orders.billing.retry.{end}")).collect();
        names.extend(["orders.retry.5m", "orders.shop.retry.5m", "orders"].map(str::to_owned));
        let former = |ladder: Ladder| {
            let former = ladder.former(&names, "orders", "billing").into_iter();
            former.map(|stage| (stage.topic, stage.delay.as_secs())).collect::<Vec<_>>()
        };
        let of = |end: &str, delay| (format!("orders.billing.retry.{end}"), delay);
        assert_eq!(former(Ladder::new()), [of("1m30s", 90)]);
        let none = Ladder::of([]);
        assert_eq!(former(none.clone()), [of("30s", 30), of("1m30s", 90), of("1h", 3_600)]);
        let shared = none.clone().names("{topic}.retry.{delay}");
        assert_eq!(former(shared), [("orders.retry.5m".to_owned(), 300)]);
        assert_eq!(former(none.names("{topic}.{group}.retry")), []);
    }

    #[test]
    fn names_that_kafka_would_not_take_are_refused() {
        for template in ["{topic}", "{topic}.retry", "orders retry {delay}", "{topic}/{delay}"] {
            let stages = Ladder::new().names(template).stages("orders", "billing");
            assert!(stages.is_err(), "{template}");
        }
        assert!(Ladder::of([Duration::ZERO]).stages("orders", "billing").is_err());
        assert!(
            Ladder::new().stages("orders", "a b").is_err(),
            "a group may be named as no topic is"
        );
    }
}
