//! Just enough of each server's protocol to ask whether it answers.

use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpStream, ToSocketAddrs as _};
use std::time::Duration;

use crate::{Error, ErrorKind, Service};

/// Asks the server behind `url` and waits at most `patience` for each part of its answer.
///
/// NATS: its greeting (JetStream must be on) and a PONG. Kafka: the list of its API versions. PostgreSQL: a session
/// and `SELECT 1`, or its demand for a password. Redis: a PONG, or its demand for a password. MongoDB: a connection.
///
/// # Errors
///
/// `NoAnswer` when it cannot be reached or answers something else.
pub fn ping(service: Service, url: &str, patience: Duration) -> Result<(), Error> {
    let address = service.address(url);
    let asked = connect(&address, patience).and_then(|stream| match service {
        Service::Nats => nats(stream),
        Service::Kafka => kafka_brokers(stream).map(drop),
        Service::Postgres => postgres(stream, "SELECT 1").map(drop),
        Service::Redis => redis(stream, &["PING"]).and_then(|answer| match answer.as_str() {
            "+PONG" => Ok(()),
            text if text.starts_with("-NOAUTH") => Ok(()),
            other => Err(unexpected(other)),
        }),
        Service::Mongo => Ok(()),
    });
    asked.map_err(|error| {
        Error::new(ErrorKind::NoAnswer, service, format!("no answer from {address}: {error}"))
    })
}

fn connect(address: &str, patience: Duration) -> io::Result<TcpStream> {
    let target = address
        .to_socket_addrs()?
        .next()
        .ok_or_else(|| io::Error::other("the address is empty"))?;
    let stream = TcpStream::connect_timeout(&target, patience)?;
    stream.set_read_timeout(Some(patience))?;
    stream.set_write_timeout(Some(patience))?;
    Ok(stream)
}

fn unexpected(answer: &str) -> io::Error {
    io::Error::other(format!(
        "unexpected answer `{}`",
        answer.chars().take(200).collect::<String>()
    ))
}

fn nats(mut stream: TcpStream) -> io::Result<()> {
    let mut reader = BufReader::new(stream.try_clone()?);
    let mut info = String::new();
    reader.read_line(&mut info)?;
    if !info.starts_with("INFO ") {
        return Err(unexpected(&info));
    }
    if !info.contains("\"jetstream\":true") {
        return Err(io::Error::other("it runs without JetStream"));
    }
    stream.write_all(b"CONNECT {\"verbose\":false}\r\nPING\r\n")?;
    let mut line = String::new();
    reader.read_line(&mut line)?;
    if line.starts_with("PONG") { Ok(()) } else { Err(unexpected(&line)) }
}

/// The document that a NATS server's monitoring port has at `path`.
pub(crate) fn nats_monitor(address: &str, path: &str, patience: Duration) -> io::Result<String> {
    let mut stream = connect(address, patience)?;
    write!(stream, "GET {path} HTTP/1.0\r\n\r\n")?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    Ok(text)
}

/// Asks a Kafka broker for its API versions, then for the cluster's brokers; returns how many there are.
pub(crate) fn kafka_brokers(mut stream: TcpStream) -> io::Result<usize> {
    const API_VERSIONS: (i16, i16) = (18, 0);
    const METADATA: (i16, i16) = (3, 1);
    let versions = kafka_call(&mut stream, API_VERSIONS, &[])?;
    // Error code, then the list.
    if versions.get(..2) != Some(&[0, 0]) {
        return Err(unexpected(&format!("{versions:?}")));
    }
    // With no topic named the answer is about none; it begins with the brokers.
    let metadata = kafka_call(&mut stream, METADATA, &0_i32.to_be_bytes())?;
    let count = metadata.first_chunk::<4>().map(|bytes| i32::from_be_bytes(*bytes));
    count
        .and_then(|count| usize::try_from(count).ok())
        .ok_or_else(|| unexpected("a short metadata answer"))
}

/// How many brokers the cluster behind `address` has.
pub(crate) fn kafka_size(address: &str, patience: Duration) -> io::Result<usize> {
    connect(address, patience).and_then(kafka_brokers)
}

fn kafka_call(
    stream: &mut TcpStream,
    (api, version): (i16, i16),
    body: &[u8],
) -> io::Result<Vec<u8>> {
    const CLIENT: &[u8] = b"dlq";
    let mut request = Vec::new();
    request.extend(api.to_be_bytes());
    request.extend(version.to_be_bytes());
    request.extend(7_i32.to_be_bytes());
    request.extend((CLIENT.len() as i16).to_be_bytes());
    request.extend(CLIENT);
    request.extend(body);
    stream.write_all(&(request.len() as i32).to_be_bytes())?;
    stream.write_all(&request)?;
    let answer = read_sized(stream, 0)?;
    match answer.first_chunk::<4>() {
        Some(correlation) if *correlation == 7_i32.to_be_bytes() => Ok(answer[4..].to_vec()),
        _ => Err(unexpected("an answer to another question")),
    }
}

/// Reads a length of four bytes (which counts `own` bytes of itself) and what follows.
fn read_sized(stream: &mut TcpStream, own: usize) -> io::Result<Vec<u8>> {
    const LIMIT: usize = 16 * 1024 * 1024;
    let mut length = [0; 4];
    stream.read_exact(&mut length)?;
    let length = usize::try_from(u32::from_be_bytes(length)).unwrap_or(usize::MAX);
    let length = length.checked_sub(own).filter(|length| *length <= LIMIT);
    let mut bytes = vec![0; length.ok_or_else(|| unexpected("an impossible length"))?];
    stream.read_exact(&mut bytes)?;
    Ok(bytes)
}

/// Opens a PostgreSQL session as `postgres`, runs one simple query and returns its rows' text, joined. A demand for a
/// password is an answer, too (without rows).
fn postgres(mut stream: TcpStream, query: &str) -> io::Result<String> {
    let mut startup = Vec::from(196_608_i32.to_be_bytes());
    startup.extend(b"user\0postgres\0database\0postgres\0\0");
    stream.write_all(&((startup.len() + 4) as i32).to_be_bytes())?;
    stream.write_all(&startup)?;
    let mut asked = false;
    let mut rows = String::new();
    loop {
        let mut kind = [0];
        stream.read_exact(&mut kind)?;
        let body = read_sized(&mut stream, 4)?;
        match kind[0] {
            b'R' if body.get(..4) != Some(&[0, 0, 0, 0]) => return Ok(rows),
            b'E' => {
                let text = String::from_utf8_lossy(&body).replace('\0', " ");
                // 28xxx: it wants other credentials, which is an answer.
                return if text.contains("C28") { Ok(rows) } else { Err(unexpected(&text)) };
            }
            b'D' => rows.push_str(&String::from_utf8_lossy(body.get(6..).unwrap_or_default())),
            b'Z' if asked => return Ok(rows),
            b'Z' => {
                asked = true;
                stream.write_all(b"Q")?;
                stream.write_all(&((query.len() + 5) as i32).to_be_bytes())?;
                stream.write_all(query.as_bytes())?;
                stream.write_all(&[0])?;
            }
            _ => {}
        }
    }
}

/// Runs one query on a PostgreSQL server that trusts us, and returns its rows' text, joined.
///
/// # Errors
///
/// `NoAnswer` when it cannot be reached or refuses.
pub fn postgres_query(url: &str, query: &str, patience: Duration) -> Result<String, Error> {
    let address = Service::Postgres.address(url);
    connect(&address, patience).and_then(|stream| postgres(stream, query)).map_err(|error| {
        Error::new(ErrorKind::NoAnswer, Service::Postgres, format!("{address}: {error}"))
    })
}

/// Sends a Redis command and returns the first line of the answer, and for a text the text.
fn redis(mut stream: TcpStream, words: &[&str]) -> io::Result<String> {
    let mut request = format!("*{}\r\n", words.len());
    for word in words {
        request.push_str(&format!("${}\r\n{word}\r\n", word.len()));
    }
    stream.write_all(request.as_bytes())?;
    let mut reader = BufReader::new(stream);
    let mut line = String::new();
    reader.read_line(&mut line)?;
    if line.starts_with('$') && !line.starts_with("$-1") {
        line.clear();
        reader.read_line(&mut line)?;
    }
    Ok(line.trim_end().to_owned())
}

/// Sends a command to a Redis server and returns the first line of its answer.
///
/// # Errors
///
/// `NoAnswer` when it cannot be reached.
pub fn redis_command(url: &str, words: &[&str], patience: Duration) -> Result<String, Error> {
    let address = Service::Redis.address(url);
    connect(&address, patience).and_then(|stream| redis(stream, words)).map_err(|error| {
        Error::new(ErrorKind::NoAnswer, Service::Redis, format!("{address}: {error}"))
    })
}
