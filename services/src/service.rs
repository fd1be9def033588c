use std::fmt;
use std::str::FromStr;

/// The servers that the project is tested against.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Service {
    /// nats-server with JetStream.
    Nats,
    /// Apache Kafka in KRaft mode.
    Kafka,
    /// PostgreSQL.
    Postgres,
    /// Redis.
    Redis,
    /// MongoDB; only by a URL in the environment.
    Mongo,
}

impl Service {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::Nats, Self::Kafka, Self::Postgres, Self::Redis, Self::Mongo];

    /// Its name on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Nats => "nats",
            Self::Kafka => "kafka",
            Self::Postgres => "postgres",
            Self::Redis => "redis",
            Self::Mongo => "mongo",
        }
    }

    /// The environment variable whose URL replaces it.
    #[must_use]
    pub const fn variable(self) -> &'static str {
        match self {
            Self::Nats => "DLQ_TEST_NATS_URL",
            Self::Kafka => "DLQ_TEST_KAFKA_URL",
            Self::Postgres => "DLQ_TEST_POSTGRES_URL",
            Self::Redis => "DLQ_TEST_REDIS_URL",
            Self::Mongo => "DLQ_TEST_MONGO_URL",
        }
    }

    /// The URL of a server that listens on this address.
    #[must_use]
    pub fn url(self, address: &str) -> String {
        match self {
            Self::Nats => format!("nats://{address}"),
            Self::Kafka => address.to_owned(),
            Self::Postgres => format!("postgres://postgres@{address}/postgres"),
            Self::Redis => format!("redis://{address}"),
            Self::Mongo => format!("mongodb://{address}"),
        }
    }

    /// The first `host:port` in a URL of this server.
    pub(crate) fn address(self, url: &str) -> String {
        let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
        let authority = rest.split(['/', '?', ',']).next().unwrap_or_default();
        let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
        let port = match self {
            Self::Nats => 4222,
            Self::Kafka => 9092,
            Self::Postgres => 5432,
            Self::Redis => 6379,
            Self::Mongo => 27017,
        };
        if host.contains(':') { host.to_owned() } else { format!("{host}:{port}") }
    }
}

impl fmt::Display for Service {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Service {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::ALL.into_iter().find(|service| service.name() == text).ok_or_else(|| {
            let names = Self::ALL.map(Self::name).join(", ");
            format!("`{text}` is not a server; expected one of: {names}")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::Service;

    #[test]
    fn addresses_come_out_of_urls() {
        for (service, url, expected) in [
            (Service::Nats, "nats://127.0.0.1:4555", "127.0.0.1:4555"),
            (Service::Kafka, "a:1,b:2", "a:1"),
            (Service::Postgres, "postgres://me:secret@db.local/x?y=z", "db.local:5432"),
            (Service::Redis, "redis://h/0", "h:6379"),
        ] {
            assert_eq!(service.address(url), expected);
        }
    }
}
