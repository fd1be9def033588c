//! Kafka: the versions of its API, the brokers and topics, and the leader of the controllers.

use std::time::Duration;

use super::stream::Stream;
use super::target::Target;
use crate::{Error, Service};

/// Versions of a request that a broker understands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ApiVersions {
    /// The number of the request.
    pub key: i16,
    /// The oldest version.
    pub oldest: i16,
    /// The newest version.
    pub newest: i16,
}

/// A broker as another broker knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Broker {
    /// Its `node.id`.
    pub id: i32,
    /// Address for clients: `host:port`.
    pub address: String,
}

/// A topic as a broker knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Topic {
    /// Its name.
    pub name: String,
    /// The error code of the protocol; 0 if there is none.
    pub error: i16,
    /// For each partition the brokers that have a replica of it.
    pub replicas: Vec<Vec<i32>>,
}

/// Knowledge of a broker about its cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Metadata {
    /// The brokers that are there.
    pub brokers: Vec<Broker>,
    /// The topics that were asked for.
    pub topics: Vec<Topic>,
}

/// Asks the first broker of a list which requests it understands.
///
/// # Errors
///
/// `NoAnswer` when there is none, or none of a Kafka broker.
pub fn api_versions(bootstrap: &str, patience: Duration) -> Result<Vec<ApiVersions>, Error> {
    let mut call = Call::new(bootstrap, 18, 0, patience)?;
    let mut answer = call.ask(&[])?;
    let error = answer.int16();
    let versions = answer.array(|answer| {
        Some(ApiVersions { key: answer.int16()?, oldest: answer.int16()?, newest: answer.int16()? })
    });
    match (error, versions) {
        (Some(0), Some(versions)) if !versions.is_empty() => Ok(versions),
        _ => Err(call.stream.unexpected("no list of API versions")),
    }
}

/// Asks the first broker of a list for the brokers and for the named topics. A topic that does not
/// exist is created, unless the broker was told otherwise; it may take a moment until it has
/// partitions.
///
/// # Errors
///
/// `NoAnswer` when there is none.
pub fn metadata(bootstrap: &str, topics: &[&str], patience: Duration) -> Result<Metadata, Error> {
    let mut call = Call::new(bootstrap, 3, 1, patience)?;
    let mut body = (topics.len() as i32).to_be_bytes().to_vec();
    for topic in topics {
        body.extend_from_slice(&(topic.len() as i16).to_be_bytes());
        body.extend_from_slice(topic.as_bytes());
    }
    let mut answer = call.ask(&body)?;
    read_metadata(&mut answer).ok_or_else(|| call.stream.unexpected("broken metadata"))
}

/// Asks the first broker of a list which node leads the controllers; -1 if none does.
///
/// # Errors
///
/// `NoAnswer` when there is none.
pub fn quorum_leader(bootstrap: &str, patience: Duration) -> Result<i32, Error> {
    const TOPIC: &str = "__cluster_metadata";
    // Counts are one more than they are, each structure ends with a zero: no tagged fields.
    let mut body = vec![0, 2, TOPIC.len() as u8 + 1];
    body.extend_from_slice(TOPIC.as_bytes());
    body.extend_from_slice(&[2, 0, 0, 0, 0, 0, 0, 0]);
    let mut call = Call::new(bootstrap, 55, 0, patience)?;
    let mut answer = call.ask(&body)?;
    let mut read = || {
        let _tags = answer.take(1)?;
        let error = answer.int16()?;
        if error != 0 {
            return Some(Err(error));
        }
        let _topics = answer.take(1)?;
        let name = usize::from(answer.take(1)?[0]);
        let _name = answer.take(name.checked_sub(1)?)?;
        let _partitions = answer.take(1)?;
        let _index = answer.int32()?;
        let error = answer.int16()?;
        Some(if error == 0 { Ok(answer.int32()?) } else { Err(error) })
    };
    match read() {
        Some(Ok(leader)) => Ok(leader),
        Some(Err(code)) => Err(call.stream.unexpected(&format!("error {code} about its quorum"))),
        None => Err(call.stream.unexpected("a broken description of its quorum")),
    }
}

fn read_metadata(answer: &mut Response) -> Option<Metadata> {
    let brokers = answer.array(|answer| {
        let (id, host, port) = (answer.int32()?, answer.string()?, answer.int32()?);
        let _rack = answer.string()?;
        Some(Broker { id, address: format!("{host}:{port}") })
    })?;
    let _controller = answer.int32()?;
    let topics = answer.array(|answer| {
        let (error, name) = (answer.int16()?, answer.string()?);
        let _internal = answer.take(1)?;
        let replicas = answer.array(|answer| {
            let (_error, _index, _leader) = (answer.int16()?, answer.int32()?, answer.int32()?);
            let replicas = answer.array(Response::int32)?;
            let _in_sync = answer.array(Response::int32)?;
            Some(replicas)
        })?;
        Some(Topic { name, error, replicas })
    })?;
    Some(Metadata { brokers, topics })
}

/// A request over a connection of its own.
struct Call {
    stream: Stream,
    key: i16,
    version: i16,
}

impl Call {
    fn new(bootstrap: &str, key: i16, version: i16, patience: Duration) -> Result<Self, Error> {
        let address = Target::parse(Service::Kafka, bootstrap).address;
        let stream = Stream::connect(Service::Kafka, &address, patience)?;
        Ok(Self { stream, key, version })
    }

    fn ask(&mut self, body: &[u8]) -> Result<Response, Error> {
        const CORRELATION: [u8; 4] = *b"dlq?";
        const CLIENT: &[u8] = b"dlq-services";
        let mut request = Vec::new();
        request.extend_from_slice(&self.key.to_be_bytes());
        request.extend_from_slice(&self.version.to_be_bytes());
        request.extend_from_slice(&CORRELATION);
        request.extend_from_slice(&(CLIENT.len() as i16).to_be_bytes());
        request.extend_from_slice(CLIENT);
        request.extend_from_slice(body);
        self.stream.send(&(request.len() as u32).to_be_bytes())?;
        self.stream.send(&request)?;
        let length = self.stream.length(0)?;
        let mut answer = self.stream.take(length)?;
        if !answer.starts_with(&CORRELATION) {
            return Err(self.stream.unexpected("an answer to something else"));
        }
        Ok(Response(answer.split_off(CORRELATION.len()).into_iter()))
    }
}

/// The bytes of an answer that were not read yet. Everything is `None` once they are too few.
struct Response(std::vec::IntoIter<u8>);

impl Response {
    fn take(&mut self, count: usize) -> Option<Vec<u8>> {
        (count <= self.0.len()).then(|| self.0.by_ref().take(count).collect())
    }

    fn int16(&mut self) -> Option<i16> {
        Some(i16::from_be_bytes(self.take(2)?.try_into().ok()?))
    }

    fn int32(&mut self) -> Option<i32> {
        Some(i32::from_be_bytes(self.take(4)?.try_into().ok()?))
    }

    /// A string; a missing one is empty.
    fn string(&mut self) -> Option<String> {
        let length = usize::try_from(self.int16()?.max(0)).ok()?;
        Some(String::from_utf8_lossy(&self.take(length)?).into_owned())
    }

    fn array<T>(&mut self, mut item: impl FnMut(&mut Self) -> Option<T>) -> Option<Vec<T>> {
        let count = self.int32()?.max(0);
        (0..count).map(|_| item(self)).collect()
    }
}
