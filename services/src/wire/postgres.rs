//! PostgreSQL: the startup of protocol 3.0 and simple queries.

use std::time::Duration;

use super::stream::Stream;
use super::target::Target;
use crate::{Error, Service};

/// The rows of an answer, each value as text or NULL.
pub type Rows = Vec<Vec<Option<String>>>;

/// Runs SQL, one or more statements, and returns the rows of all. Speaks to servers that trust us
/// or take a password in clear.
///
/// # Errors
///
/// `NoAnswer` when there is none, when the server wants to know us in another way, or with the
/// server's own error.
pub fn query(url: &str, sql: &str, patience: Duration) -> Result<Rows, Error> {
    match start(url, patience)? {
        Startup::Ready(mut stream) => run(&mut stream, sql),
        Startup::Asked(stream, method) => {
            Err(stream.unexpected(&format!("it asks for authentication by method {method}")))
        }
    }
}

pub(super) fn ping(url: &str, patience: Duration) -> Result<(), Error> {
    let Startup::Ready(mut stream) = start(url, patience)? else { return Ok(()) };
    let rows = run(&mut stream, "SELECT 1")?;
    if rows == [[Some("1".to_owned())]] {
        return Ok(());
    }
    Err(stream.unexpected(&format!("`SELECT 1` gave {rows:?}")))
}

enum Startup {
    /// It awaits queries.
    Ready(Stream),
    /// It wants to know who we are in a way that we do not speak.
    Asked(Stream, u8),
}

fn start(url: &str, patience: Duration) -> Result<Startup, Error> {
    let target = Target::parse(Service::Postgres, url);
    let mut stream = Stream::connect(Service::Postgres, &target.address, patience)?;
    let user = target.user.as_deref().unwrap_or("postgres");
    let database = target.path.as_deref().unwrap_or(user);
    let mut body = 196_608_u32.to_be_bytes().to_vec();
    for word in ["user", user, "database", database, ""] {
        body.extend_from_slice(word.as_bytes());
        body.push(0);
    }
    send(&mut stream, None, &body)?;
    loop {
        let (kind, body) = message(&mut stream)?;
        match (kind, body.get(3)) {
            (b'R', Some(0)) => {}
            (b'R', Some(3)) if target.password.is_some() => {
                let password = target.password.as_deref().unwrap_or_default();
                send(&mut stream, Some(b'p'), &[password.as_bytes(), &[0]].concat())?;
            }
            (b'R', Some(&method)) => return Ok(Startup::Asked(stream, method)),
            (b'Z', _) => return Ok(Startup::Ready(stream)),
            (b'E', _) => return Err(refused(&stream, &body)),
            (b'S' | b'K' | b'N', _) => {}
            _ => return Err(stream.unexpected(&format!("message {:?}", char::from(kind)))),
        }
    }
}

fn run(stream: &mut Stream, sql: &str) -> Result<Rows, Error> {
    send(stream, Some(b'Q'), &[sql.as_bytes(), &[0]].concat())?;
    let mut rows = Rows::new();
    loop {
        let (kind, body) = message(stream)?;
        match kind {
            b'D' => rows.push(row(&body).ok_or_else(|| stream.unexpected("a broken row"))?),
            b'E' => return Err(refused(stream, &body)),
            b'Z' => {
                // Otherwise the server logs a lost connection.
                send(stream, Some(b'X'), &[])?;
                return Ok(rows);
            }
            _ => {}
        }
    }
}

/// The values of a row: their number, then each with its length, -1 for NULL.
fn row(body: &[u8]) -> Option<Vec<Option<String>>> {
    let (count, mut rest) = body.split_first_chunk()?;
    let mut values = Vec::new();
    for _ in 0..u16::from_be_bytes(*count) {
        let (length, after) = rest.split_first_chunk()?;
        let length = i32::from_be_bytes(*length);
        let Ok(length) = usize::try_from(length) else {
            values.push(None);
            rest = after;
            continue;
        };
        let (value, after) = after.split_at_checked(length)?;
        values.push(Some(String::from_utf8_lossy(value).into_owned()));
        rest = after;
    }
    Some(values)
}

/// The server's error: fields that begin with a letter and end with a zero.
fn refused(stream: &Stream, body: &[u8]) -> Error {
    let field = |letter: u8| {
        let field = body.split(|&byte| byte == 0).find(|field| field.first() == Some(&letter));
        String::from_utf8_lossy(field.and_then(|field| field.get(1..)).unwrap_or_default())
    };
    stream.unexpected(&format!("{} ({})", field(b'M'), field(b'C')))
}

fn message(stream: &mut Stream) -> Result<(u8, Vec<u8>), Error> {
    let kind = stream.take(1)?;
    let length = stream.length(4)?;
    Ok((kind[0], stream.take(length)?))
}

fn send(stream: &mut Stream, kind: Option<u8>, body: &[u8]) -> Result<(), Error> {
    let length = u32::try_from(body.len() + 4).map_err(|_| stream.unexpected("a long request"))?;
    let mut bytes: Vec<u8> = kind.into_iter().collect();
    bytes.extend_from_slice(&length.to_be_bytes());
    bytes.extend_from_slice(body);
    stream.send(&bytes)
}
