use std::fmt;
use std::str::FromStr;

use crate::Builder;

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
    /// A server of the protocol of MongoDB: mongo-java-server, or a MongoDB at a URL in the environment.
    Mongo,
}

impl Service {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::Nats, Self::Kafka, Self::Postgres, Self::Redis, Self::Mongo];

    /// Its name on the command line and in `DLQ_TEST_REQUIRE`.
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

    /// The URL in its environment variable, if that is set and not empty.
    #[must_use]
    pub fn given_url(self) -> Option<String> {
        std::env::var(self.variable()).ok().filter(|url| !url.is_empty())
    }

    /// Returns a builder: see [`Builder`].
    pub fn builder(self) -> Builder {
        Builder::new(self)
    }

    /// Returns true if three nodes of it can form a cluster here.
    #[must_use]
    pub const fn forms_clusters(self) -> bool {
        matches!(self, Self::Nats | Self::Kafka | Self::Redis)
    }

    /// The URL of a server that listens on this loopback port.
    pub(crate) fn local_url(self, port: u16) -> String {
        match self {
            Self::Nats => format!("nats://127.0.0.1:{port}"),
            Self::Kafka => format!("127.0.0.1:{port}"),
            Self::Postgres => format!("postgres://postgres@127.0.0.1:{port}/postgres"),
            Self::Redis => format!("redis://127.0.0.1:{port}"),
            Self::Mongo => format!("mongodb://127.0.0.1:{port}"),
        }
    }

    /// The port it listens on when nobody says otherwise.
    pub(crate) const fn default_port(self) -> u16 {
        match self {
            Self::Nats => 4222,
            Self::Kafka => 9092,
            Self::Postgres => 5432,
            Self::Redis => 6379,
            Self::Mongo => 27017,
        }
    }
}

impl fmt::Display for Service {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl From<Service> for &'static str {
    fn from(service: Service) -> Self {
        service.name()
    }
}

/// The error text names what was read and what is expected.
impl FromStr for Service {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::ALL.into_iter().find(|service| service.name() == text).ok_or_else(|| {
            let names = Self::ALL.map(Self::name).join(", ");
            format!("`{text}` is not a server; expected one of: {names}")
        })
    }
}
